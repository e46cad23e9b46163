//! Bytes to validated structures and back.

pub mod cursor;
pub mod delta;
pub mod factor;
pub mod npy;
pub mod safetensors;
