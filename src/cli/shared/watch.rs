//! Reads of `/.ctl/jobs` of a mount, and the wait for its next change.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::cli::shared::mounts::Mounted;
use crate::model::{Error, Result};

/// The list of jobs as it was read.
pub(in crate::cli) struct JobList {
    path: PathBuf,
    file: File,
    /// One line for each job.
    pub text: String,
}

impl JobList {
    /// Reads the list.
    pub fn read(mounted: &Mounted) -> Result<JobList> {
        let path = mounted.mountpoint.join(".ctl/jobs");
        let read = || {
            let mut file = File::open(&path)?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            Ok((file, String::from_utf8_lossy(&text).into_owned()))
        };
        let (file, text) = read().map_err(|error| Error::io(path.display(), error))?;
        Ok(JobList { path, file, text })
    }

    /// Waits until the list has changed since it was opened, at most for a time, or until a signal. The
    /// daemon wakes the caller.
    pub fn wait(&self, at_most: Option<Duration>) -> Result<()> {
        let at_most = at_most.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], at_most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::io(self.path.display(), errno.into())),
        }
    }
}
