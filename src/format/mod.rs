//! Bytes to validated structures and back.

pub mod cursor;
pub mod npy;
pub mod safetensors;
