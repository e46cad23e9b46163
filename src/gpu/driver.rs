//! Access to the CUDA driver and its error codes.
//!
//! The bindings of `cudarc` panic if the library or a function in it is missing. Callers therefore call [`driver`] first,
//! which looks for the library and for every function in use. The safe wrappers of `cudarc` are not used: they allocate
//! from the device's memory pool, which cuFile cannot register.
//!
//! Sources: the CUDA driver API reference.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use crate::model::{Error, ErrorKind, Result};

/// Every function of the driver that this program calls.
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

/// Loads and initializes the driver, once per process.
pub(super) fn driver() -> Result<()> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // SAFETY: loading a library runs its initializers, and those of the CUDA driver may run at any time.
        if !unsafe { sys::is_culib_present() } {
            return Err("no CUDA driver: libcuda.so.1 is not found; install NVIDIA's driver, and in a container pass \
                        the GPUs on (docker run --gpus all)"
                .to_owned());
        }
        // SAFETY: as above. The library is present, so this does not panic.
        let library = unsafe { sys::culib() };
        for name in FUNCTIONS {
            // SAFETY: the function is only looked up, not called, so its type does not matter.
            if unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err() {
                return Err(format!("the CUDA driver has no {name}; install a newer one"));
            }
        }
        // SAFETY: the flags must be 0.
        check("starting the CUDA driver", unsafe { sys::cuInit(0) })
            .map_err(|error| format!("{error}; nvidia-smi says whether a device is seen"))
    });
    started.clone().map_err(|text| Error::new(ErrorKind::NotSupported, text))
}

/// Converts a code of the driver to a result. The driver must be loaded.
pub(super) fn check(doing: &str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: `name` is writable. The driver sets it to null for an unknown code.
    let named = unsafe { sys::cuGetErrorName(code, &raw mut name) };
    let name = if named == CUresult::CUDA_SUCCESS && !name.is_null() {
        // SAFETY: the names are null-terminated constants of the driver.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    } else {
        format!("error {}", code as u32)
    };
    Err(Error::new(ErrorKind::Io, format!("{doing}: {name}")))
}

/// Logs an error of releasing a resource, which has no caller to return it to.
pub(super) fn log_release_error(what: &str, code: CUresult) {
    if let Err(error) = check(what, code) {
        log::warn!("{error}");
    }
}

/// The CUDA version of the driver and the names of the devices.
pub(super) fn found() -> Result<String> {
    driver()?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: the out parameter is writable.
    check("asking for the driver's version", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    // SAFETY: as above.
    check("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    let names: Result<Vec<String>> = (0..count).map(|ordinal| name_of(device_of(ordinal)?)).collect();
    Ok(format!("CUDA {}.{}: {}", version / 1000, version % 1000 / 10, names?.join(", ")))
}

pub(super) fn device_of(ordinal: c_int) -> Result<sys::CUdevice> {
    let mut device = 0;
    // SAFETY: `device` is writable.
    check(&format!("looking for device {ordinal}"), unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
    Ok(device)
}

pub(super) fn name_of(device: sys::CUdevice) -> Result<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the driver writes at most the 255 bytes that it is given, so the last byte stays zero.
    check("asking for a device's name", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr().cast(), 255, device)
    })?;
    Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
}
