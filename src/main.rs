//! The `tierfs` program.

fn main() {}
