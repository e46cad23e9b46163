//! Daemons: one process `tierfs mount` for each source and its credentials, shared by all volumes of the node.
//!
//! | path in `mounts/DIGEST/` | content |
//! |---|---|
//! | `daemon.json` | the source and the credentials, to start the daemon again |
//! | `fs/` | the mount |
//! | `log` | messages of the daemon |
//! | `lock` | held by the daemon as its standard input, from its start to its end |
//! | `trust.pem` | the key to trust, if a volume has it in its attributes |
//! | `environment`, `answer` | for systemd: the credentials, and the error of a start |
//!
//! The file is there before the daemon starts, and goes after it has ended.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::csi::attributes::Source;
use crate::csi::failure::{Code, Failure, Outcome, internal};
use crate::csi::host::{Host, Unit, unit_name};
use crate::csi::messages::Texts;
use crate::csi::programs;
use crate::csi::records::{
    Records, is_digest, make_private, read_record, remove_drafts, remove_file, write_private,
};
use crate::csi::secrets::Secrets;
use crate::csi::settings::Settings;
use crate::csi::targets::{Target, mounts};
use crate::csi::turns::{Turns, within};
use crate::model::{Error, Result};

/// The line by which a daemon says that its mount is ready.
const READY: &str = "ready";
/// A volume that follows its remote looks for newer snapshots at this interval, in seconds.
const FOLLOW_SECONDS: &str = "10";
/// A daemon that has not answered for this time is silent, not dead.
const PROBE: Duration = Duration::from_secs(5);
/// `tierfs umount --force` takes at most half a minute.
const END: Duration = Duration::from_secs(40);
/// The cache of daemons without credentials of their own.
const SHARED_CACHE: &str = "shared";
/// A cache that nobody uses stays for this time.
const CACHE_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// A daemon without a mount ends sooner.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How often it is looked whether a daemon has ended.
const PAUSE: Duration = Duration::from_millis(10);
/// Files of a daemon's directory.
const FILES: [&str; 6] = ["lock", "trust.pem", "environment", "answer", "log", "daemon.json"];
/// An error is at the end of an answer this long.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A daemon that is wanted.
#[derive(Clone)]
pub(in crate::csi) struct Daemon {
    pub digest: String,
    source: Source,
    secrets: Secrets,
    /// The name of its cache. Credentials have a cache of their own: a mount whose remote is away shows what its cache has, so one
    /// with other credentials must not find it.
    cache: String,
}

/// The state of a daemon's mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::csi) enum State {
    /// Nothing is mounted.
    Absent,
    /// The mount is there; its daemon has ended.
    Dead,
    /// The daemon answers, or is slow. Its connection has this number.
    Serves(u32),
}

impl Daemon {
    pub fn of(records: &Records, source: Source, secrets: Secrets) -> Daemon {
        let follows = if source.follows { "follow" } else { "" };
        let option = |value: &'_ Option<String>| value.clone().unwrap_or_default();
        let mut texts =
            vec![source.place.clone(), option(&source.at), option(&source.tier), follows.to_owned()];
        texts.push(option(&source.trust));
        // A store has one daemon, since one locks it.
        texts.extend(
            secrets
                .values()
                .iter()
                .filter(|_| source.is_remote)
                .flat_map(|(name, value)| [name.clone(), value.clone()]),
        );
        let digest = records.digest(std::iter::once("daemon").chain(texts.iter().map(String::as_str)));
        let cache = {
            let values = secrets.values().iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
            match secrets.values().is_empty() {
                true => SHARED_CACHE.to_owned(),
                false => records.digest(std::iter::once("cache").chain(values)),
            }
        };
        Daemon { digest, source, secrets, cache }
    }

    /// The URL or the path of its source.
    pub fn place(&self) -> &str {
        &self.source.place
    }

    /// Whether it has the same credentials.
    pub fn is_as(&self, other: &Daemon) -> bool {
        self.secrets == other.secrets
    }

    fn to_json(&self) -> Value {
        let secrets = self.secrets.values().iter();
        let secrets: serde_json::Map<String, Value> =
            secrets.map(|(name, value)| (name.clone(), value.clone().into())).collect();
        json!({
            "place": self.source.place,
            "remote": self.source.is_remote,
            "at": self.source.at,
            "tier": self.source.tier,
            "follow": self.source.follows,
            "trust": self.source.trust,
            "secrets": secrets,
            "cache": self.cache,
        })
    }

    fn from_json(digest: &str, value: &Value) -> Option<Daemon> {
        let option = |name| Some(value.get(name)?.as_str().map(str::to_owned));
        let secrets = value.get("secrets")?.as_object()?.iter();
        let secrets = secrets.map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        let secrets = secrets.collect::<Option<Texts>>()?;
        let source = Source {
            place: value.get("place")?.as_str()?.to_owned(),
            is_remote: value.get("remote")?.as_bool()?,
            at: option("at")?,
            tier: option("tier")?,
            follows: value.get("follow")?.as_bool()?,
            trust: option("trust")?,
        };
        let cache = value.get("cache")?.as_str().filter(|name| *name == SHARED_CACHE || is_digest(name))?;
        let secrets = Secrets::of(&secrets).ok()?;
        Some(Daemon { digest: digest.to_owned(), source, secrets, cache: cache.to_owned() })
    }
}

/// The daemons of a node.
pub(in crate::csi) struct Daemons {
    settings: Arc<Settings>,
    directory: PathBuf,
    /// The host, if it runs the daemons.
    host: Option<Host>,
    /// The daemons that have been asked whether they live, and have not answered.
    asked: Turns,
}

impl Daemons {
    /// Opens their directory, below the state directory of this plugin.
    pub fn open(settings: Arc<Settings>) -> Result<Daemons> {
        let directory = settings.state.join("mounts");
        let host = settings.host.clone();
        let of = |namespace| Host::of(namespace, &settings.state, settings.program.as_deref());
        let host = host.map(of).transpose()?;
        Ok(Daemons { settings, directory, host, asked: Turns::default() })
    }

    fn folder(&self, digest: &str) -> PathBuf {
        self.directory.join(digest)
    }

    /// Where the source is mounted.
    pub fn mountpoint(&self, digest: &str) -> PathBuf {
        self.folder(digest).join("fs")
    }

    fn target(&self, digest: &str) -> Outcome<Target> {
        Target::of("the mount of a daemon", &self.mountpoint(digest).display().to_string())
    }

    /// The digests of all daemons that were started, or are about to be.
    pub fn all(&self) -> Outcome<Vec<String>> {
        let failed = |error| internal(Error::io(self.directory.display(), error));
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            found
                .extend(entry.map_err(failed)?.file_name().into_string().ok().filter(|name| is_digest(name)));
        }
        Ok(found)
    }

    /// A daemon that was started before.
    pub fn known(&self, digest: &str) -> Outcome<Option<Daemon>> {
        read_record(&self.folder(digest).join("daemon.json"), |value| Daemon::from_json(digest, value))
    }

    /// Whether a mount of one of them has this device.
    pub fn has_device(&self, device: u32) -> Outcome<bool> {
        let points: HashSet<PathBuf> = self.all()?.iter().map(|digest| self.mountpoint(digest)).collect();
        Ok(mounts()?.iter().any(|there| there.device == device && points.contains(&there.mountpoint)))
    }

    /// Whether a daemon has its mount and answers.
    pub fn state(&self, digest: &str) -> Outcome<State> {
        let Some(there) = self.target(digest)?.mounted()?.filter(|there| there.is_ours()) else {
            return Ok(State::Absent);
        };
        // One that hangs is asked once, not by ever more threads.
        let Some(turn) = self.asked.take(digest) else { return Ok(State::Serves(there.device)) };
        let path = self.mountpoint(digest);
        // The kernel asks the daemon each time.
        let answer = within(turn, Instant::now() + PROBE, move || rustix::fs::statfs(path).map(drop));
        Ok(match answer {
            Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => State::Dead,
            _ => State::Serves(there.device),
        })
    }

    /// Starts a daemon where none serves, and waits until its mount is ready. Leaves nothing if that fails.
    pub fn start(&self, daemon: &Daemon, until: Instant) -> Outcome<()> {
        let (folder, target) = (self.folder(&daemon.digest), self.target(&daemon.digest)?);
        make_private(&folder).map_err(internal)?;
        let kept = daemon.to_json().to_string();
        write_private(&folder.join("daemon.json"), kept.as_bytes()).map_err(internal)?;
        if let Some(key) = daemon.source.own_key() {
            write_private(&folder.join("trust.pem"), key.as_bytes()).map_err(internal)?;
        }
        if daemon.source.is_remote {
            // The directory above may be somebody else's, whose mode stays.
            make_private(&self.cache_of(daemon)).map_err(internal)?;
        }
        target.clear(None)?;
        target.make()?;
        let started = match &self.host {
            None => self.start_here(daemon, until),
            Some(host) => self.start_on_host(daemon, host, until),
        };
        let started = started.and_then(|()| match self.state(&daemon.digest)? {
            State::Serves(_) => Ok(()),
            State::Absent | State::Dead => {
                let text = "the mount of the daemon is not seen here: the state directory must be a hostPath with \
                            mountPropagation: Bidirectional, or the daemon has died";
                Err(Failure::new(Code::Unavailable, text))
            }
        });
        started.inspect_err(|_| target.clear(None).unwrap_or_else(|error| log::warn!("{error}")))
    }

    /// The options of the mount, its source and its mount point.
    fn arguments(&self, daemon: &Daemon) -> Vec<OsString> {
        let folder = self.folder(&daemon.digest);
        let option = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            let mut option = OsString::from(format!("--{name}="));
            option.push(value);
            option
        };
        let mut arguments: Vec<OsString> = vec!["--json".into(), "--allow-other".into()];
        let source = &daemon.source;
        if source.is_remote {
            arguments.push(option("cache", &self.cache_of(daemon)));
            arguments.extend(self.settings.cache_size.as_ref().map(|size| option("cache-size", size)));
            arguments.extend(source.at.as_ref().map(|at| option("at", at)));
            arguments.extend(source.tier.as_ref().map(|tier| option("tier", tier)));
            arguments.extend(source.follows.then(|| option("follow", &FOLLOW_SECONDS)));
            let key = source.own_key().map(|_| folder.join("trust.pem").into_os_string());
            let key = key.or_else(|| source.trust.clone().map(OsString::from));
            arguments.extend(key.map(|key| option("trust", &key)));
        }
        arguments.extend([OsString::from(&source.place), self.mountpoint(&daemon.digest).into()]);
        arguments
    }

    fn cache_of(&self, daemon: &Daemon) -> PathBuf {
        self.settings.cache.join(&daemon.cache)
    }

    /// Gives the directory of a cache the time of now.
    fn mark_used(&self, daemon: &Daemon) -> Outcome<()> {
        let path = self.cache_of(daemon);
        if !path.exists() {
            return Ok(());
        }
        let marked = fs::File::open(&path).and_then(|directory| directory.set_modified(SystemTime::now()));
        marked.map_err(|error| internal(Error::io(path.display(), error)))
    }

    /// Removes the caches of credentials that no daemon has used for a while.
    pub fn drop_old_caches(&self) {
        let caches = |all: Vec<String>| -> Outcome<HashSet<String>> {
            let known = all.iter().filter_map(|digest| self.known(digest).transpose());
            known.map(|known| Ok(known?.cache)).collect()
        };
        let used = match self.all().and_then(caches) {
            Ok(used) => used,
            Err(failure) => return log::warn!("{failure}"),
        };
        for entry in fs::read_dir(&self.settings.cache).into_iter().flatten().filter_map(Result::ok) {
            let is_unused =
                entry.file_name().to_str().is_some_and(|name| is_digest(name) && !used.contains(name));
            let age = entry.metadata().and_then(|found| found.modified()).map(|time| time.elapsed());
            let is_old = matches!(age, Ok(Ok(age)) if age > CACHE_KEPT);
            if is_unused
                && is_old
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                log::warn!("removing the cache {}: {error}", entry.path().display());
            }
        }
    }

    /// Waits until no daemon holds the lock, and takes it. One that a plugin was starting when it was killed ends by itself, but
    /// may mount before that.
    fn lock(&self, digest: &str, until: Instant) -> Outcome<fs::File> {
        let path = self.folder(digest).join("lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = opened.map_err(|error| internal(Error::io(path.display(), error)))?;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(Failure::late("waiting for the end of another daemon")),
                Err(error) => return Err(internal(Error::io(path.display(), error.into()))),
            }
        }
    }

    fn log(&self, digest: &str) -> PathBuf {
        self.folder(digest).join("log")
    }

    /// Starts a daemon as a process of this container.
    fn start_here(&self, daemon: &Daemon, until: Instant) -> Outcome<()> {
        let failed = |error| internal(Error::io("starting a daemon", error));
        let path = self.log(&daemon.digest);
        let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(failed)?;
        let mut command = programs::own_command(&daemon.secrets);
        command.args(["mount", "--announce", "--log"]).arg(&path).args(self.arguments(daemon));
        let soon = until.min(Instant::now() + LAST_WORDS / 2);
        let lock = self.lock(&daemon.digest, soon).or_else(|failure| {
            // Its mount was taken away here, and is used elsewhere.
            log::warn!("{}: {failure}", path.display());
            remove_file(&self.folder(&daemon.digest).join("lock")).map_err(internal)?;
            self.lock(&daemon.digest, until)
        })?;
        command.stdin(lock).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let (sender, answer) = mpsc::channel();
        let output = child.stdout.take();
        std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(output) = output {
                let mut output = BufReader::new(output.take(ANSWER_BYTES_MAX));
                while output.read_line(&mut text).is_ok_and(|bytes| bytes > 0) && text.trim_end() != READY {}
            }
            sender.send(text)
        });
        let answer = answer.recv_timeout(until.saturating_duration_since(Instant::now()));
        if answer.as_ref().is_ok_and(|text| text.trim_end() == READY) {
            // Nobody else waits for it.
            std::thread::spawn(move || child.wait());
            return Ok(());
        }
        child.kill().map_err(failed)?;
        child.wait().map_err(failed)?;
        let Ok(text) = answer else { return Err(Failure::late(self.describe(daemon))) };
        Err(programs::told(&text).unwrap_or_else(|| self.unexplained(daemon)))
    }

    /// Starts a daemon as a unit of the host's systemd, which a restart of this container leaves alone.
    fn start_on_host(&self, daemon: &Daemon, host: &Host, until: Instant) -> Outcome<()> {
        let folder = self.folder(&daemon.digest);
        let own = programs::own_environment();
        let environment = folder.join("environment");
        write_private(&environment, daemon.secrets.environment_file(own).as_bytes()).map_err(internal)?;
        let answer = folder.join("answer");
        remove_file(&answer).map_err(internal)?;
        let unit = Unit {
            name: unit_name(&daemon.digest),
            environment,
            output: answer.clone(),
            log: self.log(&daemon.digest),
            arguments: self.arguments(daemon),
        };
        let doing = self.describe(daemon);
        // One of an earlier mount may have lost it.
        self.stop_on_host(&daemon.digest, host)?;
        let start = host.start(&unit, until.saturating_duration_since(Instant::now()));
        match host.run(start, &doing, until) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let text = fs::read_to_string(&answer).unwrap_or_default();
                Err(programs::told(&text).unwrap_or_else(|| self.unexplained(daemon)))
            }
            Err(failure) => {
                self.stop_on_host(&daemon.digest, host)?;
                Err(failure)
            }
        }
    }

    /// Ends the unit of a daemon, if there is one.
    fn stop_on_host(&self, digest: &str, host: &Host) -> Outcome<()> {
        let (name, until) = (unit_name(digest), Instant::now() + END);
        // Without a unit this fails.
        let is_stopped = host.run(host.stop(&name), "ending a daemon", until)?;
        if !is_stopped && host.run(host.is_active(&name), "looking for a daemon", until)? {
            return Err(Failure::new(Code::Unavailable, format!("systemctl stop {name}: it failed")));
        }
        Ok(())
    }

    fn describe(&self, daemon: &Daemon) -> String {
        format!("mounting {}", daemon.source.place)
    }

    fn unexplained(&self, daemon: &Daemon) -> Failure {
        let log = self.log(&daemon.digest);
        let text =
            format!("{}: the daemon did not start; {} may say why", self.describe(daemon), log.display());
        Failure::new(Code::Unavailable, text)
    }

    /// Unmounts, waits until the daemon has ended, and removes its files.
    pub fn end(&self, digest: &str) -> Outcome<()> {
        let (folder, target) = (self.folder(digest), self.target(digest)?);
        if !folder.exists() {
            return Ok(());
        }
        if self.state(digest)? != State::Absent {
            let mut command = programs::own_command(&Secrets::default());
            command
                .args(["umount", "--force"])
                .arg(target.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let child =
                command.spawn().map_err(|error| internal(Error::io("running tierfs umount", error)))?;
            let is_done = programs::ended(child, "ending a daemon", Instant::now() + END)?;
            // The daemon may have ended meanwhile.
            if !is_done && self.state(digest)? != State::Absent {
                let text = format!("tierfs umount --force {}: it failed", target.path().display());
                return Err(Failure::new(Code::Unavailable, text));
            }
        }
        if let Some(host) = &self.host {
            self.stop_on_host(digest, host)?;
        }
        target.clear(None)?;
        // One that lives on is used in another mount namespace.
        if let Err(failure) = self.lock(digest, Instant::now() + LAST_WORDS) {
            log::warn!("{}: {failure}", folder.display());
        }
        match self.known(digest) {
            Ok(known) => known
                .filter(|daemon| daemon.cache != SHARED_CACHE)
                .map_or(Ok(()), |daemon| self.mark_used(&daemon))?,
            Err(failure) => log::warn!("{failure}"),
        }
        remove_drafts(&folder).map_err(internal)?;
        for name in FILES {
            remove_file(&folder.join(name)).map_err(internal)?;
        }
        // Not what is below: if something is mounted there, that is refused.
        remove_directory(&self.mountpoint(digest))?;
        remove_directory(&folder)
    }
}

fn remove_directory(path: &Path) -> Outcome<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(internal(Error::io(format!("removing {}", path.display()), error)))
        }
        _ => Ok(()),
    }
}
