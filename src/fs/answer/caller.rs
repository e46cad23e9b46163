//! The maker of a request, and permissions that the kernel does not check for it.

use std::cell::LazyCell;
use std::fs;
use std::sync::Arc;

use crate::model::Owner;
use crate::store::Node;

/// The maker of a request.
#[derive(Clone, Copy)]
pub(in crate::fs) struct Caller {
    pub user: u32,
    pub group: u32,
    /// The thread id in the request; 0 is unknown.
    pub thread: u32,
}

impl Caller {
    /// The owner of what the request makes.
    pub fn owner(self) -> Owner {
        Owner { uid: self.user, gid: self.group }
    }

    /// Whether it may enter directories that are not on the path of the request.
    pub fn may_enter_all(self, directories: &[Arc<Node>]) -> bool {
        let others = LazyCell::new(|| {
            let status = fs::read_to_string(format!("/proc/{}/status", self.thread));
            status.map(|status| groups(&status)).unwrap_or_default()
        });
        let may_enter = |directory: &Arc<Node>| {
            let entry = &directory.entry;
            let bit = if entry.uid == self.user {
                0o100
            } else if entry.gid == self.group || others.contains(&entry.gid) {
                0o010
            } else {
                0o001
            };
            entry.mode & bit != 0
        };
        self.user == 0 || directories.iter().all(may_enter)
    }
}

/// The supplementary groups in the text of `/proc/PID/status`.
fn groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn the_status_of_a_process_lists_its_groups() {
        assert_eq!(groups("Gid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \nVmPeak: 1 kB\n"), [4, 24, 1000]);
        assert_eq!(groups("Name:\tx\n"), [] as [u32; 0]);
    }
}
