//! Reads a file to a device: chooses the route, reads, and compares.

use std::path::Path;
use std::time::Instant;

use crate::gpu::device::Device;
use crate::gpu::host::Pipe;
use crate::gpu::memory::DeviceBytes;
use crate::gpu::route::{Plan, plan};
use crate::gpu::{Options, Presence, Report, Route, Span, Wanted, cufile, driver, verify};
use crate::model::{Error, ErrorKind, Result};

/// Direct memory access works in pages of the file.
const PAGE_BYTES: u64 = 4096;

/// The destination of the bytes.
#[derive(Clone, Copy)]
struct Target {
    /// Address of the device memory.
    base: u64,
    /// Its length in bytes.
    len: u64,
    /// Offset of the destination in it.
    into: u64,
}

/// Reads a part of a file into temporary device memory.
///
/// Fails with [`ErrorKind::NotSupported`] if the driver or the device is missing, or if cuFile was requested and cannot
/// read the file.
pub fn read(path: &Path, span: Span, options: &Options) -> Result<Report> {
    let device = Device::open(options.device)?;
    let plan = plan(path, span)?;
    // The same offset within a page as in the file, so that cuFile can transfer whole pages.
    let into = match &plan.route {
        Route::CuFile { offset, .. } => offset % PAGE_BYTES,
        Route::Host { .. } => 0,
    };
    let memory = DeviceBytes::new(&device, into + plan.len)?;
    let target = Target { base: memory.pointer(), len: memory.len(), into };
    // SAFETY: the memory has `into + plan.len` bytes and lives until this function returns.
    unsafe { transfer(&device, path, span, plan, target, options) }
}

/// Reads a part of a file to `pointer`, in device memory, and returns when it is complete. Uses the device that owns the
/// memory, not the one in `options`, and checks the size of the memory with the driver.
///
/// Fails as [`read`] does, and with [`ErrorKind::Invalid`] if `pointer` is not device memory or the memory is too small.
///
/// # Safety
/// The memory at `pointer` is not freed or accessed until this function returns.
pub unsafe fn read_into(path: &Path, span: Span, pointer: u64, options: &Options) -> Result<Report> {
    let plan = plan(path, span)?;
    // SAFETY: guaranteed by the caller.
    let device = unsafe { Device::of_memory(pointer, plan.len) }?;
    let target = Target { base: pointer, len: plan.len, into: 0 };
    // SAFETY: the driver has confirmed the size of the memory.
    unsafe { transfer(&device, path, span, plan, target, options) }
}

/// # Safety
/// The target has room for the planned bytes, and nothing else accesses them.
unsafe fn transfer(
    device: &Device,
    path: &Path,
    span: Span,
    planned: Plan,
    target: Target,
    options: &Options,
) -> Result<Report> {
    let mut steps = Vec::new();
    let by_cufile = match (&planned.route, options.wanted) {
        (_, Wanted::Host) => Err("the host was asked for".to_owned()),
        (Route::Host { why }, _) => Err(why.clone()),
        (_, wanted) => match cufile::goes_by_the_host() {
            // Its reads bypass the page cache, and take ten times as long as those of several threads from there.
            Ok(Some(why)) if wanted == Wanted::Auto => Err(why.to_owned()),
            Ok(why) => {
                steps.extend(why.map(|why| format!("cuFile: {why}")));
                // SAFETY: guaranteed by the caller.
                unsafe { by_cufile(device, path, span, &planned, target, &mut steps) }
            }
            Err(why) => Err(why),
        },
    };
    let (route, seconds) = match by_cufile {
        Ok(seconds) => (planned.route.clone(), seconds),
        Err(why) if options.wanted == Wanted::CuFile => {
            let text = format!("{}: cuFile cannot read it: {why}", path.display());
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        Err(why) => {
            let mut pipe = Pipe::new(device, planned.len)?;
            let started = Instant::now();
            // SAFETY: guaranteed by the caller.
            unsafe { pipe.run(path, planned.offset, planned.len, target.base + target.into) }?;
            (Route::Host { why }, started.elapsed().as_secs_f64())
        }
    };
    let compared = if options.verify {
        // SAFETY: guaranteed by the caller.
        let compared = unsafe {
            verify::compare(device, path, planned.offset, planned.len, target.base + target.into, &mut steps)
        };
        Some(compared?)
    } else {
        None
    };
    Ok(Report { bytes: planned.len, route, steps, seconds, device: device.name().to_owned(), compared })
}

/// Reads with cuFile. Returns the seconds, or the reason that it cannot.
///
/// # Safety
/// As for [`transfer`].
unsafe fn by_cufile(
    device: &Device,
    path: &Path,
    span: Span,
    planned: &Plan,
    target: Target,
    steps: &mut Vec<String>,
) -> Result<f64, String> {
    let Route::CuFile { path: physical, offset } = &planned.route else {
        return Err("it has no physical file".to_owned());
    };
    let mut told = Vec::new();
    // SAFETY: guaranteed by the caller.
    let reader = unsafe { cufile::Reader::open(device, physical, target.base, target.len, &mut told) }?;
    let started = Instant::now();
    // SAFETY: guaranteed by the caller.
    unsafe { reader.run(*offset, planned.len, target.into) }?;
    let seconds = started.elapsed().as_secs_f64();
    // The read bypassed the daemon, so the file is valid only if the daemon still gives the same plan.
    match plan(path, span) {
        Ok(now) if now == *planned => {
            steps.extend(told);
            Ok(seconds)
        }
        Ok(_) => Err("it was changed or moved while it was read".to_owned()),
        Err(error) => Err(format!("after it was read: {error}")),
    }
}

/// The requirements that this machine meets or lacks.
pub fn presence() -> Vec<Presence> {
    vec![
        Presence {
            what: "CUDA",
            found: driver::found().map_err(|error| error.to_string()),
            advice: "tierfs gpu-read needs NVIDIA's driver and a device; nothing else does",
        },
        Presence {
            what: "cuFile",
            found: driver::driver()
                .map_err(|_| "not looked for, because the CUDA driver is missing".to_owned())
                .and_then(|()| cufile::found()),
            advice: "install libcufile (CUDA toolkit), and nvidia-fs where CUDA 12.8 or later does not use P2PDMA; in a \
                     container pass /run/udev on; without, gpu-read goes through host memory",
        },
    ]
}
