//! Tags: names of snapshots, which keep them from being collected.

use bytes::Bytes;

use crate::format::snapshot::keys::{self, KeyName};
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::remote::client::Put;
use crate::remote::place::at;
use crate::remote::place::garbage::plans;
use crate::remote::place::remote::Remote;

/// The most bytes of a tag, so that its key is never shortened.
const TAG_BYTES_MAX: usize = 100;

/// Fails with `Invalid` unless `tag` can be the name of a tag: letters, digits, `.`, `_` and `-`, and not
/// only digits, which would be the number of a snapshot.
pub fn check_tag(tag: &str) -> Result<()> {
    let is_valid = (1..=TAG_BYTES_MAX).contains(&tag.len())
        && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        && !tag.bytes().all(|byte| byte.is_ascii_digit())
        && !matches!(tag, "." | "..")
        && at::digest(tag).is_none();
    let text = || {
        format!(
            "{tag:?} cannot be a tag; use up to {TAG_BYTES_MAX} letters, digits, dots, underscores and hyphens, \
             and not digits alone or a digest"
        )
    };
    if is_valid { Ok(()) } else { Err(Error::invalid(text())) }
}

/// Whether a tag that another snapshot has may be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// It is refused: `Exists`.
    Refused,
    Allowed,
}

/// Fails with `Exists` if there is such a tag: a new snapshot could not get it.
pub fn check_unused(remote: &Remote, place: CollectionName<'_>, tag: &str) -> Result<()> {
    check_tag(tag)?;
    let number = remote.number_at(&keys::tag(place.tenant, place.name, tag))?;
    number.map_or(Ok(()), |number| Err(is_used(place, tag, number)))
}

fn is_used(place: CollectionName<'_>, tag: &str, number: u64) -> Error {
    let text = format!("the tag {tag} of {place} is snapshot {number}; tierfs tag --force moves it");
    Error::new(ErrorKind::Exists, text)
}

/// Gives a snapshot a tag, or moves the tag to it. A snapshot that a collection of garbage will remove is
/// refused: `Gone`.
pub fn set_tag(
    remote: &Remote,
    place: CollectionName<'_>,
    tag: &str,
    number: u64,
    moves: Move,
) -> Result<()> {
    check_tag(tag)?;
    let CollectionName { tenant, name: collection } = place;
    let found = remote.manifest(tenant, collection, number)?;
    if found.is_none_or(|found| found.manifest.is_removal()) {
        let text = format!("{}: {tenant}/{collection} has no snapshot {number}", remote.place());
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    // A plan that is made after this look takes a day to act, and looks at tags again.
    let key = keys::snapshot(tenant, collection, number);
    if plans(remote)?.iter().any(|plan| plan.is_doomed(&key)) {
        let text = format!("snapshot {number} of {tenant}/{collection} is being collected as garbage");
        return Err(Error::new(ErrorKind::Gone, text));
    }
    let (tag_key, bytes) = (keys::tag(tenant, collection, tag), Bytes::from(format!("{number:016x}")));
    if moves == Move::Allowed {
        return remote.client().put(&tag_key, bytes);
    }
    match remote.number_at(&tag_key)? {
        Some(before) if before == number => return Ok(()),
        Some(before) => return Err(is_used(place, tag, before)),
        None => {}
    }
    match remote.client().create(&tag_key, bytes) {
        Ok(Put::Created) => Ok(()),
        Ok(Put::Exists) => Err(is_used(place, tag, remote.number_at(&tag_key)?.unwrap_or(0))),
        // A server without conditional PUT: the look before has to do.
        Err(error) if error.kind() == ErrorKind::NotSupported => {
            remote.client().put(&tag_key, Bytes::from(format!("{number:016x}")))
        }
        Err(error) => Err(error),
    }
}

/// Removes a tag. `NotFound` if the tag does not exist.
pub fn remove_tag(remote: &Remote, place: CollectionName<'_>, tag: &str) -> Result<()> {
    check_tag(tag)?;
    let key = keys::tag(place.tenant, place.name, tag);
    if remote.number_at(&key)?.is_none() {
        let text = format!("{}: {place} has no tag {tag:?}", remote.place());
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    remote.client().delete(&[key])
}

/// Whether `tierfs tag` could have made a name: others may have bytes that a terminal acts on.
fn is_of_ours(name: &KeyName) -> bool {
    matches!(name, KeyName::Whole(name) if check_tag(name).is_ok())
}

/// The tags of a collection and the numbers of their snapshots, by name.
pub fn tags(remote: &Remote, place: CollectionName<'_>) -> Result<Vec<(String, u64)>> {
    let below = keys::tags(place.tenant, place.name);
    let mut found = Vec::new();
    for listed in remote.client().list(below.trim_end_matches('/'), None)? {
        let name = listed.key.strip_prefix(&below).and_then(keys::unescape);
        let Some(KeyName::Whole(name)) = name.filter(is_of_ours) else { continue };
        if let Some(number) = remote.number_at(&listed.key)? {
            found.push((name, number));
        }
    }
    Ok(found)
}
