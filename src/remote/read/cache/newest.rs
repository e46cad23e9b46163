//! The newest snapshots that mounts with `--trust` have shown: a signature says who made a snapshot, not that it is the newest.
//!
//! The file `seen` of a cache has a line for each collection: the uuid of the remote, the number (16 hexadecimal digits), and
//! the names as keys have them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};

use crate::format::snapshot::keys;
use crate::model::{CollectionName, Error, Result, StoreId};
use crate::remote::read::cache::Cache;
use crate::remote::read::cache::root::unlinked;

const SEEN: &str = "seen";
/// The most bytes of the file that are read.
const BYTES_MAX: u64 = 16 << 20;

impl Cache {
    /// The number of the newest snapshot of a collection that was shown before. Notes `number` if that is newer.
    pub fn seen(&self, remote: StoreId, place: CollectionName<'_>, number: u64) -> Result<u64> {
        let failed = |error| Error::io(self.directory().join(SEEN).display(), error);
        let key = format!("{remote} {}/{}", keys::escape(place.tenant), keys::escape(place.name));
        let _held = self.seen.lock();
        let _names = self.root.names().map_err(failed)?;
        let mut all = self.read_seen().map_err(failed)?;
        let before = all.get(&key).copied().unwrap_or(0);
        if number > before {
            all.insert(key, number);
            self.write_seen(&all).map_err(failed)?;
        }
        Ok(before)
    }

    fn read_seen(&self) -> io::Result<BTreeMap<String, u64>> {
        let file = match unlinked().read(true).open(self.root.path(SEEN)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            file => file?,
        };
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        let parsed = text.lines().map(|line| {
            let mut words = line.split(' ');
            let (remote, number, place) = (words.next()?, words.next()?, words.next()?);
            Some((format!("{remote} {place}"), keys::number(number)?))
        });
        // A damaged file hides nothing from those who want to know.
        let all: Option<BTreeMap<String, u64>> = parsed.collect();
        all.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is damaged; remove it"))
    }

    fn write_seen(&self, all: &BTreeMap<String, u64>) -> io::Result<()> {
        let draft = self.root.path(&format!("{SEEN}.new"));
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = unlinked().write(true).create_new(true).open(&draft)?;
        for (key, number) in all {
            let (remote, place) = key.split_once(' ').unwrap_or_default();
            writeln!(file, "{remote} {number:016x} {place}")?;
        }
        file.sync_data()?;
        fs::rename(&draft, self.root.path(SEEN))
    }
}
