//! How much memory is left, for the machine and for the daemon's control group, and when it becomes scarce.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

/// Pressure is a tenth of the time spent waiting for memory, in microseconds of a window, as the kernel's
/// document on PSI writes it. Without CAP_SYS_RESOURCE the window must be a multiple of two seconds.
const TRIGGERS: [&[u8]; 2] = [b"some 100000 1000000\0", b"some 200000 2000000\0"];
const PRESSURE_PATH: &str = "/proc/pressure/memory";
/// Memory is scarce when less than one part in this many is available,
const SCARCE_PART: u64 = 50;
/// or less than this.
const SCARCE_BYTES: u64 = 16 << 20;

/// Memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Memory {
    /// All of it.
    pub total: u64,
    /// The memory that can be allocated without taking any that is in use.
    pub available: u64,
}

impl Memory {
    /// The memory of the machine, or of the control group with the least available.
    pub fn now() -> Option<Memory> {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let machine = of_meminfo(&text)?;
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let least = |least: Memory, group: Memory| Memory {
            total: least.total.min(group.total),
            available: least.available.min(group.available),
        };
        Some(directories(&groups).iter().filter_map(|directory| of_group(directory)).fold(machine, least))
    }

    /// The memory that must stay available.
    pub fn reserve(&self) -> u64 {
        (self.total / SCARCE_PART).max(SCARCE_BYTES)
    }

    pub fn is_scarce(&self) -> bool {
        self.available < self.reserve()
    }
}

fn of_meminfo(text: &str) -> Option<Memory> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Memory { total: bytes("MemTotal:")?, available: bytes("MemAvailable:")? })
}

/// The directories that limit the memory of a process, from the text of its `/proc/self/cgroup`: its group
/// and those above, in either version of control groups.
fn directories(groups: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let roots: &[&str] = match controllers {
            "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            _ if controllers.split(',').any(|name| name == "memory") => &["/sys/fs/cgroup/memory"],
            _ => continue,
        };
        for root in roots {
            let below = Path::new(path.trim_start_matches('/'));
            found.extend(below.ancestors().map(|ancestor| Path::new(root).join(ancestor)));
        }
    }
    found
}

/// The memory of a control group with a limit.
fn of_group(directory: &Path) -> Option<Memory> {
    let number = |name: &str| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    let total = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let statistics = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let of_files = |name: &str| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.parse::<u64>().ok())
    };
    // In version 1, names with `total_` include the groups below.
    let cached = |name: &str| of_files(&format!("total_{name}")).or_else(|| of_files(name)).unwrap_or(0);
    let cached = cached("inactive_file").saturating_add(cached("active_file"));
    Some(Memory { total, available: total.saturating_sub(used).saturating_add(cached) })
}

/// Reports when tasks wait for memory.
pub(super) struct Pressure(Vec<OwnedFd>);

impl Pressure {
    /// Asks the kernel to report pressure on the machine and in the daemon's control group. Without that,
    /// only the memory that is left says when it becomes scarce.
    pub fn new() -> Pressure {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = directories(&groups).into_iter().map(|directory| directory.join("memory.pressure"));
        let paths = group.filter(|path| path.exists()).take(1).chain([PathBuf::from(PRESSURE_PATH)]);
        let begin = |path: PathBuf| {
            let begun = trigger(&path);
            begun.inspect_err(|error| log::info!("{}: {error}", path.display())).ok()
        };
        Pressure(paths.filter_map(begin).collect())
    }

    /// Waits for pressure. Returns whether there is any.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut watched: Vec<PollFd> =
            self.0.iter().map(|trigger| PollFd::new(trigger, PollFlags::PRI)).collect();
        let seconds = timeout.as_secs().try_into().unwrap_or(1);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(0) => false,
            Ok(_) => watched.iter().any(|watched| watched.revents().contains(PollFlags::PRI)),
            Err(error) => {
                log::debug!("waiting for pressure: {error}");
                // A signal.
                false
            }
        }
    }
}

fn trigger(path: &Path) -> io::Result<OwnedFd> {
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let [short, long] = TRIGGERS;
    rustix::io::write(&file, short).or_else(|_| rustix::io::write(&file, long))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Memory, directories, of_group, of_meminfo};

    #[test]
    fn the_memory_of_the_machine_is_read() {
        let text = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    500 kB\n";
        assert_eq!(of_meminfo(text), Some(Memory { total: 1_024_000, available: 512_000 }));
        assert_eq!(of_meminfo("MemTotal: x kB"), None);
        let now = Memory::now().unwrap();
        assert!(now.available <= now.total && now.total > 0);
    }

    #[test]
    fn the_groups_of_a_process_and_those_above_limit_it() {
        let found = directories("11:cpu,memory:/a/b\n1:name=systemd:/a\n");
        let wanted = ["a/b", "a", ""].map(|below| PathBuf::from("/sys/fs/cgroup/memory").join(below));
        assert_eq!(found, wanted);
        assert!(directories("0::/x").contains(&PathBuf::from("/sys/fs/cgroup/x")));
        assert!(directories("no group").is_empty());
    }

    #[test]
    fn pages_of_files_can_be_taken_from_a_group() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
        assert_eq!(of_group(group.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "600\n");
        assert_eq!(of_group(group.path()), None, "no limit");
        write("memory.max", "1000\n");
        write("memory.stat", "anon 5\ninactive_file 100\nactive_file 20\n");
        assert_eq!(of_group(group.path()), Some(Memory { total: 1000, available: 520 }));
    }
}
