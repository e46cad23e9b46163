//! A refusal that stays the same until a file changes, so that it is kept.

use crate::model::{Error, ErrorKind};

#[derive(Clone, Debug)]
pub struct KeptRefusal {
    kind: ErrorKind,
    text: String,
}

impl KeptRefusal {
    /// `None` for an error that may go away by itself.
    pub fn of(error: &Error) -> Option<KeptRefusal> {
        let stays = matches!(error.kind(), ErrorKind::NotSupported | ErrorKind::Invalid);
        stays.then(|| KeptRefusal { kind: error.kind(), text: error.to_string() })
    }

    pub fn error(self) -> Error {
        Error::new(self.kind, self.text)
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        size_of::<KeptRefusal>() + self.text.len()
    }
}
