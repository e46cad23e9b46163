//! Bytes to validated structures and back.

pub mod cgeb;
pub mod cgei;
pub mod cursor;
pub mod delta;
pub mod factor;
pub mod npy;
pub mod safetensors;
