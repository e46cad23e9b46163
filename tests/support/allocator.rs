//! An allocator that counts, for tests that bound memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Passes calls on to the system's allocator and counts the bytes of each thread. A test binary makes it its
/// `global_allocator`.
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED_BYTES: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static HELD_BYTES_MAX: Cell<isize> = const { Cell::new(0) };
}

fn hold(bytes: isize) {
    HELD_BYTES.set(HELD_BYTES.get() + bytes);
    HELD_BYTES_MAX.set(HELD_BYTES_MAX.get().max(HELD_BYTES.get()));
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size() as u64);
        hold(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The number of allocations that this thread made for some work.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// The bytes that this thread allocated for some work, freed ones too.
pub fn allocated_bytes(work: impl FnOnce()) -> u64 {
    let before = ALLOCATED_BYTES.get();
    work();
    ALLOCATED_BYTES.get() - before
}

/// The bytes that this thread gained by some work, and the most that it had meanwhile.
pub fn held<T>(work: impl FnOnce() -> T) -> (T, isize, isize) {
    let before = HELD_BYTES.get();
    HELD_BYTES_MAX.set(before);
    let made = work();
    (made, HELD_BYTES.get() - before, HELD_BYTES_MAX.get() - before)
}
