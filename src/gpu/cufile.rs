//! cuFile: reading a physical file straight into a device's memory.
//!
//! `cudarc` loads the library; its functions are called through pointers with the types of `cufile.h`, but with numbers
//! for error codes: `cudarc`'s bindings return Rust enums, which a code of a newer library would not be a value of, and
//! `cudarc::cufile::result::read` makes an enum of whatever negative number the library returns.
//!
//! Sources: the API reference of GPUDirect Storage, `cufile.h`.

use std::ffi::{c_int, c_void};
use std::fs;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

use cudarc::cufile::sys;

use crate::gpu::device::Device;
use crate::gpu::pieces::pieces;

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
type Read = unsafe extern "C" fn(sys::CUfileHandle_t, *mut c_void, usize, libc::off_t, libc::off_t) -> isize;

/// The functions of the library.
#[derive(Clone, Copy)]
struct Functions {
    register: Register,
    deregister: Deregister,
    register_bytes: RegisterBytes,
    deregister_bytes: DeregisterBytes,
    read: Read,
}

/// Loads the library and opens its driver, once for the process; why that cannot be. The driver closes with the process:
/// others in it may use it too.
fn functions() -> Result<&'static Functions, String> {
    static FOUND: OnceLock<Result<Functions, String>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Functions, String> {
    // SAFETY: loading a library runs its initializers; cuFile's are made for that.
    if !unsafe { sys::is_culib_present() } {
        return Err(
            "libcufile.so is not found (it comes with the CUDA toolkit; where only libcufile.so.0 is, link \
                    libcufile.so to it)"
                .to_owned(),
        );
    }
    // SAFETY: as above; it is there, so this does not panic.
    let library = unsafe { sys::culib() };
    macro_rules! function {
        ($name:literal, $kind:ty) => {
            // SAFETY: the type is that of the header, where error codes are numbers of this size.
            *unsafe { library.get::<$kind>($name.as_bytes()) }
                .map_err(|_| concat!("the library has no ", $name).to_owned())?
        };
    }
    let open = function!("cuFileDriverOpen", Open);
    let functions = Functions {
        register: function!("cuFileHandleRegister", Register),
        deregister: function!("cuFileHandleDeregister", Deregister),
        register_bytes: function!("cuFileBufRegister", RegisterBytes),
        deregister_bytes: function!("cuFileBufDeregister", DeregisterBytes),
        read: function!("cuFileRead", Read),
    };
    // SAFETY: the type is that of the header.
    let opened = unsafe { open() };
    match opened.error == sys::CUfileOpError::CU_FILE_DRIVER_ALREADY_OPEN as c_int {
        true => Ok(functions),
        false => said("opening its driver", opened).map(|()| functions),
    }
}

/// The library's answer as a result.
fn said(doing: &str, status: Status) -> Result<(), String> {
    match status {
        Status { error: 0, .. } => Ok(()),
        Status { error, cuda: 0 } => Err(format!("{doing}: {}", named(error))),
        Status { error, cuda } => Err(format!("{doing}: {}, and the CUDA driver {cuda}", named(error))),
    }
}

/// The names of the codes that say what can be done about them, or that nothing can.
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

/// What was found of the library; why it cannot be used.
pub(super) fn found() -> Result<String, String> {
    functions()?;
    Ok(match goes_by_the_host() {
        Some(how) => format!("libcufile; {how}"),
        None => "libcufile, and the module nvidia-fs".to_owned(),
    })
}

/// What is likely to keep cuFile from direct memory access.
pub(super) fn goes_by_the_host() -> Option<&'static str> {
    let is_loaded = Path::new("/proc/driver/nvidia-fs/version").exists();
    (!is_loaded).then_some(
        "the module nvidia-fs is not loaded: unless the kernel's own P2PDMA serves it, cuFile reads by way of the host",
    )
}

/// A file that cuFile knows.
struct Handle {
    handle: sys::CUfileHandle_t,
    functions: &'static Functions,
    /// Closed once cuFile has let go of it.
    _file: fs::File,
}

impl Handle {
    fn open(functions: &'static Functions, path: &Path) -> Result<Handle, String> {
        let shown = path.display();
        let mut how = fs::OpenOptions::new();
        // cuFile wants it, and does not set it.
        how.read(true).custom_flags(libc::O_DIRECT);
        let file = how.open(path).map_err(|error| format!("opening {shown} with O_DIRECT: {error}"))?;
        let mut description = sys::CUfileDescr_t {
            type_: sys::CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD,
            handle: sys::CUfileDescr_t__bindgen_ty_1 { handle: std::ptr::null_mut() },
            fs_ops: std::ptr::null(),
        };
        description.handle.fd = file.as_raw_fd();
        let mut handle = std::ptr::null_mut();
        // SAFETY: both places are writable and live during the call; the descriptor is open as long as the handle.
        let status = unsafe { (functions.register)(&raw mut handle, &raw mut description) };
        said(&format!("registering {shown}"), status)?;
        Ok(Handle { handle, functions, _file: file })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was registered, and is let go of once; no read is under way.
        unsafe { (self.functions.deregister)(self.handle) };
    }
}

/// Memory of a device that cuFile knows.
struct Registered {
    base: *mut c_void,
    functions: &'static Functions,
}

impl Registered {
    /// # Safety
    /// The device has `len` bytes at `base`, longer than this lives.
    unsafe fn new(
        functions: &'static Functions,
        base: *mut c_void,
        len: usize,
    ) -> Result<Registered, String> {
        // SAFETY: the caller's. The length is in bytes.
        let status = unsafe { (functions.register_bytes)(base, len, 0) };
        said("registering the memory", status)?;
        Ok(Registered { base, functions })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it was registered, and is let go of once; no read is under way.
        let status = unsafe { (self.functions.deregister_bytes)(self.base) };
        if let Err(error) = said("letting go of memory that cuFile knew", status) {
            log::warn!("{error}");
        }
    }
}

/// A physical file and memory to read it into.
pub(super) struct Reader<'d> {
    base: *mut c_void,
    functions: &'static Functions,
    handle: Handle,
    _registered: Option<Registered>,
    _device: PhantomData<&'d Device>,
}

impl<'d> Reader<'d> {
    /// Makes both known to cuFile; why that cannot be. Memory that it does not register it reads into by way of its
    /// own, which `steps` is told.
    ///
    /// # Safety
    /// The device has `len` bytes at `base`, longer than this lives.
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
        // SAFETY: the caller's.
        let registered = match unsafe { Registered::new(functions, base, len) } {
            Ok(registered) => Some(registered),
            Err(why) => {
                steps.push(format!("cuFile reads into memory of its own first: {why}"));
                None
            }
        };
        Ok(Reader { base, functions, handle, _registered: registered, _device: PhantomData })
    }

    /// Reads `len` bytes of the file from `offset` on to `into` bytes past the memory's begin; why it cannot.
    ///
    /// # Safety
    /// The memory has `into + len` bytes, and nothing else is done with them meanwhile.
    pub unsafe fn run(&self, offset: u64, len: u64, into: u64) -> Result<(), String> {
        for piece in pieces(offset, len) {
            let mut done = 0;
            while done < piece.len {
                let past = piece.into + done as u64;
                let at = |start: u64| libc::off_t::try_from(start + past).map_err(|error| error.to_string());
                let (from, to) = (at(offset)?, at(into)?);
                // SAFETY: the handle lives; the memory has the bytes, as the caller says.
                let read = unsafe {
                    (self.functions.read)(self.handle.handle, self.base, piece.len - done, from, to)
                };
                // Before anything else can change it.
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
