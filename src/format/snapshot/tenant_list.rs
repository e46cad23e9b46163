//! The list of a tenant's collections, a hint: it may lag, be missing, or have been made by anybody.
//!
//! A text: the line `tierfs collections 2`, then a line for each collection, sorted by name, of fields with a space
//! between:
//!
//! | field | content |
//! |---|---|
//! | name | the whole name, with `%XX` as in keys |
//! | number | of the newest snapshot, 16 hexadecimal digits |
//! | manifest | its last 32 bytes, 64 hexadecimal digits; its bytes |
//! | state | `shown`, or `removed` |
//! | owner of the collection | user, group, permission bits in octal |
//! | directory | link count, 1 if unknown; times of access, modification and change, nanoseconds since 1970 |
//! | totals | files of the manifest; bytes that its pieces stand for |
//! | head | the ETag that `head/` had after the push, with `%XX`; empty if it has none |

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::{Manifest, OwnerAndMode};
use crate::model::{Error, MODE_BITS, Result, check_label, hex};

const FIRST_LINE: &str = "tierfs collections 2";
/// A list has at most this many bytes: some 200,000 collections.
pub const LIST_BYTES_MAX: u64 = 64 << 20;
const SHOWN: &str = "shown";
const REMOVED: &str = "removed";

/// The newest snapshots of a tenant's collections, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TenantList(pub BTreeMap<String, ListedCollection>);

/// The newest snapshot of a collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedCollection {
    /// Its number.
    pub number: u64,
    /// The digest of its manifest.
    pub digest: [u8; 32],
    /// Bytes of its manifest.
    pub len: u64,
    /// Whether it says that the collection was removed.
    pub is_removed: bool,
    /// The owner of the collection.
    pub owner: OwnerAndMode,
    /// Its directory.
    pub directory: ListedDirectory,
    /// Files of the manifest.
    pub files: u64,
    /// Bytes that its pieces stand for.
    pub bytes: u64,
    /// The ETag of the hint of its number; empty if it has none.
    pub head: String,
}

/// Attributes of the directory that a collection is, beside its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedDirectory {
    /// Link count; 1 if the number of directories in it is unknown.
    pub links: u32,
    /// Time of the last access, in nanoseconds since 1970, as the others.
    pub accessed: i64,
    /// Time of the last modification.
    pub modified: i64,
    /// Time of the last change of any kind.
    pub changed: i64,
}

impl ListedCollection {
    /// The entry of a snapshot, as far as its manifest says: its times are that of the push.
    pub fn of(manifest: &Manifest, digest: [u8; 32], len: u64) -> ListedCollection {
        let time = i64::try_from(manifest.created_at).unwrap_or(i64::MAX);
        ListedCollection {
            number: manifest.number,
            digest,
            len,
            is_removed: manifest.is_removal(),
            owner: manifest.collection.owner,
            directory: ListedDirectory { links: 1, accessed: time, modified: time, changed: time },
            files: manifest.files.len() as u64,
            bytes: manifest.pieces.iter().map(|piece| u64::from(piece.raw)).sum(),
            head: String::new(),
        }
    }

    fn write(&self, name: &str, out: &mut String) {
        let ListedDirectory { links, accessed, modified, changed } = self.directory;
        let state = if self.is_removed { REMOVED } else { SHOWN };
        let (name, digest, head) =
            (keys::escape_whole(name), hex(&self.digest), keys::escape_whole(&self.head));
        let OwnerAndMode { uid, gid, mode } = self.owner;
        let mode = mode & MODE_BITS;
        // Writing to a text cannot fail.
        writeln!(
            out,
            "{name} {:016x} {digest} {} {state} {uid} {gid} {mode:o} {links} {accessed} {modified} {changed} {} {} {head}",
            self.number, self.len, self.files, self.bytes
        )
        .unwrap_or_default();
    }

    fn parse(line: &str) -> Option<(String, ListedCollection)> {
        let mut fields = line.split(' ');
        let mut next = || fields.next();
        let name = keys::unescape_whole(next()?).filter(|name| check_label(name).is_ok())?;
        let found = ListedCollection {
            number: keys::number(next()?).filter(|number| *number > 0)?,
            digest: keys::digest(next()?)?,
            len: next()?.parse().ok()?,
            is_removed: match next()? {
                SHOWN => false,
                REMOVED => true,
                _ => return None,
            },
            owner: parse_owner(&mut next)?,
            directory: ListedDirectory {
                links: next()?.parse().ok()?,
                accessed: next()?.parse().ok()?,
                modified: next()?.parse().ok()?,
                changed: next()?.parse().ok()?,
            },
            files: next()?.parse().ok()?,
            bytes: next()?.parse().ok()?,
            head: keys::unescape_whole(next()?)?,
        };
        next().is_none().then_some((name, found))
    }
}

fn parse_owner<'a>(next: &mut impl FnMut() -> Option<&'a str>) -> Option<OwnerAndMode> {
    let (uid, gid) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let mode = u32::from_str_radix(next()?, 8).ok().filter(|mode| mode & !MODE_BITS == 0)?;
    Some(OwnerAndMode { uid, gid, mode })
}

impl TenantList {
    /// Reads a list. `Corrupt` if a line is not that of a collection.
    pub fn parse(bytes: &[u8]) -> Result<TenantList> {
        let text = std::str::from_utf8(bytes).map_err(|_| Error::corrupt("it is not a text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(Error::unsupported("the list of collections has an unknown format"));
        }
        let found: Option<BTreeMap<_, _>> = lines.map(ListedCollection::parse).collect();
        found.map(TenantList).ok_or_else(|| Error::corrupt("a line is not that of a collection"))
    }

    /// The text of the list.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        self.0.iter().for_each(|(name, listed)| listed.write(name, &mut text));
        text
    }

    /// Takes entries over that are not older than its own.
    pub fn take(&mut self, newer: &TenantList) {
        for (name, listed) in &newer.0 {
            if self.0.get(name).is_none_or(|known| known.number <= listed.number) {
                self.0.insert(name.clone(), listed.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(number: u64, time: i64, head: &str) -> ListedCollection {
        ListedCollection {
            number,
            digest: [0xab; 32],
            len: 700,
            is_removed: false,
            owner: OwnerAndMode { uid: 1000, gid: 100, mode: 0o2775 },
            directory: ListedDirectory { links: 3, accessed: 1, modified: time, changed: 2 },
            files: 4,
            bytes: 5_000_000_000,
            head: head.to_owned(),
        }
    }

    #[test]
    fn a_line_has_the_fields_of_the_table() {
        let list = TenantList(BTreeMap::from([("llama 3".to_owned(), listed(18, -7, "\"e 1\""))]));
        let line = format!(
            "llama%203 0000000000000012 {} 700 shown 1000 100 2775 3 1 -7 2 4 5000000000 %22e%201%22",
            "ab".repeat(32)
        );
        assert_eq!(list.to_text(), format!("tierfs collections 2\n{line}\n"));
    }

    #[test]
    fn lines_that_nobody_writes_are_refused() {
        let right = TenantList(BTreeMap::from([("m".to_owned(), listed(1, 1, ""))])).to_text();
        assert!(TenantList::parse(right.as_bytes()).is_ok());
        let wrong = [
            ("m 0", "a%2Fb 0"),
            ("m 0", ".. 0"),
            ("0000000000000001", "0000000000000000"),
            ("0000000000000001", "+000000000000001"),
            ("abab", "ABAB"),
            (" shown ", " hidden "),
            (" 2775 ", " 202775 "),
            (" 700 ", " -700 "),
            (" 4 ", " 4 4 "),
            ("collections 2", "collections 1"),
        ];
        for (from, to) in wrong {
            assert!(TenantList::parse(right.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
        }
    }

    #[test]
    fn an_older_entry_does_not_replace_a_newer_one() {
        let of = |number| TenantList(BTreeMap::from([("m".to_owned(), listed(number, 1, ""))]));
        let mut list = of(5);
        list.take(&of(4));
        assert_eq!(list, of(5));
        list.take(&of(6));
        assert_eq!(list, of(6));
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(
            all in prop::collection::btree_map("[^/\0]{1,60}", (1_u64.., any::<i64>(), "\\PC{0,20}"), 0..9),
        ) {
            let all = all.into_iter().filter(|(name, _)| check_label(name).is_ok());
            let all = all.map(|(name, (number, time, head))| (name, listed(number, time, &head)));
            let list = TenantList(all.collect());
            prop_assert_eq!(TenantList::parse(list.to_text().as_bytes()).unwrap(), list);
        }

        #[test]
        fn any_text_is_read_as_a_list_or_refused(text in "(tierfs collections 2\n)?[m%0-9a-f \n-]{0,200}") {
            if let Ok(list) = TenantList::parse(text.as_bytes()) {
                prop_assert_eq!(TenantList::parse(list.to_text().as_bytes()).unwrap(), list);
            }
        }
    }
}
