//! Bytes to validated structures and back.

pub mod access;
pub mod catalog;
pub mod cgeb;
pub mod cgei;
pub mod checksum;
pub mod cursor;
pub mod delta;
pub mod factor;
pub mod gguf;
pub mod npy;
pub mod placed;
pub mod record;
pub mod safetensors;
pub mod slot;
