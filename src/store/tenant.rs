//! Tenants: number, owner, permissions and quota.
//!
//! The file `.tenant.toml` in a tenant's directory has `number`, `owner`, `group` (numbers), `mode` (permission
//! bits as octal text) and `quota` (limits as [`Limits`] reads them), each of which may be missing. No
//! collection can have that name. A tenant without the file belongs to the user who runs the mount.
//!
//! Inode numbers contain the number of a tenant. It stays when the tenant is renamed, and a later tenant of the old name
//! has another one: programs and the kernel may still use the renamed or removed tenant by its number.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::model::{Error, ErrorKind, Instant, MODE_BITS, Owner, Result, now_nanoseconds};
use crate::store::disk::{Disk, Open, remove_if_present, replace_file};
use crate::store::many_at_once::InFlight;
use crate::store::quota::{Limits, Meter};

/// Name of the file.
pub(in crate::store) const FILE_NAME: &str = ".tenant.toml";
const DRAFT_NAME: &str = ".tenant.toml.new";
/// Maximum size of the file. A longer one is not ours.
const FILE_BYTES_MAX: u64 = 4096;
const MODE: u32 = 0o755;
/// Mode of a tenant whose file cannot be read: only the user who runs the mount has access.
const CLOSED_MODE: u32 = 0o700;
/// A file that could not be read is read again after this time.
const FAILED_FOR: Duration = Duration::from_secs(5);

/// The values that numbers of tenants have. The root of a mount is 1.
pub const TENANT_NUMBERS: Range<u64> = 2..1 << 40;

/// Content of a tenant's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TenantEntry {
    /// Its number. `None` for the hash of its name.
    pub number: Option<u64>,
    /// User and group. `None` for the user who runs the mount.
    pub owner: Option<Owner>,
    /// Permission bits.
    pub mode: u32,
    /// Its quota.
    pub limits: Limits,
}

impl Default for TenantEntry {
    fn default() -> TenantEntry {
        TenantEntry { number: None, owner: None, mode: MODE, limits: Limits::default() }
    }
}

impl TenantEntry {
    pub(in crate::store) fn to_text(self) -> String {
        let mut text = "# A tenant of a tierfs store. Made by tierfs.\n".to_owned();
        if let Some(number) = self.number {
            text.push_str(&format!("number = {number}\n"));
        }
        if let Some(Owner { uid: owner, gid: group }) = self.owner {
            text.push_str(&format!("owner = {owner}\ngroup = {group}\n"));
        }
        text.push_str(&format!("mode = \"{:04o}\"\nquota = \"{}\"\n", self.mode, self.limits.to_text()));
        text
    }

    fn parse(text: &str) -> Result<TenantEntry> {
        let table: toml::Table =
            text.parse().map_err(|error| Error::invalid(format!("{FILE_NAME} cannot be read: {error}")))?;
        let mut entry = TenantEntry::default();
        let (mut owner, mut group) = (None, None);
        for (key, value) in &table {
            let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
            let own = || {
                let own = value.as_integer().and_then(|own| u64::try_from(own).ok());
                own.filter(|own| TENANT_NUMBERS.contains(own))
            };
            let mode = || u32::from_str_radix(value.as_str()?, 8).ok().filter(|mode| *mode <= MODE_BITS);
            let limits = || Limits::default().changed(value.as_str()?).ok();
            let known = match key.as_str() {
                "number" => own().map(|own| entry.number = Some(own)),
                "owner" => number.map(|number| owner = Some(number)),
                "group" => number.map(|number| group = Some(number)),
                "mode" => mode().map(|mode| entry.mode = mode),
                "quota" => limits().map(|limits| entry.limits = limits),
                _ => None,
            };
            known.ok_or_else(|| Error::invalid(format!("{FILE_NAME}: unknown setting {key} = {value}")))?;
        }
        entry.owner = match (owner, group) {
            (Some(uid), Some(gid)) => Some(Owner { uid, gid }),
            (None, None) => None,
            _ => return Err(Error::invalid(format!("{FILE_NAME} needs both owner and group"))),
        };
        Ok(entry)
    }
}

/// A tenant of an open store.
pub struct Tenant {
    /// Held while the file is written, not while it is read: a remote may take long. Comes before `entry`.
    file: Mutex<TenantFile>,
    /// Content of its file.
    entry: RwLock<TenantEntry>,
    /// The total use of its open collections.
    meter: Arc<Meter>,
    /// Whether all of its collections are counted. Held while they are opened.
    is_counted: Mutex<bool>,
}

/// The reads of a tenant's file.
#[derive(Clone, Copy)]
enum TenantFile {
    Unread,
    /// The last one has failed, at this time.
    Failed(Instant),
    Read,
}

impl Tenant {
    /// A tenant whose file was not read: only the user who runs the mount may use it.
    fn closed(name: &str) -> Tenant {
        let entry = TenantEntry { mode: CLOSED_MODE, ..TenantEntry::default() };
        let meter = Meter::new(name, None, entry.limits);
        let (file, is_counted) = (Mutex::new(TenantFile::Unread), Mutex::new(false));
        Tenant { file, entry: RwLock::new(entry), meter, is_counted }
    }

    /// Whether its file is to be read.
    fn is_due(&self) -> bool {
        match *self.file.lock() {
            TenantFile::Unread => true,
            TenantFile::Failed(when) => when.elapsed() >= FAILED_FOR,
            TenantFile::Read => false,
        }
    }

    /// Notes the content of its file, unless another thread was faster.
    fn note(&self, name: &str, found: Result<TenantEntry>) {
        let mut file = self.file.lock();
        match (*file, found) {
            (TenantFile::Read, _) => {}
            (_, Ok(entry)) => {
                *self.entry.write() = entry;
                self.meter.set_limits(entry.limits);
                *file = TenantFile::Read;
            }
            (_, Err(error)) => {
                log::warn!("{name}: only the user who runs the mount may use this tenant: {error}");
                *file = TenantFile::Failed(Instant::now());
            }
        }
    }

    /// Content of its file.
    pub fn entry(&self) -> TenantEntry {
        *self.entry.read()
    }

    pub(in crate::store) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Runs `count` once, which opens all of its collections.
    pub(in crate::store) fn counted_by(&self, count: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut is_counted = self.is_counted.lock();
        if !*is_counted {
            count()?;
            *is_counted = true;
        }
        Ok(())
    }
}

/// The tenants of an open store that were asked for.
pub(in crate::store) struct Tenants {
    disk: Arc<dyn Disk>,
    /// Whether a tenant without a file has the defaults. One of a remote has a file as soon as a collection can be read.
    has_defaults: bool,
    /// Tenants whose files threads are reading.
    reading: InFlight<String, ()>,
    loaded: Mutex<HashMap<String, Arc<Tenant>>>,
}

impl Tenants {
    /// The tenants of the store on this disk. `has_defaults` says whether those without a file are as new ones; otherwise they
    /// are closed.
    pub fn new(disk: Arc<dyn Disk>, has_defaults: bool) -> Tenants {
        Tenants { disk, has_defaults, reading: InFlight::default(), loaded: Mutex::default() }
    }

    /// A tenant. One that does not exist has the defaults of a new one; one whose file cannot be read is closed until it
    /// can.
    pub fn get(&self, name: &str) -> Arc<Tenant> {
        let tenant = self.known(name);
        if tenant.is_due() {
            self.reading.run(&name.to_owned(), || {
                // Another thread may have been faster.
                if tenant.is_due() {
                    tenant.note(name, self.read(name));
                }
            });
        }
        tenant
    }

    fn read(&self, name: &str) -> Result<TenantEntry> {
        match read(&*self.disk, name) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.has_defaults => {
                Ok(TenantEntry::default())
            }
            found => found,
        }
    }

    /// A tenant, closed if its file was not read yet.
    pub fn known(&self, name: &str) -> Arc<Tenant> {
        let mut loaded = self.loaded.lock();
        loaded.entry(name.to_owned()).or_insert_with(|| Arc::new(Tenant::closed(name))).clone()
    }

    /// Changes a tenant's file, durably.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut TenantEntry)) -> Result<()> {
        let tenant = self.get(name);
        let mut file = tenant.file.lock();
        let mut entry = tenant.entry.write();
        let mut changed = *entry;
        change(&mut changed);
        changed.mode &= MODE_BITS;
        if changed != *entry {
            write(&*self.disk, name, changed)?;
            *entry = changed;
            *file = TenantFile::Read;
        }
        drop((entry, file));
        tenant.meter.set_limits(changed.limits);
        Ok(())
    }

    /// The number of a tenant.
    pub fn number(&self, name: &str) -> u64 {
        // A remote may take long to say who owns a tenant, and has no numbers.
        let recorded = if self.has_defaults { self.get(name).entry().number } else { None };
        recorded.unwrap_or_else(|| hash(name, b""))
    }

    /// Records the number of a tenant, durably, before a rename: it may be a hash of the name. A tenant whose file cannot be
    /// read gets another number with its next name.
    pub fn record_number(&self, name: &str) -> Result<()> {
        let number = self.number(name);
        let is_read = matches!(*self.known(name).file.lock(), TenantFile::Read);
        if is_read { self.change(name, |entry| entry.number = Some(number)) } else { Ok(()) }
    }

    /// Writes a new tenant's file.
    pub fn write_new(&self, name: &str, owner: Owner, mode: u32) -> Result<()> {
        let entry = TenantEntry {
            number: Some(hash(name, &now_nanoseconds().to_le_bytes())),
            owner: Some(owner),
            mode: mode & MODE_BITS,
            ..TenantEntry::default()
        };
        write(&*self.disk, name, entry)?;
        self.loaded.lock().remove(name);
        Ok(())
    }

    /// Forgets a tenant whose name leads elsewhere from now on.
    pub fn forget(&self, name: &str) {
        self.loaded.lock().remove(name);
    }

    /// Removes a tenant's file, before its directory is removed.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        for file in [DRAFT_NAME, FILE_NAME] {
            let path = format!("{name}/{file}");
            remove_if_present(&*self.disk, &path)
                .map_err(|error| Error::io(format!("removing {path}"), error))?;
        }
        self.loaded.lock().remove(name);
        Ok(())
    }
}

/// A number for a tenant, from its name and when it was made. Without a time it is the one that mounts of earlier programs
/// know.
fn hash(name: &str, made: &[u8]) -> u64 {
    let end: &[u8] = if made.is_empty() { b"" } else { b"\0" };
    let digest = blake3::hash(&[name.as_bytes(), end, made].concat());
    let (first, _) = digest.as_bytes().split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    (u64::from_le_bytes(*first) % TENANT_NUMBERS.end).max(TENANT_NUMBERS.start)
}

fn read(disk: &dyn Disk, name: &str) -> Result<TenantEntry> {
    let path = format!("{name}/{FILE_NAME}");
    let failed = |error| Error::io(format!("reading {path}"), error);
    let file = match disk.open(&path, Open::Read) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no {path}")));
        }
        opened => opened.map_err(failed)?,
    };
    let len = file.len().map_err(failed)?;
    if len > FILE_BYTES_MAX {
        return Err(Error::invalid(format!("{path} has {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    file.read_exact_at(&mut text, 0).map_err(failed)?;
    TenantEntry::parse(&String::from_utf8_lossy(&text)).map_err(|error| error.at(&path))
}

fn write(disk: &dyn Disk, name: &str, entry: TenantEntry) -> Result<()> {
    let (path, draft) = (format!("{name}/{FILE_NAME}"), format!("{name}/{DRAFT_NAME}"));
    let written = replace_file(disk, &draft, &path, entry.to_text().as_bytes());
    written.map_err(|error| Error::io(format!("writing {path}"), error))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{CLOSED_MODE, MODE, TENANT_NUMBERS, TenantEntry, Tenants, write};
    use crate::model::Owner;
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, Open, write_new};
    use crate::store::quota::Limits;

    #[test]
    fn a_tenant_without_a_file_has_the_defaults_only_on_this_machine() {
        for (has_defaults, mode) in [(true, MODE), (false, CLOSED_MODE)] {
            let tenants = Tenants::new(Arc::new(MemoryDisk::new()), has_defaults);
            assert_eq!(tenants.get("t").entry().mode, mode);
        }
    }

    #[test]
    fn a_tenant_keeps_its_number_and_a_later_one_of_its_name_gets_another() {
        let disk = Arc::new(MemoryDisk::new());
        let tenants = Tenants::new(disk.clone(), true);
        let owner = Owner { uid: 1, gid: 1 };
        let make = |name: &str| {
            disk.create_directory(name).unwrap();
            tenants.write_new(name, owner, MODE).unwrap();
            tenants.number(name)
        };
        let rename = |from: &str, to: &str| {
            tenants.record_number(from).unwrap();
            disk.rename(from, to).unwrap();
            [from, to].iter().for_each(|name| tenants.forget(name));
            tenants.number(to)
        };
        let first = make("t");
        assert_eq!(rename("t", "u"), first);
        let second = make("t");
        assert!(second != first && TENANT_NUMBERS.contains(&second));
        // A tenant whose file has no number.
        write(&*disk, "t", TenantEntry::default()).unwrap();
        tenants.forget("t");
        let third = tenants.number("t");
        let digest = u64::from_le_bytes(*blake3::hash(b"t").as_bytes().first_chunk().unwrap());
        assert_eq!(third, digest & (TENANT_NUMBERS.end - 1));
        assert_eq!(rename("t", "v"), third);
        assert!(make("t") != third);
        // One whose file cannot be read keeps the file.
        disk.create_directory("w").unwrap();
        let text = b"mode = 'rwx'";
        write_new(&*disk, "w/.tenant.toml", text).unwrap();
        let fourth = tenants.number("w");
        tenants.record_number("w").unwrap();
        assert!(
            TENANT_NUMBERS.contains(&fourth)
                && disk.open("w/.tenant.toml", Open::Read).unwrap().len().unwrap() == text.len() as u64
        );
    }

    #[test]
    fn tenant_files_round_trip_and_invalid_texts_are_refused() {
        let limits = Limits { bytes: Some(7), stored: None, files: Some(9) };
        for entry in [
            TenantEntry::default(),
            TenantEntry {
                number: Some(TENANT_NUMBERS.end - 1),
                owner: Some(Owner { uid: u32::MAX, gid: 0 }),
                mode: 0o2770,
                limits,
            },
        ] {
            assert_eq!(TenantEntry::parse(&entry.to_text()).unwrap(), entry);
        }
        assert_eq!(TenantEntry::parse("").unwrap(), TenantEntry::default());
        for wrong in [
            "number = 1",
            "number = -2",
            "number = 1099511627776",
            "owner = 1",
            "owner = -1\ngroup = 1",
            "owner = 4294967296\ngroup = 1",
            "owner = 'a'\ngroup = 1",
            "mode = 0o755",
            "mode = '10000'",
            "mode = '9'",
            "quota = 'bytes=x'",
            "quota = 1",
            "other = 1",
            "owner = 1\nowner = 1\ngroup = 2",
            "[owner]",
            "\u{0}",
        ] {
            assert!(TenantEntry::parse(wrong).is_err(), "{wrong}");
        }
    }
}
