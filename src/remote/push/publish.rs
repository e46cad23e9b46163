//! Publishes a collection as a snapshot.
//!
//! Only the last step, the creation of the manifest, changes what readers see. Before it there are pieces
//! that nobody names. A push that is repeated finds them and does not store them again.
//!
//! A snapshot with the log of this state has its payloads: objects have random numbers, and blocks have epochs
//! and checksums. So a push of a state that was pushed reads no payload.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use crate::format::snapshot::keys::{self, PieceName};
use crate::format::snapshot::manifest::{
    Described, Manifest, Needed, ParentSnapshot, Piece, Variant, digest,
};
use crate::format::snapshot::tenant_list::{ListedCollection, TenantList};
use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Progress, Result};
use crate::remote::client::Put;
use crate::remote::place::garbage::{Plan, plans};
use crate::remote::place::remote::{Found, Remote, TOOL};
use crate::remote::place::signatures::Signer;
use crate::remote::place::tags::check_unused;
use crate::remote::place::tenant_lists;
use crate::remote::push::clone_push::PushedClone;
use crate::remote::push::contents::{Contents, has_log};
use crate::remote::push::differences::{DifferenceOf, Previous};
use crate::remote::push::outcome::Pushed;
use crate::remote::push::parameters::{Parameters, Variants};
use crate::remote::push::send::{KnownPieces, Sender};
use crate::remote::read::pieces::read_log;
use crate::store::{Canonical, Choice, Collection, Frozen, NotedPush, PushPlace, Recode};

/// How long a push waits for a moment in which no file is being cut, and how often it looks.
const BUSY_MAX: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The time since a push began.
pub type Elapsed<'a> = dyn Fn() -> Duration + Sync + 'a;

/// When a push began. A machine that slept stops one of these clocks, and somebody may set the other.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    steady: Instant,
    wall: SystemTime,
}

impl Begun {
    pub(super) fn now() -> Begun {
        Begun { steady: Instant::now(), wall: SystemTime::now() }
    }

    /// The time since then, the longer one if the clocks disagree.
    pub(super) fn elapsed(&self) -> Duration {
        self.steady.elapsed().max(self.wall.elapsed().unwrap_or_default())
    }
}

/// Publishes a collection.
pub fn push(
    remote: &Remote,
    collection: &Arc<Collection>,
    parameters: &Parameters,
    progress: &dyn Progress,
) -> Result<Pushed> {
    let begun = Begun::now();
    push_within(remote, collection, parameters, progress, &|| begun.elapsed())
}

/// Publishes a collection, with a clock of the caller.
pub fn push_within(
    remote: &Remote,
    collection: &Arc<Collection>,
    parameters: &Parameters,
    progress: &dyn Progress,
    elapsed: &Elapsed,
) -> Result<Pushed> {
    let (newest, hint) = remote.newest_manifest(&parameters.tenant, &parameters.collection)?;
    let frozen = frozen(collection)?;
    let canonical = frozen.canonical_with(remote.id(), progress)?;
    let named = CollectionName::new(&parameters.tenant, &parameters.collection);
    let mut clone = PushedClone::of(remote, &canonical, named, newest.as_ref(), parameters.may.force)?;
    let place = PushPlace { remote: remote.id(), named };
    let state = canonical.state_digest()?;
    if let Some(found) =
        newest.as_ref().filter(|_| clone.as_ref().is_none_or(|clone| !clone.is_under_its_name))
    {
        check_own(remote, parameters, &canonical, place, &found.manifest)?;
    }
    if let Some(found) = newest.as_ref().filter(|_| !parameters.may.force) {
        check_children(remote, named, &canonical, &found.manifest)?;
    }
    let same = newest.as_ref().map(|found| &*found.manifest).filter(|found| has_log(found, canonical.log()));
    let needs = needed(remote, parameters, &canonical, same)?;
    let variants = variants(parameters, newest.as_ref().map(|found| &*found.manifest))?;
    let choices: Vec<Choice> = variants.iter().map(|recode| canonical.choose(recode)).collect();
    let described = described(parameters, &canonical);
    // A signer answers for all that the new snapshot names, so what he takes over unread must be signed by him.
    let signer = parameters.signer.as_deref();
    let is_trusted = |found: &Found| signer.is_none_or(|signer| signer.has_signed(&found.bytes));
    let trusted = newest.as_ref().filter(|found| is_trusted(found) && found.manifest.references.is_none());
    // The newest snapshot, if it has this state.
    let base = trusted.filter(|found| has_log(&found.manifest, canonical.log()));
    let ended = |found: &Found, clone: Option<PushedClone>| {
        let manifest = &found.manifest;
        // The hint may be missing since a push was killed.
        if hint != Some(manifest.number) {
            let made = ListedCollection::of(manifest, found.digest, found.bytes.len() as u64);
            set_head(
                remote,
                named,
                manifest.push,
                ListedCollection { directory: canonical.directory(), ..made },
            );
        }
        // The snapshot may be that of another store with the same state.
        let made = NotedPush { push: manifest.push, snapshot: manifest.number, state };
        if let Err(error) = canonical.note_push(place, &made) {
            log::warn!("the push is not noted: {error}");
        }
        if let Some(clone) = clone {
            clone.end(&canonical, manifest);
        }
    };
    let published = |found: &&Found| is_published(&found.manifest, &described, &needs, &choices);
    if let Some(found) = base.filter(published) {
        ended(found, clone);
        return Ok(Pushed { is_unchanged: true, ..Pushed::of(&found.manifest) });
    }
    if let Some(tag) = &parameters.caption.tag {
        check_unused(remote, named, tag)?;
    }
    if !parameters.may.single_writer {
        remote.check_conditions()?;
    }
    let plans = plans(remote)?;
    let doomed: HashSet<PieceName> = plans.iter().flat_map(Plan::candidates).collect();
    let generation = plans.iter().map(Plan::generation).max().unwrap_or(0).saturating_add(1);
    let mut known = KnownPieces::new();
    let mut note = |found: &Found| {
        let is_trusted = is_trusted(found);
        note_pieces(&mut known, &found.manifest, &doomed, is_trusted);
        // Only the manifest says which bytes a difference stands for.
        if is_trusted {
            note_raw(&mut known, &found.manifest);
        }
    };
    for other in &parameters.dedup_with {
        if let (Some(found), _) = remote.newest_manifest(&other.tenant, &other.name)? {
            note(&found);
        }
    }
    newest.iter().for_each(&mut note);
    clone.iter().filter_map(|clone| clone.base.as_ref()).for_each(&mut note);
    let previous = trusted.filter(|_| base.is_none());
    let previous =
        previous.and_then(|found| Previous::of(remote, &found.manifest, &canonical, &parameters.keyframes));
    let sender =
        Sender { remote, canonical: &canonical, parameters, known, previous, doomed, generation, choices };
    let base = base.map(|found| &*found.manifest);
    let (contents, sent) = sender.send(trusted.map(|found| &*found.manifest), base, progress)?;
    let parent = newest.map(|found| ParentSnapshot { number: found.manifest.number, digest: found.digest });
    let manifest = manifest(remote, parameters, Snapshot { parent, described, needs, contents });
    if let Some(clone) = &mut clone {
        clone.begin(&canonical, parameters.push)?;
    }
    canonical.note_push(place, &NotedPush { push: parameters.push, snapshot: 0, state })?;
    let made = create_manifest(remote, manifest, signer, elapsed)?;
    ended(&made, clone);
    let (pieces_sent, bytes_sent) = (sent.pieces.into_inner(), sent.bytes.into_inner() as u64);
    Ok(Pushed { pieces_sent, bytes_sent, ..Pushed::of(&made.manifest) })
}

/// Fails with `Exists` for a snapshot that this collection has not pushed, unless it has the present state, or a person says to
/// put this state over it.
fn check_own(
    remote: &Remote,
    parameters: &Parameters,
    canonical: &Canonical,
    place: PushPlace<'_>,
    newest: &Manifest,
) -> Result<()> {
    let is_own = parameters.may.force
        || has_log(newest, canonical.log())
        || canonical.pushes(place)?.contains(&newest.push);
    if is_own {
        return Ok(());
    }
    let (at, named, number) = (remote.place(), place.named, newest.number);
    if newest.is_removal() {
        let text = format!("{at}: snapshot {number} removed {named}; --force publishes it again");
        return Err(Error::new(ErrorKind::Exists, text));
    }
    let text = format!(
        "{at} has snapshot {number} of {named}, which this collection has not pushed; tierfs clone gets it, push under \
         another name ({named}={}/OTHER), or put this state over it with --force",
        place.named.tenant
    );
    Err(Error::new(ErrorKind::Exists, text))
}

/// The variants of the new snapshot.
fn variants(parameters: &Parameters, newest: Option<&Manifest>) -> Result<Vec<Arc<dyn Recode>>> {
    match &parameters.variants {
        Variants::These(all) => Ok(all.clone()),
        Variants::AsBefore(make) => {
            let before = newest.into_iter().flat_map(|newest| &newest.variants);
            before.map(|variant| make(&variant.name)).collect()
        }
    }
}

/// Freezes a collection. While a file is being cut, that takes a moment.
fn frozen(collection: &Arc<Collection>) -> Result<Frozen> {
    let begun = Instant::now();
    loop {
        match Frozen::of(collection) {
            Err(error) if error.kind() == ErrorKind::Busy && begun.elapsed() < BUSY_MAX => {
                std::thread::sleep(BUSY_PAUSE);
            }
            frozen => return frozen,
        }
    }
}

/// Adds the pieces of a snapshot that no plan may remove, of differences those with such bases. The name of a piece says
/// which bytes it has, but only a trusted snapshot says what a difference is from.
fn note_pieces(known: &mut KnownPieces, manifest: &Manifest, doomed: &HashSet<PieceName>, is_trusted: bool) {
    let may_stay = |piece: &Piece| !doomed.contains(&piece.name);
    // The remote itself has no bytes of pieces that refer to objects elsewhere.
    let is_here = |index| manifest.references.as_ref().is_none_or(|it| it.place_of(index).is_none());
    let pieces = (0..).zip(&manifest.pieces);
    for (index, piece) in pieces.filter(|(index, piece)| may_stay(piece) && is_here(*index)) {
        let difference = DifferenceOf::of(manifest, index);
        if difference.as_ref().is_none_or(|it| is_trusted && it.bases.iter().all(may_stay)) {
            known.insert(piece.name.digest, (*piece, difference.map(Arc::new)));
        }
    }
}

/// Adds the differences of a snapshot that are known, by the bytes that they stand for.
fn note_raw(known: &mut KnownPieces, manifest: &Manifest) {
    for difference in &manifest.differences {
        let piece = manifest.pieces.get(difference.piece as usize);
        let stored = piece.and_then(|piece| known.get(&piece.name.digest)).cloned();
        if let Some(stored) = stored.filter(|(_, difference)| difference.is_some()) {
            known.entry(difference.digest).or_insert(stored);
        }
    }
}

/// The snapshots of parents that blocks of the collection depend on. `same` is a snapshot of this state. `Exists` if the
/// remote has other blocks of the parents.
fn needed(
    remote: &Remote,
    parameters: &Parameters,
    canonical: &Canonical,
    same: Option<&Manifest>,
) -> Result<Vec<Needed>> {
    let mut needs = Vec::new();
    for OwnedCollectionName { tenant, name: collection } in canonical.needs() {
        let newest =
            remote.newest_manifest(tenant, collection)?.0.filter(|found| !found.manifest.is_removal());
        let Some(found) = newest else {
            let text = format!(
                "{}/{} has blocks that are differences from {tenant}/{collection}, which {} does not have; push that first",
                parameters.tenant,
                parameters.collection,
                remote.place()
            );
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let place = CollectionName::new(tenant, collection);
        let number = found.manifest.number;
        let need = Needed { tenant: tenant.clone(), collection: collection.clone(), number };
        let is_known = same.is_some_and(|same| same.needs.contains(&need));
        if !is_known
            && !canonical.has_same_parents(place, &read_log(remote, &found.manifest)?, remote.id())?
        {
            let text = format!(
                "{}/{} has blocks that are differences from {place}, and {} has another {place}; push yours first, with \
                 --force, or rename it and push both under other names",
                parameters.tenant,
                parameters.collection,
                remote.place()
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
        needs.push(need);
    }
    Ok(needs)
}

/// `Exists` if the new state lacks blocks from which the newest snapshot of a child has differences. The children are those
/// that this store knows of, under their names here.
fn check_children(
    remote: &Remote,
    named: CollectionName<'_>,
    canonical: &Canonical,
    newest: &Manifest,
) -> Result<()> {
    if newest.is_removal() || has_log(newest, canonical.log()) {
        return Ok(());
    }
    for child in canonical.children() {
        let Some(found) = remote.newest_manifest(&child.tenant, &child.name)?.0 else { continue };
        let mut needs = found.manifest.needs.iter();
        if !needs.any(|need| CollectionName::new(&need.tenant, &need.collection) == named) {
            continue;
        }
        let (before, log) = (read_log(remote, newest)?, read_log(remote, &found.manifest)?);
        if !canonical.keeps_parents(named, &log, &before, remote.id())? {
            let text = format!(
                "blocks of {child} in {} are differences from blocks of {named} that this state no longer has; remove or \
                 push that one first, or push this with --force: then {child} cannot be read until it is pushed again",
                remote.place()
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
    }
    Ok(())
}

/// The description of the collection in a manifest.
fn described(parameters: &Parameters, canonical: &Canonical) -> Described {
    Described {
        tenant: parameters.tenant.clone(),
        name: parameters.collection.clone(),
        tenant_owner: parameters.tenant_owner,
        owner: canonical.owner(),
        created_at: canonical.created_at(),
    }
}

/// Whether a snapshot with the same state has the same description, and the same variants.
fn is_published(manifest: &Manifest, described: &Described, needs: &[Needed], choices: &[Choice]) -> bool {
    let place = |need: &Needed| (need.tenant.clone(), need.collection.clone());
    let recipe = |variant: &Variant| (variant.name.clone(), variant.recipe);
    manifest.collection == *described
        && manifest.needs.iter().map(place).eq(needs.iter().map(place))
        && manifest.variants.iter().map(recipe).eq(choices.iter().map(|it| (it.name(), it.recipe())))
}

/// Notes the newest number and the list of the tenant's collections, and then that something was pushed. Readers find the
/// snapshot without.
pub(super) fn set_head(remote: &Remote, place: CollectionName<'_>, push: u128, made: ListedCollection) {
    let client = remote.client();
    let number = Bytes::from(format!("{:016x}", made.number));
    let noted = client.put_tagged(&keys::head(place.tenant, place.name), number).and_then(|head| {
        let made = ListedCollection { head, ..made };
        let newer = TenantList(BTreeMap::from([(place.name.to_owned(), made)]));
        tenant_lists::change(remote, place.tenant, |list| list.take(&newer))
    });
    let noted = noted.and(client.put(keys::PUSHED, Bytes::from(format!("{push:032x}"))));
    if let Err(error) = noted {
        log::warn!("a hint of the newest snapshot was not written: {error}");
    }
}

/// The parts of a manifest beside the parameters of the push.
struct Snapshot {
    parent: Option<ParentSnapshot>,
    described: Described,
    needs: Vec<Needed>,
    contents: Contents,
}

fn manifest(remote: &Remote, parameters: &Parameters, snapshot: Snapshot) -> Manifest {
    let Snapshot { parent, described: collection, needs, contents } = snapshot;
    let Contents { pieces, differences, files, variants, .. } = contents;
    Manifest {
        remote: remote.id(),
        number: parent.map_or(1, |parent| parent.number.saturating_add(1)),
        parent,
        push: parameters.push,
        created_at: parameters.created_at,
        collection,
        message: parameters.caption.message.clone(),
        tool: TOOL.to_owned(),
        needs,
        pieces,
        differences,
        files,
        variants,
        references: None,
    }
}

/// Creates the manifest: the snapshot exists from then on.
pub(super) fn create_manifest(
    remote: &Remote,
    manifest: Manifest,
    signer: Option<&Signer>,
    elapsed: &Elapsed,
) -> Result<Found> {
    let bytes = manifest.to_bytes()?;
    let bytes = signer.map_or(Ok(bytes.clone()), |signer| signer.sign(&bytes))?;
    // A signature may have taken minutes.
    let grace = remote.grace();
    if elapsed() >= grace / 2 {
        let hours = grace.as_secs() / 7200;
        let text = format!(
            "the push took more than {hours} hours, and its pieces may be collected as garbage; push \
             again: pieces that still exist are not sent again"
        );
        return Err(Error::new(ErrorKind::Gone, text));
    }
    let (tenant, collection) = (&manifest.collection.tenant, &manifest.collection.name);
    let key = keys::snapshot(tenant, collection, manifest.number);
    let bytes = Bytes::from(bytes);
    if remote.client().create(&key, bytes.clone())? == Put::Created {
        let digest = digest(&bytes).unwrap_or_default();
        return Ok(Found { manifest: Arc::new(manifest), digest, bytes: bytes.into() });
    }
    // A first try may have created it although its answer was lost.
    match remote.manifest(tenant, collection, manifest.number)? {
        Some(found) if found.manifest.push == manifest.push => Ok(found),
        _ => {
            let text = format!(
                "{}: another machine has pushed snapshot {} of {tenant}/{collection} meanwhile; look at that snapshot, then push under another name, or over it with --force",
                remote.place(),
                manifest.number
            );
            Err(Error::new(ErrorKind::Exists, text))
        }
    }
}
