#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tierfs_fuzz::targets::run("version", bytes));
