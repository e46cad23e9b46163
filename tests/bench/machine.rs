//! The machine on which the figures were measured.

use std::fs;
use std::process::Command;

/// The machine in a line.
pub fn describe() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.split_whitespace().nth(1).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{} (family {}, model {}), {cores} cores, {:.0} GiB of memory, Linux {}, instruction set {}",
        field("model name"),
        field("cpu family"),
        field("model\t"),
        kib / f64::from(1 << 20),
        kernel.trim(),
        tierfs::codec::instruction_set(),
    )
}

/// The day, and the commit that was measured.
pub fn when() -> String {
    let text = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let day = text("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default();
    let commit = text("git", &["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    format!("{day}, commit {commit}")
}

/// Load average of the last minute.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
