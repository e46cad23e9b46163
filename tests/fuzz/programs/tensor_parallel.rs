#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tierfs_fuzz::targets::run("tensor_parallel", bytes));
