//! Resource usage of the daemon, from `/proc`.

use std::fs;

/// Ticks a second of the times in `/proc`, on every architecture (USER_HZ).
const TICKS: f64 = 100.0;

/// Resource usage of the daemon. A value is 0 if `/proc` does not have it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Usage {
    /// Bytes of its memory that are present.
    pub resident_bytes: u64,
    /// Seconds of processor time.
    pub cpu_seconds: f64,
    /// Number of open descriptors.
    pub descriptors: u64,
}

impl Usage {
    /// That of this process, now.
    pub fn now() -> Usage {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
        Usage {
            resident_bytes: resident_bytes(&read("status")),
            cpu_seconds: cpu_seconds(&read("stat")),
            // One of them lists the directory.
            descriptors: descriptors.saturating_sub(1),
        }
    }
}

fn resident_bytes(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|text| text.parse().ok());
    number.map_or(0, |kibibytes: u64| kibibytes.saturating_mul(1024))
}

/// The fields follow the name of the program, which may contain anything.
fn cpu_seconds(stat: &str) -> f64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / TICKS
}

#[cfg(test)]
mod tests {
    use super::{Usage, cpu_seconds, resident_bytes};

    #[test]
    fn texts_of_proc_are_parsed_also_with_a_hostile_name_and_when_they_end_early() {
        let stat = "7 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(cpu_seconds(stat), 2.0);
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    12 kB\n"), 12 << 10);
        assert_eq!((cpu_seconds(""), resident_bytes("VmRSS: many kB")), (0.0, 0));
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let usage = Usage::now();
        assert!(usage.resident_bytes > 1 << 20 && usage.descriptors > 0, "{usage:?}");
    }
}
