//! A push from a clone: it names the pieces that were never here, is refused where it would undo the push of
//! somebody else, and makes the clone one of the new snapshot.

use crate::format::snapshot::manifest::Manifest;
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::remote::place::remote::{Found, Remote};
use crate::store::{Canonical, CloneSource};

/// The clone that a push is made from.
pub(in crate::remote) struct PushedClone {
    source: CloneSource,
    /// Its snapshot, if the remote still has it and that is not the newest of the pushed collection.
    pub base: Option<Found>,
    /// Whether it is pushed under the name that it has in the remote.
    pub is_under_its_name: bool,
}

impl PushedClone {
    /// The clone that a collection is; `None` for others, and for a clone of another remote. `Exists` if its
    /// name has got a newer snapshot from somebody else.
    pub fn of(
        remote: &Remote,
        canonical: &Canonical,
        named: CollectionName<'_>,
        newest: Option<&Found>,
        is_forced: bool,
    ) -> Result<Option<PushedClone>> {
        let source = canonical.clone_source()?.filter(|source| source.remote == remote.id());
        let Some(mut source) = source else { return Ok(None) };
        let is_under_its_name = CollectionName::new(&source.tenant, &source.collection) == named;
        let newest = newest.map(|found| &found.manifest).filter(|_| is_under_its_name);
        let is_known = newest.is_some_and(|newest| newest.number == source.number);
        let base = match is_known {
            true => None,
            false => remote.manifest(&source.tenant, &source.collection, source.number)?,
        };
        if let Some(newest) = newest.filter(|newest| newest.number > source.number) {
            if source.push != Some(newest.push) && !is_forced {
                if newest.is_removal() {
                    let (at, number) = (remote.place(), newest.number);
                    let text = format!("{at}: snapshot {number} removed {named}; --force publishes it again");
                    return Err(Error::new(ErrorKind::Exists, text));
                }
                let text = format!(
                    "{} has snapshot {} of {named}, and this is a clone of snapshot {}; tierfs pull gets it, \
                     push under another name, or put this state over it with --force",
                    remote.place(),
                    newest.number,
                    source.number
                );
                return Err(Error::new(ErrorKind::Exists, text));
            }
            // An earlier push was killed after it had created its snapshot.
            source.number = newest.number;
        }
        Ok(Some(PushedClone { source, base, is_under_its_name }))
    }

    /// Notes that a snapshot with this random number will be the clone's own.
    pub fn begin(&mut self, canonical: &Canonical, push: u128) -> Result<()> {
        if !self.is_under_its_name {
            return Ok(());
        }
        self.source.push = Some(push);
        canonical.set_clone_source(&self.source)
    }

    /// Makes the clone one of the snapshot that it was pushed as. A failure costs space: the clone's own
    /// bytes stay until the next push.
    pub fn end(mut self, canonical: &Canonical, manifest: &Manifest) {
        if !self.is_under_its_name {
            return;
        }
        self.source.number = manifest.number;
        self.source.log = *blake3::hash(canonical.log()).as_bytes();
        self.source.push = None;
        let adopted = canonical.adopt(manifest).and_then(|()| canonical.set_clone_source(&self.source));
        if let Err(error) = adopted {
            log::warn!("the clone is not yet one of snapshot {}: {error}", manifest.number);
        }
    }
}
