//! What the tests of control files share.

use std::ffi::CString;
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Answer, answer};

/// Writes a text with one call, as `echo` does after `>`.
pub fn put(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// The error number of a refusal.
#[track_caller]
pub fn refused<T>(done: Result<T>, number: i32) {
    match done {
        Ok(_) => panic!("not refused"),
        Err(error) => {
            assert_eq!(
                error.raw_os_error(),
                Some(number),
                "{error}, not {}",
                Error::from_raw_os_error(number)
            )
        }
    }
}

/// Runs a shell line as nobody, in a directory: nobody may not come through the folders above.
pub fn as_nobody(directory: &Path, line: &str) -> Answer {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "timeout", "20", "sh", "-c", line]);
    answer(command.current_dir(directory))
}

/// Makes a file of a length, as a call of its own.
pub fn truncate(path: &Path, bytes: i64) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero and is only read.
    match unsafe { libc::truncate(path.as_ptr(), bytes) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}
