//! `tierfs doctor`.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::cli::Outcome;
use crate::cli::shared::output::{print, print_json};
use crate::codec;
use crate::gpu;
use crate::model::Result;
use crate::store::disk::descriptors::Descriptors;

/// Report what this machine supports, with advice on what is missing.
///
/// Exits with 1 if tierfs cannot mount here.
///
/// Example: tierfs doctor
#[derive(clap::Args)]
pub(super) struct Args {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// As recommended.
    Good,
    /// Works, with lower performance or without a feature.
    Less,
    /// Mounting is impossible.
    Bad,
}

struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    advice: &'static str,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let mut findings = vec![
            device(),
            kernel(),
            privilege(),
            descriptors(),
            read_ahead(),
            passthrough(),
            request_size(),
            processor(),
        ];
        findings.extend(gpu::presence().into_iter().map(of_gpu));
        let word = |verdict| match verdict {
            Verdict::Good => "ok",
            Verdict::Less => "less",
            Verdict::Bad => "bad",
        };
        if self.json {
            let rows: Vec<_> = findings
                .iter()
                .map(|finding| {
                    serde_json::json!({
                        "what": finding.what,
                        "verdict": word(finding.verdict),
                        "found": finding.found,
                        "advice": finding.advice,
                    })
                })
                .collect();
            print_json(&rows.into())?;
        } else {
            for finding in &findings {
                let Finding { what, verdict, found, advice } = finding;
                print(&format!("{:<5} {what:<18} {found}\n", word(*verdict)))?;
                if *verdict != Verdict::Good {
                    print(&format!("{:24} {advice}\n", ""))?;
                }
            }
        }
        let can_mount = findings.iter().all(|finding| finding.verdict != Verdict::Bad);
        Ok(if can_mount { Outcome::Succeeded } else { Outcome::Failed })
    }
}

fn device() -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let (verdict, found) = match opened {
        Ok(_) => (Verdict::Good, "/dev/fuse can be opened".to_owned()),
        Err(error) => (Verdict::Bad, format!("/dev/fuse: {error}")),
    };
    let advice =
        "load the module (modprobe fuse); in a container, pass --device /dev/fuse --cap-add SYS_ADMIN";
    Finding { what: "FUSE", verdict, found, advice }
}

/// Major and minor version of the running kernel.
fn kernel_version() -> Option<(u32, u32)> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let verdict = match kernel_version() {
        Some(version) if version >= (5, 4) => Verdict::Good,
        Some(_) => Verdict::Less,
        None => Verdict::Less,
    };
    Finding {
        what: "kernel",
        verdict,
        found: format!("Linux {release}"),
        advice: "use Linux 5.4 or later; older kernels are untested",
    }
}

fn privilege() -> Finding {
    let advice = "install fuse3 for fusermount3, or mount as root";
    let root = rustix::process::geteuid().is_root();
    let helper = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join("fusermount3").exists())
    });
    let (verdict, found) = match (root, helper) {
        (true, _) => (Verdict::Good, "root".to_owned()),
        (false, true) => (Verdict::Good, "fusermount3 is installed".to_owned()),
        (false, false) => (Verdict::Bad, "not root, and fusermount3 is not installed".to_owned()),
    };
    Finding { what: "mounting", verdict, found, advice }
}

/// A daemon raises its soft limit to the hard limit, so the hard limit counts.
fn descriptors() -> Finding {
    let (verdict, found) = match getrlimit(Resource::Nofile).maximum {
        Some(limit) => {
            let share = Descriptors::share_of(limit);
            let is_most = share == Descriptors::share_of(u64::MAX);
            let found = format!("limit of open files is {limit}; a store uses up to {share} descriptors");
            (if is_most { Verdict::Good } else { Verdict::Less }, found)
        }
        None => (Verdict::Good, "no limit of open files".to_owned()),
    };
    let advice = "raise the limit (ulimit -Hn, LimitNOFILE= of a service); below it, the daemon closes and reopens files as needed";
    Finding { what: "descriptors", verdict, found, advice }
}

fn read_ahead() -> Finding {
    let root = rustix::process::geteuid().is_root();
    let writable = root && fs::metadata("/sys/class/bdi").is_ok();
    let (verdict, found) = if writable {
        (Verdict::Good, "can be raised to 4 MiB".to_owned())
    } else {
        (Verdict::Less, "stays at the kernel's 128 KiB".to_owned())
    };
    let advice = "mount as root, or write 4096 to /sys/class/bdi/MAJOR:MINOR/read_ahead_kb after mounting";
    Finding { what: "read-ahead", verdict, found, advice }
}

fn passthrough() -> Finding {
    let known = kernel_version().is_some_and(|version| version >= (6, 9));
    let (verdict, found) = if known {
        (Verdict::Good, "the kernel supports it".to_owned())
    } else {
        (Verdict::Less, "the kernel does not support it".to_owned())
    };
    Finding { what: "passthrough", verdict, found, advice: "use Linux 6.9 or later" }
}

fn request_size() -> Finding {
    let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok();
    let pages = limit.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(256);
    let verdict = if pages >= 256 { Verdict::Good } else { Verdict::Less };
    let found = format!("up to {} KiB per request", pages * 4);
    Finding { what: "requests", verdict, found, advice: "write 256 to /proc/sys/fs/fuse/max_pages_limit" }
}

fn processor() -> Finding {
    let set = codec::instruction_set();
    let verdict = if set == "scalar" { Verdict::Less } else { Verdict::Good };
    let advice = "a processor with AVX2, or AVX-512 VBMI, decodes several times as fast";
    let sha = Path::new("/proc/cpuinfo").exists()
        && fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("sha_ni"));
    let hash = if sha { ", SHA-256 in hardware" } else { "" };
    Finding { what: "decoding", verdict, found: format!("{set}{hash}"), advice }
}

fn of_gpu(presence: gpu::Presence) -> Finding {
    let gpu::Presence { what, found, advice } = presence;
    let (verdict, found) = match found {
        Ok(found) => (Verdict::Good, found),
        Err(missing) => (Verdict::Less, missing),
    };
    Finding { what, verdict, found, advice }
}
