//! The event log: the latest events as lines of JSON, in memory. The trail (`trail.rs`) keeps most kinds longer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::model::{Error, ErrorKind, Result, Tier, beginning};
use crate::store::clock::now_nanoseconds;
use crate::store::disk::Disk;
use crate::store::trail::Trail;

/// Maximum number of lines kept.
pub const LINES_MAX: usize = 10_000;
/// Lines dropped at once when there are too many: readers that follow the log then read it again from
/// the start.
const LINES_DROPPED: usize = 1_000;
/// Maximum bytes of each text of an event. Longer texts are truncated.
const TEXT_BYTES_MAX: usize = 2_000;
/// Maximum bytes of the text of a setting in the trail.
const SETTING_BYTES_MAX: usize = 200;

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A request by a control file or attribute was done.
    Control,
    /// A request was refused.
    Refusal,
    /// Stored bytes do not match what was written.
    Corruption,
    /// Corrupt bytes were repaired.
    Repair,
    /// The incomplete end of a log was dropped.
    Dropped,
    /// A collection accepts no more writes, because a sync failed.
    Poisoned,
    /// Writes to a file could not be recorded, or are recorded after all.
    Unrecorded,
    /// A log was checkpointed.
    Compaction,
    /// Blocks were moved to another tier.
    Migration,
    /// A remote does not give what it should.
    Remote,
    /// Another snapshot of a remote is shown.
    Snapshot,
    /// A request failed because of a bug; other requests are not affected.
    Panic,
    /// Files were imported.
    Import,
    /// A collection was removed.
    Removal,
}

impl EventKind {
    /// The name used in the line.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Control => "control",
            EventKind::Refusal => "refusal",
            EventKind::Corruption => "corruption",
            EventKind::Repair => "repair",
            EventKind::Dropped => "dropped",
            EventKind::Poisoned => "poisoned",
            EventKind::Unrecorded => "unrecorded",
            EventKind::Compaction => "compaction",
            EventKind::Migration => "migration",
            EventKind::Remote => "remote",
            EventKind::Snapshot => "snapshot",
            EventKind::Panic => "panic",
            EventKind::Import => "import",
            EventKind::Removal => "removal",
        }
    }
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Its kind.
    pub kind: EventKind,
    /// Its subject, below the mount.
    pub path: &'a str,
    /// The operation that caused it.
    pub cause: &'a str,
    /// The change.
    pub text: &'a str,
    /// The user who asked, if one did.
    pub user: Option<u32>,
    /// The change of tier, if the event is one.
    pub step: Option<Step>,
}

impl Event<'_> {
    /// Whether the trail has it. Anybody can cause any number of refusals, and the other kinds that are left out are of this
    /// mount alone. The jobs that control files start tell of themselves; a plan changes nothing.
    fn is_kept(&self) -> bool {
        let is_setting = |file: &str| ["quota", "policy"].iter().any(|name| file.starts_with(name));
        match self.kind {
            EventKind::Refusal | EventKind::Compaction | EventKind::Panic => false,
            EventKind::Remote | EventKind::Snapshot => false,
            EventKind::Control if self.cause.starts_with("plan,") => false,
            EventKind::Control => self.cause.strip_prefix(".ctl/").is_none_or(is_setting),
            _ => true,
        }
    }
}

/// A change of tier of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The tier before.
    pub from: Tier,
    /// The tier after.
    pub to: Tier,
    /// Bytes of its elements.
    pub bytes: u64,
}

/// A finding in a log when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Its kind.
    pub kind: EventKind,
    /// Description and place.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// The event log as a text with one line for each event. It grows at its end and is truncated at its
/// beginning. Offsets count from the first byte ever written.
#[derive(Default)]
pub struct Events {
    ring: Mutex<Ring>,
    trail: OnceLock<Trail>,
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<String>,
    /// Offset of the first line kept.
    start: u64,
    /// Offset of the end.
    end: u64,
}

impl Events {
    /// Adds an event. `path` is its subject, below the mount; `cause` is the person or operation that
    /// caused it.
    pub fn tell(&self, kind: EventKind, path: &str, cause: &str, text: &str) {
        self.note(&Event { kind, path, cause, text, user: None, step: None });
    }

    /// Adds an event.
    pub fn note(&self, event: &Event<'_>) {
        let milliseconds = now_nanoseconds() / 1_000_000;
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
        put("time", (milliseconds as f64 / 1000.0).into());
        put("kind", event.kind.name().into());
        put("path", shortened(event.path).into());
        put("cause", shortened(event.cause).into());
        put("text", shortened(event.text).into());
        // A map of texts and numbers serializes.
        let text = serde_json::to_string(&line).unwrap_or_default();
        self.ring.lock().push(format!("{text}\n"));
        if let Some(trail) = self.trail.get().filter(|_| event.is_kept()) {
            let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
            if event.kind == EventKind::Control {
                // Each owner of a file can make as many as he likes.
                put("text", beginning(event.text, SETTING_BYTES_MAX).into());
            }
            if let Some(user) = event.user {
                put("user", user.into());
            }
            if let Some(Step { from, to, bytes }) = event.step {
                put("from", from.to_string().into());
                put("to", to.to_string().into());
                put("bytes", bytes.into());
            }
            trail.append(line);
        }
    }

    /// Adds the removal of a collection or a tenant by a user.
    pub fn removed(&self, path: &str, user: u32) {
        let cause = format!("remove, user {user}");
        let text = "it was removed with everything in it";
        let (kind, user) = (EventKind::Removal, Some(user));
        self.note(&Event { kind, path, cause: &cause, text, user, step: None });
    }

    /// Writes events from now on to the trail of the store on `disk` too. Only the first call has an effect.
    pub(in crate::store) fn keep_on(&self, disk: Arc<dyn Disk>) {
        self.trail.get_or_init(|| Trail::new(disk));
    }

    /// Makes the lines of the trail durable.
    pub fn sync(&self) {
        if let Some(trail) = self.trail.get() {
            trail.sync();
        }
    }

    /// Offsets of the first byte kept and of the end.
    pub fn range(&self) -> (u64, u64) {
        let ring = self.ring.lock();
        (ring.start, ring.end)
    }

    /// Copies bytes from `offset` on into `out`. Returns their number. `Gone` if they were dropped.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let ring = self.ring.lock();
        let Some(mut skip) = offset.checked_sub(ring.start) else {
            return Err(Error::new(ErrorKind::Gone, "events up to here were dropped; open the file again"));
        };
        let mut done = 0;
        for line in &ring.lines {
            let len = line.len() as u64;
            if skip >= len {
                skip -= len;
                continue;
            }
            let rest = &line.as_bytes()[skip as usize..];
            skip = 0;
            let count = rest.len().min(out.len() - done);
            out[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
            if done == out.len() {
                break;
            }
        }
        Ok(done)
    }
}

impl Ring {
    fn push(&mut self, line: String) {
        if self.lines.len() >= LINES_MAX {
            let gone: u64 = self.lines.drain(..LINES_DROPPED).map(|line| line.len() as u64).sum();
            self.start += gone;
        }
        self.end += line.len() as u64;
        self.lines.push_back(line);
    }
}

fn shortened(text: &str) -> &str {
    beginning(text, TEXT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::{EventKind, Events, LINES_DROPPED, LINES_MAX, TEXT_BYTES_MAX};

    fn whole(events: &Events) -> String {
        let (start, end) = events.range();
        let mut bytes = vec![0; (end - start) as usize];
        assert_eq!(events.read(start, &mut bytes).unwrap(), bytes.len());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn every_line_is_a_json_object_for_any_text() {
        let events = Events::default();
        events.tell(EventKind::Refusal, "a\nb\"", "\u{0}\u{1b}[2J", "ü\\");
        events.tell(EventKind::Control, "", "", &"é".repeat(TEXT_BYTES_MAX));
        let text = whole(&events);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (&lines[0]["path"], &lines[0]["cause"], &lines[0]["text"]),
            (&"a\nb\"".into(), &"\u{0}\u{1b}[2J".into(), &"ü\\".into())
        );
        assert_eq!(lines[1]["text"].as_str().unwrap().len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn reads_at_any_offset_agree_with_the_whole_text() {
        let events = Events::default();
        for number in 0..40 {
            events.tell(EventKind::Control, "p", "c", &"x".repeat(number));
        }
        let text = whole(&events);
        for from in (0..text.len()).step_by(7) {
            for len in [1, 50, 4096] {
                let mut out = vec![0; len];
                let count = events.read(from as u64, &mut out).unwrap();
                assert_eq!(&out[..count], &text.as_bytes()[from..text.len().min(from + len)]);
            }
        }
        assert_eq!(events.read(text.len() as u64 + 5, &mut [0; 4]).unwrap(), 0);
    }

    #[test]
    fn the_oldest_lines_are_dropped_and_offsets_stay() {
        let events = Events::default();
        for number in 0..=LINES_MAX {
            events.tell(EventKind::Control, "", "", &number.to_string());
        }
        let text = whole(&events);
        assert_eq!(text.lines().count(), LINES_MAX - LINES_DROPPED + 1);
        assert!(text.lines().next().unwrap().contains(&format!("\"text\":\"{LINES_DROPPED}\"")));
        assert!(events.range().0 > 0 && events.read(0, &mut [0; 9]).is_err());
    }
}
