//! Memory of a device, pinned memory of the host, and events that say when a copy is done.
//!
//! Sources: the reference of the CUDA driver API.

use std::ffi::c_void;
use std::marker::PhantomData;

use cudarc::driver::sys;

use crate::gpu::device::Device;
use crate::gpu::driver::{given_back, said};
use crate::model::{Error, Result};

const EVENT_BLOCKING_SYNC: u32 = 1;
const EVENT_DISABLE_TIMING: u32 = 2;

/// Memory of a device, as `cuMemAlloc` gives it: aligned to 256 bytes or more.
pub(super) struct DeviceBytes<'d> {
    pointer: u64,
    len: u64,
    _device: PhantomData<&'d Device>,
}

impl<'d> DeviceBytes<'d> {
    /// `len` bytes, at least one.
    pub fn new(_device: &'d Device, len: u64) -> Result<DeviceBytes<'d>> {
        let doing = || format!("getting {len} bytes of the device's memory (--offset and --len read a part)");
        let bytes = usize::try_from(len.max(1)).map_err(|_| Error::invalid(doing()))?;
        let mut pointer = 0;
        // SAFETY: the place for the pointer is writable; the device's context is current.
        said(&doing(), unsafe { sys::cuMemAlloc_v2(&raw mut pointer, bytes) })?;
        Ok(DeviceBytes { pointer, len, _device: PhantomData })
    }

    /// Where it begins.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for DeviceBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: it is given back once. The driver waits for work that uses it.
        given_back("giving back memory of the device", unsafe { sys::cuMemFree_v2(self.pointer) });
    }
}

/// Memory of the host that the device copies from by itself.
pub(super) struct Pinned<'d> {
    memory: *mut c_void,
    len: usize,
    _device: PhantomData<&'d Device>,
}

impl<'d> Pinned<'d> {
    /// `len` bytes, all zero.
    pub fn new(_device: &'d Device, len: usize) -> Result<Pinned<'d>> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: the place for the pointer is writable; the device's context is current.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut memory, len.max(1), 0) };
        said(&format!("pinning {len} bytes of memory"), code)?;
        // SAFETY: there are `len` bytes, which a slice may only show once they have a value.
        unsafe { memory.cast::<u8>().write_bytes(0, len) };
        Ok(Pinned { memory, len, _device: PhantomData })
    }

    /// Where it is.
    pub fn place(&self) -> *mut c_void {
        self.memory
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What is in it. No copy from or to it may be under way.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: there are `len` bytes with values, borrowed as long as this is.
        unsafe { std::slice::from_raw_parts_mut(self.memory.cast(), self.len) }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: it is given back once; who copies waits first.
        given_back("giving back pinned memory", unsafe { sys::cuMemFreeHost(self.memory) });
    }
}

/// A place in a stream of work that can be waited for.
pub(super) struct Event<'d> {
    event: sys::CUevent,
    device: &'d Device,
}

impl<'d> Event<'d> {
    pub fn new(device: &'d Device) -> Result<Event<'d>> {
        let mut event = std::ptr::null_mut();
        let flags = EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING;
        // SAFETY: the place for the event is writable; the device's context is current.
        said("making an event", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
        Ok(Event { event, device })
    }

    /// Puts it behind the work that is in the stream now.
    pub fn record(&self) -> Result<()> {
        // SAFETY: event and stream live.
        said("marking a copy", unsafe { sys::cuEventRecord(self.event, self.device.stream()) })
    }

    /// Waits until the stream is past it; at once where it was never put there.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event lives.
        said("waiting for a copy", unsafe { sys::cuEventSynchronize(self.event) })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: it is given back once.
        given_back("ending an event", unsafe { sys::cuEventDestroy_v2(self.event) });
    }
}
