//! The library call, into memory of the caller.

use std::ffi::{CStr, c_void};

use tierfs::gpu::{Options, Route, Span, read_into};
use tierfs::model::ErrorKind;

use crate::fake::build;
use support::{Place, Random, answer};

/// A function of the library that stands in for the driver.
fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the names end with a zero; the library's initializers do nothing.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_LAZY), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

#[test]
fn a_read_into_memory_of_the_caller_fills_it_and_refuses_a_short_buffer() {
    let Ok(file) = std::env::var("TIERFS_TEST_FILE") else {
        // The libraries are found by a process that starts with their folder.
        let place = Place::new();
        let folder = build(&place, &["cuda", "cufile"]);
        let file = place.write("f", Random(6).bytes(20_000_000));
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "library::a_read_into_memory_of_the_caller_fills_it_and_refuses_a_short_buffer";
        again.env("LD_LIBRARY_PATH", folder).env("TIERFS_TEST_FILE", file).args(["--exact", name]);
        assert!(answer(&mut again).ok().contains("1 passed"));
        return;
    };
    // SAFETY: the types are those of the driver's functions.
    let (allocate, free, retain, push, pop, release) = unsafe {
        (
            std::mem::transmute::<*mut c_void, extern "C" fn(&mut u64, usize) -> i32>(function(
                c"cuMemAlloc_v2",
            )),
            std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> i32>(function(c"cuMemFree_v2")),
            std::mem::transmute::<*mut c_void, extern "C" fn(&mut u64, i32) -> i32>(function(
                c"cuDevicePrimaryCtxRetain",
            )),
            std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> i32>(function(c"cuCtxPushCurrent_v2")),
            std::mem::transmute::<*mut c_void, extern "C" fn(&mut u64) -> i32>(function(
                c"cuCtxPopCurrent_v2",
            )),
            std::mem::transmute::<*mut c_void, extern "C" fn(i32) -> i32>(function(
                c"cuDevicePrimaryCtxRelease_v2",
            )),
        )
    };
    let (mut context, mut memory, len) = (0, 0, 18_000_000_u64);
    assert_eq!((retain(&mut context, 0), push(context), allocate(&mut memory, len as usize + 7)), (0, 0, 0));
    let path = std::path::Path::new(&file);
    let span = Span { offset: 1_234_567, len: Some(len) };
    let options = Options { verify: true, ..Options::default() };
    // SAFETY: the memory stays until it is freed below.
    let read = |pointer, span| unsafe { read_into(path, span, pointer, &options) };
    // An address inside an allocation, as from a pool.
    let report = read(memory + 7, span).unwrap();
    assert!(matches!(report.route, Route::CuFile { offset: 1_234_567, .. }), "{report:?}");
    assert_eq!((report.bytes, report.compared.unwrap().differing), (len, 0));
    // SAFETY: the driver that stands in has its memory on the host.
    let there = unsafe { std::slice::from_raw_parts((memory + 7) as *const u8, len as usize) };
    assert!(there == &std::fs::read(path).unwrap()[1_234_567..][..len as usize]);
    assert_eq!(read(memory + 8, span).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(read(4096, span).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!((free(memory), pop(&mut context), release(0)), (0, 0, 0));
}
