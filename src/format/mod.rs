//! Bytes to validated structures and back.
