//! Measures the speed at which the disk of a cache takes bytes.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// Bytes that are written.
const MEASURED_BYTES: usize = 64 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// Writes and syncs a file without a name on the file system where `directory` is or would be made. Returns
/// millions of bytes a second.
pub fn write_speed(directory: &Path) -> io::Result<u64> {
    let there = directory.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/"));
    let path = there.join(format!(".tierfs-doctor-{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    // Bytes that no file system makes smaller.
    let mut chunk = vec![0; CHUNK_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut chunk);
    let begun = Instant::now();
    for _ in 0..MEASURED_BYTES / CHUNK_BYTES {
        file.write_all(&chunk)?;
    }
    file.sync_data()?;
    let micros = begun.elapsed().as_micros().max(1);
    Ok(u64::try_from(MEASURED_BYTES as u128 / micros).unwrap_or(u64::MAX))
}
