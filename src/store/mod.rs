//! A store: collections of checksummed blocks on a disk.

pub mod backing;
pub mod blocks;
pub mod chain;
mod check;
pub mod collection;
mod commit;
mod compact;
pub mod describe;
pub mod directory;
pub mod disk;
mod encode;
pub mod events;
mod heal;
pub mod log;
pub mod migrate;
pub mod object;
pub mod origin;
mod payloads;
pub mod read;
pub mod rebuild;
mod recover;
pub mod repair;
pub mod replay;
pub mod rounded;
mod salvage;
mod scan;
pub mod settings;
pub mod slots;
mod space;
pub mod state;
mod tree;
mod verify;
pub mod write;

pub use collection::{Access, Collection};
pub use compact::Compaction;
pub use tree::Store;
