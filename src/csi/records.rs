//! The files that outlive this process: which volumes are staged and published, which were created, and the key of
//! digests.
//!
//! | path in the state directory | content |
//! |---|---|
//! | `lock` | held by the plugin that uses the directory |
//! | `key` | 32 random bytes, the key of all digests |
//! | `volumes/DIGEST.json` | a volume that is staged or published: its attributes, its daemon, its places |
//! | `created/DIGEST.json` | a volume of the controller: its attributes, and the clone that it is |
//! | `mounts/DIGEST/` | a daemon, see `daemons.rs` |
//! | `bin/` | the program for daemons outside this container, unless another directory has it |
//!
//! All is of the user alone. A file is replaced by rename, so that it is whole at any time.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Map, Value, json};

use crate::csi::access::Access;
use crate::csi::failure::{Outcome, internal};
use crate::csi::messages::{CapacityRange, Texts};
use crate::csi::targets::Target;
use crate::model::{Error, ErrorKind, Result};

const KEY_BYTES: usize = 32;
/// Characters of a digest in names.
const DIGEST_CHARACTERS: usize = 32;
/// The end of a file's name while it is written.
const DRAFT: &str = "new";
/// Larger files are not ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A directory where a volume is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::csi) struct Placed {
    pub target: Target,
    pub access: Access,
}

/// A volume that is staged or published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::csi) struct VolumeRecord {
    pub id: String,
    pub attributes: Texts,
    /// The digest of its daemon.
    pub daemon: String,
    /// The path of its root in the daemon's mount.
    pub collection: String,
    pub is_inline: bool,
    pub staged: Option<Placed>,
    pub published: Vec<Placed>,
}

/// A volume that the controller has made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::csi) struct CreatedRecord {
    pub id: String,
    /// The parameters that it was asked for with.
    pub parameters: Texts,
    /// The attributes for nodes.
    pub attributes: Texts,
    pub capacity: Option<(i64, i64)>,
    /// The volume that it is a clone of.
    pub source: Option<String>,
    /// Whether the clone exists, if it is one.
    pub is_made: bool,
}

/// Records of volumes.
pub(in crate::csi) struct Volumes {
    pub readable: Vec<VolumeRecord>,
    /// The failure to read another one, which may be of any daemon.
    pub are_all: Outcome<()>,
}

/// The state directory.
pub(in crate::csi) struct Records {
    directory: PathBuf,
    key: [u8; KEY_BYTES],
    lock: File,
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::io(path.display(), error)
}

fn texts_to_json(texts: &Texts) -> Value {
    Value::Object(
        texts.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect::<Map<_, _>>(),
    )
}

fn texts_from_json(value: &Value) -> Option<Texts> {
    let pairs = value.as_object()?.iter();
    pairs.map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

impl Placed {
    fn to_json(&self) -> Value {
        json!({ "path": self.target.text(), "access": self.access.to_json() })
    }

    fn from_json(value: &Value) -> Option<Placed> {
        let target = Target::of("path", value.get("path")?.as_str()?).ok()?;
        Some(Placed { target, access: Access::from_json(value.get("access")?)? })
    }
}

impl VolumeRecord {
    /// The places where it is mounted, or about to be.
    pub fn places(&self) -> impl Iterator<Item = &Placed> {
        self.staged.iter().chain(&self.published)
    }

    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "attributes": texts_to_json(&self.attributes),
            "daemon": self.daemon,
            "collection": self.collection,
            "inline": self.is_inline,
            "staged": self.staged.as_ref().map(Placed::to_json),
            "published": self.published.iter().map(Placed::to_json).collect::<Vec<_>>(),
        })
    }

    fn from_json(value: &Value) -> Option<VolumeRecord> {
        let text = |name| Some(value.get(name)?.as_str()?.to_owned());
        let staged = match value.get("staged")? {
            Value::Null => None,
            staged => Some(Placed::from_json(staged)?),
        };
        Some(VolumeRecord {
            id: text("id")?,
            attributes: texts_from_json(value.get("attributes")?)?,
            daemon: text("daemon").filter(|daemon| is_digest(daemon))?,
            collection: text("collection")?,
            is_inline: value.get("inline")?.as_bool()?,
            staged,
            published: value
                .get("published")?
                .as_array()?
                .iter()
                .map(Placed::from_json)
                .collect::<Option<_>>()?,
        })
    }
}

impl CreatedRecord {
    /// Whether it has this capacity.
    pub fn capacity_of(range: Option<CapacityRange>) -> Option<(i64, i64)> {
        range.map(|range| (range.required_bytes, range.limit_bytes))
    }

    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "parameters": texts_to_json(&self.parameters),
            "attributes": texts_to_json(&self.attributes),
            "capacity": self.capacity.map(|(required, limit)| [required, limit]),
            "source": self.source,
            "made": self.is_made,
        })
    }

    fn from_json(value: &Value) -> Option<CreatedRecord> {
        let capacity = match value.get("capacity")? {
            Value::Null => None,
            range => Some((range.get(0)?.as_i64()?, range.get(1)?.as_i64()?)),
        };
        Some(CreatedRecord {
            id: value.get("id")?.as_str()?.to_owned(),
            parameters: texts_from_json(value.get("parameters")?)?,
            attributes: texts_from_json(value.get("attributes")?)?,
            capacity,
            source: value.get("source")?.as_str().map(str::to_owned),
            is_made: value.get("made")?.as_bool()?,
        })
    }
}

/// Whether a name is a digest, and so no path.
pub(in crate::csi) fn is_digest(name: &str) -> bool {
    name.len() == DIGEST_CHARACTERS
        && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Makes a directory for this user alone, unless it is there.
pub(in crate::csi) fn make_private(path: &Path) -> Result<()> {
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed(path)),
        Err(error) => Err(failed(path)(error)),
    }
}

/// Writes a file for this user alone, whole or not at all.
pub(in crate::csi) fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension(DRAFT);
    let written = || {
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |above| File::open(above)?.sync_all())
    };
    written().map_err(failed(path))
}

/// Removes what a write that was killed has left, which may have secrets.
pub(in crate::csi) fn remove_drafts(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        if path.extension().is_some_and(|end| end == DRAFT) {
            remove_file(&path)?;
        }
    }
    Ok(())
}

/// Removes a file, if it is there.
pub(in crate::csi) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

/// Reads a record. Returns `None` only if the file does not exist: a record that cannot be read may belong to a volume that
/// is mounted, so it is an error.
pub(in crate::csi) fn read_record<T>(path: &Path, parse: impl Fn(&Value) -> Option<T>) -> Outcome<Option<T>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| internal(failed(path)(error)))?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| internal(failed(path)(error)))?;
    let found = serde_json::from_slice(&bytes).ok().and_then(|value| parse(&value));
    let damaged = || {
        let text =
            format!("{}: the record cannot be read; no daemon is ended while it is there", path.display());
        internal(Error::corrupt(text))
    };
    found.map(Some).ok_or_else(damaged)
}

impl Records {
    /// Opens the state directory, which no other plugin may use.
    pub fn open(directory: &Path) -> Result<Records> {
        for path in ["", "volumes", "created", "mounts", "bin"] {
            make_private(&directory.join(path))?;
        }
        let path = directory.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = lock.map_err(failed(&path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let text =
                format!("another plugin uses {}; end it, or name another --state", directory.display());
            Error::new(ErrorKind::Busy, text)
        })?;
        for folder in ["", "volumes", "created"] {
            remove_drafts(&directory.join(folder))?;
        }
        let path = directory.join("key");
        let key = match read_key(&path) {
            Ok(key) => key,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let random = read_key(Path::new("/dev/urandom"));
                let random = random.map_err(failed(Path::new("/dev/urandom")))?;
                write_private(&path, &random)?;
                random
            }
            Err(error) => return Err(failed(&path)(error)),
        };
        Ok(Records { directory: directory.to_owned(), key, lock })
    }

    /// Fails if the state directory is another one than was opened, or gone: what is written there now would be lost.
    pub fn check_place(&self) -> Outcome<()> {
        let path = self.directory.join("lock");
        let ours = self.lock.metadata().map_err(|error| internal(failed(&path)(error)))?;
        match fs::metadata(&path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(internal(failed(&path)(error))),
            _ => {
                let text = format!("{} was removed or replaced", self.directory.display());
                Err(internal(Error::new(ErrorKind::NotFound, text)))
            }
        }
    }

    /// A digest of texts, which nobody without the key can make: names of files show digests of secrets.
    pub fn digest<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for text in texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.finalize().to_hex().chars().take(DIGEST_CHARACTERS).collect()
    }

    fn path_of(&self, folder: &str, id: &str) -> PathBuf {
        self.directory.join(folder).join(format!("{}.json", self.digest([folder, id])))
    }

    pub fn volume(&self, id: &str) -> Outcome<Option<VolumeRecord>> {
        let of_it = |value: &Value| VolumeRecord::from_json(value).filter(|record| record.id == id);
        read_record(&self.path_of("volumes", id), of_it)
    }

    /// The volumes that are staged or published here.
    pub fn volumes(&self) -> Volumes {
        let mut found = Volumes { readable: Vec::new(), are_all: Ok(()) };
        let path = self.directory.join("volumes");
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) => return Volumes { are_all: Err(internal(failed(&path)(error))), ..found },
        };
        for entry in entries {
            let entry = entry.map_err(|error| internal(failed(&path)(error)));
            let read = entry.and_then(|entry| match entry.path() {
                path if path.extension().is_some_and(|end| end == "json") => {
                    read_record(&path, VolumeRecord::from_json)
                }
                _ => Ok(None),
            });
            match read {
                Ok(record) => found.readable.extend(record),
                Err(failure) => found.are_all = Err(failure),
            }
        }
        found
    }

    /// The volumes of a daemon.
    pub fn volumes_of(&self, daemon: &str) -> Volumes {
        let mut all = self.volumes();
        all.readable.retain(|record| record.daemon == daemon);
        all
    }

    pub fn keep_volume(&self, record: &VolumeRecord) -> Outcome<()> {
        let path = self.path_of("volumes", &record.id);
        write_private(&path, record.to_json().to_string().as_bytes()).map_err(internal)
    }

    pub fn forget_volume(&self, id: &str) -> Outcome<()> {
        remove_file(&self.path_of("volumes", id)).map_err(internal)
    }

    pub fn created(&self, id: &str) -> Outcome<Option<CreatedRecord>> {
        let of_it = |value: &Value| CreatedRecord::from_json(value).filter(|record| record.id == id);
        read_record(&self.path_of("created", id), of_it)
    }

    pub fn keep_created(&self, record: &CreatedRecord) -> Outcome<()> {
        let path = self.path_of("created", &record.id);
        write_private(&path, record.to_json().to_string().as_bytes()).map_err(internal)
    }

    pub fn forget_created(&self, id: &str) -> Outcome<()> {
        remove_file(&self.path_of("created", id)).map_err(internal)
    }
}

fn read_key(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    File::open(path)?.read_exact(&mut key)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{CreatedRecord, Placed, Records, VolumeRecord};
    use crate::csi::access::Access;
    use crate::csi::messages::{AccessMode, MountVolume, Texts, VolumeCapability};
    use crate::csi::targets::Target;
    use crate::model::ErrorKind;

    fn placed(path: &str) -> Placed {
        let mount = Some(MountVolume::default());
        let capability = VolumeCapability { block: None, mount, access_mode: Some(AccessMode { mode: 3 }) };
        let access = Access::of(Some(&capability), false).unwrap();
        Placed { target: Target::of("path", path).unwrap(), access }
    }

    #[test]
    fn records_outlive_the_process_and_damaged_ones_are_none() {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        let records = Records::open(&state).unwrap();
        assert_eq!(Records::open(&state).err().unwrap().kind(), ErrorKind::Busy);
        let attributes: Texts = [("store".to_owned(), "/s".to_owned())].into();
        let volume = VolumeRecord {
            id: "../../x\n".to_owned(),
            attributes: attributes.clone(),
            daemon: records.digest(["d"]),
            collection: "t/c".to_owned(),
            is_inline: false,
            staged: Some(placed("/a/b")),
            published: vec![placed("/a/c"), placed("/a/d")],
        };
        let created = CreatedRecord {
            id: "c".to_owned(),
            parameters: attributes.clone(),
            attributes,
            capacity: Some((1, 2)),
            source: None,
            is_made: true,
        };
        records.keep_volume(&volume).unwrap();
        records.keep_created(&created).unwrap();
        drop(records);
        let records = Records::open(&state).unwrap();
        assert_eq!(records.volume(&volume.id), Ok(Some(volume.clone())));
        assert_eq!((records.volumes().readable.len(), records.created("c")), (1, Ok(Some(created))));
        assert_eq!((records.volume("none"), records.volumes().are_all), (Ok(None), Ok(())));
        for entry in fs::read_dir(state.join("volumes")).unwrap() {
            fs::write(entry.unwrap().path(), b"{\"id\":").unwrap();
        }
        // It is not absent.
        assert!(records.volume(&volume.id).is_err());
        let found = records.volumes_of(&volume.daemon);
        assert!(found.readable.is_empty() && found.are_all.is_err());
        records.forget_volume(&volume.id).unwrap();
        records.forget_volume(&volume.id).unwrap();
    }
}
