//! Operations that change bytes which a file has already, or give their space back, and who may see these bytes.
//!
//! Bytes that programs were shown never change for them: a descriptor or mapping that the kernel serves is one of the
//! physical file, so a change of the file would be one of what they see. The table below says for each operation
//! and each holder what keeps the bytes. Operations that wait
//! ask `Shown::alone` (`store/space/holders.rs`) first.

/// An operation on bytes that a file has already. `File::punch` and `File::write_over` take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A sync gives back stretches of a data file that blocks have left: by moves, packs, evictions, overwrites.
    Reclaim,
    /// A compaction gives back such stretches that no sync did.
    PunchLeft,
    /// A compaction writes blocks back to such stretches; a write fills a hole.
    Return,
    /// An eviction gives back pieces of a clone, a check those of a cached file that nobody has open, or a read those that
    /// leave a slow disk.
    Evict,
    /// A push of a clone gives back bytes that belong to no piece any more.
    Adopt,
    /// A file grows, with bytes or with zeros behind all that batches have described; or bytes
    /// that no batch has described yet are written again.
    Append,
    /// A data file loses its name.
    Remove,
    /// Slots of tier files are written again, given back or cut off.
    Slots,
}

/// A user of a file who sees its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A descriptor whose reads the daemon answers.
    Descriptor,
    /// A descriptor whose reads the kernel answers.
    KernelDescriptor,
    /// A shared mapping by the kernel, and its descriptor.
    Mapping,
    /// A shared mapping by the kernel, whose descriptor is closed.
    MappingAlone,
    /// A private mapping by the kernel, and its descriptor.
    PrivateMapping,
    /// A private mapping by the kernel, whose descriptor is closed.
    PrivateMappingAlone,
    /// A mapping of a decoded copy.
    DecodedCopy,
    /// A mapping of the copy of a pinned file.
    PinnedCopy,
    /// A tensor that is stored as differences to the file.
    Child,
    /// A mapping of a file in a clone.
    Clone,
    /// A file whose data file is the same.
    Sharing,
    /// A frozen collection, of which a push reads.
    Frozen,
}

/// The way in which the bytes of a holder stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// The operation leaves the file as it is until the holder is gone.
    Waits,
    /// The operation is done at once: the holder does not see the bytes that it concerns.
    Apart,
    /// The two never meet, for this reason.
    Never(&'static str),
}

const BUSY: Kept = Kept::Never("a file on which others depend is neither moved nor written");
const PINNED: Kept = Kept::Never("a pinned file is neither moved nor evicted");
const ONE_NAME: Kept = Kept::Never("a data file of a clone has one name");

impl Change {
    /// All operations.
    pub const ALL: [Change; 8] = [
        Change::Reclaim,
        Change::PunchLeft,
        Change::Return,
        Change::Evict,
        Change::Adopt,
        Change::Append,
        Change::Remove,
        Change::Slots,
    ];

    /// The row of the operation: how the bytes of each holder stay, in the order of [`Holder::ALL`].
    #[rustfmt::skip]
    pub fn table(self) -> [Kept; Holder::ALL.len()] {
        use Kept::{Apart, Waits};
        match self {
            //                   daemon kernel  shared alone  private alone decoded pinned child  clone  sharing frozen
            Change::Reclaim =>   [Apart, Waits, Waits, Waits, Waits, Waits, Apart, Apart, BUSY, Waits, Waits, Waits],
            Change::PunchLeft => [Apart, Waits, Waits, Waits, Waits, Waits, Apart, Apart, BUSY, Waits, Waits, Waits],
            Change::Return =>    [Apart, Waits, Waits, Waits, Waits, Waits, Apart, Apart, Apart, Waits, Waits, Apart],
            Change::Evict =>     [Apart, Waits, Waits, Waits, Waits, Waits, Apart, PINNED, BUSY, Waits, ONE_NAME, Apart],
            Change::Adopt =>     [Apart, Waits, Waits, Waits, Waits, Waits, Apart, Apart, BUSY, Waits, ONE_NAME, Apart],
            Change::Append |
            Change::Remove =>    [Apart, Apart, Apart, Apart, Apart, Apart, Apart, Apart, BUSY, Apart, Apart, Apart],
            Change::Slots =>     [Apart; Holder::ALL.len()],
        }
    }

    /// The cell of a holder.
    pub fn keeps(self, holder: Holder) -> Kept {
        let row = self.table();
        let place = Holder::ALL.iter().position(|known| *known == holder);
        place.and_then(|place| row.get(place)).copied().unwrap_or(Kept::Waits)
    }
}

impl Holder {
    /// All holders.
    pub const ALL: [Holder; 12] = [
        Holder::Descriptor,
        Holder::KernelDescriptor,
        Holder::Mapping,
        Holder::MappingAlone,
        Holder::PrivateMapping,
        Holder::PrivateMappingAlone,
        Holder::DecodedCopy,
        Holder::PinnedCopy,
        Holder::Child,
        Holder::Clone,
        Holder::Sharing,
        Holder::Frozen,
    ];
}
