//! The log's information about the copy of a pinned file.

use parking_lot::Mutex;

/// Setting of a pinned file, with the location of its copy.
pub const PIN: &str = "pin";
/// Its value for a file without a copy.
pub(in crate::store) const WITHOUT_COPY: &str = "1";

/// The content of a file, in a file of its own.
#[derive(Debug)]
pub struct PinnedCopy {
    /// Its number, unique among the data files and copies of the collection.
    pub number: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 of the content.
    pub blake3: [u8; 32],
    /// Whether the content matches the hash, once it was verified. Locked during the verification.
    sound: Mutex<Option<bool>>,
}

impl PinnedCopy {
    /// A copy that was just written, and is sound.
    pub fn written(number: u64, bytes: u64, blake3: [u8; 32]) -> PinnedCopy {
        PinnedCopy { number, bytes, blake3, sound: Mutex::new(Some(true)) }
    }

    /// Marks the copy as just written and sound.
    pub fn was_written(&self) {
        *self.sound.lock() = Some(true);
    }

    /// Value of the setting: `1 NUMBER BYTES BLAKE3`.
    pub fn value(&self) -> String {
        let hash = blake3::Hash::from_bytes(self.blake3).to_hex();
        format!("{WITHOUT_COPY} {} {} {hash}", self.number, self.bytes)
    }

    /// The copy that a value of the setting names, if any.
    pub(in crate::store) fn parse(value: &str) -> Option<PinnedCopy> {
        let mut words = value.split(' ').skip(1);
        let (number, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let blake3 = *blake3::Hash::from_hex(words.next()?).ok()?.as_bytes();
        words.next().is_none().then_some(PinnedCopy { number, bytes, blake3, sound: Mutex::new(None) })
    }

    /// Whether the content matches the hash; `None` if it was not verified since the store was opened,
    /// or is being verified.
    pub fn is_sound(&self) -> Option<bool> {
        self.sound.try_lock().and_then(|sound| *sound)
    }

    /// Whether the content matches the hash. Runs `check` if it was not verified since the store was
    /// opened, or if `must_check`; `None` from it means that it was stopped.
    pub(in crate::store) fn is_sound_by(
        &self,
        must_check: bool,
        check: impl FnOnce() -> Option<bool>,
    ) -> bool {
        let mut sound = self.sound.lock();
        match *sound {
            Some(sound) if !must_check => sound,
            _ => check().is_some_and(|checked| *sound.insert(checked)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PinnedCopy;

    #[test]
    fn values_of_the_setting_round_trip_and_others_name_no_copy() {
        let copy = PinnedCopy::written(7, 12, [0xab; 32]);
        let value = copy.value();
        let read = PinnedCopy::parse(&value).unwrap();
        assert_eq!((read.number, read.bytes, read.blake3), (7, 12, [0xab; 32]));
        assert_eq!((copy.is_sound(), read.is_sound()), (Some(true), None));
        for wrong in
            ["1", "", "1 7", "1 7 12", "1 7 12 ab", "1 -7 12 ab", &format!("{value} 1"), &value[..70]]
        {
            assert!(PinnedCopy::parse(wrong).is_none(), "{wrong}");
        }
    }
}
