//! `tierfs doctor`.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use serde_json::Value;

use crate::cli::Outcome;
use crate::cli::common::log::expected;
use crate::cli::common::mounts::{mount_of, mountpoints_of};
use crate::cli::common::output::{human, print, print_json};
#[cfg(feature = "remote")]
use crate::cli::common::remote::cache_directory;
use crate::cli::common::tree::Tree;
use crate::cli::init;
use crate::codec;
use crate::fs::{Options, UringSupport, mount};
use crate::gpu;
use crate::model::{Error, Result};
use crate::store::DESCRIPTORS_MAX;
use crate::store::disk::descriptors::Descriptors;
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store};

/// The device of FUSE.
const DEVICE: &str = "/dev/fuse";
/// CAP_SYS_ADMIN in the sets of capabilities of proc_pid_status(5).
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Report what this machine supports, with advice on what is missing.
///
/// Mounts a small store in the directory for temporary files to find out. Exits with 1 if tierfs cannot
/// mount here. With a store or a path in a mount, reports where it is mounted, the room on its disk and the problems that are
/// known; tierfs fsck and tierfs scrub look for more. With a remote, reports what can be done with it from here, how fast pieces arrive, and how
/// fast the disk of the cache takes them; exits with 1 if the remote cannot be read.
///
/// Example: tierfs doctor
///
/// Example: tierfs doctor s3://models/prefix
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, a path in a mount, or a remote such as s3://BUCKET/PREFIX
    place: Option<String>,
    /// The cache of the remote, whose disk is measured [default: below ~/.cache/tierfs]
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "DIR", requires = "place")]
    cache: Option<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    /// Works, with lower performance or without a feature.
    Warning,
    Bad,
}

struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    advice: String,
}

impl Finding {
    fn good(what: &'static str, found: String) -> Finding {
        Finding { what, verdict: Verdict::Good, found, advice: String::new() }
    }
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        if let Some(place) = &self.place {
            #[cfg(feature = "remote")]
            if is_remote(place) {
                let cache = match &self.cache {
                    Some(cache) => cache.clone(),
                    None => cache_directory()?,
                };
                return self.report(&of_remote(place, &cache));
            }
            return self.report(&of_store(Path::new(place))?);
        }
        let privileges = Privileges::of_this_process();
        let probe = probe();
        let mut findings = vec![
            device(),
            kernel(),
            mounting(&privileges, &probe),
            descriptors(),
            read_ahead(),
            passthrough(&privileges, &probe),
            request_size(),
            over_io_uring(&UringSupport::here()),
            processor(),
            messages(),
        ];
        findings.extend(allow_other(&privileges));
        findings.extend(gpu::presence().into_iter().map(of_gpu));
        self.report(&findings)
    }

    fn report(&self, findings: &[Finding]) -> Result<Outcome> {
        let word = |verdict| match verdict {
            Verdict::Good => "ok",
            Verdict::Warning => "warn",
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
            for finding in findings {
                let Finding { what, verdict, found, advice } = finding;
                print(&format!("{:<5} {what:<18} {found}\n", word(*verdict)))?;
                if *verdict != Verdict::Good && !advice.is_empty() {
                    print(&format!("{:24} {advice}\n", ""))?;
                }
            }
        }
        let can_mount = findings.iter().all(|finding| finding.verdict != Verdict::Bad);
        Ok(if can_mount { Outcome::Succeeded } else { Outcome::Failed })
    }
}

#[cfg(feature = "remote")]
use crate::remote::client::url::is_remote;

#[cfg(feature = "remote")]
fn of_remote(url: &str, cache: &Path) -> Vec<Finding> {
    use crate::remote::place::probe::{Grade, examine};

    let finding = |examined: crate::remote::place::probe::Examined| {
        let verdict = match examined.grade {
            Grade::Good => Verdict::Good,
            Grade::Limited => Verdict::Warning,
            Grade::Bad => Verdict::Bad,
        };
        Finding { what: examined.what, verdict, found: examined.found, advice: examined.advice.to_owned() }
    };
    examine(url, cache).into_iter().map(finding).collect()
}

/// The share of a disk in percent that should be free.
const FREE_PERCENT_LEAST: u64 = 5;

/// Examines a store, by its path or by one in its mount.
fn of_store(place: &Path) -> Result<Vec<Finding>> {
    let mounted = mount_of(place)?;
    let store = mounted.as_ref().map_or(place, |mounted| &mounted.store);
    if mounted.is_none() && !Store::is_there(&FileDisk::new(store))? {
        let text = format!(
            "{} is neither a store nor on a mount, nor the URL of a remote; tierfs doctor without arguments examines this machine",
            place.display()
        );
        return Err(Error::invalid(text));
    }
    let places = match &mounted {
        Some(mounted) => vec![mounted.mountpoint.clone()],
        None => mountpoints_of(store),
    };
    let shown: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    let is_where = if shown.is_empty() { "not mounted".to_owned() } else { shown.join(" and ") };
    let mut findings =
        vec![Finding::good("store", store.display().to_string()), Finding::good("mounted at", is_where)];
    // A remote has no disk.
    findings.extend(store.is_dir().then(|| disk(store)).transpose()?);
    let tree = Tree::open(places.first().map_or(store, |place| place), None)?;
    let stats: Value = serde_json::from_str(&tree.control(".ctl/stats.json")?)
        .map_err(|error| Error::invalid(format!(".ctl/stats.json: {error}")))?;
    let problems = stats.get("problems").and_then(Value::as_array).cloned().unwrap_or_default();
    findings.extend(problems.iter().map(|problem| Finding {
        what: "problem",
        verdict: Verdict::Bad,
        found: problem.as_str().map_or_else(|| problem.to_string(), str::to_owned),
        advice: String::new(),
    }));
    if problems.is_empty() {
        findings.push(Finding::good("problems", "none is known".to_owned()));
    }
    Ok(findings)
}

/// The room on the disk of a store.
fn disk(store: &Path) -> Result<Finding> {
    let space = rustix::fs::statvfs(store).map_err(|error| Error::io(store.display(), error.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    let (total, available) = (bytes(space.f_blocks), bytes(space.f_bavail));
    let is_full = available < total / 100 * FREE_PERCENT_LEAST;
    Ok(Finding {
        what: "disk",
        verdict: if is_full { Verdict::Warning } else { Verdict::Good },
        found: format!("{} of {} are free", human(available), human(total)),
        advice: "tensors give room in a lower tier (tierfs tier), cold ones are evicted by policy=auto with free_min".to_owned(),
    })
}

fn device() -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    let (verdict, found, advice) = match opened {
        Ok(_) => (Verdict::Good, "/dev/fuse can be opened".to_owned(), String::new()),
        Err(error) => {
            let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
            let has_fuse = known.lines().any(|line| line.split_whitespace().last() == Some("fuse"));
            (Verdict::Bad, format!("/dev/fuse: {error}"), advice_on_device(&error, has_fuse))
        }
    };
    Finding { what: "FUSE", verdict, found, advice }
}

/// The remedy for a device that cannot be opened. `has_fuse` says whether the kernel has FUSE loaded.
fn advice_on_device(error: &io::Error, has_fuse: bool) -> String {
    let text = match (Errno::from_io_error(error), has_fuse) {
        (Some(Errno::ACCESS), _) => {
            "its permissions keep you out; most systems let every user open it: as root, chmod 666 /dev/fuse"
        }
        (Some(Errno::PERM), _) => {
            "the rules of this container or service forbid the device: start the container with --device \
             /dev/fuse --cap-add SYS_ADMIN, or add DeviceAllow=/dev/fuse to the service"
        }
        (_, true) => {
            "the kernel has FUSE, but the device is missing: start the container with --device /dev/fuse; \
             elsewhere, as root, mknod -m 666 /dev/fuse c 10 229"
        }
        (_, false) => {
            "the module is not loaded: as root, modprobe fuse (on the host, if this is a container); if there \
             is no such module, the kernel was built without CONFIG_FUSE_FS"
        }
    };
    text.to_owned()
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
        Some(_) => Verdict::Warning,
        None => Verdict::Warning,
    };
    Finding {
        what: "kernel",
        verdict,
        found: format!("Linux {release}"),
        advice: "use Linux 5.4 or later; older kernels are untested".to_owned(),
    }
}

/// The privileges of this process that mounts need.
struct Privileges {
    /// CAP_SYS_ADMIN, in this user namespace.
    has_admin: bool,
    /// Whether this is the first user namespace, whose capabilities are those of the system.
    is_first_namespace: bool,
    /// Whether set-user-ID programs get no privileges.
    gains_none: bool,
    /// The helper of libfuse, and whether it runs as root.
    helper: Option<(PathBuf, bool)>,
}

impl Privileges {
    fn of_this_process() -> Privileges {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
        let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let helper =
            std::env::split_paths(&path).map(|path| path.join("fusermount3")).find(|path| path.exists());
        Privileges {
            has_admin: capabilities & CAP_SYS_ADMIN != 0,
            is_first_namespace: uid_map.split_whitespace().eq(["0", "0", "4294967295"]),
            gains_none: field("NoNewPrivs:") == Some("1"),
            helper: helper.map(|path| {
                let runs_as_root =
                    fs::metadata(&path).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o4000 != 0);
                (path, runs_as_root)
            }),
        }
    }

    /// How mounts are made.
    fn route(&self) -> String {
        match (&self.helper, self.has_admin, self.is_first_namespace) {
            (_, true, true) => "with CAP_SYS_ADMIN".to_owned(),
            (_, true, false) => "with CAP_SYS_ADMIN of a user namespace".to_owned(),
            (Some((path, _)), false, _) => format!("by {}, without CAP_SYS_ADMIN", path.display()),
            (None, false, _) => "without CAP_SYS_ADMIN and without fusermount3".to_owned(),
        }
    }

    /// The remedy for a mount that failed.
    fn advice(&self) -> String {
        let text = match &self.helper {
            _ if self.has_admin && self.is_first_namespace => {
                "see the error; in a container, its security profile may forbid mount(2)"
            }
            _ if self.has_admin => {
                "the host may forbid mounts in user namespaces: mount on the host, or start the container with \
                 --cap-add SYS_ADMIN --device /dev/fuse"
            }
            None => "install fuse3 for fusermount3, or mount as root",
            Some(_) if self.gains_none => {
                "this process may gain no privileges (NoNewPrivs), so fusermount3 cannot mount: mount as root, \
                 or start the container or service without no-new-privileges"
            }
            Some((path, false)) => {
                return format!(
                    "{0} does not run as root: as root, chmod u+s {0}, or reinstall fuse3",
                    path.display()
                );
            }
            Some(_) => "see the error of fusermount3; /etc/fuse.conf may limit mounts; or mount as root",
        };
        text.to_owned()
    }
}

fn mounting(privileges: &Privileges, probe: &Result<bool>) -> Finding {
    let route = privileges.route();
    match probe {
        Ok(_) => Finding::good("mounting", format!("a store was mounted and read, {route}")),
        Err(error) => Finding {
            what: "mounting",
            verdict: Verdict::Bad,
            found: format!("{route}: {error}"),
            advice: privileges.advice(),
        },
    }
}

/// Whether other users can be given access.
fn allow_other(privileges: &Privileges) -> Option<Finding> {
    if privileges.has_admin {
        return None;
    }
    let settings = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if settings.lines().any(|line| line.trim() == "user_allow_other") {
        return None;
    }
    Some(Finding {
        what: "other users",
        verdict: Verdict::Warning,
        found: "--allow-other is refused".to_owned(),
        advice: "as root, write the line user_allow_other into /etc/fuse.conf".to_owned(),
    })
}

/// A daemon raises its soft limit to the hard limit, so the hard limit counts.
fn descriptors() -> Finding {
    let (verdict, found) = match getrlimit(Resource::Nofile).maximum {
        Some(limit) => {
            let share = Descriptors::share_of(limit).min(DESCRIPTORS_MAX.into());
            let is_most = share == u64::from(DESCRIPTORS_MAX);
            let found = format!("limit of open files is {limit}; a store uses up to {share} descriptors");
            (if is_most { Verdict::Good } else { Verdict::Warning }, found)
        }
        None => (Verdict::Good, "no limit of open files".to_owned()),
    };
    let advice = "raise the limit (ulimit -Hn, LimitNOFILE= of a service); below it, the daemon closes and reopens files as needed";
    Finding { what: "descriptors", verdict, found, advice: advice.to_owned() }
}

fn read_ahead() -> Finding {
    let root = rustix::process::geteuid().is_root();
    let writable = root && fs::metadata("/sys/class/bdi").is_ok();
    let (verdict, found) = if writable {
        (Verdict::Good, "can be raised to 4 MiB".to_owned())
    } else {
        (Verdict::Warning, "stays at the kernel's 128 KiB".to_owned())
    };
    let advice = "mount as root, or write 4096 to /sys/class/bdi/MAJOR:MINOR/read_ahead_kb after mounting";
    Finding { what: "read-ahead", verdict, found, advice: advice.to_owned() }
}

/// Whether the kernel read a file of the mounted store itself, and if not, why.
fn passthrough(privileges: &Privileges, probe: &Result<bool>) -> Finding {
    const WHAT: &str = "passthrough";
    if matches!(probe, Ok(true)) {
        return Finding::good(WHAT, "used: the kernel reads contiguous exact files itself".to_owned());
    }
    let is_old = kernel_version().is_some_and(|version| version < (6, 9));
    let has_privilege = privileges.has_admin && privileges.is_first_namespace;
    let (found, advice) = match (probe, is_old, has_privilege) {
        (_, true, _) => ("not used: the kernel does not have it", "use Linux 6.9 or later"),
        (_, _, false) => (
            "not used: it needs CAP_SYS_ADMIN, so the daemon serves every read",
            "mount as root or by the systemd unit; without it everything works, with slower reads of exact files",
        ),
        (Err(_), ..) => ("unknown, because nothing could be mounted", "see FUSE and mounting"),
        (Ok(_), ..) => (
            "not used: the kernel refused it, so the daemon serves every read",
            "use a kernel with CONFIG_FUSE_PASSTHROUGH, and a store that is not on several stacked file systems",
        ),
    };
    Finding { what: WHAT, verdict: Verdict::Warning, found: found.to_owned(), advice: advice.to_owned() }
}

fn messages() -> Finding {
    let (found, is_system_log) = expected();
    let verdict = if is_system_log { Verdict::Good } else { Verdict::Warning };
    let advice =
        "name a file with --log, or run the mount in the foreground (-f), which logs to standard error";
    Finding { what: "log", verdict, found, advice: advice.to_owned() }
}

fn request_size() -> Finding {
    let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok();
    let pages = limit.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(256);
    let verdict = if pages >= 256 { Verdict::Good } else { Verdict::Warning };
    let found = format!("up to {} KiB per request", pages * 4);
    let advice = "write 256 to /proc/sys/fs/fuse/max_pages_limit".to_owned();
    Finding { what: "requests", verdict, found, advice }
}

/// Whether requests can arrive over io_uring, and if not, how that is enabled.
fn over_io_uring(support: &UringSupport) -> Finding {
    let (found, advice) = match support {
        UringSupport::Offered => ("used for requests, except those of remotes".to_owned(), String::new()),
        UringSupport::Disabled => {
            let advice = format!(
                "write Y to {} before mounting, or boot with fuse.enable_uring=1; many small requests are then faster",
                UringSupport::PARAMETER
            );
            ("not enabled in the kernel, so requests arrive by the device".to_owned(), advice)
        }
        UringSupport::Missing => (
            "the kernel does not have it for FUSE, so requests arrive by the device".to_owned(),
            "use Linux 6.14 or later with CONFIG_FUSE_IO_URING; many small requests are then faster".to_owned(),
        ),
        UringSupport::Forbidden(reason) => (
            format!("this process may not use it, so requests arrive by the device: {reason}"),
            "write 0 to /proc/sys/kernel/io_uring_disabled; a container needs a security profile that allows it"
                .to_owned(),
        ),
    };
    let verdict = if *support == UringSupport::Offered { Verdict::Good } else { Verdict::Warning };
    Finding { what: "io_uring", verdict, found, advice }
}

fn processor() -> Finding {
    let set = codec::instruction_set();
    let verdict = if set == "scalar" { Verdict::Warning } else { Verdict::Good };
    let advice = "a processor with AVX2, AVX-512 VBMI or NEON decodes several times as fast";
    let sha = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
        // The names on x86-64 and on aarch64.
        text.split_whitespace().any(|word| word == "sha_ni" || word == "sha2")
    });
    let hash = if sha { ", SHA-256 in hardware" } else { "" };
    Finding { what: "decoding", verdict, found: format!("{set}{hash}"), advice: advice.to_owned() }
}

fn of_gpu(presence: gpu::Presence) -> Finding {
    let gpu::Presence { what, found, advice } = presence;
    let (verdict, found) = match found {
        Ok(found) => (Verdict::Good, found),
        Err(missing) => (Verdict::Warning, missing),
    };
    Finding { what, verdict, found, advice: advice.to_owned() }
}

/// The longest time to wait for the end of the mount.
const PATIENCE: Duration = Duration::from_secs(5);
/// The size of the file that is read: large enough to be verified when it is opened, after which the
/// kernel may read it itself.
const FILE_BYTES: usize = 2 << 20;
/// How often it is read until the kernel reads it itself.
const READS: usize = 10;

/// Mounts a small store, writes a file and reads it back. Returns whether the kernel read it without the
/// daemon.
fn probe() -> Result<bool> {
    let directory = Directory::create()?;
    let (place, mountpoint) = (directory.0.join("store"), directory.0.join("mnt"));
    init::create(&place)?;
    fs::create_dir(&mountpoint).map_err(|error| Error::io(mountpoint.display(), error))?;
    let store = Store::open(Arc::new(FileDisk::new(&place)), Access::Write, "tierfs doctor")?;
    let mount = mount(Arc::new(store), &mountpoint, &Options::default())?;
    let found = is_read_by_kernel(&mountpoint).map_err(|error| Error::io(mountpoint.display(), error));
    mount.wait(|| true, PATIENCE, |_| Error::unsupported("nothing is taken over")).map(drop)?;
    found
}

fn is_read_by_kernel(mountpoint: &Path) -> io::Result<bool> {
    let path = mountpoint.join("doctor/probe/file");
    if let Some(collection) = path.parent() {
        fs::create_dir_all(collection)?;
    }
    let bytes = vec![7; FILE_BYTES];
    fs::write(&path, &bytes)?;
    for _ in 0..READS {
        if fs::read(&path)? != bytes {
            return Err(io::Error::other("a file reads otherwise than it was written"));
        }
        let stats = fs::read_to_string(mountpoint.join(".ctl/stats.json"))?;
        let stats: serde_json::Value = serde_json::from_str(&stats)?;
        if stats.get("passthrough_opens").and_then(serde_json::Value::as_u64).is_some_and(|opens| opens > 0) {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(false)
}

/// A directory for temporary files, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn create() -> Result<Directory> {
        let path = std::env::temp_dir().join(format!("tierfs-doctor-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| Error::io(format!("creating {}", path.display()), error))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            log::warn!("removing {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use rustix::io::Errno;

    use super::{Privileges, Verdict, advice_on_device, mounting, over_io_uring, passthrough};
    use crate::fs::UringSupport;
    use crate::model::{Error, Result};

    #[test]
    fn the_advice_on_the_device_fits_the_error() {
        for (errno, has_fuse, wanted) in [
            (Errno::ACCESS, true, "chmod 666"),
            (Errno::PERM, true, "--device /dev/fuse"),
            (Errno::NOENT, true, "the device is missing"),
            (Errno::NOENT, false, "modprobe fuse"),
            (Errno::NODEV, false, "modprobe fuse"),
        ] {
            let advice = advice_on_device(&io::Error::from(errno), has_fuse);
            assert!(advice.contains(wanted), "{errno}: {advice}");
            assert_eq!(advice.contains("modprobe"), wanted == "modprobe fuse", "{errno}: {advice}");
        }
    }

    #[test]
    fn the_advice_on_mounting_names_what_is_missing() {
        let helper = |runs_as_root| Some((PathBuf::from("/usr/bin/fusermount3"), runs_as_root));
        let failed: Result<bool> = Err(Error::invalid("no"));
        for (has_admin, is_first_namespace, gains_none, helper, wanted) in [
            (false, true, false, None, "install fuse3"),
            (false, true, false, helper(false), "chmod u+s /usr/bin/fusermount3"),
            (false, true, true, helper(true), "NoNewPrivs"),
            (true, false, false, None, "user namespaces"),
            (true, true, false, None, "security profile"),
        ] {
            let privileges = Privileges { has_admin, is_first_namespace, gains_none, helper };
            let found = mounting(&privileges, &failed);
            assert!(found.verdict == Verdict::Bad && found.advice.contains(wanted), "{}", found.advice);
        }
    }

    #[test]
    fn passthrough_is_good_only_where_the_kernel_has_read_a_file() {
        for has_admin in [true, false] {
            let privileges =
                Privileges { has_admin, is_first_namespace: true, gains_none: false, helper: None };
            assert!(passthrough(&privileges, &Ok(true)).verdict == Verdict::Good);
            for probe in [Ok(false), Err(Error::invalid("no"))] {
                assert!(passthrough(&privileges, &probe).verdict == Verdict::Warning);
            }
        }
    }

    #[test]
    fn the_advice_on_io_uring_says_what_enables_it() {
        assert!(over_io_uring(&UringSupport::Offered).verdict == Verdict::Good);
        for (support, wanted) in [
            (UringSupport::Disabled, "/sys/module/fuse/parameters/enable_uring"),
            (UringSupport::Missing, "Linux 6.14"),
            (UringSupport::Forbidden("no".to_owned()), "io_uring_disabled"),
        ] {
            let finding = over_io_uring(&support);
            assert!(finding.verdict == Verdict::Warning, "{}", finding.found);
            assert!(
                finding.found.contains("by the device") && finding.advice.contains(wanted),
                "{}",
                finding.advice
            );
        }
    }
}
