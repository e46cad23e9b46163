//! The trail: events that outlive the mount, in files of lines of JSON.
//!
//! `.tierfs.audit/` of a store has the files `0000000001.jsonl` and so on. A line has the fields of an event
//! (`events.rs`) and `previous`, the BLAKE3 of the line before it without its line feed, in hexadecimal; the very first
//! has an empty one. So a line that was changed, cut out or added shows, as far as its successors are there. The next
//! file begins when one has 16 MiB; the 16 newest stay.
//!
//! A line is written when its event is told, which follows the batch that it describes, and synced with the store. A
//! power cut may lose lines of the last seconds. An end without a line feed is cut off by the next writer.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::model::{Error, ErrorKind, Result, hex};
use crate::store::disk::{Disk, File, Open};

const DIRECTORY: &str = ".tierfs.audit";
const SUFFIX: &str = ".jsonl";
/// A file with so many bytes is not continued.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Number of files that stay.
const FILES_MAX: usize = 16;
/// A line has at most this many bytes: three texts of 2,000 bytes, each byte escaped.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The key of the digest of the line before.
const PREVIOUS: &str = "previous";

/// The trail of a store that is open for writing.
pub(in crate::store) struct Trail {
    disk: Arc<dyn Disk>,
    /// The newest file, once something was written.
    newest: Mutex<Option<Newest>>,
}

struct Newest {
    file: Arc<dyn File>,
    number: u64,
    bytes: u64,
    /// The digest of its last line.
    last: String,
    /// Whether lines were written since the last sync.
    is_changed: bool,
}

impl Trail {
    pub fn new(disk: Arc<dyn Disk>) -> Trail {
        Trail { disk, newest: Mutex::default() }
    }

    /// Writes a line. An error is logged: a trail that cannot be written stops no work.
    pub fn append(&self, event: Map<String, Value>) {
        let mut newest = self.newest.lock();
        if let Err(error) = self.try_append(&mut newest, event) {
            log::error!("{}/{DIRECTORY}: an event is missing: {error}", self.disk.place());
            *newest = None;
        }
    }

    fn try_append(&self, newest: &mut Option<Newest>, mut event: Map<String, Value>) -> io::Result<()> {
        let mut open = match newest.take() {
            Some(open) => open,
            None => self.open()?,
        };
        event.insert(PREVIOUS.to_owned(), open.last.clone().into());
        let line = Value::Object(event).to_string();
        if open.bytes >= FILE_BYTES_MAX {
            open = self.next(&open)?;
        }
        let bytes = format!("{line}\n").into_bytes();
        open.file.write_at(&bytes, open.bytes)?;
        open.bytes += bytes.len() as u64;
        open.last = digest(line.as_bytes());
        open.is_changed = true;
        *newest = Some(open);
        Ok(())
    }

    /// The newest file, ready for the next line.
    fn open(&self) -> io::Result<Newest> {
        let numbers = match numbers(&*self.disk) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.create_directory(DIRECTORY)?;
                self.disk.sync_directory("")?;
                Vec::new()
            }
            numbers => numbers?,
        };
        let Some(number) = numbers.last().copied() else { return self.create(1, String::new()) };
        let file = self.disk.open(&path(number), Open::Write)?;
        let len = file.len()?;
        let begin = len.saturating_sub(LINE_BYTES_MAX);
        let mut tail = vec![0; (len - begin) as usize];
        file.read_exact_at(&mut tail, begin)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let bytes = begin + whole as u64;
        if bytes < len {
            log::warn!("{}/{}: a line without an end was cut off", self.disk.place(), path(number));
            file.set_len(bytes)?;
        }
        let lines = tail.get(..whole.saturating_sub(1)).unwrap_or_default();
        let last = match lines.rsplit(|byte| *byte == b'\n').next() {
            Some(line) if whole > 0 => digest(line),
            // The file was created, and its first line is lost.
            _ => self.last_before(&numbers)?,
        };
        Ok(Newest { file, number, bytes, last, is_changed: false })
    }

    /// The digest of the last line of the file before the newest one.
    fn last_before(&self, numbers: &[u64]) -> io::Result<String> {
        let Some(before) = numbers.iter().rev().nth(1) else { return Ok(String::new()) };
        let bytes = whole(&*self.disk, *before)?;
        Ok(bytes.lines().last().map(|line| digest(line.as_bytes())).unwrap_or_default())
    }

    fn create(&self, number: u64, last: String) -> io::Result<Newest> {
        let file = self.disk.open(&path(number), Open::Create)?;
        self.disk.sync_directory(DIRECTORY)?;
        Ok(Newest { file, number, bytes: 0, last, is_changed: false })
    }

    /// The next file. The oldest go.
    fn next(&self, full: &Newest) -> io::Result<Newest> {
        full.file.sync_data()?;
        let next = self.create(full.number + 1, full.last.clone())?;
        let numbers = numbers(&*self.disk)?;
        for number in numbers.iter().take(numbers.len().saturating_sub(FILES_MAX)) {
            self.disk.remove_file(&path(*number))?;
        }
        Ok(next)
    }

    /// Makes the lines durable.
    pub fn sync(&self) {
        let mut newest = self.newest.lock();
        if let Some(open) = newest.as_mut().filter(|open| open.is_changed) {
            match open.file.sync_data() {
                Ok(()) => open.is_changed = false,
                Err(error) => log::error!("{}/{DIRECTORY}: syncing: {error}", self.disk.place()),
            }
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        self.sync();
    }
}

/// The lines of a trail and whether each follows the one before it.
#[derive(Debug, Default)]
pub struct TrailLines {
    /// The events, the oldest first, as they were written.
    pub lines: Vec<String>,
    /// Number of the first line that does not follow the one before it, or is not an event, with the reason.
    pub broken: Option<(usize, String)>,
    /// Whether older lines are gone: the first line names one before it.
    pub begins_later: bool,
}

/// Reads the trail of a store. `NotFound` if it has none.
pub fn read_trail(disk: &dyn Disk) -> Result<TrailLines> {
    let failed = |error| Error::io(format!("reading {}/{DIRECTORY}", disk.place()), error);
    let numbers = match numbers(disk) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        numbers => numbers.map_err(failed)?,
    };
    if numbers.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("{} has no trail", disk.place())));
    }
    let mut found = TrailLines::default();
    let mut before = None;
    for number in numbers {
        for line in whole(disk, number).map_err(failed)?.lines() {
            let wrong = match serde_json::from_str::<Value>(line) {
                Ok(Value::Object(event)) => match (event.get(PREVIOUS).and_then(Value::as_str), &before) {
                    (Some(previous), Some(before)) if previous != *before => {
                        Some("it does not follow the line before it")
                    }
                    (Some(previous), None) => {
                        found.begins_later = !previous.is_empty();
                        None
                    }
                    (None, _) => Some("it does not name the line before it"),
                    _ => None,
                },
                _ => Some("it is not an event"),
            };
            if let (Some(wrong), None) = (wrong, &found.broken) {
                found.broken = Some((found.lines.len() + 1, wrong.to_owned()));
            }
            before = Some(digest(line.as_bytes()));
            found.lines.push(line.to_owned());
        }
    }
    Ok(found)
}

fn digest(line: &[u8]) -> String {
    hex(blake3::hash(line).as_bytes())
}

fn path(number: u64) -> String {
    format!("{DIRECTORY}/{number:010}{SUFFIX}")
}

/// The numbers of the files, in order.
fn numbers(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let listed = disk.list(DIRECTORY)?;
    let mut numbers: Vec<u64> =
        listed.iter().filter_map(|found| found.name.strip_suffix(SUFFIX)?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The whole lines of a file.
fn whole(disk: &dyn Disk, number: u64) -> io::Result<String> {
    let file = disk.open(&path(number), Open::Read)?;
    let mut bytes = vec![0; file.len()?.min(FILE_BYTES_MAX + LINE_BYTES_MAX) as usize];
    let len = file.read_at(&mut bytes, 0)?;
    bytes.truncate(len);
    bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Map, Value, json};

    use super::{FILES_MAX, Trail, numbers, path, read_trail};
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, Open};

    fn event(number: usize, text: &str) -> Map<String, Value> {
        let Value::Object(event) = json!({ "number": number, "text": text }) else { unreachable!() };
        event
    }

    #[test]
    fn lines_follow_each_other_over_openings_and_files() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        assert!(read_trail(&*disk).is_err());
        for opening in 0..3 {
            let trail = Trail::new(disk.clone());
            (0..4).for_each(|number| trail.append(event(opening * 4 + number, "ü\n\"")));
        }
        let found = read_trail(&*disk).unwrap();
        assert_eq!((found.lines.len(), found.broken, found.begins_later), (12, None, false));
        let last: Value = serde_json::from_str(&found.lines[11]).unwrap();
        assert_eq!((&last["number"], &last["text"]), (&11.into(), &"ü\n\"".into()));
        // 40 KB a line: files of 16 MiB.
        let trail = Trail::new(disk.clone());
        let long = "x".repeat(40_000);
        for number in 12..7200 {
            trail.append(event(number, &long));
        }
        drop(trail);
        Trail::new(disk.clone()).append(event(7200, ""));
        assert_eq!(numbers(&*disk).unwrap().len(), FILES_MAX);
        let found = read_trail(&*disk).unwrap();
        assert!(found.begins_later && found.broken.is_none(), "{:?}", found.broken);
        let last: Value = serde_json::from_str(found.lines.last().unwrap()).unwrap();
        assert_eq!(last["number"], 7200);
    }

    #[test]
    fn lines_that_were_changed_cut_out_or_added_show() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let trail = Trail::new(disk.clone());
        (0..6).for_each(|number| trail.append(event(number, "text")));
        let file = disk.open(&path(1), Open::Write).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let with = |lines: &[&[u8]]| {
            let bytes = lines.concat();
            file.set_len(0).unwrap();
            file.write_at(&bytes, 0).unwrap();
            read_trail(&*disk).unwrap().broken.map(|(line, _)| line)
        };
        assert_eq!(with(&lines), None);
        let changed = String::from_utf8_lossy(lines[2]).replace("text", "tExt");
        assert_eq!(with(&[lines[0], lines[1], changed.as_bytes(), lines[3], lines[4]]), Some(4));
        assert_eq!(with(&[lines[0], lines[1], lines[3], lines[4]]), Some(3));
        assert_eq!(with(&[lines[0], lines[1], lines[1], lines[2]]), Some(3));
        assert_eq!(with(&[lines[0], b"{}\n", lines[1]]), Some(2));
        assert_eq!(with(&[lines[0], b"\xff\n"]), Some(2));
        // A line without an end is cut off, and the next one follows those before.
        assert_eq!(with(&[lines[0], lines[1], &lines[2][..9]]), None);
        Trail::new(disk.clone()).append(event(9, "after"));
        let found = read_trail(&*disk).unwrap();
        assert_eq!((found.lines.len(), found.broken), (3, None));
    }
}
