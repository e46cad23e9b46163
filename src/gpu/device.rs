//! A device that this thread works with: its context and a stream of work.
//!
//! Sources: the reference of the CUDA driver API.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use cudarc::driver::sys;

use crate::gpu::driver::{device_of, driver, given_back, name_of, said};
use crate::gpu::memory::Pinned;
use crate::model::{Error, ErrorKind, Result};

const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_OF_A_DEVICE: u32 = 2;

/// A context that is the thread's current one while this lives; the one before comes back.
struct Context {
    /// Of a device's primary context, the device.
    retained: Option<sys::CUdevice>,
    /// The current context is the thread's.
    _of_this_thread: PhantomData<*const ()>,
}

impl Context {
    fn primary(device: sys::CUdevice) -> Result<Context> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the place for the context is writable, and the device is one of the driver's.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        said("opening the device", code)?;
        // SAFETY: the context was retained just now.
        let entered = unsafe { sys::cuCtxPushCurrent_v2(context) };
        if let Err(error) = said("entering the device's context", entered) {
            // SAFETY: it was retained once, and nobody here uses it.
            given_back("letting go of the device", unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) });
            return Err(error);
        }
        Ok(Context { retained: Some(device), _of_this_thread: PhantomData })
    }

    /// # Safety
    /// The context lives as long as this.
    unsafe fn of_another(context: sys::CUcontext) -> Result<Context> {
        // SAFETY: the caller says that it is one.
        said("entering the memory's context", unsafe { sys::cuCtxPushCurrent_v2(context) })?;
        Ok(Context { retained: None, _of_this_thread: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: it was pushed on this thread; what was pushed later was popped.
        given_back("leaving the context", unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) });
        if let Some(device) = self.retained {
            // SAFETY: it was retained once.
            given_back("letting go of the device", unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) });
        }
    }
}

/// A device that this thread works with, and a stream of work for it.
pub(super) struct Device {
    name: String,
    stream: sys::CUstream,
    /// Left after the stream is gone.
    _context: Context,
}

impl Device {
    /// The device of this number.
    pub fn open(ordinal: u32) -> Result<Device> {
        driver()?;
        let mut count = 0;
        // SAFETY: the place for the number is writable.
        said("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
        let ordinal = c_int::try_from(ordinal).ok().filter(|ordinal| *ordinal < count);
        let Some(ordinal) = ordinal else {
            let text = format!("there are {count} CUDA devices, counted from 0");
            return Err(Error::new(ErrorKind::NotSupported, text));
        };
        let device = device_of(ordinal)?;
        Device::within(Context::primary(device)?, device)
    }

    /// The device whose memory is at `pointer`, which must have `len` bytes there.
    ///
    /// # Safety
    /// If there is memory of a device, it stays allocated while this lives.
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
            // SAFETY: the driver says that the memory is of it, so it lives as long as the memory.
            Some(context) => unsafe { Context::of_another(context as sys::CUcontext) }?,
            // Memory of a pool belongs to no context.
            None => Context::primary(device)?,
        };
        Device::within(context, device)
    }

    fn within(context: Context, device: sys::CUdevice) -> Result<Device> {
        let name = name_of(device)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the place for the stream is writable; the context is current.
        said("making a stream", unsafe { sys::cuStreamCreate(&raw mut stream, STREAM_NON_BLOCKING) })?;
        Ok(Device { name, stream, _context: context })
    }

    /// The stream of its work.
    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for all work of the stream.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: the stream lives as long as this.
        said("waiting for the device", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Puts a copy of the first `len` bytes of pinned memory to `pointer` into the stream.
    ///
    /// # Safety
    /// `pointer` has room for them on the device. Until the stream is past it the memory stays and is not written to.
    pub unsafe fn copy_in(&self, pointer: u64, from: &Pinned, len: usize) -> Result<()> {
        assert!(len <= from.len(), "more bytes than the buffer has");
        // SAFETY: the caller's, and the assertion.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(pointer, from.place(), len, self.stream) };
        said("copying to the device", code)
    }

    /// Copies bytes at `pointer` to the begin of pinned memory, after all work of the stream.
    ///
    /// # Safety
    /// The device has `len` bytes at `pointer`.
    pub unsafe fn copy_out(&self, into: &mut Pinned, pointer: u64, len: usize) -> Result<()> {
        assert!(len <= into.len(), "more bytes than the buffer has");
        // SAFETY: the caller's, and the assertion; it is waited for before the memory is free again.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(into.place(), pointer, len, self.stream) };
        said("copying from the device", code)?;
        self.finish()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the stream was made in the context that is current, and nobody else has it.
        given_back("ending a stream", unsafe { sys::cuStreamDestroy_v2(self.stream) });
    }
}

/// What the driver says of memory. `T` is the type that its reference has for the attribute.
fn attribute<T: Default>(pointer: u64, which: sys::CUpointer_attribute_enum) -> Result<T> {
    let mut value = T::default();
    // SAFETY: the driver writes a value of the attribute's type, which is `T`.
    let code = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast::<c_void>(), which, pointer) };
    match said("asking what memory that is", code) {
        Ok(()) => Ok(value),
        Err(error) => Err(Error::invalid(format!("{pointer:#x} is no memory that CUDA knows: {error}"))),
    }
}
