//! Daemons as units of the host's systemd.
//!
//! A restart of the plugin's container kills all processes of its group. A unit of the host is in a group of its own, so its mount
//! lives on. `systemd-run`, in the mount namespace of the host's first process, asks systemd for the unit. The
//! container must see the processes of the host, and the state directory by the host's path.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::csi::failure::{Outcome, internal};
use crate::csi::programs::{ended, own_program};
use crate::model::{Error, Result};

/// Where programs of the host are, after the places that this process knows.
const PROGRAMS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Characters of the digest of a state directory in the name of a program.
const STATE_CHARACTERS: usize = 8;

/// The host, as this container reaches it.
pub(in crate::csi) struct Host {
    namespace: PathBuf,
    /// This program, where the host sees it.
    program: PathBuf,
}

/// A unit for a daemon.
pub(in crate::csi) struct Unit {
    pub name: String,
    pub environment: PathBuf,
    pub output: PathBuf,
    pub log: PathBuf,
    pub arguments: Vec<OsString>,
}

pub(in crate::csi) fn unit_name(digest: &str) -> String {
    format!("tierfs-csi-{digest}.service")
}

/// A word that systemd takes as it is. It replaces `${NAME}` by variables of the unit, which has credentials.
fn literal(word: &OsStr) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    for byte in word.as_bytes() {
        bytes.push(*byte);
        if *byte == b'$' {
            bytes.push(*byte);
        }
    }
    OsString::from_vec(bytes)
}

fn property(name: &str, prefix: &str, path: &Path) -> OsString {
    let mut property = OsString::from(format!("--property={name}={prefix}"));
    property.push(path);
    property
}

/// Writes a program to a directory, unless it is there. Other versions of the plugin with this state go; daemons that run them
/// go on. The directory may be one for programs of all kinds.
fn place_program(bytes: &[u8], state: &Path, folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex();
    let of_state: String = digest(state.as_os_str().as_bytes()).chars().take(STATE_CHARACTERS).collect();
    let prefix = format!("tierfs-csi-{of_state}-");
    let program = folder.join(format!("{prefix}{}", digest(bytes)));
    if !fs::read(&program).is_ok_and(|found| found == bytes) {
        let new = folder.join(format!("{prefix}new"));
        let mut file = fs::File::create(&new)?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&new, &program)?;
    }
    for entry in fs::read_dir(folder)?.filter_map(io::Result::ok) {
        let is_ours = entry.file_name().as_bytes().starts_with(prefix.as_bytes());
        if is_ours && entry.path() != program {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(program)
}

impl Host {
    /// The host with this mount namespace. Puts a copy of this program into a directory that the host sees too, by default
    /// one in the state directory.
    pub fn of(namespace: PathBuf, state: &Path, folder: Option<&Path>) -> Result<Host> {
        let own = state.join("bin");
        let folder = folder.unwrap_or(&own);
        let placed = fs::read(own_program()).and_then(|bytes| place_program(&bytes, state, folder));
        let failed = |error| Error::io(format!("copying the program to {}", folder.display()), error);
        Ok(Host { namespace, program: placed.map_err(failed)? })
    }

    /// Makes a command run in the mount namespace of the host, where its program is looked for.
    fn enter(&self, command: &mut Command) -> Result<()> {
        let shown = self.namespace.display();
        let namespace = fs::File::open(&self.namespace);
        let namespace = namespace.map_err(|error| Error::io(format!("entering {shown}"), error))?;
        let enter = move || -> std::io::Result<()> {
            Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?)
        };
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(enter) };
        let own = std::env::var_os("PATH").filter(|own| !own.is_empty());
        let own = own.into_iter().flat_map(|own| std::env::split_paths(&own).collect::<Vec<_>>());
        let path = std::env::join_paths(own.chain(PROGRAMS.map(PathBuf::from)));
        command.env("PATH", path.unwrap_or_else(|_| PROGRAMS.join(":").into()));
        Ok(())
    }

    /// Starts a unit; the command ends when the daemon has said that its mount is ready, or has failed.
    pub fn start(&self, unit: &Unit, limit: Duration) -> Command {
        let mut command = Command::new("systemd-run");
        command.args(["--quiet", "--collect", "--unit"]).arg(&unit.name);
        command.arg("--property=Type=notify");
        command.arg(format!("--property=TimeoutStartSec={}", limit.as_secs().max(1)));
        command.arg(property("EnvironmentFile", "", &unit.environment));
        command.arg(property("StandardOutput", "append:", &unit.output));
        command.arg(property("StandardError", "append:", &unit.log));
        command.arg("--").arg(&self.program).args(["mount", "--foreground"]);
        command.args(unit.arguments.iter().map(|argument| literal(argument)));
        command
    }

    /// Ends a unit.
    pub fn stop(&self, name: &str) -> Command {
        let mut command = Command::new("systemctl");
        command.args(["--quiet", "stop", name]);
        command
    }

    /// Succeeds if a unit runs.
    pub fn is_active(&self, name: &str) -> Command {
        let mut command = Command::new("systemctl");
        command.args(["--quiet", "is-active", name]);
        command
    }

    /// Runs a program of the host. Whether it has succeeded.
    pub fn run(&self, mut command: Command, doing: &str, until: Instant) -> Outcome<bool> {
        self.enter(&mut command).map_err(internal)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| internal(Error::io("running a program of the host", error)))?;
        ended(child, doing, until)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    use super::{Host, Unit, place_program, unit_name};

    #[test]
    fn a_directory_of_programs_gets_one_of_each_plugin_and_keeps_all_others() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("made");
        let put = |bytes: &[u8], state| place_program(bytes, Path::new(state), &folder).unwrap();
        let (one, other) = (put(b"one", "/a"), put(b"one", "/b"));
        fs::write(folder.join("tierfs"), b"of somebody else").unwrap();
        assert_eq!(put(b"one", "/a"), one);
        // One that a power cut has left.
        fs::write(&one, b"").unwrap();
        assert_eq!(put(b"one", "/a"), one);
        assert_eq!(fs::read(&one).unwrap(), b"one");
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o755);
        let two = put(b"two", "/a");
        let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut expected = [two, other, folder.join("tierfs")];
        expected.sort();
        let mut found: Vec<_> = names.collect();
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_unit_is_started_by_systemd_run_with_the_credentials_in_a_file() {
        let host = Host { namespace: "/proc/1/ns/mnt".into(), program: "/s/bin/tierfs-x".into() };
        let unit = Unit {
            name: unit_name("d1"),
            environment: "/s/mounts/d1/environment".into(),
            output: "/s/mounts/d1/answer".into(),
            log: "/s/mounts/d1/log".into(),
            arguments: vec!["s3://b/${AWS_SECRET_ACCESS_KEY}$x".into(), "/s/mounts/d1/fs".into()],
        };
        let command = host.start(&unit, Duration::from_secs(50));
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(command.get_program(), "systemd-run");
        assert_eq!(
            words.join(" "),
            "--quiet --collect --unit tierfs-csi-d1.service --property=Type=notify --property=TimeoutStartSec=50 \
             --property=EnvironmentFile=/s/mounts/d1/environment --property=StandardOutput=append:/s/mounts/d1/answer \
             --property=StandardError=append:/s/mounts/d1/log -- /s/bin/tierfs-x mount --foreground s3://b/$${AWS_SECRET_ACCESS_KEY}$$x \
             /s/mounts/d1/fs"
        );
    }
}
