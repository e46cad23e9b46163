//! Snapshots that are made of others: an older one again, and the removal of a collection. Both are one manifest, and send no
//! payload.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::format::snapshot::keys::{self, KeyName};
use crate::format::snapshot::manifest::{MANIFEST_BYTES_MAX, Manifest, ParentSnapshot};
use crate::format::snapshot::tenant_list::ListedCollection;
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::remote::client::{Wanted, runtime};
use crate::remote::place::at::{At, number_of};
use crate::remote::place::garbage::plans;
use crate::remote::place::remote::{Found, Remote, TOOL};
use crate::remote::place::signatures::Signer;
use crate::remote::place::tags::{check_unused, remove_tag, tags};
use crate::remote::push::outcome::Pushed;
use crate::remote::push::parameters::Caption;
use crate::remote::push::publish::{Begun, Elapsed, create_manifest, set_head};
use crate::store::disk::files::random_id;
use crate::store::now_nanoseconds;

/// Manifests that are read at a time.
const AT_ONCE: usize = 64;

/// Whether others may write meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writers {
    /// The remote must support conditional PUT.
    Many,
    /// Nobody else writes.
    One,
}

/// How a manifest is made.
#[derive(Clone, Copy)]
pub struct How<'a> {
    pub writers: Writers,
    /// Signs the snapshot.
    pub signer: Option<&'a Signer>,
}

/// Publishes an older snapshot of a collection again, under the next number. `Gone` if a collection of garbage is about to
/// remove it, or pieces of it, and `Forbidden` for a signer who has not signed it.
pub fn revert(
    remote: &Remote,
    place: CollectionName<'_>,
    at: &At,
    caption: &Caption,
    how: How<'_>,
) -> Result<Pushed> {
    let begun = Begun::now();
    revert_within(remote, place, at, caption, how, &|| begun.elapsed())
}

/// Publishes an older snapshot again, with a clock of the caller.
pub fn revert_within(
    remote: &Remote,
    place: CollectionName<'_>,
    at: &At,
    caption: &Caption,
    how: How<'_>,
    elapsed: &Elapsed,
) -> Result<Pushed> {
    // A plan that is made after this look takes a day to act, and this takes half of it at most. So what is read from here on
    // is there until the new manifest names it.
    let plans = plans(remote)?;
    let newest = newest(remote, place)?;
    let number = number_of(remote, place, at)?;
    let lacks = |thing: &str| {
        let text = format!("{}: {place} {thing}; tierfs log lists its snapshots", remote.place());
        Error::new(ErrorKind::NotFound, text)
    };
    let found = remote.manifest(place.tenant, place.name, number)?;
    let found = found.ok_or_else(|| lacks(&format!("has no snapshot {number}")))?;
    if how.signer.is_some_and(|signer| !signer.has_signed(&found.bytes)) {
        let text = format!(
            "{}: snapshot {number} of {place} is not signed by this key, which would answer for its contents",
            remote.place()
        );
        return Err(Error::new(ErrorKind::Forbidden, text));
    }
    let found = found.manifest;
    if found.is_removal() {
        return Err(lacks(&format!("was removed by snapshot {number}, which has no state")));
    }
    if number == newest.manifest.number {
        return Ok(Pushed { is_unchanged: true, ..Pushed::of(&found) });
    }
    let key = keys::snapshot(place.tenant, place.name, number);
    let names: std::collections::HashSet<_> = found.pieces.iter().map(|piece| piece.name).collect();
    let is_going = |plan: &crate::remote::place::garbage::Plan| {
        plan.is_doomed(&key) || plan.candidates().any(|piece| names.contains(&piece))
    };
    if plans.iter().any(is_going) {
        let text =
            format!("snapshot {number} of {place} is being collected as garbage; push its state again");
        return Err(Error::new(ErrorKind::Gone, text));
    }
    if let Some(tag) = &caption.tag {
        check_unused(remote, place, tag)?;
    }
    let message = &caption.message;
    let message =
        if message.is_empty() { format!("revert to snapshot {number}") } else { message.to_owned() };
    let next = Manifest { message, ..(*found).clone() };
    let made = created(remote, place, &newest, next, how, elapsed)?;
    Ok(Pushed::of(&made))
}

/// Removes a collection: readers find no snapshot any more, and `tierfs gc` removes those that were there. `Exists` if one
/// has a tag, unless tags are removed too, and `Invalid` if blocks of another collection are differences from it. Returns the
/// number of the snapshot that says so.
pub fn remove(remote: &Remote, place: CollectionName<'_>, with_tags: bool, how: How<'_>) -> Result<u64> {
    let newest = newest(remote, place)?;
    if newest.manifest.is_removal() {
        let text = format!("{}: snapshot {} has removed {place}", remote.place(), newest.manifest.number);
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    let tags: Vec<String> = tags(remote, place)?.into_iter().map(|(tag, _)| tag).collect();
    if !tags.is_empty() && !with_tags {
        let text =
            format!("{place} has tags, which keep snapshots ({}); --force removes them too", tags.join(", "));
        return Err(Error::new(ErrorKind::Exists, text));
    }
    if let Some(child) = child_of(remote, place)? {
        let text = format!("blocks of {child} are differences from {place}; remove or push that one first");
        return Err(Error::invalid(text));
    }
    let empty = Manifest {
        message: String::new(),
        needs: Vec::new(),
        pieces: Vec::new(),
        differences: Vec::new(),
        files: Vec::new(),
        variants: Vec::new(),
        references: None,
        ..(*newest.manifest).clone()
    };
    // It names no piece, so it may take any time.
    let made = created(remote, place, &newest, empty, how, &|| Duration::ZERO)?;
    tags.iter().try_for_each(|tag| remove_tag(remote, place, tag))?;
    Ok(made.number)
}

/// The newest snapshot, perhaps a removal.
fn newest(remote: &Remote, place: CollectionName<'_>) -> Result<Found> {
    let found = remote.newest_manifest(place.tenant, place.name)?.0;
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{} has no {place}", remote.place())))
}

/// Creates a manifest with the contents of `next` behind the newest one.
fn created(
    remote: &Remote,
    place: CollectionName<'_>,
    newest: &Found,
    next: Manifest,
    how: How<'_>,
    elapsed: &Elapsed,
) -> Result<Arc<Manifest>> {
    if how.writers == Writers::Many {
        remote.check_conditions()?;
    }
    let number = newest.manifest.number;
    let next_number = number.checked_add(1).ok_or_else(|| Error::corrupt("the number is the largest"))?;
    let push = random_id().map_err(|error| Error::io("reading /dev/urandom", error))?.0;
    let made = Manifest {
        number: next_number,
        parent: Some(ParentSnapshot { number, digest: newest.digest }),
        push,
        created_at: u64::try_from(now_nanoseconds()).unwrap_or(0),
        tool: TOOL.to_owned(),
        ..next
    };
    let made = create_manifest(remote, made, how.signer, elapsed)?;
    let listed = ListedCollection::of(&made.manifest, made.digest, made.bytes.len() as u64);
    set_head(remote, place, push, listed);
    Ok(made.manifest)
}

/// A collection whose newest snapshot needs one of `place`.
fn child_of(remote: &Remote, place: CollectionName<'_>) -> Result<Option<String>> {
    let mut newest: BTreeMap<(KeyName, KeyName), String> = BTreeMap::new();
    // Keys ascend, so the last one of a collection is its newest.
    for listed in remote.client().list(keys::SNAPSHOTS.trim_end_matches('/'), None)? {
        if let Some((tenant, collection, _)) = keys::parse_snapshot(&listed.key) {
            newest.insert((tenant, collection), listed.key);
        }
    }
    let whole = Wanted::whole(MANIFEST_BYTES_MAX);
    let wanted: Vec<_> = newest.into_values().map(|key| (key, whole.clone())).collect();
    for some in wanted.chunks(AT_ONCE) {
        for ((key, _), answer) in some.iter().zip(runtime::wait(remote.client().got_each(some))?) {
            let Some(bytes) = answer? else { continue };
            let manifest = Manifest::parse(&bytes).map_err(|error| error.at(key))?;
            let mut needs = manifest.needs.iter();
            if needs.any(|need| CollectionName::new(&need.tenant, &need.collection) == place) {
                return Ok(Some(format!("{}/{}", manifest.collection.tenant, manifest.collection.name)));
            }
        }
    }
    Ok(None)
}
