//! cuFile: reads a physical file directly into device memory.
//!
//! `cudarc` loads the library. This module calls the functions through pointers with the types of `cufile.h`, but with
//! integers for error codes. `cudarc`'s bindings return Rust enums, for which an unknown code of a newer library would be
//! undefined behavior, and `cudarc::cufile::result::read` converts any negative number to such an enum.
//!
//! Sources: the GPUDirect Storage API reference, `cufile.h`.

use std::ffi::{c_int, c_void};
use std::fs;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use cudarc::cufile::sys;

use crate::gpu::device::Device;
use crate::gpu::pieces::pieces;

/// The database of udev, which describes block devices.
const UDEV_ENTRIES: &str = "/run/udev/data";

/// `CUfileError_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    error: c_int,
    cuda: c_int,
}

type Open = unsafe extern "C" fn() -> Status;
type Register = unsafe extern "C" fn(*mut sys::CUfileHandle_t, *mut sys::CUfileDescr_t) -> Status;
type Deregister = unsafe extern "C" fn(sys::CUfileHandle_t);
type RegisterBytes = unsafe extern "C" fn(*const c_void, usize, c_int) -> Status;
type DeregisterBytes = unsafe extern "C" fn(*const c_void) -> Status;
type Properties = unsafe extern "C" fn(*mut DriverProperties) -> Status;
type Read = unsafe extern "C" fn(sys::CUfileHandle_t, *mut c_void, usize, libc::off_t, libc::off_t) -> isize;

/// `CUfileDrvProps_t`, with room for fields of newer libraries.
#[repr(C)]
struct DriverProperties {
    nvfs: sys::CUfileDrvProps__bindgen_ty_1,
    rest: [u32; 64],
}

/// The functions of the library.
#[derive(Clone, Copy)]
struct Functions {
    properties: Properties,
    register: Register,
    deregister: Deregister,
    register_bytes: RegisterBytes,
    deregister_bytes: DeregisterBytes,
    read: Read,
}

/// Loads the library and opens its driver, once per process, or returns the reason that it cannot. The driver stays open
/// until the process ends, because other code in the process may use it.
fn functions() -> Result<&'static Functions, String> {
    static FOUND: OnceLock<Result<Functions, String>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Functions, String> {
    // SAFETY: loading a library runs its initializers, and those of cuFile may run at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err(
            "libcufile.so is not found (it comes with the CUDA toolkit; where only libcufile.so.0 is, link \
                    libcufile.so to it)"
                .to_owned(),
        );
    }
    // SAFETY: as above. The library is present, so this does not panic.
    let library = unsafe { sys::culib() };
    macro_rules! function {
        ($name:literal, $kind:ty) => {
            // SAFETY: the type matches the header, where error codes are integers of this size.
            *unsafe { library.get::<$kind>($name.as_bytes()) }
                .map_err(|_| concat!("the library has no ", $name).to_owned())?
        };
    }
    let open = function!("cuFileDriverOpen", Open);
    let functions = Functions {
        properties: function!("cuFileDriverGetProperties", Properties),
        register: function!("cuFileHandleRegister", Register),
        deregister: function!("cuFileHandleDeregister", Deregister),
        register_bytes: function!("cuFileBufRegister", RegisterBytes),
        deregister_bytes: function!("cuFileBufDeregister", DeregisterBytes),
        read: function!("cuFileRead", Read),
    };
    // SAFETY: the type matches the header.
    let opened = unsafe { open() };
    if opened.error == sys::CUfileOpError::CU_FILE_DRIVER_ALREADY_OPEN as c_int {
        Ok(functions)
    } else {
        check("opening its driver", opened).map(|()| functions)
    }
}

/// Converts a status of the library to a result.
fn check(doing: &str, status: Status) -> Result<(), String> {
    match status {
        Status { error: 0, .. } => Ok(()),
        Status { error, cuda: 0 } => Err(format!("{doing}: {}", named(error))),
        Status { error, cuda } => Err(format!("{doing}: {}, and the CUDA driver {cuda}", named(error))),
    }
}

/// The name of an error code that tells the user something, otherwise its number.
fn named(code: c_int) -> String {
    use sys::CUfileOpError as Code;
    let known = [
        Code::CU_FILE_DRIVER_NOT_INITIALIZED,
        Code::CU_FILE_DRIVER_VERSION_MISMATCH,
        Code::CU_FILE_PLATFORM_NOT_SUPPORTED,
        Code::CU_FILE_IO_NOT_SUPPORTED,
        Code::CU_FILE_DEVICE_NOT_SUPPORTED,
        Code::CU_FILE_NVFS_DRIVER_ERROR,
        Code::CU_FILE_CUDA_DRIVER_ERROR,
        Code::CU_FILE_CUDA_MEMORY_TYPE_INVALID,
        Code::CU_FILE_INVALID_FILE_TYPE,
        Code::CU_FILE_INVALID_FILE_OPEN_FLAG,
        Code::CU_FILE_DIO_NOT_SET,
        Code::CU_FILE_INVALID_VALUE,
        Code::CU_FILE_HANDLE_NOT_REGISTERED,
        Code::CU_FILE_MEMORY_ALREADY_REGISTERED,
        Code::CU_FILE_PERMISSION_DENIED,
        Code::CU_FILE_NVFS_SETUP_ERROR,
        Code::CU_FILE_IO_DISABLED,
        Code::CU_FILE_GPU_MEMORY_PINNING_FAILED,
    ];
    match known.into_iter().find(|known| *known as c_int == code) {
        Some(known) => format!("{known:?} ({code})"),
        None => format!("error {code}"),
    }
}

/// Describes the library, or returns the reason that it cannot be used.
pub(super) fn found() -> Result<String, String> {
    functions()?;
    if !Path::new(UDEV_ENTRIES).exists() {
        return Err(format!(
            "libcufile, but {UDEV_ENTRIES} does not exist, from which it takes the types of file systems"
        ));
    }
    Ok(format!("libcufile; {}", goes_by_the_host()?.unwrap_or("it reaches disks directly")))
}

/// The reason that cuFile reads through host memory instead of with direct memory access, if it does. The library says
/// which kinds of disks and file systems it reaches directly.
pub(super) fn goes_by_the_host() -> Result<Option<&'static str>, String> {
    let functions = functions()?;
    // SAFETY: zeros are a value of every field.
    let mut properties: DriverProperties = unsafe { std::mem::zeroed() };
    // SAFETY: the struct has room for the library's, which begins with the same fields.
    check("asking for its properties", unsafe { (functions.properties)(&raw mut properties) })?;
    let is_direct = properties.nvfs.dstatusflags != 0 || Path::new("/proc/driver/nvidia-fs/version").exists();
    Ok((!is_direct)
        .then_some("it has neither the module nvidia-fs nor P2PDMA, so it reads through host memory"))
}

/// Advice if udev has no entry for the disk of a file. cuFile takes the type of the file system from it, and refuses a
/// file without; libudev has none in a container and on a machine that does not run udev.
fn missing_udev_entry(file: &fs::File) -> Option<String> {
    let disk = file.metadata().ok()?.dev();
    let entry = format!("{UDEV_ENTRIES}/b{}:{}", libc::major(disk), libc::minor(disk));
    (!Path::new(&entry).exists()).then(|| {
        format!("; {entry} is missing, from which cuFile takes the file system (docker run -v /run/udev:/run/udev:ro)")
    })
}

/// A file that is registered with cuFile.
struct Handle {
    handle: sys::CUfileHandle_t,
    functions: &'static Functions,
    /// Closed after the handle is deregistered.
    _file: fs::File,
}

impl Handle {
    fn open(functions: &'static Functions, path: &Path) -> Result<Handle, String> {
        let shown = path.display();
        let mut how = fs::OpenOptions::new();
        // cuFile requires O_DIRECT but does not set it.
        how.read(true).custom_flags(libc::O_DIRECT);
        let file = how.open(path).map_err(|error| format!("opening {shown} with O_DIRECT: {error}"))?;
        let mut description = sys::CUfileDescr_t {
            type_: sys::CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD,
            handle: sys::CUfileDescr_t__bindgen_ty_1 { handle: std::ptr::null_mut() },
            fs_ops: std::ptr::null(),
        };
        description.handle.fd = file.as_raw_fd();
        let mut handle = std::ptr::null_mut();
        // SAFETY: both pointers are valid for writes during the call. The descriptor stays open as long as the handle.
        let status = unsafe { (functions.register)(&raw mut handle, &raw mut description) };
        let is_refused = status.error == sys::CUfileOpError::CU_FILE_HANDLE_NOT_REGISTERED as c_int;
        let advice = is_refused.then(|| missing_udev_entry(&file)).flatten().unwrap_or_default();
        check(&format!("registering {shown}"), status).map_err(|error| error + &advice)?;
        Ok(Handle { handle, functions, _file: file })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it is registered and deregistered once, and no read is in progress.
        unsafe { (self.functions.deregister)(self.handle) };
    }
}

/// Device memory that is registered with cuFile.
struct Registered {
    base: *mut c_void,
    functions: &'static Functions,
}

impl Registered {
    /// # Safety
    /// `base` has `len` bytes of device memory, which outlive this value.
    unsafe fn new(
        functions: &'static Functions,
        base: *mut c_void,
        len: usize,
    ) -> Result<Registered, String> {
        // SAFETY: guaranteed by the caller. The length is in bytes.
        let status = unsafe { (functions.register_bytes)(base, len, 0) };
        check("registering the memory", status)?;
        Ok(Registered { base, functions })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it is registered and deregistered once, and no read is in progress.
        let status = unsafe { (self.functions.deregister_bytes)(self.base) };
        if let Err(error) = check("deregistering the memory", status) {
            log::warn!("{error}");
        }
    }
}

/// A physical file and the memory to read it into.
pub(super) struct Reader<'d> {
    base: *mut c_void,
    functions: &'static Functions,
    handle: Handle,
    _registered: Option<Registered>,
    _device: PhantomData<&'d Device>,
}

impl<'d> Reader<'d> {
    /// Registers both with cuFile, or returns the reason that it cannot. If the memory cannot be registered, cuFile
    /// reads through buffers of its own, and a note goes to `steps`.
    ///
    /// # Safety
    /// `base` has `len` bytes of device memory, which outlive this value.
    pub unsafe fn open(
        _device: &'d Device,
        path: &Path,
        base: u64,
        len: u64,
        steps: &mut Vec<String>,
    ) -> Result<Reader<'d>, String> {
        let functions = functions()?;
        let handle = Handle::open(functions, path)?;
        let base = base as *mut c_void;
        let len = usize::try_from(len).map_err(|error| error.to_string())?;
        // SAFETY: guaranteed by the caller.
        let registered = match unsafe { Registered::new(functions, base, len) } {
            Ok(registered) => Some(registered),
            Err(why) => {
                steps.push(format!("cuFile reads into a buffer first: {why}"));
                None
            }
        };
        Ok(Reader { base, functions, handle, _registered: registered, _device: PhantomData })
    }

    /// Reads `len` bytes of the file from `offset` to offset `into` of the memory, or returns the reason that it cannot.
    ///
    /// # Safety
    /// The memory has `into + len` bytes, and nothing else accesses them meanwhile.
    pub unsafe fn run(&self, offset: u64, len: u64, into: u64) -> Result<(), String> {
        for piece in pieces(offset, len) {
            let mut done = 0;
            while done < piece.len {
                let past = piece.into + done as u64;
                let at = |start: u64| libc::off_t::try_from(start + past).map_err(|error| error.to_string());
                let (from, to) = (at(offset)?, at(into)?);
                // SAFETY: the handle is registered, and the caller guarantees the memory.
                let read = unsafe {
                    (self.functions.read)(self.handle.handle, self.base, piece.len - done, from, to)
                };
                // Save errno before another call changes it.
                let error = std::io::Error::last_os_error();
                done += match read {
                    -1 => return Err(format!("reading at {from}: {error}")),
                    0 => return Err(format!("the file ends at {from}")),
                    _ => usize::try_from(read).map_err(|_| {
                        format!("reading at {from}: {}", named(c_int::try_from(-read).unwrap_or(c_int::MAX)))
                    })?,
                };
            }
        }
        Ok(())
    }
}
