//! The writer of a collection's log, and why there is none.

use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};

use crate::model::Instant;
use crate::store::collection::unrecorded_files::Unrecorded;
use crate::store::events::Note;
use crate::store::log::append::Log;
use crate::store::log::checkpoint::{Checkpoint, due};
use crate::store::log::replay::Damage;
use crate::store::space::files::{PAYLOAD_FILES, Touched};
use crate::store::space::slots::Slots;
use crate::store::state::State;
use crate::store::state::freed_space::Freed;

/// State that only the holder of the writer's lock uses.
pub(in crate::store) struct Writer {
    pub log: Log,
    /// Files written since the last sync.
    pub unsynced: Touched,
    /// Space freed by a batch, with the batch's number, in the order of these: reusable once the batch is
    /// durable and nothing reads the space.
    pub freed: Vec<(u64, Freed)>,
    /// How many of these could not be reclaimed by which durable batch, and when that was found.
    pub kept: Option<((usize, u64), Instant)>,
    /// Whether the last time left some that could be, for the sake of those who wait.
    pub leaves_more: bool,
    /// The free space of the payload files, once they were written to.
    pub slots: [Option<Slots>; PAYLOAD_FILES],
    /// Number of the next data file, once one was created; 0 before.
    pub next_data: u64,
    /// When the log is due for a checkpoint.
    pub due: Due,
}

/// When a log is due for a checkpoint.
pub(in crate::store) struct Due {
    /// The length in bytes from which it may be.
    pub at: u64,
    /// The length that it must have, by its length after the last checkpoint.
    pub least: u64,
    /// How many files there were when this was computed.
    files: u64,
}

impl Due {
    /// For the present state, and not before the log has `least` bytes.
    pub fn new(state: &State, least: u64) -> Due {
        Due { at: due(state).max(least), least, files: state.used().files }
    }

    /// Whether most files are gone.
    pub fn has_shrunk(&self, state: &State) -> bool {
        state.used().files < self.files / 2
    }
}

impl Writer {
    /// Whether everything is durable and recorded as durable, and no freed space waits for its reuse.
    pub fn is_settled(&self) -> bool {
        let is_marked = self.log.is_whole() && self.log.is_synced() && self.log.is_marked();
        is_marked && self.unsynced.is_empty() && self.freed.is_empty()
    }

    /// Whether the log has twice the length at which a sync checkpoints it: no sync has come.
    pub fn is_log_too_long(&self) -> bool {
        self.log.bytes() >= self.due.at.saturating_mul(2)
    }
}

/// The log of an open collection.
#[derive(Default)]
pub(in crate::store) struct Journal {
    /// Locked before the state; held while a batch is written.
    writer: Mutex<Option<Writer>>,
    /// Held during a sync that lets others append meanwhile. Locked before the writer.
    turn: Mutex<()>,
    /// Held while such a sync has files of the writer that are not durable yet. Locked after the writer; held across I/O.
    syncing: Mutex<()>,
    damage: Option<Damage>,
    /// The reason, set once when a sync has failed.
    poisoned: OnceLock<String>,
    notes: Vec<Note>,
    /// Held briefly; no other lock is taken with it.
    last_checkpoint: Mutex<Option<Checkpoint>>,
    bytes: u64,
    /// Files with writes that the log could not take.
    pub unrecorded: Unrecorded,
}

impl Journal {
    /// A log of `bytes` bytes. `notes` are the problems that were found and corrected when it was
    /// opened.
    pub fn new(writer: Option<Writer>, damage: Option<Damage>, notes: Vec<Note>, bytes: u64) -> Journal {
        Journal { writer: Mutex::new(writer), damage, notes, bytes, ..Journal::default() }
    }

    /// Locks the writer as [`lock`](Self::lock) does; `None` if it is locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Option<Writer>>> {
        self.writer.try_lock()
    }

    /// Locks the writer; `None` if the log is only read.
    pub fn lock(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock()
    }

    /// Waits for the turn of a sync that lets others append.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Waits until no other sync has files. The caller has the writer.
    pub fn syncing(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock()
    }

    /// Damage to the log, if any.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Why the log accepts no batches since a sync failed, if one did.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.get().map(String::as_str)
    }

    /// Refuses batches from now on. Returns whether this is the first reason.
    pub fn poison(&self, reason: &str) -> bool {
        self.poisoned.set(reason.to_owned()).is_ok()
    }

    /// Problems found and corrected when the log was opened.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Length in bytes when the log was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Result of the last checkpoint since the log was opened.
    pub fn last_checkpoint(&self) -> Option<Checkpoint> {
        *self.last_checkpoint.lock()
    }

    /// Notes the result of a checkpoint.
    pub fn note_checkpoint(&self, checkpoint: Checkpoint) {
        *self.last_checkpoint.lock() = Some(checkpoint);
    }
}
