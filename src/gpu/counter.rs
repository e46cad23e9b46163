//! Compares bytes on the device.
//!
//! Sources: the CUDA driver API and PTX references.

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::gpu::device::Device;
use crate::gpu::driver::{check, log_release_error};
use crate::gpu::memory::{DeviceBytes, Pinned};
use crate::model::Result;

/// The program as PTX, which the driver compiles for the device.
const PROGRAM: &str = concat!(include_str!("compare.ptx"), "\0");
const THREADS: u32 = 256;
const THREAD_BLOCKS_MAX: u64 = 4096;

/// A loaded program.
struct Module(sys::CUmodule);

impl Module {
    fn load() -> Result<Module> {
        let mut module = std::ptr::null_mut();
        // SAFETY: `module` is writable, and the text is null-terminated.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, PROGRAM.as_ptr().cast()) };
        check("loading the program that compares", code)?;
        Ok(Module(module))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is unloaded once, and its user has waited for every kernel that it started.
        log_release_error("unloading the program that compares", unsafe { sys::cuModuleUnload(self.0) });
    }
}

/// Counts the differing bytes of two ranges of device memory, with a program on the device.
pub(super) struct Counter<'d> {
    function: sys::CUfunction,
    _module: Module,
    count: DeviceBytes<'d>,
    device: &'d Device,
}

impl<'d> Counter<'d> {
    /// Loads the program and sets the count to 0.
    pub fn new(device: &'d Device) -> Result<Counter<'d>> {
        let module = Module::load()?;
        let mut function = std::ptr::null_mut();
        let name = c"count_differences".as_ptr();
        // SAFETY: `function` is writable, the module is loaded, and the name is null-terminated.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module.0, name) };
        check("looking for the program that compares", code)?;
        let count = DeviceBytes::new(device, size_of::<u64>() as u64)?;
        // The memset comes last, so that no error path frees the memory while it runs.
        // SAFETY: the count has an allocation of its own with this size.
        let code = unsafe { sys::cuMemsetD8Async(count.pointer(), 0, size_of::<u64>(), device.stream()) };
        check("clearing the count", code)?;
        Ok(Counter { function, _module: module, count, device })
    }

    /// Queues the comparison of `len` bytes at two addresses in the stream.
    ///
    /// # Safety
    /// Both addresses have `len` bytes of device memory until the stream has completed the comparison.
    pub unsafe fn add(&mut self, one: u64, other: u64, len: usize) -> Result<()> {
        let (mut one, mut other, mut len, mut count) = (one, other, len as u64, self.count.pointer());
        let grid = len.div_ceil(u64::from(THREADS)).clamp(1, THREAD_BLOCKS_MAX) as u32;
        let mut arguments: [*mut c_void; 4] =
            [(&raw mut one).cast(), (&raw mut other).cast(), (&raw mut len).cast(), (&raw mut count).cast()];
        // SAFETY: the function takes four 64-bit numbers, which the driver copies before it returns. The caller
        // guarantees the memory.
        let code = unsafe {
            sys::cuLaunchKernel(
                self.function,
                grid,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                self.device.stream(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("starting the program that compares", code)
    }

    /// Waits for all comparisons and returns the number of differing bytes.
    pub fn total(&mut self) -> Result<u64> {
        let mut total = Pinned::new(self.device, size_of::<u64>())?;
        // SAFETY: the count has this size.
        unsafe { self.device.copy_out(&mut total, self.count.pointer(), size_of::<u64>()) }?;
        Ok(total.bytes().iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}

impl Drop for Counter<'_> {
    fn drop(&mut self) {
        // Kernels may still run.
        if let Err(error) = self.device.finish() {
            log::warn!("{error}");
        }
    }
}
