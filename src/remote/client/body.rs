//! The bytes wanted of an object, and the progress of reading them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::{GetResult, GetResultPayload};

use crate::remote::client::failure::Failure;
use crate::remote::client::version::Pin;

/// The bytes wanted of an object.
#[derive(Clone, Debug)]
pub(in crate::remote) struct Wanted {
    /// This range; `None` for the whole object.
    pub range: Option<Range<u64>>,
    /// A longer object is an error.
    pub(super) len_max: u64,
    /// Bytes of another version are [`Failure::Replaced`].
    pin: Option<Pin>,
}

impl Wanted {
    /// A whole object of at most `len_max` bytes.
    pub fn whole(len_max: u64) -> Wanted {
        Wanted { range: None, len_max, pin: None }
    }

    /// A range of an object.
    pub fn range(range: Range<u64>) -> Wanted {
        Wanted { len_max: range.end, range: Some(range), pin: None }
    }

    /// The same of this version of the object only.
    pub fn of(self, pin: &Pin) -> Wanted {
        Wanted { pin: Some(pin.clone()), ..self }
    }
}

/// Bytes of a file that are read at a time.
const FILE_PART_BYTES: u64 = 256 << 10;

/// The bytes of an answer. The client of the storage would read a file of this machine in parts of 8 KiB.
pub(super) fn parts(answer: GetResult) -> BoxStream<'static, std::result::Result<Bytes, Failure>> {
    match answer {
        GetResult { payload: GetResultPayload::File(file, _), range, .. } => {
            let file = Arc::new(file);
            stream::try_unfold(range.start, move |at| part(file.clone(), at, range.end)).boxed()
        }
        answer => answer.into_stream().map_err(Failure::from).boxed(),
    }
}

/// The part of a file from `at` on, and its end; `None` behind `end`, or where the file ends before.
async fn part(file: Arc<File>, at: u64, end: u64) -> std::result::Result<Option<(Bytes, u64)>, Failure> {
    let len = end.saturating_sub(at).min(FILE_PART_BYTES) as usize;
    if len == 0 {
        return Ok(None);
    }
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; len];
        let count = file.read_at(&mut bytes, at)?;
        bytes.truncate(count);
        Ok(bytes)
    });
    let read = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let failed = |error| object_store::Error::Generic { store: "file", source: Box::new(error) };
    let bytes: Vec<u8> = read.map_err(failed)?;
    let end = at.saturating_add(bytes.len() as u64);
    Ok((!bytes.is_empty()).then(|| (Bytes::from(bytes), end)))
}

/// How far an object was read.
pub(super) struct Reading {
    pub at: u64,
    /// The end of what is wanted, once it is known.
    pub end: Option<u64>,
    len_max: u64,
    pub pin: Option<Pin>,
}

impl Reading {
    pub fn of(wanted: Wanted) -> Reading {
        let (at, end) = wanted.range.map_or((0, None), |range| (range.start, Some(range.end)));
        Reading { at, end, len_max: wanted.len_max, pin: wanted.pin }
    }

    pub fn is_done(&self) -> bool {
        self.end.is_some_and(|end| self.at >= end)
    }

    /// The object has `len` bytes.
    pub fn learn(&mut self, len: u64) -> std::result::Result<(), Failure> {
        match self.end {
            Some(end) if end <= len => {}
            None if len <= self.len_max => self.end = Some(len),
            _ => return Err(Failure::WrongLength(len)),
        }
        Ok(())
    }

    /// `len` further bytes have arrived.
    pub fn advance(&mut self, len: u64) -> std::result::Result<(), Failure> {
        self.at = self.at.saturating_add(len);
        match self.end {
            Some(end) if self.at <= end => Ok(()),
            _ => Err(Failure::Refused("the server sent more than was asked for".to_owned())),
        }
    }
}
