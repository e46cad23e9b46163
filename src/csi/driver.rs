//! The driver: its parts, and the work that calls share with the recovery of daemons that have died.
//!
//! 1. A volume's record names its daemon and its places before the daemon starts and before a place is mounted; it goes after all
//!    of that is gone. So whatever is mounted has a record, and a process that takes the place of a killed one finds it.
//! 2. A record of which no place is mounted belongs to a call that was never answered, or to the time before a reboot: a
//!    new process forgets it.
//! 3. A daemon of no record is ended, while all records can be read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::csi::daemons::{Daemon, Daemons, State};
use crate::csi::failure::{Code, Failure, Outcome};
use crate::csi::records::{Placed, Records, VolumeRecord};
use crate::csi::settings::Settings;
use crate::csi::targets::{mounts, open_below};
use crate::csi::turns::{NoTurn, Turn, Turns, within};
use crate::model::{Result, plain};

/// How often daemons are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
/// The time for a daemon that is started again.
const RECOVERY: Duration = Duration::from_secs(60);
/// Daemons that are started again at the same time, so that one whose remote is silent does not keep the others waiting.
const RECOVERED_AT_ONCE: usize = 8;
/// A plugin that has not looked at its daemons for this time does not work. A recovery takes less than three minutes.
const STALLED: Duration = Duration::from_secs(300);

/// The driver of a node.
pub(in crate::csi) struct Driver {
    pub settings: Arc<Settings>,
    pub records: Records,
    pub daemons: Daemons,
    volumes: Turns,
    starts: Turns,
    /// Calls that a daemon may hold up, by kind and daemon.
    calls: Turns,
    health: Mutex<Health>,
}

/// The last look at the daemons.
struct Health {
    at: Instant,
    outcome: Outcome<()>,
}

impl Driver {
    /// Opens the state directory, and forgets volumes that no longer are.
    pub fn open(settings: Settings) -> Result<Driver> {
        let settings = Arc::new(settings);
        let records = Records::open(&settings.state)?;
        let daemons = Daemons::open(settings.clone())?;
        let driver = Driver {
            settings,
            records,
            daemons,
            volumes: Turns::default(),
            starts: Turns::default(),
            calls: Turns::default(),
            health: Mutex::new(Health { at: Instant::now(), outcome: Ok(()) }),
        };
        let volumes = driver.records.volumes();
        if let Err(failure) = volumes.are_all {
            log::error!("{failure}");
        }
        for record in volumes.readable {
            // One of which it is not known stays.
            let may_be_there = |placed: &Placed| placed.target.is_ours() != Ok(false);
            if record.places().any(may_be_there) {
                continue;
            }
            let removed = record.published.iter().try_for_each(|placed| placed.target.remove());
            if let Err(failure) = removed.and_then(|()| driver.records.forget_volume(&record.id)) {
                log::warn!("{failure}");
            }
        }
        driver.daemons.drop_old_caches();
        Ok(driver)
    }

    /// The turn of a volume: of two calls at a time, the second is refused.
    pub fn turn(&self, volume: &str) -> Outcome<Turn> {
        let busy = || Failure::new(Code::Aborted, format!("another call for the volume {volume:?} goes on"));
        self.volumes.take(volume).ok_or_else(busy)
    }

    /// The turn of a daemon and of all that is mounted of it.
    pub fn daemon_turn(&self, digest: &str, until: Instant) -> Outcome<Turn> {
        self.starts.wait(digest, until).map_err(|none| match none {
            NoTurn::Late => Failure::late("waiting for another volume of the same source"),
            NoTurn::Crowded => Failure::new(Code::Aborted, "too many calls wait for the same source"),
        })
    }

    /// Asks a daemon, which may hold the call up for ever: one call of a kind at a time. Returns `None` if it has not answered by
    /// `until`.
    pub fn asked<T: Send + 'static>(
        &self,
        digest: &str,
        kind: &str,
        until: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        within(self.calls.wait(&format!("{kind} {digest}"), until).ok()?, until, work)
    }

    /// Makes sure that a daemon serves. If it had died, its volumes are mounted again. The caller has its turn.
    pub fn ensure(&self, daemon: &Daemon, until: Instant) -> Outcome<()> {
        if let State::Serves(_) = self.daemons.state(&daemon.digest)? {
            return Ok(());
        }
        self.daemons.start(daemon, until)?;
        for record in self.records.volumes_of(&daemon.digest).readable {
            for placed in record.places() {
                if placed.target.mounted()?.is_none() {
                    continue;
                }
                if let Err(failure) = self.mount(&record, placed, until) {
                    log::warn!("{}: {failure}", placed.target.path().display());
                }
            }
        }
        Ok(())
    }

    /// Mounts a volume on one of its places, unless it is there. The caller has the turn of the daemon, which serves.
    pub fn mount(&self, record: &VolumeRecord, placed: &Placed, until: Instant) -> Outcome<()> {
        let State::Serves(connection) = self.daemons.state(&record.daemon)? else {
            return Err(Failure::new(Code::Unavailable, "the daemon has died"));
        };
        let target = &placed.target;
        target.make()?;
        target.clear(Some(connection))?;
        if target.mounted()?.is_some() {
            return target.restrict(&placed.access);
        }
        let (root, path) = (self.daemons.mountpoint(&record.daemon), record.collection.clone());
        let shown = if record.collection.is_empty() { "the source" } else { &record.collection };
        let opened = self.asked(&record.daemon, "open", until, move || open_below(&root, &path));
        let directory = opened.ok_or_else(|| Failure::late(format!("opening {shown}")))?;
        let directory = directory.map_err(|error| {
            let code = match error {
                Errno::NOENT => Code::NotFound,
                Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Code::InvalidArgument,
                Errno::ACCESS | Errno::PERM => Code::PermissionDenied,
                _ => Code::Unavailable,
            };
            let why = match error {
                Errno::NOENT => "there is no such collection".to_owned(),
                error => plain(&error.into()),
            };
            Failure::new(code, format!("{shown}: {why}"))
        })?;
        target.bind(&directory, &placed.access)
    }

    /// Ends a daemon if no volume has it. The caller has its turn.
    pub fn end_unused(&self, digest: &str) -> Outcome<()> {
        let volumes = self.records.volumes_of(digest);
        if !volumes.readable.is_empty() {
            return Ok(());
        }
        volumes.are_all?;
        self.daemons.end(digest)
    }

    /// Looks at all daemons now and then until `stop`: those that have died are started again, with all their mounts here, and
    /// those without volumes end.
    pub fn watch(&self, stop: &AtomicBool) {
        let (queue, waiting) = mpsc::sync_channel::<String>(0);
        let waiting = Mutex::new(waiting);
        let recover = || {
            let next = || waiting.lock().recv();
            while let Ok(digest) = next() {
                if let Err(failure) = self.recover(&digest) {
                    log::warn!("{failure}");
                }
            }
        };
        std::thread::scope(|scope| {
            (0..RECOVERED_AT_ONCE).for_each(|_| drop(scope.spawn(recover)));
            self.look(&queue, stop);
            drop(queue);
        });
    }

    /// Gives the daemons that are there to the threads that recover them, again and again until `stop`.
    fn look(&self, queue: &mpsc::SyncSender<String>, stop: &AtomicBool) {
        let goes_on = || !stop.load(Ordering::Relaxed);
        while goes_on() {
            let all = self.records.check_place().and_then(|()| self.daemons.all());
            self.note(all.as_ref().map(drop).map_err(Failure::clone));
            let all = all.inspect_err(|failure| log::warn!("{failure}")).unwrap_or_default();
            for digest in all {
                // It waits while all of the threads are busy.
                if !goes_on() || queue.send(digest).is_err() {
                    return;
                }
                self.health.lock().at = Instant::now();
            }
            let next = Instant::now() + LOOK_EVERY;
            while Instant::now() < next && goes_on() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn note(&self, outcome: Outcome<()>) {
        *self.health.lock() = Health { at: Instant::now(), outcome };
    }

    /// Whether the plugin works: it looks at its daemons, and its state directory is there. Fails with `FailedPrecondition`,
    /// for which a new plugin is the remedy. Waits for nothing.
    pub fn check(&self) -> Outcome<()> {
        let health = self.health.lock();
        let unhealthy = |text| Err(Failure::new(Code::FailedPrecondition, text));
        match &health.outcome {
            Err(failure) => unhealthy(failure.text.clone()),
            Ok(()) if health.at.elapsed() > STALLED => {
                unhealthy(format!("the daemons were not looked at for {} s", health.at.elapsed().as_secs()))
            }
            Ok(()) => Ok(()),
        }
    }

    fn recover(&self, digest: &str) -> Outcome<()> {
        // A call that has the turn looks at the daemon itself.
        let Some(_turn) = self.starts.take(digest) else { return Ok(()) };
        let records = self.records.volumes_of(digest).readable;
        if records.is_empty() {
            return self.end_unused(digest);
        }
        let until = Instant::now() + RECOVERY;
        if !matches!(self.daemons.state(digest)?, State::Serves(_)) {
            let Some(daemon) = self.daemons.known(digest)? else {
                return Err(Failure::new(Code::Internal, format!("the daemon {digest} has no description")));
            };
            log::warn!("a daemon has died; it is started again");
            return self.ensure(&daemon, until);
        }
        let State::Serves(connection) = self.daemons.state(digest)? else { return Ok(()) };
        let here: HashMap<PathBuf, u32> = mounts()?
            .into_iter()
            .filter(|there| there.is_ours())
            .map(|there| (there.mountpoint, there.device))
            .collect();
        for record in records {
            let is_of_dead =
                |placed: &&Placed| here.get(placed.target.path()).is_some_and(|device| *device != connection);
            for placed in record.places().filter(is_of_dead) {
                self.mount(&record, placed, until)?;
            }
        }
        Ok(())
    }
}
