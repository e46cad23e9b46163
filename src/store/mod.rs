//! A store: collections of checksummed blocks on a disk. One block goes in, one verified and decoded block comes out.
//!
//! The rooms, highest first. A room imports lower rooms only (`tests/tidy/structure.rs` has the heights):
//!
//! | room | contents |
//! |---|---|
//! | `versions` | earlier states of a collection, kept as differences from later ones |
//! | `cloning` | collections made of snapshots |
//! | `shown_numbers` | numbers of a remote's collections that one process leaves to the next |
//! | `snapshot` | frozen collections as canonical files; a disk that shows snapshots |
//! | `relocation` | renames and removals of collections and tenants |
//! | `store`, `read_collections` | the open store, its lock, its tenants; how its collections are opened |
//! | `repair` | offline repair; dropped ends of logs |
//! | `io` | read, verify, write, move, heal |
//! | `open_collections` | which collections are open; closes unused ones |
//! | `collection` | one collection: its parts, its batches, its space, its lineage |
//! | `space` | payload files, slots, reservations, readers of data files |
//! | `log` | append, replay, validate, checkpoint |
//! | `state` | the content of a log, in memory |
//! | `batch` | records for a log |
//! | `object` | objects: blocks, deltas, origins, usage |
//! | `upstream` | the remote behind a disk |
//! | `push_file` | the pushes of a collection |
//! | `version_list` | the versions of a collection, and their files |
//! | `version_use` | the stored bytes of versions, counted when somebody asks |
//! | `version_disk` | a disk with the files of versions |
//! | `clones` | collections whose files are fetched when they are read |
//! | `pieces` | sparse files whose bytes come in pieces from a remote |
//! | `many_at_once`, `events`, `tenant`, `clock`, `link_candidates`, `disk`, `quota`, `settings` | what all of them use |
//!
//! The methods of a type stand in at most two folders: those of `Collection` and `OpenObject` here in `collection` and
//! `io`.

mod batch;
mod clock;
mod clone_snapshot;
pub mod clones;
mod collection;
pub mod disk;
mod events;
mod io;
mod link_candidates;
mod log;
mod many_at_once;
mod object;
mod open_collections;
pub mod pieces;
mod push_file;
mod quota;
mod read_collections;
mod relocation;
mod repair;
mod settings;
mod shown_numbers;
mod snapshot;
mod space;
mod state;
#[expect(clippy::module_inception, reason = "the store itself, beside its rooms")]
mod store;
mod tenant;
mod trail;
mod upstream;
mod version_disk;
mod version_list;
mod version_use;
mod versions;

pub use batch::{Batch, add_blocks, add_described_blocks};
pub use clock::{Clock, HostClock, SetClock, Ticks, now_nanoseconds, now_seconds, set_host_clock};
pub use clone_snapshot::Cloned;
#[cfg(feature = "mount")]
pub use clones::clone_source_at;
pub use clones::{CloneSource, PieceSource};
pub use collection::digest_cache::{Sums, of_one_version};
pub use collection::identity::Access;
pub use collection::lineage::{ParentHold, broken};
pub use collection::open_object::{MEMORY_FILE, OpenObject, Rebuild, Verify};
pub use collection::place::PlaceOfObject;
pub use collection::state_lock::StateGuard;
pub use collection::usage_file::SaveUsage;
pub use collection::{Collection, Parts};
pub use disk::remote::{CollectionTraffic, RemoteError, Traffic};
pub use events::{Event, EventKind, Events, Step};
pub use io::buffer::PageBuffer;
pub use io::contiguous::{Backing, Unchecked};
pub use io::copy::LinkedFile;
pub use io::link::Shared;
pub use io::migrate::Elements;
pub use io::packed_blocks::exact_difference;
pub use io::pinned_copies::Compare;
pub use io::places::{Place, Stretch};
pub use io::scaled_delta::{DeltaLimits, Rounding, Writes};
pub use io::write::Written;
pub use io::zeros::GATHERED_BYTES_MAX;
pub use link_candidates::SharedName;
pub use log::checkpoint::Checkpoint;
pub use log::replay::replay;
pub use object::Object;
pub use object::blocks::{Block, BlockLayout, IndexedBlock};
pub use object::factors::FactorLink;
pub use object::failed_reads::Unreadable;
pub use object::links::DeltaLink;
pub use object::parts::Part;
pub use object::usage::FileUse;
pub use push_file::{NotedPush, PushPlace};
pub use quota::{Limits, Reserved, Room, Use};
pub use repair::set_aside::open_collection;
pub use repair::{Lost, Repaired, repair};
pub use settings::{DESCRIPTORS_MAX, Limit, PACKS, Rules, Settings, Share};
pub use snapshot::canonical::Canonical;
pub use snapshot::choice::{Choice, Recode};
pub use snapshot::disk::SnapshotDisk;
pub use snapshot::freeze::Frozen;
pub use snapshot::payloads::CanonicalFile;
pub use snapshot::source::{
    Describe, DescribedFile, DescribedFiles, Elsewhere, Reads, Snapshot, SnapshotFiles, Snapshots,
};
pub use snapshot::stored_objects::{Content, ObjectNames, StoredObjects, StoredPlace, StoredRange};
pub use snapshot::variant::CanonicalVariant;
pub use space::external_file::is_untouched;
pub use space::files::Touched;
pub use state::assembly::{Assembly, Places, StridedElements};
pub use state::directory::Directory;
pub use state::node::{Link, Node};
pub use state::node_settings::{
    ENCODER, LOSSY, PACK, PLAIN, PLAINS, allow_until_written, end_plain_names, show_plain_names,
};
pub use state::pinned_copy::PinnedCopy;
pub use state::pins::{Pin, pin_entry};
pub use state::program_attributes::{
    ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX, is_program_attribute, program_attribute, tags_entry,
};
pub use state::settings_table::{
    ARRIVE, ARRIVED, BACK, BLOCK_BYTES, DATA_FILES, DTYPE, HEAD_DIM, JOINED, POLICY, ROW, TAGS, TAIL, UNIT,
    UNREAD,
};
pub use state::tree::{COMPUTED_FIRST, IsTensor, ListedName, TENSORS_NAME, Visited, Walk};
pub use state::{ROOT, State};
pub use store::{Refreshed, Store};
pub use tenant::{TENANT_NUMBERS, Tenant, TenantEntry};
pub use trail::{TrailCheck, read_trail};
pub use upstream::{Directories, Look, NoteNumber, NumberBefore, UnopenedCollection};
pub use version_disk::{number_of as version_number, version_in, version_name};
pub use version_list::{Version, versions_on};
pub use versions::Kept;
