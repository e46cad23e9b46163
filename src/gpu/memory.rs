//! Device memory, pinned host memory, and events that mark the end of a copy.
//!
//! Sources: the CUDA driver API reference.

use std::ffi::c_void;
use std::marker::PhantomData;

use cudarc::driver::sys;

use crate::gpu::device::Device;
use crate::gpu::driver::{check, log_release_error};
use crate::model::{Error, Result};

const EVENT_BLOCKING_SYNC: u32 = 1;
const EVENT_DISABLE_TIMING: u32 = 2;

/// Device memory from `cuMemAlloc`, aligned to at least 256 bytes.
pub(super) struct DeviceBytes<'d> {
    pointer: u64,
    len: u64,
    _device: PhantomData<&'d Device>,
}

impl<'d> DeviceBytes<'d> {
    /// Allocates `len` bytes, at least one.
    pub fn new(_device: &'d Device, len: u64) -> Result<DeviceBytes<'d>> {
        let doing = || format!("getting {len} bytes of the device's memory (--offset and --len read a part)");
        let bytes = usize::try_from(len.max(1)).map_err(|_| Error::invalid(doing()))?;
        let mut pointer = 0;
        // SAFETY: the out parameter is writable, and the device's context is current.
        check(&doing(), unsafe { sys::cuMemAlloc_v2(&raw mut pointer, bytes) })?;
        Ok(DeviceBytes { pointer, len, _device: PhantomData })
    }

    /// The start address.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for DeviceBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: it is freed once, and the driver waits for work that uses it.
        log_release_error("freeing memory of the device", unsafe { sys::cuMemFree_v2(self.pointer) });
    }
}

/// Pinned host memory, which the device accesses directly.
pub(super) struct Pinned<'d> {
    memory: *mut c_void,
    len: usize,
    _device: PhantomData<&'d Device>,
}

impl<'d> Pinned<'d> {
    /// Allocates `len` zero bytes.
    pub fn new(_device: &'d Device, len: usize) -> Result<Pinned<'d>> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: the out parameter is writable, and the device's context is current.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut memory, len.max(1), 0) };
        check(&format!("pinning {len} bytes of memory"), code)?;
        // SAFETY: the allocation has `len` bytes. They must be initialized before a slice refers to them.
        unsafe { memory.cast::<u8>().write_bytes(0, len) };
        Ok(Pinned { memory, len, _device: PhantomData })
    }

    /// The start address.
    pub fn place(&self) -> *mut c_void {
        self.memory
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The contents. No copy from or to the memory may be in progress.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has `len` initialized bytes, and `self` stays borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.memory.cast(), self.len) }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: it is freed once, and its users wait for their copies first.
        log_release_error("freeing pinned memory", unsafe { sys::cuMemFreeHost(self.memory) });
    }
}

/// A position in a stream that a thread can wait for.
pub(super) struct Event<'d> {
    event: sys::CUevent,
    device: &'d Device,
}

impl<'d> Event<'d> {
    pub fn new(device: &'d Device) -> Result<Event<'d>> {
        let mut event = std::ptr::null_mut();
        let flags = EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING;
        // SAFETY: the out parameter is writable, and the device's context is current.
        check("making an event", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
        Ok(Event { event, device })
    }

    /// Records the event behind the work that is now in the stream.
    pub fn record(&self) -> Result<()> {
        // SAFETY: the event and the stream exist.
        check("marking a copy", unsafe { sys::cuEventRecord(self.event, self.device.stream()) })
    }

    /// Waits until the stream has passed the event. Returns at once if it was never recorded.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event exists.
        check("waiting for a copy", unsafe { sys::cuEventSynchronize(self.event) })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once.
        log_release_error("ending an event", unsafe { sys::cuEventDestroy_v2(self.event) });
    }
}
