//! The versions that a collection has (`store/versions/mod.rs`): their files, and the file `version.toml` of each.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::io;

use crate::format::snapshot::manifest::FileKind;
use crate::format::version::VersionDifference;
use crate::format::version_description::Description;
use crate::model::{CollectionName, Error, Result};
use crate::store::disk::{Disk, FileAttributes, Identity, Open, replace_file, write_new};
use crate::store::link_candidates::data_number;
use crate::store::log::LOG_NAME;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::DELTA_FILE;
use crate::store::push_file::{parse as parse_push, push_text};
use crate::store::space::files::payload_name;
use crate::store::version_disk::{
    DIFFERENCE, DRAFT, PACKED, VERSIONS, is_payload_name, number_of, read_head, version_name,
};

/// The name of the file with the description of a version.
const NAME: &str = "version.toml";
/// The most bytes of the file that are read.
const BYTES_MAX: u64 = 16 << 20;

/// A snapshot of a remote that has the state of a version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PushedAs {
    /// The uuid of the remote.
    pub remote: String,
    /// The collection there, as `TENANT/COLLECTION`.
    pub collection: String,
    /// The number of the snapshot.
    pub snapshot: u64,
}

/// A version of a collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// Its number, from 1.
    pub number: u64,
    /// When it was made, in nanoseconds since 1970.
    pub created_at: u64,
    /// Logical bytes of its files.
    pub bytes: u64,
    /// Bytes that it takes beside the present state and the later versions.
    pub stored: u64,
    /// Bytes of elements that differ from those of the version before, and of tensors that it lacks; `None` if they
    /// were not compared.
    pub changed: Option<u64>,
    /// The snapshots that this store pushed of its state, in the order of the remotes.
    pub pushed: Vec<PushedAs>,
}

/// Reads the description of the version in `directory`.
pub(in crate::store) fn read_description(disk: &dyn Disk, directory: &str) -> Result<Description> {
    let path = format!("{directory}/{NAME}");
    let failed = |error| Error::io(format!("reading {path}"), error);
    let file = disk.open(&path, Open::Read).map_err(failed)?;
    let len = file.len().map_err(failed)?;
    if len > BYTES_MAX {
        return Err(Error::corrupt(format!("{path} has {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    file.read_exact_at(&mut text, 0).map_err(failed)?;
    Description::parse(&String::from_utf8_lossy(&text)).map_err(|error| error.at(path))
}

/// Writes the description of a version that is being made. The name is durable once the directory is synced.
pub(in crate::store) fn create_description(
    disk: &dyn Disk,
    directory: &str,
    new: &Description,
) -> Result<()> {
    let path = format!("{directory}/{NAME}");
    let written = write_new(disk, &path, new.to_text().as_bytes()).and_then(|file| file.sync_data());
    written.map_err(|error| Error::io(format!("writing {path}"), error))
}

/// Replaces the description of the version in `directory`, durably.
pub(in crate::store) fn write_description(disk: &dyn Disk, directory: &str, new: &Description) -> Result<()> {
    let path = format!("{directory}/{NAME}");
    let draft = format!("{path}{DRAFT}");
    let written = replace_file(disk, &draft, &path, new.to_text().as_bytes());
    written.map_err(|error| Error::io(format!("writing {path}"), error))
}

/// The path of a file below the directory of its version; `None` for the log.
pub(in crate::store) fn file_name(kind: FileKind, number: u64) -> Option<String> {
    match kind {
        FileKind::Log => None,
        FileKind::Data => Some(format!("{number:016x}")),
        FileKind::Tier => Some(payload_name(u8::try_from(number).ok()?)),
        FileKind::Delta => Some(payload_name(DELTA_FILE)),
        FileKind::Factor => Some(payload_name(FACTOR_FILE)),
    }
}

/// The directory of a version.
pub(in crate::store) fn directory(place: CollectionName<'_>, number: u64) -> String {
    format!("{}/{}", place.tenant, version_name(place.name, number))
}

/// The numbers of the versions of a collection, ascending.
pub(in crate::store) fn numbers(disk: &dyn Disk, place: CollectionName<'_>) -> Result<Vec<u64>> {
    let path = format!("{place}/{VERSIONS}");
    let listed = match disk.list(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(|error| Error::io(format!("listing {path}"), error))?,
    };
    let directories = listed.iter().filter(|entry| entry.is_directory);
    let mut numbers: Vec<u64> = directories.filter_map(|entry| number_of(&entry.name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// A payload file of a version.
pub(in crate::store) struct Stored {
    /// Its path below the directory of the version, without [`DIFFERENCE`].
    pub name: String,
    pub is_difference: bool,
    pub attributes: FileAttributes,
    /// The space that it takes, in bytes.
    pub bytes: u64,
}

/// The payload files of the version in `directory`. One that is there whole and as a difference counts as whole.
pub(in crate::store) fn stored(disk: &dyn Disk, directory: &str) -> Result<Vec<Stored>> {
    let failed = |error| Error::io(format!("looking at {directory}"), error);
    let mut found: HashMap<String, Stored> = HashMap::new();
    for entry in disk.list(directory).map_err(failed)? {
        let name = entry.name.strip_suffix(DIFFERENCE).unwrap_or(&entry.name).to_owned();
        let is_difference = name.len() < entry.name.len();
        let is_whole_known = is_difference && found.contains_key(&name);
        if entry.is_directory || !is_payload_name(&name) || is_whole_known {
            continue;
        }
        let file = disk.open(&format!("{directory}/{}", entry.name), Open::Read).map_err(failed)?;
        let attributes = file.attributes().map_err(failed)?;
        let bytes = attributes.space(file.len().map_err(failed)?);
        found.insert(name.clone(), Stored { name, is_difference, attributes, bytes });
    }
    let mut found: Vec<Stored> = found.into_values().collect();
    found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// How many names of each whole file the versions of a collection have.
#[derive(Default)]
pub(in crate::store) struct Names(HashMap<Identity, u64>);

impl Names {
    /// Those that all versions of a collection have. A version that cannot be read has none.
    pub fn of_versions(disk: &dyn Disk, place: CollectionName<'_>) -> Names {
        let mut names = Names::default();
        for number in numbers(disk, place).unwrap_or_default() {
            let stored = stored(disk, &directory(place, number));
            names.count(&stored.unwrap_or_default());
        }
        names
    }

    pub fn count(&mut self, stored: &[Stored]) {
        for identity in stored.iter().filter_map(|stored| stored.attributes.identity) {
            *self.0.entry(identity).or_default() += 1;
        }
    }

    /// Whether a file has names outside of the counted versions, so that removing those frees no space.
    pub fn is_held_elsewhere(&self, attributes: &FileAttributes) -> bool {
        attributes.links > self.number(attributes).max(1)
    }

    /// How many names a file has in the counted versions.
    pub fn number(&self, attributes: &FileAttributes) -> u64 {
        attributes.identity.and_then(|identity| self.0.get(&identity)).copied().unwrap_or(0)
    }
}

/// The data files that the present state of a collection has.
struct Present<'a> {
    disk: &'a dyn Disk,
    place: CollectionName<'a>,
    /// All of them, once one is looked for that does not have the name that versions have.
    all: OnceCell<HashSet<Identity>>,
}

impl<'a> Present<'a> {
    fn new(disk: &'a dyn Disk, place: CollectionName<'a>) -> Present<'a> {
        Present { disk, place, all: OnceCell::new() }
    }

    /// Whether it has a file of a version.
    fn has(&self, file: &Stored) -> bool {
        if data_number(&file.name).is_none() {
            return false;
        }
        let identity = file.attributes.identity;
        let named = self.attributes(&file.name);
        named.is_some_and(|named| named.identity == identity)
            || identity.is_some_and(|identity| self.all.get_or_init(|| self.identities()).contains(&identity))
    }

    fn attributes(&self, name: &str) -> Option<FileAttributes> {
        let opened = self.disk.open(&format!("{}/data/{name}", self.place), Open::Read);
        opened.and_then(|file| file.attributes()).ok()
    }

    fn identities(&self) -> HashSet<Identity> {
        let listed = self.disk.list(&format!("{}/data", self.place)).unwrap_or_default();
        listed.iter().filter_map(|file| self.attributes(&file.name)?.identity).collect()
    }
}

/// The numbers of the versions of a collection, ascending, with the bytes that each takes beside the present state and the
/// later ones. A file that another collection has too counts here as well, as those of two present states do: so no number
/// depends on another collection.
fn bytes_of_each(disk: &dyn Disk, place: CollectionName<'_>) -> Result<Vec<(u64, u64)>> {
    let (mut names, mut files) = (Names::default(), Vec::new());
    for number in numbers(disk, place)? {
        match stored(disk, &directory(place, number)) {
            Ok(stored) => {
                names.count(&stored);
                files.push((number, stored));
            }
            // It was removed meanwhile.
            Err(_) if !numbers(disk, place)?.contains(&number) => {}
            Err(error) => return Err(error),
        }
    }
    let present = Present::new(disk, place);
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for (number, stored) in files.into_iter().rev() {
        let path = format!("{}/{LOG_NAME}", directory(place, number));
        let log = disk.open(&format!("{path}{PACKED}"), Open::Read);
        let log = log.or_else(|_| disk.open(&path, Open::Read));
        let mut bytes = log.and_then(|log| log.len()).unwrap_or(0);
        for stored in &stored {
            let is_first = stored.attributes.identity.is_none_or(|identity| seen.insert(identity));
            let is_elsewhere = || names.is_held_elsewhere(&stored.attributes) && present.has(stored);
            if is_first && !is_elsewhere() {
                bytes += stored.bytes;
            }
        }
        found.push((number, bytes));
    }
    found.reverse();
    Ok(found)
}

/// The versions of a collection, the oldest first. Needs no open store.
pub fn versions_on(disk: &dyn Disk, place: CollectionName<'_>) -> Result<Vec<Version>> {
    let pushes = push_text(disk, &place.to_string());
    let pushes = pushes.inspect_err(|error| log::warn!("the pushes of {place} are not known: {error}"));
    let pushes = pushed_as(&pushes.unwrap_or_default());
    let described = |(number, stored): (u64, u64)| {
        // The version reads without it.
        let described = read_description(disk, &directory(place, number));
        let described = described.inspect_err(|error| log::warn!("version {number} of {place}: {error}"));
        let Description { created_at, bytes, changed, state, .. } = described.unwrap_or_default();
        let pushed = pushes.get(&state).cloned().unwrap_or_default();
        Version { number, created_at, bytes, stored, changed, pushed }
    };
    Ok(bytes_of_each(disk, place)?.into_iter().map(described).collect())
}

/// Bytes that the versions of a collection take beside its present state; `None` if there are none.
pub(in crate::store) fn bytes_of_versions(disk: &dyn Disk, place: CollectionName<'_>) -> Result<Option<u64>> {
    let each = bytes_of_each(disk, place)?;
    Ok((!each.is_empty()).then(|| each.iter().map(|(_, bytes)| bytes).sum()))
}

/// The snapshots that pushes are noted of, by their states.
fn pushed_as(pushes: &str) -> HashMap<[u8; 32], Vec<PushedAs>> {
    let mut found: HashMap<[u8; 32], Vec<PushedAs>> = HashMap::new();
    for line in pushes.lines().filter_map(parse_push).filter(|line| line.push.snapshot > 0) {
        found.entry(line.push.state).or_default().push(PushedAs {
            remote: line.remote.to_owned(),
            collection: line.named.to_owned(),
            snapshot: line.push.snapshot,
        });
    }
    found
}

/// The head of the difference that a file of a version is stored as, if it is.
pub(in crate::store) fn head_of(
    disk: &dyn Disk,
    directory: &str,
    name: &str,
) -> Result<Option<VersionDifference>> {
    match disk.open(&format!("{directory}/{name}{DIFFERENCE}"), Open::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("opening {directory}/{name}{DIFFERENCE}"), error)),
        Ok(file) => read_head(&*file).map(Some).map_err(|error| error.at(format!("{directory}/{name}"))),
    }
}
