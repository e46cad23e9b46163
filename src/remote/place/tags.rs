//! Tags: names of snapshots, which keep them from being collected.

use bytes::Bytes;

use crate::format::snapshot::keys::{self, KeyName};
use crate::model::{CollectionName, Error, ErrorKind, Result};
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
        && !matches!(tag, "." | "..");
    let text = || {
        format!(
            "{tag:?} cannot be a tag; use up to {TAG_BYTES_MAX} letters, digits, dots, underscores and hyphens, \
             and not digits alone"
        )
    };
    if is_valid { Ok(()) } else { Err(Error::invalid(text())) }
}

/// Gives a snapshot a tag, or moves the tag to it. A snapshot that a collection of garbage will remove is
/// refused: `Gone`.
pub fn set_tag(remote: &Remote, place: CollectionName<'_>, tag: &str, number: u64) -> Result<()> {
    check_tag(tag)?;
    let CollectionName { tenant, name: collection } = place;
    if !remote.has(tenant, collection, number)? {
        let text = format!("{}: {tenant}/{collection} has no snapshot {number}", remote.place());
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    // A plan that is made after this look takes a day to act, and looks at tags again.
    let key = keys::snapshot(tenant, collection, number);
    if plans(remote)?.iter().any(|plan| plan.is_doomed(&key)) {
        let text = format!("snapshot {number} of {tenant}/{collection} is being collected as garbage");
        return Err(Error::new(ErrorKind::Gone, text));
    }
    remote.client().put(&keys::tag(tenant, collection, tag), Bytes::from(format!("{number:016x}")))
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
