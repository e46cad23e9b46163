//! A store: collections of checksummed blocks on a disk.

pub mod blocks;
pub mod chain;
mod check;
pub mod collection;
mod commit;
mod compact;
pub mod directory;
pub mod disk;
mod encode;
pub mod factors;
mod heal;
pub mod lineage;
pub mod log;
pub mod migrate;
pub mod object;
pub mod origin;
mod payloads;
pub mod read;
pub mod rebuild;
mod recover;
pub mod replay;
pub mod settings;
pub mod slots;
mod space;
pub mod state;
mod tree;
pub mod write;

pub use collection::{Access, Collection};
pub use tree::Store;
