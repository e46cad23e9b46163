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

    /// Writes a line. An error is only logged: work goes on without a trail.
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
        let line = without_controls(&Value::Object(event).to_string());
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
        let number = full.number.checked_add(1).ok_or_else(|| io::Error::other("no more numbers"))?;
        let next = self.create(number, full.last.clone())?;
        let numbers = numbers(&*self.disk)?;
        for number in numbers.iter().take(numbers.len().saturating_sub(FILES_MAX)) {
            self.disk.remove_file(&path(*number))?;
        }
        Ok(next)
    }

    /// Makes the lines durable.
    pub fn sync(&self) {
        // Without the lock: lines are written meanwhile.
        let changed = self.newest.lock().as_mut().filter(|open| open.is_changed).map(|open| {
            open.is_changed = false;
            open.file.clone()
        });
        if let Some(Err(error)) = changed.map(|file| file.sync_data()) {
            log::error!("{}/{DIRECTORY}: syncing: {error}", self.disk.place());
            if let Some(open) = self.newest.lock().as_mut() {
                open.is_changed = true;
            }
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        self.sync();
    }
}

/// Passes each line of the trail of a store to `visit`, the oldest first. `NotFound` if the store has no trail.
pub fn read_trail(disk: &dyn Disk, visit: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let failed = |error| Error::io(format!("reading {}/{DIRECTORY}", disk.place()), error);
    let numbers = match numbers(disk) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        numbers => numbers.map_err(failed)?,
    };
    if numbers.is_empty() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{} has no trail: nothing has happened that it keeps, or its tierfs.toml has audit = \"off\"; .ctl/events of a \
             mount has the events of that mount",
                disk.place()
            ),
        ));
    }
    for number in numbers {
        match whole(disk, number) {
            // A daemon has dropped it meanwhile, for it was the oldest.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            lines => lines.map_err(failed)?.lines().try_for_each(&mut *visit)?,
        }
    }
    Ok(())
}

/// Checks that each line of a trail follows the one before it.
#[derive(Debug, Default)]
pub struct TrailCheck {
    /// The number of lines so far.
    pub lines: u64,
    /// Number of the first line that does not follow the one before it, or is not an event, with the reason.
    pub broken: Option<(u64, &'static str)>,
    /// Whether older lines are gone: the first line names one before it.
    pub begins_later: bool,
    /// The digest of the last line.
    last: Option<String>,
}

impl TrailCheck {
    /// Takes the next line.
    pub fn add(&mut self, line: &str) {
        self.lines += 1;
        let event: Option<Map<String, Value>> = serde_json::from_str(line).ok();
        let previous = event.as_ref().map(|event| event.get(PREVIOUS).and_then(Value::as_str));
        let wrong = match (previous, &self.last) {
            (None, _) => Some("it is not an event"),
            (Some(None), _) => Some("it does not name the line before it"),
            (Some(Some(previous)), Some(last)) => {
                (previous != last).then_some("it does not follow the line before it")
            }
            (Some(Some(previous)), None) => {
                self.begins_later = !previous.is_empty();
                None
            }
        };
        if let (Some(wrong), None) = (wrong, self.broken) {
            self.broken = Some((self.lines, wrong));
        }
        self.last = Some(digest(line.as_bytes()));
    }
}

/// A line of JSON in which every control character is escaped. Serializers leave some of them, such as those of C1.
fn without_controls(line: &str) -> String {
    let mut escaped = String::with_capacity(line.len());
    for letter in line.chars() {
        if letter.is_control() {
            escaped.push_str(&format!("\\u{:04x}", u32::from(letter)));
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

fn digest(line: &[u8]) -> String {
    hex(blake3::hash(line).as_bytes())
}

fn name_of(number: u64) -> String {
    format!("{number:010}{SUFFIX}")
}

fn path(number: u64) -> String {
    format!("{DIRECTORY}/{}", name_of(number))
}

/// The numbers of the files, in order.
fn numbers(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let listed = disk.list(DIRECTORY)?;
    let number =
        |name: &str| name.strip_suffix(SUFFIX)?.parse().ok().filter(|number| name_of(*number) == name);
    let mut numbers: Vec<u64> = listed.iter().filter_map(|found| number(&found.name)).collect();
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

    use super::{FILES_MAX, Trail, TrailCheck, numbers, path, read_trail};
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, Open};

    fn event(number: usize, text: &str) -> Map<String, Value> {
        let Value::Object(event) = json!({ "number": number, "text": text }) else { unreachable!() };
        event
    }

    /// The lines of a trail, checked.
    fn read(disk: &dyn Disk) -> (Vec<String>, TrailCheck) {
        let (mut lines, mut check) = (Vec::new(), TrailCheck::default());
        let visit = &mut |line: &str| {
            lines.push(line.to_owned());
            check.add(line);
            Ok(())
        };
        read_trail(disk, visit).unwrap();
        (lines, check)
    }

    #[test]
    fn lines_follow_each_other_over_openings_and_files() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        assert!(read_trail(&*disk, &mut |_| Ok(())).is_err());
        for opening in 0..3 {
            let trail = Trail::new(disk.clone());
            (0..4).for_each(|number| trail.append(event(opening * 4 + number, "ü\n\"\u{7f}\u{9b}")));
        }
        let (lines, check) = read(&*disk);
        assert_eq!((lines.len(), check.lines, check.broken, check.begins_later), (12, 12, None, false));
        let last: Value = serde_json::from_str(&lines[11]).unwrap();
        assert_eq!((&last["number"], &last["text"]), (&11.into(), &"ü\n\"\u{7f}\u{9b}".into()));
        assert!(lines.iter().all(|line| !line.contains(char::is_control)));
        // 40 KB a line: files of 16 MiB.
        let trail = Trail::new(disk.clone());
        let long = "x".repeat(40_000);
        for number in 12..7200 {
            trail.append(event(number, &long));
        }
        drop(trail);
        Trail::new(disk.clone()).append(event(7200, ""));
        assert_eq!(numbers(&*disk).unwrap().len(), FILES_MAX);
        // Names that no program of ours makes are left alone.
        for name in ["5.jsonl", "+000000005.jsonl", "18446744073709551616.jsonl", "0000000001.jsonl.old"] {
            disk.open(&format!(".tierfs.audit/{name}"), Open::Create).unwrap();
        }
        let (lines, check) = read(&*disk);
        assert!(check.begins_later && check.broken.is_none(), "{:?}", check.broken);
        let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
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
            read(&*disk).1.broken.map(|(line, _)| line)
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
        let (lines, check) = read(&*disk);
        assert_eq!((lines.len(), check.broken), (3, None));
    }
}
