//! Reads of the list of jobs of a mount, and the wait for its next change.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::cli::common::mounts::Mounted;
use crate::model::{Error, Result};

/// The longest wait. A signal can arrive just before it begins, and does not end it then.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// The list of jobs as it was read.
pub(in crate::cli) struct JobList {
    file: File,
    pub text: Vec<u8>,
}

impl JobList {
    pub fn read(mounted: &Mounted) -> Result<JobList> {
        let read = || {
            let mut file = File::open(mounted.mountpoint.join(".ctl/jobs.json"))?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            Ok(JobList { file, text })
        };
        read().map_err(|error| Error::io(format!("asking the mount {}", mounted.mountpoint.display()), error))
    }
}

/// Waits until one of the lists has changed since it was read, at most for a time, or until a signal. The
/// daemons wake the caller.
pub(in crate::cli) fn wait_for_change(lists: &[JobList], at_most: Option<Duration>) -> Result<()> {
    let at_most = Timespec::try_from(at_most.unwrap_or(WAIT_MAX)).ok();
    let mut files: Vec<PollFd> = lists.iter().map(|list| PollFd::new(&list.file, PollFlags::IN)).collect();
    match poll(&mut files, at_most.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::io("waiting for jobs", errno.into())),
    }
}
