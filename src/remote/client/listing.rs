//! Listings of a bucket. They may come in pages without end, or repeat themselves.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::future::join_all;
use object_store::ObjectMeta;

use crate::model::Result;
use crate::remote::client::deadlines::Pauses;
use crate::remote::client::failure::Failure;
use crate::remote::client::version::{self, Version, unquoted};
use crate::remote::client::window::Class;
use crate::remote::client::{Client, runtime};

/// A listing that gives this many keys again that it has given, and no other between them, has no end.
const REPEATED_MAX: u32 = 1000;

/// An object as a listing has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectListed {
    /// The key below the prefix.
    pub key: String,
    /// Bytes.
    pub len: u64,
    /// Seconds since 1970.
    pub modified: i64,
    /// Its version.
    pub version: Version,
}

impl ObjectListed {
    fn of(key: String, meta: &ObjectMeta) -> ObjectListed {
        let modified = meta.last_modified.timestamp();
        ObjectListed { key, len: meta.size, modified, version: version::of(meta) }
    }

    /// Its ETag, without quotation marks; empty if it has none.
    pub fn e_tag(&self) -> &str {
        match &self.version {
            Version::ETag(e_tag) => unquoted(e_tag),
            _ => "",
        }
    }
}

/// The names directly below a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Level {
    /// Names of directories, sorted.
    pub directories: Vec<String>,
    /// Objects.
    pub objects: Vec<ObjectListed>,
}

impl Client {
    /// The objects whose keys begin with `below` and a slash, those after `after` only, in the order of the
    /// keys.
    pub fn list(&self, below: &str, after: Option<&str>) -> Result<Vec<ObjectListed>> {
        runtime::wait(self.listed(below, after, usize::MAX))?
    }

    /// The same of several directories, all listed at the same time, each whole.
    pub(in crate::remote) fn list_each(&self, below: &[String]) -> Result<Vec<Vec<ObjectListed>>> {
        let listed = below.iter().map(|below| self.listed(below, None, usize::MAX));
        runtime::wait(join_all(listed))?.into_iter().collect()
    }

    /// The first `most` objects whose keys begin with `below` and a slash and come after `after`. A server
    /// lists a thousand objects a request.
    pub(in crate::remote) async fn listed(
        &self,
        below: &str,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<ObjectListed>> {
        let list = |left| {
            let (shared, path, after) =
                (self.shared.clone(), self.path(below), after.map(|key| self.path(key)));
            async move {
                let path = path?;
                let mut listed = match after.transpose()? {
                    Some(after) => shared.objects.list_with_offset(Some(&path), &after),
                    None => shared.objects.list(Some(&path)),
                };
                let (mut found, mut again, mut grown) = (BTreeMap::new(), 0, Instant::now());
                while found.len() < most
                    && let Some(object) = shared.soon(listed.next(), left).await.map_err(unending)?
                {
                    let object = object.map_err(Failure::from)?;
                    let key = object.location.as_ref().strip_prefix(shared.prefix.as_str());
                    let Some(key) = key.map(str::to_owned) else { continue };
                    let listed = ObjectListed::of(key.clone(), &object);
                    let known = found.insert(key, listed);
                    if known.is_none() {
                        (again, grown) = (0, Instant::now());
                        continue;
                    }
                    again += 1;
                    if again > REPEATED_MAX || grown.elapsed() > shared.deadlines.total {
                        let text = "the server lists the same keys again and again: its listing never ends";
                        return Err(Failure::Refused(text.to_owned()));
                    }
                }
                Ok(found)
            }
        };
        let asked = async {
            let mut pauses = Pauses::new(self.shared.deadlines);
            let permit = self.shared.enter(Class::Demand, 0, &mut pauses).await?;
            self.repeated(list, pauses, Some(permit)).await
        };
        let found = asked.await.map_err(|failure| self.error("listing", below, &of_listing(failure)))?;
        Ok(found.into_values().collect())
    }

    /// The first parts of the keys that begin with `below` and a slash, where another slash follows them.
    pub fn directories(&self, below: &str) -> Result<Vec<String>> {
        Ok(self.level(below)?.directories)
    }

    /// The objects and directories directly below a directory. Keys have the name of the directory too.
    pub fn level(&self, below: &str) -> Result<Level> {
        let list = |left| {
            let (shared, path) = (self.shared.clone(), self.path(below));
            async move {
                let path = path?;
                let listed = shared.objects.list_with_delimiter(Some(&path));
                let listed = shared.soon(listed, left).await.map_err(unending)?;
                listed.map_err(Failure::from)
            }
        };
        let done = runtime::wait(async {
            let mut pauses = Pauses::new(self.shared.deadlines);
            let permit = self.shared.enter(Class::Demand, 0, &mut pauses).await?;
            self.repeated(list, pauses, Some(permit)).await
        })?;
        let found = done.map_err(|failure| self.error("listing", below, &of_listing(failure)))?;
        let prefixes = found.common_prefixes.iter();
        let mut directories: Vec<_> = prefixes.filter_map(|path| Some(path.filename()?.to_owned())).collect();
        directories.sort_unstable();
        let of_key = |object: &ObjectMeta| {
            let key = object.location.as_ref().strip_prefix(self.shared.prefix.as_str())?;
            Some(ObjectListed::of(key.to_owned(), object))
        };
        Ok(Level { directories, objects: found.objects.iter().filter_map(of_key).collect() })
    }

    /// Removes objects that killed pushes have begun to write before this time, in seconds since 1970. Returns their number;
    /// servers have none.
    pub fn remove_drafts(&self, before: i64) -> Result<usize> {
        let Some(directory) = &self.shared.directory else { return Ok(0) };
        directory.remove_drafts(before).map_err(|failure| self.error("removing drafts of", "", &failure))
    }
}

/// The failure of a listing: a bucket without keys lists none.
fn of_listing(failure: Failure) -> Failure {
    if matches!(failure, Failure::NotFound) { Failure::no_bucket() } else { failure }
}

/// The failure of a listing that gives no key in time. The server may answer with pages that hold none.
fn unending(failure: Failure) -> Failure {
    match failure {
        Failure::Silent(text) => {
            Failure::Silent(format!("{text}, or lists pages without keys and without end"))
        }
        other => other,
    }
}
