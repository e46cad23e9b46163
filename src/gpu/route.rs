//! Finds the physical file from which the bytes of a file can be read without the daemon, or the reason that they
//! cannot.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::format::mountinfo::{MountedThere, topmost};
use crate::model::{Error, ErrorKind, Result};

/// A part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes; `None` means up to the end.
    pub len: Option<u64>,
}

/// The route of a file's bytes to a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    /// cuFile reads them from a physical file.
    CuFile {
        /// The physical file.
        path: PathBuf,
        /// Offset of the bytes in it.
        offset: u64,
    },
    /// An ordinary read into pinned memory, followed by a copy to the device.
    Host {
        /// The reason that no physical file is used.
        why: String,
    },
}

/// An existing part of a file and the best route to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The best route according to the file's extents.
    pub route: Route,
}

/// Longest list of extents to parse. A longer one means thousands of pieces.
const EXTENTS_BYTES_MAX: u64 = 1 << 20;

/// The file of exact blocks in slots: small files and overwritten blocks. A slot may be reused for another block and
/// later for the first one again, so a reader that bypasses the daemon cannot detect a reuse during its read.
const SLOTS: &str = "tier0.dat";

/// The directory of forms in a collection.
const FORMS: &str = ".as";

/// Finds a part of a file and the route to it. Blocks that were not verified since the store was opened are verified
/// now, which reads all of them.
///
/// Fails with [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`], and [`ErrorKind::Invalid`] if the path is not a regular
/// file or the part lies past its end.
pub fn plan(path: &Path, span: Span) -> Result<Plan> {
    let failed = |error| Error::io(path.display(), error);
    let real = fs::canonicalize(path).map_err(failed)?;
    let found = fs::metadata(&real).map_err(failed)?;
    if found.is_dir() {
        let text = format!("{} is a directory; name the files in it", path.display());
        return Err(Error::new(ErrorKind::IsDirectory, text));
    }
    if !found.is_file() {
        return Err(Error::invalid(format!("{} is not a file that can be read by offset", path.display())));
    }
    let len = checked_len(span, found.len()).map_err(|error| error.at(path.display()))?;
    let offset = span.offset;
    let mounts =
        fs::read("/proc/self/mountinfo").map_err(|error| Error::io("reading /proc/self/mountinfo", error))?;
    let route = match topmost(&mounts, &real).filter(MountedThere::is_ours) {
        _ if len == 0 => Route::Host { why: "nothing is to be read".to_owned() },
        None => Route::CuFile { path: real, offset },
        Some(mounted) => match physical(&mounted.mountpoint, &real, offset, len) {
            Ok((path, offset)) => Route::CuFile { path, offset },
            Err(why) => Route::Host { why },
        },
    };
    Ok(Plan { offset, len, route })
}

/// The length of a part of a file that has `file_len` bytes.
fn checked_len(span: Span, file_len: u64) -> Result<u64> {
    let rest = file_len.checked_sub(span.offset);
    match rest.map(|rest| (rest, span.len.unwrap_or(rest))) {
        Some((rest, len)) if len <= rest => Ok(len),
        _ => Err(Error::invalid(format!("it has {file_len} bytes, and less was asked to be there"))),
    }
}

/// The location on disk of a part of a file on a mount, if it is one verified run; else the reason that it is not.
fn physical(mountpoint: &Path, real: &Path, offset: u64, len: u64) -> Result<(PathBuf, u64), String> {
    let below = real.strip_prefix(mountpoint).map_err(|error| error.to_string())?;
    let mut names = below.components();
    let (Some(tenant), Some(collection)) = (names.next(), names.next()) else {
        return Err("it is not a file of a collection".to_owned());
    };
    let controls = mountpoint.join(tenant).join(collection).join(".ctl");
    let list = controls.join("extents").join(names.as_path());
    if !list.exists() {
        return Err("its bytes are computed when they are read, and are not on the disk".to_owned());
    }
    ask_the_daemon(real, offset, len)?;
    let extents = read_extents(&list)?;
    if below.iter().nth(2).is_some_and(|name| name == FORMS) && is_empty(&extents) {
        let text =
            "its bytes are computed when they are read, and are not on the disk; pin it, and a copy has them";
        return Err(text.to_owned());
    }
    let run = one_run(&extents, offset, len)?;
    let run = if run.is_verified {
        run
    } else {
        check(&controls.join("verify").join(names.as_path()))?;
        one_run(&read_extents(&list)?, offset, len)?
    };
    if !run.is_verified {
        let text =
            "its blocks changed while they were checked, or the file in place that it lies in was touched";
        return Err(text.to_owned());
    }
    match fs::File::open(&run.path) {
        Ok(_) => Ok((run.path, run.offset)),
        Err(error) => Err(format!("{}: {error}", run.path.display())),
    }
}

/// Has the daemon flush writes to the log, from which it lists extents, and read the first and last byte. This fails if
/// the source of an in-place import has changed.
fn ask_the_daemon(real: &Path, offset: u64, len: u64) -> Result<(), String> {
    let check = |error: std::io::Error| format!("asking the daemon where it is stored: {error}");
    // O_DIRECT bypasses the page cache, so the reads reach the daemon.
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(real).map_err(check)?;
    file.sync_data().map_err(check)?;
    for at in [offset, offset + len - 1] {
        file.read_exact_at(&mut [0], at).map_err(check)?;
    }
    Ok(())
}

fn read_extents(list: &Path) -> Result<String, String> {
    let file = fs::File::open(list).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "only the user who runs the mount may read .ctl/extents and the files of the store".to_owned()
        }
        std::io::ErrorKind::InvalidInput => {
            "its bytes are assembled from several tensors when they are read; pin it, and a copy has them"
                .to_owned()
        }
        _ => format!("{}: {error}", list.display()),
    })?;
    let mut text = String::new();
    file.take(EXTENTS_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("{}: {error}", list.display()))?;
    if text.len() as u64 > EXTENTS_BYTES_MAX {
        Err("its bytes lie in thousands of pieces".to_owned())
    } else {
        Ok(text)
    }
}

/// Has the daemon verify every stored checksum of a file.
fn check(control: &Path) -> Result<(), String> {
    let text = fs::read_to_string(control).map_err(|error| format!("{}: {error}", control.display()))?;
    match text.lines().last() {
        Some("ok") => Ok(()),
        last => Err(format!("its checksums are wrong: {}", last.unwrap_or("nothing was said"))),
    }
}

/// A part of a file that a physical file holds contiguously and unencoded.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    path: PathBuf,
    offset: u64,
    is_verified: bool,
}

/// Whether a list names no extents.
fn is_empty(extents: &str) -> bool {
    let list: Option<Value> = serde_json::from_str(extents).ok();
    list.is_some_and(|list| list.as_array().is_some_and(Vec::is_empty))
}

/// The run that holds a whole part of a file, according to the text of `.ctl/extents/<file>`, or the reason that there
/// is none.
fn one_run(extents: &str, offset: u64, len: u64) -> Result<Run, String> {
    let unreadable = || "its .ctl/extents is not understood; is the daemon of another version?".to_owned();
    let list: Value = serde_json::from_str(extents).map_err(|_| unreadable())?;
    let end = offset.checked_add(len).ok_or_else(unreadable)?;
    let mut run: Option<Run> = None;
    // The logical offset up to which the run reaches.
    let mut reached = offset;
    for extent in list.as_array().ok_or_else(unreadable)? {
        let number = |name: &str| extent.get(name).and_then(Value::as_u64).ok_or_else(unreadable);
        let text = |name: &str| extent.get(name).and_then(Value::as_str).ok_or_else(unreadable);
        let (logical, logical_len) = (number("logical_offset")?, number("logical_length")?);
        let Some(inside) = reached.checked_sub(logical).filter(|inside| *inside < logical_len) else {
            continue;
        };
        let tier = text("tier")?;
        // Only exact bytes are stored unencoded.
        if tier != "exact" || number("length")? != logical_len {
            return Err(format!("it is stored as codes of tier {tier}, which the daemon decodes"));
        }
        let at = number("file_offset")?.checked_add(inside).ok_or_else(unreadable)?;
        let is_verified = extent.get("verified").and_then(Value::as_bool).ok_or_else(unreadable)?;
        let path = Path::new(text("file")?);
        if path.file_name().is_some_and(|name| name == SLOTS) {
            return Err("it lies in tier0.dat, whose space is used again".to_owned());
        }
        let run = run.get_or_insert_with(|| Run { path: path.to_owned(), offset: at, is_verified });
        if run.path != path || run.offset.checked_add(reached - offset) != Some(at) {
            return Err("its bytes lie in more than one piece".to_owned());
        }
        run.is_verified &= is_verified;
        reached = logical.saturating_add(logical_len);
        if reached >= end {
            return Ok(run.clone());
        }
    }
    Err("its bytes are not stored; reads reconstruct them".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Run, Span, checked_len, one_run};

    fn extent(file: &str, at: u64, logical: u64, len: u64, stored: u64, tier: &str) -> String {
        format!(
            r#"{{"file":"{file}","file_offset":{at},"logical_offset":{logical},"length":{stored},
                "logical_length":{len},"tier":"{tier}","verified":true}}"#
        )
    }

    fn list(extents: &[String]) -> String {
        format!("[{}]", extents.join(","))
    }

    #[test]
    fn a_part_of_an_exact_run_has_the_same_offset_in_the_run() {
        let text =
            list(&[extent("/s/1", 4096, 0, 100, 100, "exact"), extent("/s/2", 8, 100, 50, 50, "exact")]);
        let run = |path: &str, offset| Run { path: PathBuf::from(path), offset, is_verified: true };
        assert_eq!(one_run(&text, 0, 100), Ok(run("/s/1", 4096)));
        assert_eq!(one_run(&text, 99, 1), Ok(run("/s/1", 4195)));
        assert_eq!(one_run(&text, 100, 50), Ok(run("/s/2", 8)));
        assert_eq!(one_run(&text, 110, 40), Ok(run("/s/2", 18)));
    }

    #[test]
    fn extents_adjacent_on_the_disk_form_one_run_that_is_verified_if_all_are() {
        let parts = [
            extent("/s/1", 50, 0, 10, 10, "exact"),
            extent("/s/1", 60, 10, 10, 10, "exact").replace("true", "false"),
        ];
        let run = |offset, is_verified| Run { path: PathBuf::from("/s/1"), offset, is_verified };
        assert_eq!(one_run(&list(&parts), 0, 20), Ok(run(50, false)));
        assert_eq!(one_run(&list(&parts), 3, 7), Ok(run(53, true)));
        let apart = [parts[0].clone(), extent("/s/1", 61, 10, 10, 10, "exact")];
        assert!(one_run(&list(&apart), 0, 11).unwrap_err().contains("piece"));
    }

    #[test]
    fn split_encoded_and_computed_parts_have_no_run_and_a_reason() {
        let text = list(&[
            extent("/s/1", 0, 0, 50, 50, "exact"),
            extent("/s/2", 50, 50, 50, 50, "exact"),
            extent("/s/tier1.dat", 0, 100, 100, 53, "q8"),
            extent("/s/1", 200, 300, 100, 100, "exact"),
        ]);
        let expected = [
            (49, 2, "piece"),
            (99, 2, "q8"),
            (100, 1, "q8"),
            (199, 1, "q8"),
            (200, 1, "not stored"),
            (399, 2, "not stored"),
            (400, 1, "not stored"),
        ];
        for (offset, len, why) in expected {
            let check = one_run(&text, offset, len).unwrap_err();
            assert!(check.contains(why), "{offset}: {check}");
        }
    }

    #[test]
    fn reused_slots_are_not_read_past_the_daemon() {
        let text = list(&[extent("/s/t/c/tier0.dat", 64, 0, 100, 100, "exact")]);
        assert!(one_run(&text, 0, 100).unwrap_err().contains("used again"));
    }

    #[test]
    fn malformed_extents_give_a_reason_and_no_panic() {
        let huge = list(&[extent("/s/1", u64::MAX, 0, 100, 100, "exact")]);
        assert!(one_run(&huge, 0, 1).is_ok());
        let far = list(&[extent("/s/1", 0, u64::MAX, u64::MAX, u64::MAX, "exact")]);
        for text in ["", "{}", "[1]", "[{}]", "[[]]", r#"[{"logical_offset":-1}]"#, &huge] {
            let check = one_run(text, 1, 1).unwrap_err();
            assert!(check.contains("not understood"), "{text}: {check}");
        }
        assert!(one_run(&far, 1, 1).unwrap_err().contains("not stored"));
        assert!(one_run(&far, u64::MAX, 1).unwrap_err().contains("not understood"));
        assert!(one_run("[]", 0, 1).unwrap_err().contains("not stored"));
    }

    #[test]
    fn a_part_past_the_end_is_refused_and_a_part_at_the_end_is_empty() {
        let of = |offset, len| checked_len(Span { offset, len }, 10).ok();
        assert_eq!((of(0, None), of(10, None), of(11, None)), (Some(10), Some(0), None));
        assert_eq!((of(4, Some(6)), of(4, Some(7)), of(u64::MAX, Some(u64::MAX))), (Some(6), None, None));
    }
}
