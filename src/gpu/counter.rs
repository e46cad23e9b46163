//! Comparing on the device.
//!
//! Sources: the references of the CUDA driver API and of PTX.

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::gpu::device::Device;
use crate::gpu::driver::{given_back, said};
use crate::gpu::memory::{DeviceBytes, Pinned};
use crate::model::Result;

/// The program, in the form that the driver compiles for the device.
const PROGRAM: &str = concat!(include_str!("compare.ptx"), "\0");
const THREADS: u32 = 256;
const THREAD_BLOCKS_MAX: u64 = 4096;

/// A program that is loaded.
struct Module(sys::CUmodule);

impl Module {
    fn load() -> Result<Module> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the place for the module is writable, and the text ends with a zero.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, PROGRAM.as_ptr().cast()) };
        said("loading the program that compares", code)?;
        Ok(Module(module))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it is unloaded once. Who started something of it has waited for that.
        given_back("unloading the program that compares", unsafe { sys::cuModuleUnload(self.0) });
    }
}

/// A program on the device that counts in how many bytes two stretches of its memory differ.
pub(super) struct Counter<'d> {
    function: sys::CUfunction,
    _module: Module,
    count: DeviceBytes<'d>,
    device: &'d Device,
}

impl<'d> Counter<'d> {
    /// Loads the program; the count is 0.
    pub fn new(device: &'d Device) -> Result<Counter<'d>> {
        let module = Module::load()?;
        let mut function = std::ptr::null_mut();
        let name = c"count_differences".as_ptr();
        // SAFETY: the place for the function is writable, the module is loaded, the name ends with a zero.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module.0, name) };
        said("looking for the program that compares", code)?;
        let count = DeviceBytes::new(device, size_of::<u64>() as u64)?;
        // Last: nothing is given back while this is under way.
        // SAFETY: the count is in memory of its own, of that many bytes.
        let code = unsafe { sys::cuMemsetD8Async(count.pointer(), 0, size_of::<u64>(), device.stream()) };
        said("clearing the count", code)?;
        Ok(Counter { function, _module: module, count, device })
    }

    /// Puts the comparison of `len` bytes at two places into the stream.
    ///
    /// # Safety
    /// The device has `len` bytes at both places until the stream is past it.
    pub unsafe fn add(&mut self, one: u64, other: u64, len: usize) -> Result<()> {
        let (mut one, mut other, mut len, mut count) = (one, other, len as u64, self.count.pointer());
        let grid = len.div_ceil(u64::from(THREADS)).clamp(1, THREAD_BLOCKS_MAX) as u32;
        let mut arguments: [*mut c_void; 4] =
            [(&raw mut one).cast(), (&raw mut other).cast(), (&raw mut len).cast(), (&raw mut count).cast()];
        // SAFETY: the function takes four numbers of 64 bits, which the driver copies before it returns. The memory is
        // the caller's.
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
        said("starting the program that compares", code)
    }

    /// The bytes that differed, once the stream is past all comparisons.
    pub fn total(&mut self) -> Result<u64> {
        let mut total = Pinned::new(self.device, size_of::<u64>())?;
        // SAFETY: the count has that many bytes.
        unsafe { self.device.copy_out(&mut total, self.count.pointer(), size_of::<u64>()) }?;
        Ok(total.bytes().iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}

impl Drop for Counter<'_> {
    fn drop(&mut self) {
        // What was started may still run.
        if let Err(error) = self.device.finish() {
            log::warn!("{error}");
        }
    }
}
