//! The numbers of the collections of a remote that is shown, from one process that serves a mount to the next.

use std::sync::Arc;

use crate::format::handover::Numbered;
use crate::model::{Error, OwnedCollectionName, Owner, Result};
use crate::store::collection::Collection;
use crate::store::collection::identity::Access;
use crate::store::quota::{Limits, Meter};
use crate::store::repair::set_aside::open_collection;
use crate::store::store::Store;
use crate::store::upstream::{NoteNumber, NumberBefore};

impl Store {
    /// A text with which another process can show the same remote before that answers; `None` of another store.
    pub fn said(&self) -> Option<String> {
        self.upstream.snapshots().map(|snapshots| snapshots.said())
    }

    /// Goes on with the numbers that earlier processes have given to collections of a remote, oldest first, and notes
    /// further ones. Called before any collection is opened.
    pub fn go_on_with_numbers(&self, before: Vec<Numbered>, note: Box<NoteNumber>) {
        if let Some(snapshots) = self.upstream.snapshots() {
            snapshots.go_on_with_numbers(before, note);
        }
    }

    /// The meaning that the number of a collection had in an earlier process.
    pub fn number_before(&self, number: u32) -> Option<NumberBefore> {
        self.upstream.snapshots()?.before(number)
    }

    /// The numbers of collections that an earlier process has shown with attributes of a list: their modes and owners.
    pub fn shown_before(&self) -> Vec<(u32, OwnedCollectionName, (u32, Owner))> {
        let shown = self.upstream.snapshots().map_or_else(Vec::new, |snapshots| snapshots.shown_before());
        let shown = shown.into_iter();
        shown
            .map(|(number, place, owner)| {
                (number, place, (owner.mode, Owner { uid: owner.uid, gid: owner.gid }))
            })
            .collect()
    }

    /// The tenants of which an earlier process has shown something.
    pub fn tenants_before(&self) -> Vec<String> {
        self.upstream.snapshots().map_or_else(Vec::new, |snapshots| snapshots.tenants_before())
    }

    /// A collection as it was when it had a number in an earlier process; `None` if that snapshot is not there any more.
    pub fn former(&self, place: &OwnedCollectionName, number: u32) -> Result<Option<Arc<Collection>>> {
        let Some(snapshots) = self.upstream.snapshots() else { return Ok(None) };
        let failed =
            |error| Error::io(format!("opening the snapshot of {place} that was shown before"), error);
        let Some(found) = snapshots.former(number).map_err(failed)? else { return Ok(None) };
        let (disk, upstream) = self.limited(found);
        let opened = open_collection(&disk, self.id(), place.borrowed(), Access::Read)?;
        let opened = opened.with_upstream(Some(upstream));
        // The tenant has the use of the one that is shown.
        let meter = Meter::new("", None, Limits::default());
        Ok(Some(Arc::new(opened.joined(&self.services, &meter, None))))
    }
}
