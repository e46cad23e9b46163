//! The memory that is left on the machine and in the daemon's control group, and the moment when it becomes scarce.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pressure is high when tasks have waited for memory for a tenth of the last second.
const WINDOW: Duration = Duration::from_secs(1);
const STALLED_MAX: Duration = Duration::from_millis(100);
const PRESSURE_PATH: &str = "/proc/pressure/memory";
/// Memory is scarce when less than one part in this many is available,
const SCARCE_PART: u64 = 50;
/// or less than this.
const SCARCE_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Memory {
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

/// How long tasks wait for memory, on the machine and in the daemon's control group.
///
/// It is read at each look: the kernel's own reports (triggers) come within a second only with
/// CAP_SYS_RESOURCE, and not on every kernel.
pub(super) struct Pressure(Vec<Stalls>);

/// The time that tasks have waited for memory, as a file of the kernel says (PSI).
struct Stalls {
    path: PathBuf,
    /// The looks of the last second, with the time that they found.
    looks: VecDeque<(Instant, Duration)>,
}

impl Pressure {
    /// Without PSI in the kernel, only the memory that is left says when it becomes scarce.
    pub fn new() -> Pressure {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = directories(&groups).into_iter().map(|directory| directory.join("memory.pressure"));
        let paths = group.filter(|path| path.exists()).take(1).chain([PathBuf::from(PRESSURE_PATH)]);
        Pressure(paths.map(|path| Stalls { path, looks: VecDeque::new() }).collect())
    }

    /// Looks, and returns whether the pressure is high.
    pub fn is_high(&mut self) -> bool {
        let now = Instant::now();
        self.0.iter_mut().fold(false, |is_high, stalls| {
            let stalled = fs::read_to_string(&stalls.path).ok().and_then(|text| stalled(&text));
            stalled.is_some_and(|stalled| stalls.note(now, stalled)) || is_high
        })
    }
}

impl Stalls {
    /// Notes how long tasks have waited in all, and returns whether the pressure is high.
    fn note(&mut self, now: Instant, stalled: Duration) -> bool {
        self.looks.retain(|(at, _)| now.saturating_duration_since(*at) <= WINDOW);
        let before = self.looks.front().map_or(stalled, |(_, stalled)| *stalled);
        self.looks.push_back((now, stalled));
        stalled.saturating_sub(before) >= STALLED_MAX
    }
}

/// The time during which some task waited, from the text of such a file.
fn stalled(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use super::{Memory, Stalls, directories, of_group, of_meminfo, stalled};

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

    #[test]
    fn pressure_is_high_when_tasks_waited_for_a_tenth_of_a_second() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1788965\nfull avg10=0.00 total=9\n";
        assert_eq!(stalled(text), Some(Duration::from_micros(1_788_965)));
        assert_eq!((stalled("full total=9"), stalled("some total=x")), (None, None));
        let mut stalls = Stalls { path: PathBuf::new(), looks: VecDeque::new() };
        let start = Instant::now();
        let mut note = |at: u64, stalled: u64| {
            stalls.note(start + Duration::from_millis(at), Duration::from_millis(stalled))
        };
        // Stalls before the first look, or over a longer time, are not pressure.
        assert!(!note(0, 5000) && !note(250, 5040) && !note(500, 5080));
        assert!(note(750, 5100));
        assert!(!note(1800, 5190) && !note(9000, 8000));
        assert!(note(9250, 8100));
    }
}
