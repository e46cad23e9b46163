//! Costs of a mount: memory while it streams, time until the first byte.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown};
use crate::Result;
use crate::place::{Place, Removed, run};
use crate::read::{self, CALL, Through};
use crate::table::{Checked, Contest, Row, Target};
use crate::values;

/// Elements of the large tensor: 4 GiB of f32.
const ELEMENTS: u64 = 1 << 30;
/// This length makes 1,048,576 blocks.
pub const BLOCK_BYTES: &str = "4096";

/// The rows.
pub fn rows() -> Vec<Row> {
    vec![
        Row::new(
            "mount-large.memory",
            "daemon memory above idle while reading a 4 GiB tensor, q3 to f32",
            "",
            "MiB",
            Target::AtMost(64.0),
            memory,
        ),
        Row::new(
            "mount-large.first-byte",
            "mount to first byte with 1,048,576 blocks",
            "",
            "s",
            Target::AtMost(0.25),
            first_byte,
        ),
    ]
}

/// A store with a tensor of 4 GiB in q3: the first value is 1, the others 0.
pub fn large(place: &Place) -> Result<Rc<Kept>> {
    place.shared("large", || {
        let source = large_source(place)?;
        Kept::import(place, &source.0.join("values.npy"), Tier::Q3, &["--block-bytes", BLOCK_BYTES])
    })
}

/// A directory with the sparse file that is imported.
fn large_source(place: &Place) -> Result<Rc<Removed>> {
    place.shared("large-source", || {
        let directory = Removed(place.new_directory("large")?);
        let path = directory.0.join("values.npy");
        let elements = place.scaled(ELEMENTS);
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({elements},), }}");
        let file = File::create(&path)?;
        // Unwritten ranges are holes: zeros without allocated space.
        file.set_len(128 + 4 * elements)?;
        let mut head = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        head.extend(format!("{header:<117}\n").into_bytes());
        head.extend(1_f32.to_le_bytes());
        file.write_all_at(&head, 0)?;
        Ok(directory)
    })
}

/// Whether the tensor equals the result of the loop.
fn check(shown: &Shown, place: &Place) -> Result<Checked> {
    let mut head = vec![0; 4096];
    head[..4].copy_from_slice(&1_f32.to_le_bytes());
    let head = values::rounded(Tier::Q3, Dtype::F32, &head);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head);
    let zeros = vec![0; CALL];
    let mut left = 4 * place.scaled(ELEMENTS) - 4096;
    while left > 0 {
        let bytes = left.min(CALL as u64);
        hasher.update(&zeros[..bytes as usize]);
        left -= bytes;
    }
    let path = shown.path("values.npy");
    // The file begins with a header of 128 bytes.
    Checked::digest("the large tensor", read::digest(&path, 128, Through::Cache)?, hasher.finalize())
}

/// A line of /proc/PID/status, in MiB.
pub fn of_process(process: u32, field: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find(|line| line.starts_with(field)).ok_or("no such line")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kib / 1024.0)
}

fn memory(place: &Rc<Place>) -> Result<Contest> {
    let kept = large(place)?;
    let checked = check(&Shown::new(place, &kept, &[])?, place)?;
    let place = place.clone();
    Contest::alone(checked, move || {
        let shown = Shown::new(&place, &kept, &[])?;
        let path = shown.path("values.npy");
        let file = File::open(&path)?;
        // Idle: the collection is open, and the file was not read.
        fs::read_dir(shown.path(""))?.count();
        let process = shown.mounted.process()?;
        let idle = of_process(process, "VmRSS")?;
        // Writing 5 resets the peak to the present size.
        fs::write(format!("/proc/{process}/clear_refs"), "5")?;
        read::all(&file, 0, &mut vec![0; CALL])?;
        Ok(of_process(process, "VmHWM")? - idle)
    })
}

fn first_byte(place: &Rc<Place>) -> Result<Contest> {
    let kept = large(place)?;
    let checked = check(&Shown::new(place, &kept, &[])?, place)?;
    let place = place.clone();
    Contest::alone(checked, move || {
        let mountpoint = place.new_directory("mnt")?;
        let path = mountpoint.join("b/c/values.npy");
        kept.warm()?;
        let begun = Instant::now();
        run(Command::new(&place.tierfs).arg("mount").arg(&kept.path).arg(&mountpoint))?;
        let mut byte = [0];
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut byte, 128));
        let seconds = begun.elapsed().as_secs_f64();
        run(Command::new(&place.tierfs).arg("umount").arg(&mountpoint))?;
        fs::remove_dir(&mountpoint)?;
        read?;
        Ok(seconds)
    })
}
