//! A file to a device: the route, the read, the comparison.

use std::path::Path;
use std::time::Instant;

use crate::gpu::device::Device;
use crate::gpu::host::Pipe;
use crate::gpu::memory::DeviceBytes;
use crate::gpu::route::{Plan, plan};
use crate::gpu::{Options, Presence, Report, Route, Span, Wanted, cufile, driver, verify};
use crate::model::{Error, ErrorKind, Result};

/// Direct memory access goes by pages of the file.
const PAGE_BYTES: u64 = 4096;

/// Where the bytes are to go.
#[derive(Clone, Copy)]
struct Target {
    /// Memory of the device.
    base: u64,
    /// Its bytes.
    len: u64,
    /// How far into it.
    into: u64,
}

/// Reads a part of a file into memory of a device that is let go of afterwards.
///
/// Fails with [`ErrorKind::NotSupported`] where the driver or the device is missing, or cuFile was wanted and does not
/// do it.
pub fn read(path: &Path, span: Span, options: &Options) -> Result<Report> {
    let device = Device::open(options.device)?;
    let plan = plan(path, span)?;
    // As far into a page as in the file, so that what lies between goes by whole pages.
    let into = match &plan.route {
        Route::CuFile { offset, .. } => offset % PAGE_BYTES,
        Route::Host { .. } => 0,
    };
    let memory = DeviceBytes::new(&device, into + plan.len)?;
    let target = Target { base: memory.pointer(), len: memory.len(), into };
    // SAFETY: the memory has `into + plan.len` bytes, and lives until this returns.
    unsafe { transfer(&device, path, (span, plan), target, options) }
}

/// Reads a part of a file to `pointer`, in a device's memory, and returns when all of it is there. The device is the one
/// that the memory is of, whatever the options say. That the memory has room is asked of the driver.
///
/// Fails as [`read`] does, and with [`ErrorKind::Invalid`] where `pointer` is no memory of a device, or less than the
/// part's bytes.
///
/// # Safety
/// The memory at `pointer` is not freed, and nobody uses it, until this returns.
pub unsafe fn read_into(path: &Path, span: Span, pointer: u64, options: &Options) -> Result<Report> {
    let plan = plan(path, span)?;
    // SAFETY: the caller's.
    let device = unsafe { Device::of_memory(pointer, plan.len) }?;
    let target = Target { base: pointer, len: plan.len, into: 0 };
    // SAFETY: the driver says that the memory has the bytes.
    unsafe { transfer(&device, path, (span, plan), target, options) }
}

/// # Safety
/// The target has the plan's bytes, and nobody else uses them.
unsafe fn transfer(
    device: &Device,
    path: &Path,
    (span, planned): (Span, Plan),
    target: Target,
    options: &Options,
) -> Result<Report> {
    let mut steps = Vec::new();
    let by_cufile = match (&planned.route, options.wanted) {
        (_, Wanted::Host) => Err("the host was asked for".to_owned()),
        (Route::Host { why }, _) => Err(why.clone()),
        // SAFETY: the caller's.
        _ => unsafe { by_cufile(device, path, (span, &planned), target, &mut steps) },
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
            // SAFETY: the caller's.
            unsafe { pipe.run(path, planned.offset, planned.len, target.base + target.into) }?;
            (Route::Host { why }, started.elapsed().as_secs_f64())
        }
    };
    let compared = match options.verify {
        true => {
            let part = (path, planned.offset, planned.len);
            // SAFETY: the caller's.
            Some(unsafe { verify::compare(device, part, target.base + target.into, &mut steps) }?)
        }
        false => None,
    };
    Ok(Report { bytes: planned.len, route, steps, seconds, device: device.name().to_owned(), compared })
}

/// Reads by cuFile; the seconds, or why not.
///
/// # Safety
/// As for [`transfer`].
unsafe fn by_cufile(
    device: &Device,
    path: &Path,
    (span, planned): (Span, &Plan),
    target: Target,
    steps: &mut Vec<String>,
) -> Result<f64, String> {
    let Route::CuFile { path: physical, offset } = &planned.route else {
        return Err("it has no physical file".to_owned());
    };
    let mut told = Vec::new();
    // SAFETY: the caller's.
    let reader = unsafe { cufile::Reader::open(device, physical, target.base, target.len, &mut told) }?;
    let started = Instant::now();
    // SAFETY: the caller's.
    unsafe { reader.run(*offset, planned.len, target.into) }?;
    let seconds = started.elapsed().as_secs_f64();
    // The daemon was not asked meanwhile: what it would say of the file now must be what it said before.
    match plan(path, span) {
        Ok(now) if now == *planned => {
            steps.extend(told);
            steps.extend(cufile::goes_by_the_host().map(str::to_owned));
            Ok(seconds)
        }
        Ok(_) => Err("it was changed or moved while it was read".to_owned()),
        Err(error) => Err(format!("after it was read: {error}")),
    }
}

/// What this machine has of what is needed.
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
                .map_err(|_| "not looked for: there is no CUDA driver".to_owned())
                .and_then(|()| cufile::found()),
            advice: "install libcufile (CUDA toolkit) and nvidia-fs; without, gpu-read goes by way of the host",
        },
    ]
}
