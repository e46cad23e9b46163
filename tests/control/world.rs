//! What the tests of control files share.

use std::ffi::CString;
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Answer, Mounted, answer};

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

/// The text of an extended attribute, after `user.tierfs.`.
pub fn attribute(path: &Path, name: &str) -> String {
    let mut value = vec![0; 4096];
    let len = rustix::fs::getxattr(path, format!("user.tierfs.{name}"), &mut value[..]).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

/// CRC32C, bit by bit (RFC 3720, B.4).
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 },
        )
    })
}

/// The events of a mount, of one kind or of all.
pub fn events(mounted: &Mounted, kind: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|event| kind.is_empty() || event["kind"] == kind).collect()
}
