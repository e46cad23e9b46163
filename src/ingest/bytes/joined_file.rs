//! Several files that are read as one: the shards of a file that was cut.

use std::io;
use std::sync::Arc;

use crate::model::{Error, Result};
use crate::store::disk::{Advice, File, ReadAt};

/// Files one after the other. It cannot be written.
pub(in crate::ingest) struct JoinedFile {
    files: Vec<Arc<dyn File>>,
    /// The end of each, in bytes from the beginning.
    ends: Vec<u64>,
}

impl JoinedFile {
    /// The files in this order. Their lengths are those of now: a file that shrinks meanwhile ends the reads.
    pub fn new(files: Vec<Arc<dyn File>>) -> Result<JoinedFile> {
        let mut ends = Vec::with_capacity(files.len());
        let mut end = 0_u64;
        for file in &files {
            let len = file.len().map_err(|error| Error::io("asking for a shard's size", error))?;
            end = end.checked_add(len).ok_or_else(|| Error::invalid("the shards have over 2^64 bytes"))?;
            ends.push(end);
        }
        Ok(JoinedFile { files, ends })
    }

    /// Calls `visit` with each file that has bytes of a stretch, the offset in it, and the number of the bytes, until it
    /// returns `false`.
    fn each(
        &self,
        mut offset: u64,
        mut len: u64,
        visit: &mut dyn FnMut(&dyn File, u64, u64) -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut place = self.ends.partition_point(|end| *end <= offset);
        while let (Some(file), Some(end)) = (self.files.get(place), self.ends.get(place)) {
            let begin = place.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
            let here = len.min(end - offset);
            if here == 0 || !visit(&**file, offset - begin, here)? {
                break;
            }
            (offset, len, place) = (offset + here, len - here, place + 1);
        }
        Ok(())
    }
}

impl ReadAt for JoinedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (len, mut filled) = (buffer.len() as u64, 0);
        self.each(offset, len, &mut |file, at, here| {
            let Some(part) = buffer.get_mut(filled..filled + here as usize) else { return Ok(false) };
            let got = file.read_at(part, at)?;
            filled += got;
            Ok(got as u64 == here)
        })?;
        Ok(filled)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.ends.last().copied().unwrap_or(0))
    }
}

impl File for JoinedFile {
    fn advise(&self, advice: Advice, offset: u64, len: u64) -> io::Result<()> {
        self.each(offset, len, &mut |file, at, here| file.advise(advice, at, here).map(|()| true))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::JoinedFile;
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, File, Open, ReadAt};

    #[test]
    fn every_stretch_reads_as_the_files_one_after_the_other() {
        let disk = MemoryDisk::new();
        let bytes: Vec<u8> = (0..60).collect();
        let mut files: Vec<Arc<dyn File>> = Vec::new();
        for (place, part) in [&bytes[..1], &bytes[1..1], &bytes[1..40], &bytes[40..]].iter().enumerate() {
            let file = disk.open(&place.to_string(), Open::Create).unwrap();
            file.write_at(part, 0).unwrap();
            files.push(file);
        }
        let joined = JoinedFile::new(files).unwrap();
        assert_eq!(joined.len().unwrap(), 60);
        for begin in 0..64 {
            for len in 0..64 {
                let mut found = vec![0; len];
                let got = joined.read_at(&mut found, begin as u64).unwrap();
                let wanted = &bytes[begin.min(60)..(begin + len).min(60)];
                assert_eq!((got, &found[..got]), (wanted.len(), wanted), "{begin} {len}");
            }
        }
        assert_eq!(joined.read_at(&mut [0; 4], u64::MAX).unwrap(), 0);
    }
}
