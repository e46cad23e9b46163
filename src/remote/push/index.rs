//! Publishes an index: a snapshot whose pieces are ranges of objects that somebody else put there. Only its log is sent.

use std::collections::HashSet;

use bytes::Bytes;

use crate::format::snapshot::keys::{self, PieceName};
use crate::format::snapshot::manifest::{FileExtent, FileKind, Manifest, ManifestFile, ParentSnapshot};
use crate::format::snapshot::tenant_list::ListedCollection;
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::remote::client::Put;
use crate::remote::index::build::Index;
use crate::remote::index::collections::index;
use crate::remote::place::garbage::{Plan, plans};
use crate::remote::place::remote::{Found, Remote};
use crate::remote::place::signatures::Signer;
use crate::remote::place::tags::check_unused;
use crate::remote::push::outcome::Pushed;
use crate::remote::push::parameters::{Caption, May};
use crate::remote::push::publish::{Begun, create_manifest, set_head};
use crate::remote::source::Source;
use crate::store::disk::files::random_id;
use crate::store::{Describe, Reads, now_nanoseconds};

/// How an index is published.
pub struct IndexParameters<'a> {
    /// Makes the log.
    pub describe: &'a Describe,
    /// How much of the source is read.
    pub reads: Reads,
    pub caption: Caption,
    pub may: May,
    /// Signs the snapshot.
    pub signer: Option<Signer>,
}

/// Publishes the present listing of a source as the collection `place` of a remote. `Exists` if its newest snapshot is no
/// index of this source, unless that may be replaced.
pub fn publish_index(
    remote: &Remote,
    source: &dyn Source,
    place: CollectionName<'_>,
    IndexParameters { describe, reads, caption, may, signer }: IndexParameters<'_>,
) -> Result<Pushed> {
    let begun = Begun::now();
    let (newest, hint) = remote.newest_manifest(place.tenant, place.name)?;
    let before = newest.as_ref().map(|found| &*found.manifest);
    let is_own = |before: &Manifest| {
        before.references.as_ref().is_some_and(|references| references.source == source.place())
    };
    if let Some(before) = before.filter(|before| !may.force && !is_own(before)) {
        let (at, number) = (remote.place(), before.number);
        let text = format!(
            "{at} has snapshot {number} of {place}, which is no index of {}; publish it under another name, or put it over \
             that one with --force",
            source.place()
        );
        return Err(Error::new(ErrorKind::Exists, text));
    }
    if signer.is_some() && reads != Reads::All {
        let text = "a signature covers no bytes that nobody has read; publish it with --checksum";
        return Err(Error::invalid(text));
    }
    let index = index(source, place, remote.id(), describe, reads)?;
    let Index { mut manifest, log_pieces, directory, .. } = index;
    let note = |found: &Found| {
        let made = ListedCollection::of(&found.manifest, found.digest, found.bytes.len() as u64);
        let directory = directory.unwrap_or(made.directory);
        set_head(remote, place, found.manifest.push, ListedCollection { directory, ..made });
    };
    let is_same = |found: &&Found| signer.is_none() && has_same(&found.manifest, &manifest);
    if let Some(found) = newest.as_ref().filter(is_same) {
        // The hint may be missing since a publication was killed.
        if hint != Some(found.manifest.number) {
            note(found);
        }
        return Ok(Pushed { is_unchanged: true, ..Pushed::of(&found.manifest) });
    }
    if let Some(tag) = &caption.tag {
        check_unused(remote, place, tag)?;
    }
    if !may.single_writer {
        remote.check_conditions()?;
    }
    let plans = plans(remote)?;
    let doomed: HashSet<PieceName> = plans.iter().flat_map(Plan::candidates).collect();
    let generation = plans.iter().map(Plan::generation).max().unwrap_or(0).saturating_add(1);
    let (mut pieces_sent, mut bytes_sent) = (0, 0);
    // The pieces of the log come first.
    for (piece, (_, stored)) in manifest.pieces.iter_mut().zip(log_pieces) {
        if doomed.contains(&piece.name) {
            piece.name.generation = generation;
        }
        let len = stored.len() as u64;
        if remote.client().create(&keys::piece(&piece.name), Bytes::from(stored))? == Put::Created {
            (pieces_sent, bytes_sent) = (pieces_sent + 1, bytes_sent + len);
        }
    }
    let parent = newest.as_ref().map(|it| ParentSnapshot { number: it.manifest.number, digest: it.digest });
    let push = random_id().map_err(|error| Error::io("reading /dev/urandom", error))?.0;
    let manifest = Manifest {
        number: parent.map_or(1, |parent| parent.number.saturating_add(1)),
        parent,
        push,
        created_at: u64::try_from(now_nanoseconds()).unwrap_or(0),
        message: caption.message,
        ..manifest
    };
    let made = create_manifest(remote, manifest, signer.as_ref(), &|| begun.elapsed())?;
    note(&made);
    Ok(Pushed { pieces_sent, bytes_sent, ..Pushed::of(&made.manifest) })
}

/// Whether two indexes refer to the same versions of the same objects, for the same files.
fn has_same(before: &Manifest, now: &Manifest) -> bool {
    let data = |manifest: &Manifest| -> Vec<(u64, i64, Vec<[u8; 32]>)> {
        let names = |extents: &[FileExtent]| {
            let pieces = extents.iter().filter_map(|extent| manifest.pieces.get(extent.piece as usize));
            pieces.map(|piece| piece.name.digest).collect()
        };
        let files = manifest.files.iter().filter(|file| file.kind == FileKind::Data);
        files.map(|file: &ManifestFile| (file.bytes, file.mtime, names(&file.extents))).collect()
    };
    let objects = |manifest: &Manifest| {
        manifest.references.as_ref().map(|it| (it.source.clone(), it.are_read, it.objects.clone()))
    };
    before.tool == now.tool && objects(before) == objects(now) && data(before) == data(now)
}
