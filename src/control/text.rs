//! The text of a control file: complete, or produced while it is read, which bounds its memory whatever
//! its length.

use parking_lot::Mutex;

use crate::model::Result;

/// A text up to this length is produced completely when its file is opened, and does not change then.
const AHEAD_BYTES: usize = 256 << 10;

/// Appends the next part of a text. Returns `false` at the end.
pub type Lines = Box<dyn FnMut(&mut Vec<u8>) -> Result<bool> + Send>;
/// Starts a text from its beginning.
pub type Make = Box<dyn Fn() -> Result<Lines> + Send + Sync>;

/// The text of an open control file.
pub struct Text {
    make: Option<Make>,
    /// Locked while the next part is produced.
    reading: Mutex<Reading>,
}

/// The part of a text that was produced last.
struct Reading {
    /// Offset of `bytes` in the text.
    begin: u64,
    bytes: Vec<u8>,
    /// Produces the rest; `None` at the end.
    rest: Option<Lines>,
}

impl Reading {
    /// Produces the text up to `end` or its own end. May drop bytes before `from`.
    fn make(&mut self, from: u64, end: u64) -> Result<()> {
        while let Some(more) = self.rest.as_mut()
            && self.begin + (self.bytes.len() as u64) < end
        {
            if self.bytes.len() > AHEAD_BYTES {
                let passed = from.saturating_sub(self.begin).min(self.bytes.len() as u64);
                self.bytes.drain(..passed as usize);
                self.begin += passed;
            }
            if !more(&mut self.bytes)? {
                self.rest = None;
            }
        }
        Ok(())
    }
}

impl Text {
    pub fn whole(text: String) -> Text {
        Text { make: None, reading: Mutex::new(Reading { begin: 0, bytes: text.into_bytes(), rest: None }) }
    }

    /// A text that is produced while it is read. Produces its beginning now, or all of it if it is short.
    pub fn made(make: Make) -> Result<Text> {
        let mut reading = Reading { begin: 0, bytes: Vec::new(), rest: Some(make()?) };
        reading.make(0, AHEAD_BYTES as u64)?;
        Ok(Text { make: Some(make), reading: Mutex::new(reading) })
    }

    /// Whether the whole text is in memory.
    pub fn is_there(&self) -> bool {
        self.reading.try_lock().is_some_and(|reading| reading.begin == 0 && reading.rest.is_none())
    }

    /// The whole text, if it is in memory.
    pub fn shown(&self) -> Option<Vec<u8>> {
        let reading = self.reading.try_lock()?;
        (reading.begin == 0 && reading.rest.is_none()).then(|| reading.bytes.clone())
    }

    /// Reads from `offset` and returns the number of bytes. Reading backwards in a long text produces it
    /// again from the current state.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut reading = self.reading.lock();
        if offset < reading.begin
            && let Some(make) = &self.make
        {
            *reading = Reading { begin: 0, bytes: Vec::new(), rest: Some(make()?) };
        }
        reading.make(offset, offset.saturating_add(out.len() as u64))?;
        let skip = usize::try_from(offset.saturating_sub(reading.begin)).unwrap_or(usize::MAX);
        let rest = reading.bytes.get(skip..).unwrap_or_default();
        let count = rest.len().min(out.len());
        if let Some((to, from)) = out.get_mut(..count).zip(rest.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD_BYTES, Lines, Text};

    const LINES: u64 = 200_000;

    fn numbers() -> Lines {
        let mut next = 0;
        Box::new(move |out| {
            out.extend(format!("{next:09}\n").into_bytes());
            next += 1;
            Ok(next < LINES)
        })
    }

    #[test]
    fn a_generated_text_reads_as_a_stored_one_and_keeps_only_a_part() {
        let text = Text::made(Box::new(|| Ok(numbers()))).unwrap();
        let whole: String = (0..LINES).map(|number| format!("{number:09}\n")).collect();
        let end = whole.len() as u64;
        let places = [0, 5, 131_072, 131_073, 1_000_000, 999_990, 3, end - 7, end, end + 9, 20, u64::MAX];
        for at in places.into_iter().chain((0..end).step_by(65_536)) {
            let mut out = vec![0; 65_536];
            let count = text.read(at, &mut out).unwrap();
            let rest = whole.as_bytes().get(usize::try_from(at).unwrap()..).unwrap_or_default();
            let wanted = &rest[..rest.len().min(65_536)];
            assert!(out[..count] == *wanted, "at {at}");
            let kept = text.reading.lock().bytes.capacity();
            assert!(kept <= 4 * AHEAD_BYTES, "{kept} bytes are kept");
        }
        assert!(!text.is_there());
        assert!(Text::whole(whole).is_there());
    }
}
