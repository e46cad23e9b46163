//! What happened: the last lines of JSON, in memory.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use crate::format::log::record::Stored;
use crate::model::{Error, ErrorKind, Result, beginning};
use crate::store::Collection;
use crate::store::collection::now_nanoseconds;
use crate::store::io::read::OpenObject;
use crate::store::object::Object;
use crate::store::state::Node;

/// Lines that are kept.
pub const LINES_MAX: usize = 10_000;
/// Lines that go at once when there are too many: who follows reads all again then.
const LINES_DROPPED: usize = 1_000;
/// Bytes of each text of an event; what is longer is cut.
const TEXT_BYTES_MAX: usize = 2_000;

/// What kind of thing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// Something was asked for by a control file or an attribute, and was done.
    Control,
    /// Something was asked for and was refused.
    Refusal,
    /// Stored bytes that are not what was written.
    Corruption,
    /// Stored bytes that were wrong and were put right.
    Repair,
    /// The end of a log that was never finished and is not taken.
    Dropped,
    /// A collection takes no more writes: a sync failed.
    Poisoned,
    /// A log was written anew.
    Compaction,
    /// Blocks were put into another tier.
    Migration,
    /// A request ended in a bug, and with an error for that request alone.
    Panic,
}

impl EventKind {
    /// As it stands in the line.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Control => "control",
            EventKind::Refusal => "refusal",
            EventKind::Corruption => "corruption",
            EventKind::Repair => "repair",
            EventKind::Dropped => "dropped",
            EventKind::Poisoned => "poisoned",
            EventKind::Compaction => "compaction",
            EventKind::Migration => "migration",
            EventKind::Panic => "panic",
        }
    }
}

/// Something that was found in a log when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// What it is.
    pub kind: EventKind,
    /// What, and where.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// What happened, as a text of one line an event that grows at its end and is cut at its
/// beginning. Offsets count from the first byte that ever was.
#[derive(Default)]
pub struct Events {
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<String>,
    /// The offset of the first line that is kept.
    start: u64,
    /// The offset behind the last.
    end: u64,
}

impl Events {
    /// Adds an event. `path` is what it is about, below the mount; `cause` is who or what
    /// made it happen.
    pub fn tell(&self, kind: EventKind, path: &str, cause: &str, text: &str) {
        let milliseconds = now_nanoseconds() / 1_000_000;
        let value = json!({
            "time": milliseconds as f64 / 1000.0,
            "kind": kind.name(),
            "path": layout(path),
            "cause": layout(cause),
            "text": layout(text),
        });
        self.ring.lock().push(format!("{value}\n"));
    }

    /// The offsets of the first byte that is kept, and behind the last.
    pub fn range(&self) -> (u64, u64) {
        let ring = self.ring.lock();
        (ring.start, ring.end)
    }

    /// Copies what stands from `offset` on; the bytes copied. `Gone` for what was cut away.
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
            let rest = line.as_bytes().get(skip as usize..).unwrap_or_default();
            skip = 0;
            let count = rest.len().min(out.len() - done);
            if let Some((to, from)) = out.get_mut(done..done + count).zip(rest.get(..count)) {
                to.copy_from_slice(from);
            }
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

fn layout(text: &str) -> &str {
    beginning(text, TEXT_BYTES_MAX)
}

impl Collection {
    /// Has its events told to others from now on, those of its opening first.
    pub fn reporting_to(mut self, events: &Arc<Events>) -> Collection {
        for note in self.events() {
            events.tell(note.kind, &self.path(), "open", &note.text);
        }
        if let Some(damage) = self.damage() {
            events.tell(EventKind::Corruption, &self.path(), "open", &damage.reason);
        }
        self.event_log = events.clone();
        self
    }

    /// Where its events go.
    pub fn event_log(&self) -> &Arc<Events> {
        &self.event_log
    }
}

/// The blocks of an object that were told to be wrong, and where they lay then: they are
/// told again only when they lie elsewhere.
#[derive(Debug, Default)]
pub(super) struct ReportedBlocks(Mutex<HashMap<u32, Stored>>);

impl OpenObject {
    /// Tells that a block is not what was written, once until it changes.
    pub(super) fn report_corruption(&self, index: u32, stored: &Stored, error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt {
            let before = self.object.write_state().reported.0.lock().insert(index, *stored);
            if before != Some(*stored) {
                let path = self.collection.path_of(&self.object);
                self.collection.event_log.tell(EventKind::Corruption, &path, "read", &error.to_string());
            }
        }
        error
    }
}

impl Collection {
    /// The path of the file that an object belongs to, as far as names lead to it.
    pub fn path_of(&self, object: &Object) -> String {
        let state = self.state();
        let id = object.entry.id;
        let has = |node: &&Arc<Node>| node.file().is_some_and(|file| file.objects.contains(&id));
        let node = state.part_of(id).or_else(|| state.nodes().find(has).map(|node| node.entry.id));
        let below = node.map(|node| state.path(node)).filter(|below| !below.is_empty());
        below.map_or_else(
            || self.path(),
            |below| format!("{}/{}", self.path(), String::from_utf8_lossy(&below)),
        )
    }
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
    fn every_line_is_an_object_whatever_the_texts_hold() {
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
    fn the_oldest_lines_go_and_offsets_stay() {
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
