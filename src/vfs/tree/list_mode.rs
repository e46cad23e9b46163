//! The mount option and the setting `list`, which say whether listings show the tensors of containers.

/// The entries that a listing of a directory shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ListMode {
    /// The entries in the log.
    #[default]
    Files,
    /// The same, and the tensors of the containers in the directory.
    Both,
}

impl ListMode {
    /// The value of the option or setting, as [`from_name`](Self::from_name) takes it.
    pub fn name(self) -> &'static str {
        match self {
            ListMode::Files => "files",
            ListMode::Both => "both",
        }
    }

    /// Parses a value of the option or setting.
    pub fn from_name(name: &str) -> Option<ListMode> {
        [ListMode::Files, ListMode::Both].into_iter().find(|mode| mode.name() == name)
    }
}
