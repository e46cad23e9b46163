//! The CUDA driver: whether it is there, and what it answers.
//!
//! The functions are `cudarc`'s bindings, which panic where the library or a function of it is missing. So [`driver`] is
//! asked first: it looks for the library and for every function that is called. `cudarc`'s own wrappers are not used:
//! they allocate from the device's memory pool, which cuFile cannot register.
//!
//! Sources: the reference of the CUDA driver API.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use crate::model::{Error, ErrorKind, Result};

/// Every function of the driver that is called.
const FUNCTIONS: &[&str] = &[
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
];

/// Loads the driver and starts it, once for the process.
pub(super) fn driver() -> Result<()> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // SAFETY: loading a library runs its initializers; the CUDA driver's are made for that.
        if !unsafe { sys::is_culib_present() } {
            return Err("no CUDA driver: libcuda.so.1 is not found; install NVIDIA's driver, and in a container pass \
                        the GPUs on (docker run --gpus all)"
                .to_owned());
        }
        // SAFETY: as above; it is there, so this does not panic.
        let library = unsafe { sys::culib() };
        for name in FUNCTIONS {
            // SAFETY: the function is looked for and not called, so that its type does not matter.
            if unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err() {
                return Err(format!("the CUDA driver has no {name}; install a newer one"));
            }
        }
        // SAFETY: the flags must be 0.
        said("starting the CUDA driver", unsafe { sys::cuInit(0) })
            .map_err(|error| format!("{error}; nvidia-smi says whether a device is seen"))
    });
    started.clone().map_err(|text| Error::new(ErrorKind::NotSupported, text))
}

/// The driver's answer as a result. The driver was found.
pub(super) fn said(doing: &str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the place for the name is writable. Of a code that it does not know the driver says null.
    let named = unsafe { sys::cuGetErrorName(code, &raw mut name) };
    let name = match named == CUresult::CUDA_SUCCESS && !name.is_null() {
        // SAFETY: the driver's names are constants that end with a zero.
        true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        false => format!("error {}", code as u32),
    };
    Err(Error::new(ErrorKind::Io, format!("{doing}: {name}")))
}

/// For what is given back: there is nobody to tell but the log.
pub(super) fn given_back(what: &str, code: CUresult) {
    if let Err(error) = said(what, code) {
        log::warn!("{error}");
    }
}

/// The version of CUDA that the driver is for, and the names of the devices.
pub(super) fn found() -> Result<String> {
    driver()?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: the place for the number is writable.
    said("asking for the driver's version", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    // SAFETY: as above.
    said("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    let names: Result<Vec<String>> = (0..count).map(|ordinal| name_of(device_of(ordinal)?)).collect();
    Ok(format!("CUDA {}.{}: {}", version / 1000, version % 1000 / 10, names?.join(", ")))
}

pub(super) fn device_of(ordinal: c_int) -> Result<sys::CUdevice> {
    let mut device = 0;
    // SAFETY: the place for the device is writable.
    said(&format!("looking for device {ordinal}"), unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
    Ok(device)
}

pub(super) fn name_of(device: sys::CUdevice) -> Result<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the driver writes at most the 255 bytes that it is told of; the last stays zero.
    said("asking for a device's name", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr().cast(), 255, device)
    })?;
    Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
}
