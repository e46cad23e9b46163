//! Usage and quotas of tenants and collections.
//!
//! A meter counts the use that the log records, updated with each batch, and reservations: use by
//! operations in progress that the log does not record yet. A reservation is made before anything
//! changes and released once the log records the use. In between the use is counted twice, so a request
//! that would just fit may be refused. A request that does not fit is never admitted.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use crate::model::{Cause, Error, Refusal, Result};
use crate::store::version_use::{CountVersions, VersionUse};

/// Amounts of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Use {
    /// Logical bytes of files. A tensor in a container counts with the container.
    pub logical: u64,
    /// Bytes of payloads, and of the copies of pinned files.
    pub stored: u64,
    /// Number of files, directories, symbolic links and tensors of containers, and of each further name
    /// of one: everything that takes memory and log space.
    pub files: u64,
}

impl Use {
    /// One file, directory or symbolic link.
    pub const FILE: Use = Use { logical: 0, stored: 0, files: 1 };

    /// Bytes stored exactly.
    pub fn exact(bytes: u64) -> Use {
        Use { logical: bytes, stored: bytes, files: 0 }
    }

    /// The sum of two uses.
    pub fn and(self, other: Use) -> Use {
        Use {
            logical: self.logical.saturating_add(other.logical),
            stored: self.stored.saturating_add(other.stored),
            files: self.files.saturating_add(other.files),
        }
    }

    /// The amounts by which this exceeds `other`.
    pub fn without(self, other: Use) -> Use {
        Use {
            logical: self.logical.saturating_sub(other.logical),
            stored: self.stored.saturating_sub(other.stored),
            files: self.files.saturating_sub(other.files),
        }
    }
}

/// The use that a log records.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counted {
    pub used: Use,
    /// All stored bytes that were ever added.
    pub grown: u64,
}

/// Upper limits of use; `None` for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Of [`Use::logical`].
    pub bytes: Option<u64>,
    /// Of [`Use::stored`].
    pub stored: Option<u64>,
    /// Of [`Use::files`].
    pub files: Option<u64>,
}

impl Limits {
    /// Applies a text like `bytes=10G stored=none files=1000`; limits that it does not name stay. 0 and
    /// `none` mean no limit; K, M, G, T and P are powers of 1024. `Invalid` if the text names no limit,
    /// or one twice.
    pub fn changed(self, text: &str) -> Result<Limits> {
        let mut limits = self;
        let mut seen = Vec::new();
        for word in text.split_whitespace() {
            let wrong = || {
                Error::invalid(format!("unknown limit {word:?}; write bytes=N, stored=N or files=N, or none"))
            };
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            if seen.contains(&name) {
                return Err(Error::invalid(format!("{name} is given twice")));
            }
            seen.push(name);
            if !["bytes", "stored", "files"].contains(&name) {
                return Err(wrong());
            }
            let limit = number(value).ok_or_else(|| {
                Error::invalid(format!(
                    "{value:?} is not a limit of {name}: write a whole number, perhaps with K, M, G, T or P, or none"
                ))
            })?;
            match name {
                "bytes" => limits.bytes = limit,
                "stored" => limits.stored = limit,
                _ => limits.files = limit,
            }
        }
        if seen.is_empty() {
            return Err(Error::invalid("write limits, as in bytes=10G stored=1G files=1000"));
        }
        Ok(limits)
    }

    /// The text form that [`changed`](Self::changed) reads.
    pub fn to_text(self) -> String {
        let text = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        format!("bytes={} stored={} files={}", text(self.bytes), text(self.stored), text(self.files))
    }

    /// Whether any of these limits is higher than in `before`.
    pub fn raise(self, before: Limits) -> bool {
        let raises = |now: Option<u64>, before: Option<u64>| match (now, before) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(now), Some(before)) => now > before,
        };
        raises(self.bytes, before.bytes)
            || raises(self.stored, before.stored)
            || raises(self.files, before.files)
    }

    /// Whether there are no limits.
    pub fn are_none(self) -> bool {
        self == Limits::default()
    }
}

/// Parses a limit. The outer `None` means that the text is not a number.
fn number(text: &str) -> Option<Option<u64>> {
    if text == "none" {
        return Some(None);
    }
    let (digits, unit) = match text.char_indices().last()? {
        (at, letter) if letter.is_ascii_alphabetic() => {
            let power = ["K", "M", "G", "T", "P"].iter().position(|unit| unit.starts_with(letter))? as u32;
            (text.get(..at)?, 1024_u64.checked_pow(power + 1)?)
        }
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    Some((number > 0).then_some(number))
}

/// The amounts that the tightest limits leave, each with the amount that is used of the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Of bytes. `None` where they are not limited.
    pub bytes: Option<(u64, u64)>,
    /// Of files.
    pub files: Option<(u64, u64)>,
}

/// Counts the use of a collection or a tenant.
pub struct Meter {
    path: String,
    /// For a collection, the meter of its tenant.
    above: Option<Arc<Meter>>,
    /// Held briefly; the tenant's is locked while this one is held.
    counts: Mutex<Counts>,
    /// For a collection, its versions.
    versions: OnceLock<VersionUse>,
    /// For a tenant, the collections whose versions are to be counted.
    uncounted: Mutex<Uncounted>,
    /// Held while these are counted, across I/O, so that nobody takes the numbers before.
    counting: Mutex<()>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Meter")
            .field("path", &self.path)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// The collections of a tenant whose versions are to be counted.
#[derive(Default)]
struct Uncounted {
    meters: Vec<Weak<Meter>>,
    /// How many others a thread counts at the moment.
    in_progress: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    used: Use,
    reserved: Use,
    /// Stored bytes of versions, which no log counts.
    aside: u64,
    limits: Limits,
}

impl Meter {
    /// A meter for the collection or tenant with this path in the mount.
    pub fn new(path: &str, above: Option<Arc<Meter>>, limits: Limits) -> Arc<Meter> {
        let counts = Counts { limits, ..Counts::default() };
        let (versions, uncounted, counting) = (OnceLock::new(), Mutex::default(), Mutex::default());
        let counts = Mutex::new(counts);
        Arc::new(Meter { path: path.to_owned(), above, counts, versions, uncounted, counting })
    }

    /// The use recorded in the log, and that of versions.
    pub fn used(&self) -> Use {
        self.count_versions();
        self.counts.lock().there()
    }

    /// Counts the versions of a collection so, when somebody asks. Only the first call has an effect.
    pub(in crate::store) fn has_versions_counted_by(self: &Arc<Self>, count: Box<CountVersions>) {
        let versions = self.versions.get_or_init(|| VersionUse::of(count));
        self.list_for_count(versions);
    }

    /// Notes that versions of the collection were made, stored otherwise, or removed.
    pub(in crate::store) fn versions_changed(self: &Arc<Self>) {
        if let Some(versions) = self.versions.get() {
            versions.versions_changed();
            self.list_for_count(versions);
        }
    }

    /// Notes that the collection gave up a data file, which a version may have.
    pub(in crate::store) fn data_file_gone(self: &Arc<Self>) {
        if let Some(versions) = self.versions.get() {
            versions.data_file_gone();
            if !versions.is_counted() {
                self.list_for_count(versions);
            }
        }
    }

    /// Notes that the collection was removed or has another name.
    pub(in crate::store) fn versions_gone(&self) {
        if let Some(versions) = self.versions.get() {
            versions.end();
        }
        self.set_aside(0);
    }

    /// Has the meter above count the versions of this one.
    fn list_for_count(self: &Arc<Self>, versions: &VersionUse) {
        let Some(above) = self.above.as_ref().filter(|_| !versions.list()) else { return };
        let meters = &mut above.uncounted.lock().meters;
        if meters.len() == meters.capacity() {
            meters.retain(|known| known.strong_count() > 0);
        }
        meters.push(Arc::downgrade(self));
    }

    /// Counts versions whose bytes may have changed.
    fn count_versions(&self) {
        if let Some(versions) = self.versions.get().filter(|versions| !versions.is_counted()) {
            versions.count(|bytes| self.set_aside(bytes));
        }
        let _alone = self.counting.lock();
        let meters = {
            let mut uncounted = self.uncounted.lock();
            uncounted.in_progress = uncounted.meters.len();
            std::mem::take(&mut uncounted.meters)
        };
        if meters.is_empty() {
            return;
        }
        for below in meters.iter().filter_map(Weak::upgrade) {
            if let Some(versions) = below.versions.get() {
                versions.unlist();
            }
            below.count_versions();
        }
        self.uncounted.lock().in_progress = 0;
    }

    /// Whether all versions are counted, here and above, whose bytes a limit depends on.
    pub fn is_counted_for_limits(&self) -> bool {
        let are_counted = || {
            let uncounted = self.uncounted.lock();
            let are_below_counted = uncounted.meters.is_empty() && uncounted.in_progress == 0;
            are_below_counted && self.versions.get().is_none_or(VersionUse::is_counted)
        };
        (self.counts.lock().limits.stored.is_none() || are_counted())
            && self.above.as_ref().is_none_or(|above| above.is_counted_for_limits())
    }

    /// Counts versions, here and above, whose bytes a limit depends on. That takes a look at each of their files, so a thread
    /// does it before it takes a lock that others wait for, and looks with the lock whether they
    /// [are counted](Self::is_counted_for_limits) still: a reservation that grows goes by the last count.
    pub fn count_for_limits(&self) {
        if self.counts.lock().limits.stored.is_some() {
            self.count_versions();
        }
        if let Some(above) = &self.above {
            above.count_for_limits();
        }
    }

    /// [`count_for_limits`](Self::count_for_limits), if so much more has stored bytes.
    fn counted_for(&self, more: Use) {
        if more.stored > 0 {
            self.count_for_limits();
        }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.counts.lock().limits
    }

    /// The room that the limits here and above leave.
    pub fn room(&self) -> Room {
        let mut room = Room::default();
        self.count_for_limits();
        let used = self.counts.lock().there();
        let mut meter = Some(self);
        while let Some(Meter { counts, above, .. }) = meter {
            let counts = *counts.lock();
            let (there, limits) = (counts.there().and(counts.reserved), counts.limits);
            let left = |limit: Option<u64>, there: u64| limit.map(|limit| limit.saturating_sub(there));
            let logical = left(limits.bytes, there.logical).map(|left| (left, used.logical));
            let stored = left(limits.stored, there.stored).map(|left| (left, used.stored));
            room.bytes = room.bytes.into_iter().chain(logical).chain(stored).min();
            let files = left(limits.files, there.files).map(|left| (left, used.files));
            room.files = room.files.into_iter().chain(files).min();
            meter = above.as_deref();
        }
        room
    }

    /// Sets the limits. The use may already exceed them.
    pub fn set_limits(&self, limits: Limits) {
        self.counts.lock().limits = limits;
    }

    /// `Quota` if `more` exceeds a limit here or above.
    pub fn check(&self, more: Use) -> Result<()> {
        self.counted_for(more);
        self.check_counted(more)
    }

    fn check_counted(&self, more: Use) -> Result<()> {
        self.counts.lock().check(&self.path, more)?;
        self.above.as_ref().map_or(Ok(()), |above| above.check_counted(more))
    }

    /// Reserves `more`. `Quota` if that exceeds a limit here or above.
    pub fn reserve(self: &Arc<Self>, more: Use) -> Result<Reserved> {
        self.counted_for(more);
        let mut reserved = Reserved { meter: self.clone(), held: Use::default() };
        reserved.set(more)?;
        Ok(reserved)
    }

    fn take(&self, more: Use) -> Result<()> {
        let mut counts = self.counts.lock();
        counts.check(&self.path, more)?;
        if let Some(above) = &self.above {
            above.take(more)?;
        }
        counts.reserved = counts.reserved.and(more);
        Ok(())
    }

    fn give_back(&self, less: Use) {
        let mut counts = self.counts.lock();
        counts.reserved = counts.reserved.without(less);
        if let Some(above) = &self.above {
            above.give_back(less);
        }
    }

    /// Sets the stored bytes of the versions of a collection.
    fn set_aside(&self, now: u64) {
        let mut counts = self.counts.lock();
        let before = std::mem::replace(&mut counts.aside, now);
        if let Some(above) = &self.above {
            let mut above = above.counts.lock();
            above.aside = above.aside.saturating_add(now).saturating_sub(before);
        }
    }

    /// Sets the use to what the log records now.
    pub(in crate::store) fn set_used(&self, now: Use) {
        let mut counts = self.counts.lock();
        let before = std::mem::replace(&mut counts.used, now);
        if let Some(above) = &self.above {
            let mut above = above.counts.lock();
            above.used = above.used.and(now.without(before)).without(before.without(now));
        }
    }
}

impl Counts {
    /// All use that lasts.
    fn there(&self) -> Use {
        self.used.and(Use { stored: self.aside, ..Use::default() })
    }

    fn check(&self, path: &str, more: Use) -> Result<()> {
        let there = self.there().and(self.reserved);
        let Limits { bytes, stored, files } = self.limits;
        for (more, there, limit, what) in [
            (more.logical, there.logical, bytes, "bytes"),
            (more.stored, there.stored, stored, "stored bytes"),
            (more.files, there.files, files, "files"),
        ] {
            if let Some(limit) = limit.filter(|limit| more > 0 && there.saturating_add(more) > *limit) {
                let text = format!(
                    "the quota of {path} is {limit} {what}; {there} are used, and this needs {more} more"
                );
                let cause = Cause::Quota(path.to_owned(), text);
                return Err(Error::refused(vec![Refusal { path: String::new(), cause }]));
            }
        }
        Ok(())
    }
}

/// A reservation, released when dropped.
#[derive(Debug)]
pub struct Reserved {
    meter: Arc<Meter>,
    held: Use,
}

impl Reserved {
    /// Counts versions, which the next change of the amount goes by.
    pub fn count_versions(&self) {
        self.meter.count_for_limits();
    }

    /// Changes the reserved amount, without I/O: versions count as they did when they were last counted. `Quota` if that
    /// exceeds a limit; the reservation then stays as it was.
    pub fn set(&mut self, wanted: Use) -> Result<()> {
        self.meter.take(wanted.without(self.held))?;
        self.meter.give_back(self.held.without(wanted));
        self.held = wanted;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.meter.give_back(self.held);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use parking_lot::Mutex;

    use super::{Limits, Meter, Room, Use};
    use crate::model::ErrorKind;

    #[test]
    fn a_reservation_grows_while_another_thread_counts_versions() {
        let meter = Meter::new("t/a", None, Limits { stored: Some(100), ..Limits::default() });
        let ((begun, begins), (end, ends)) = (channel(), channel());
        let ends = Mutex::new(ends);
        meter.has_versions_counted_by(Box::new(move || {
            begun.send(()).unwrap();
            ends.lock().recv().unwrap();
            Ok(Some(60))
        }));
        let mut held = meter.reserve(Use::default()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| meter.count_for_limits());
            begins.recv().unwrap();
            assert!(!meter.is_counted_for_limits());
            held.set(Use::exact(30)).unwrap();
            end.send(()).unwrap();
        });
        assert!(meter.is_counted_for_limits());
        assert_eq!(held.set(Use::exact(41)).unwrap_err().kind(), ErrorKind::Quota);
        held.set(Use::exact(40)).unwrap();
    }

    #[test]
    fn versions_that_change_are_uncounted_where_a_limit_depends_on_them() {
        let tenant = Meter::new("t", None, Limits { stored: Some(100), ..Limits::default() });
        let one = Meter::new("t/a", Some(tenant.clone()), Limits::default());
        let other = Meter::new("t/b", Some(tenant.clone()), Limits::default());
        assert!(one.is_counted_for_limits());
        let ((begun, begins), (end, ends)) = (channel(), channel());
        let ends = Mutex::new(ends);
        one.has_versions_counted_by(Box::new(move || {
            begun.send(()).unwrap();
            ends.lock().recv().unwrap();
            Ok(Some(60))
        }));
        assert!(!one.is_counted_for_limits() && !other.is_counted_for_limits());
        std::thread::scope(|scope| {
            scope.spawn(|| other.count_for_limits());
            begins.recv().unwrap();
            assert!(!other.is_counted_for_limits(), "another thread counts");
            end.send(()).unwrap();
        });
        assert!(one.is_counted_for_limits() && other.is_counted_for_limits());
        assert_eq!(other.check(Use::exact(41)).unwrap_err().kind(), ErrorKind::Quota);
        one.versions_changed();
        assert!(!other.is_counted_for_limits());
        tenant.set_limits(Limits::default());
        assert!(other.is_counted_for_limits());
    }

    #[test]
    fn limits_round_trip_and_invalid_ones_are_refused() {
        let none = Limits::default();
        let some = none.changed("bytes=10G files=1000").unwrap();
        assert_eq!(some, Limits { bytes: Some(10 << 30), stored: None, files: Some(1000) });
        assert_eq!(none.changed(&some.to_text()).unwrap(), some);
        assert_eq!(some.changed("bytes=0\tfiles=none").unwrap(), none);
        assert_eq!(some.changed("stored=3K").unwrap().stored, Some(3072));
        for wrong in [
            "",
            "bytes",
            "bytes=",
            "bytes=-1",
            "bytes=1.5G",
            "bytes=1GG",
            "bytes=G",
            "bytes=1 bytes=2",
            "x=1",
            "bytes=16384P",
            "bytes=99999999999999999999",
            "files=+1",
            "bytes=1é",
            "10G",
        ] {
            assert_eq!(some.changed(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
        assert!(!some.raise(none) && none.raise(some) && !some.raise(some));
        assert!(some.changed("bytes=11G").unwrap().raise(some));
        assert!(!some.changed("bytes=9G stored=1").unwrap().raise(some));
    }

    #[test]
    fn a_reservation_counts_here_and_above_until_it_is_released() {
        let tenant = Meter::new("t", None, Limits { bytes: Some(100), ..Limits::default() });
        let one = Meter::new("t/a", Some(tenant.clone()), Limits::default());
        let other = Meter::new("t/b", Some(tenant.clone()), Limits { files: Some(1), ..Limits::default() });
        one.set_used(Use { logical: 60, stored: 60, files: 5 });
        assert_eq!(tenant.used(), Use { logical: 60, stored: 60, files: 5 });
        let mut held = other.reserve(Use::exact(40)).unwrap();
        assert_eq!(one.reserve(Use::exact(1)).unwrap_err().kind(), ErrorKind::Quota);
        assert_eq!(held.set(Use::exact(41)).unwrap_err().kind(), ErrorKind::Quota);
        held.set(Use::exact(39)).unwrap();
        one.check(Use::exact(1)).unwrap();
        drop(held);
        one.check(Use::exact(40)).unwrap();
        other.set_used(Use { logical: 0, stored: 7, files: 1 });
        assert_eq!(other.check(Use::FILE).unwrap_err().kind(), ErrorKind::Quota);
        one.check(Use::FILE).unwrap();
        one.set_used(Use::default());
        assert_eq!(tenant.used(), other.used());
        // The room here is at most the room above.
        assert_eq!(one.room(), Room { bytes: Some((100, 0)), files: None });
        other.set_limits(Limits { stored: Some(9), files: Some(3), ..Limits::default() });
        assert_eq!(other.room(), Room { bytes: Some((2, 7)), files: Some((2, 1)) });
        // A use over its quota may still shrink, and other amounts may grow.
        other.set_limits(Limits { stored: Some(1), ..Limits::default() });
        other.check(Use { logical: 100, ..Use::default() }).unwrap();
        assert!(other.check(Use { stored: 1, ..Use::default() }).is_err());
    }
}
