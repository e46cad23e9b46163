//! A device that this thread uses: its context and a stream.
//!
//! Sources: the CUDA driver API reference.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use cudarc::driver::sys;

use crate::gpu::driver::{check, device_of, driver, log_release_error, name_of};
use crate::gpu::memory::Pinned;
use crate::model::{Error, ErrorKind, Result};

const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_OF_A_DEVICE: u32 = 2;

/// Makes a context current in this thread. Dropping it restores the previous one.
struct Context {
    /// The device, if this is its primary context, which must be released.
    retained: Option<sys::CUdevice>,
    /// Each thread has its own current context, so this must stay on its thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl Context {
    fn primary(device: sys::CUdevice) -> Result<Context> {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is writable, and the driver returned the device.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        check("opening the device", code)?;
        // SAFETY: the context was retained just now.
        let entered = unsafe { sys::cuCtxPushCurrent_v2(context) };
        if let Err(error) = check("entering the device's context", entered) {
            // SAFETY: the context was retained once and is not in use.
            log_release_error("releasing the device", unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) });
            return Err(error);
        }
        Ok(Context { retained: Some(device), _of_this_thread: PhantomData })
    }

    /// # Safety
    /// The context outlives this value.
    unsafe fn of_another(context: sys::CUcontext) -> Result<Context> {
        // SAFETY: the caller guarantees a valid context.
        check("entering the memory's context", unsafe { sys::cuCtxPushCurrent_v2(context) })?;
        Ok(Context { retained: None, _of_this_thread: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: it was pushed on this thread, and all later ones were popped.
        log_release_error("leaving the context", unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) });
        if let Some(device) = self.retained {
            // SAFETY: the context was retained once.
            log_release_error("releasing the device", unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) });
        }
    }
}

/// A device that this thread uses, with a stream.
pub(super) struct Device {
    name: String,
    stream: sys::CUstream,
    /// Dropped after the stream is destroyed.
    _context: Context,
}

impl Device {
    /// Opens the device with this number, counted from 0.
    pub fn open(ordinal: u32) -> Result<Device> {
        driver()?;
        let mut count = 0;
        // SAFETY: `count` is writable.
        check("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
        let ordinal = c_int::try_from(ordinal).ok().filter(|ordinal| *ordinal < count);
        let Some(ordinal) = ordinal else {
            let text = format!("there are {count} CUDA devices, counted from 0");
            return Err(Error::new(ErrorKind::NotSupported, text));
        };
        let device = device_of(ordinal)?;
        Device::within(Context::primary(device)?, device)
    }

    /// The device whose memory is at `pointer`. Fails if fewer than `len` bytes are allocated there.
    ///
    /// # Safety
    /// If `pointer` is device memory, it stays allocated while this value lives.
    pub unsafe fn of_memory(pointer: u64, len: u64) -> Result<Device> {
        use sys::CUpointer_attribute_enum as Attribute;
        driver()?;
        let kind: u32 = attribute(pointer, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
        if kind != MEMORY_OF_A_DEVICE {
            return Err(Error::invalid(format!("{pointer:#x} is not memory of a CUDA device")));
        }
        let start: u64 = attribute(pointer, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?;
        let size: usize = attribute(pointer, Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?;
        let room = start.checked_add(size as u64).and_then(|end| end.checked_sub(pointer));
        if room.is_none_or(|room| room < len) {
            let text =
                format!("the memory at {pointer:#x} has less than the {len} bytes that are to be read");
            return Err(Error::invalid(text));
        }
        let ordinal: c_int = attribute(pointer, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
        let device = device_of(ordinal)?;
        let context: Option<usize> = attribute(pointer, Attribute::CU_POINTER_ATTRIBUTE_CONTEXT).ok();
        let context = match context.filter(|context| *context != 0) {
            // SAFETY: the memory belongs to this context, so the context lives as long as the memory.
            Some(context) => unsafe { Context::of_another(context as sys::CUcontext) }?,
            // Memory from a pool belongs to no context.
            None => Context::primary(device)?,
        };
        Device::within(context, device)
    }

    fn within(context: Context, device: sys::CUdevice) -> Result<Device> {
        let name = name_of(device)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` is writable, and the context is current.
        check("making a stream", unsafe { sys::cuStreamCreate(&raw mut stream, STREAM_NON_BLOCKING) })?;
        Ok(Device { name, stream, _context: context })
    }

    /// The stream.
    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for all work in the stream.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        check("waiting for the device", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Queues a copy of bytes of pinned memory to `pointer` in the stream.
    ///
    /// # Safety
    /// `pointer` has as many bytes of device memory. Until the copy is complete, both memories stay allocated and nothing
    /// writes to `from`.
    pub unsafe fn copy_in(&self, pointer: u64, from: &[u8]) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(pointer, from.as_ptr().cast(), from.len(), self.stream) };
        check("copying to the device", code)
    }

    /// Copies `len` bytes at `pointer` to the start of pinned memory, after all work in the stream, and waits.
    ///
    /// # Safety
    /// `pointer` has `len` bytes of device memory.
    pub unsafe fn copy_out(&self, into: &mut Pinned, pointer: u64, len: usize) -> Result<()> {
        assert!(len <= into.len(), "more bytes than the buffer has");
        // SAFETY: guaranteed by the caller and the assertion. The copy completes before the borrow of `into` ends.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(into.place(), pointer, len, self.stream) };
        check("copying from the device", code)?;
        self.finish()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the stream was created in the current context, and only `self` owns it.
        log_release_error("ending a stream", unsafe { sys::cuStreamDestroy_v2(self.stream) });
    }
}

/// An attribute of a pointer. `T` must be the type that the API reference gives for the attribute.
fn attribute<T: Default>(pointer: u64, which: sys::CUpointer_attribute_enum) -> Result<T> {
    let mut value = T::default();
    // SAFETY: the driver writes a value of the attribute's type, which is `T`.
    let code = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast::<c_void>(), which, pointer) };
    match check("asking what memory that is", code) {
        Ok(()) => Ok(value),
        Err(error) => Err(Error::invalid(format!("CUDA does not know the memory at {pointer:#x}: {error}"))),
    }
}
