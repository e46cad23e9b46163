//! Manifests: digests of files, in the format of sha256sum.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use crate::ingest::find::target::Target;
use crate::model::{Error, Result};

/// Maximal size of a manifest, which is read whole. Two million lines.
const BYTES_MAX: u64 = 256 << 20;

/// Digests by path, in the format of sha256sum.
pub(in crate::ingest) struct Manifest(HashMap<String, [u8; 32]>);

impl Manifest {
    /// Reads a manifest. Fails with `Invalid` for a device, which may have no end, and for a file
    /// that is too long.
    pub fn read(path: &Path) -> Result<Manifest> {
        let failed = |error| Error::io(path.display(), error);
        let found = fs::metadata(path).map_err(failed)?;
        if !found.is_file() || found.len() > BYTES_MAX {
            let text =
                format!("{}: a manifest must be a regular file of at most {BYTES_MAX} bytes", path.display());
            return Err(Error::invalid(text));
        }
        let mut text = String::new();
        let file = fs::File::open(path).map_err(failed)?;
        file.take(BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let sums = lines.map(|(place, line)| {
            manifest_line(line).ok_or_else(|| {
                Error::invalid(format!(
                    "{}, line {}: not in the format of sha256sum",
                    path.display(),
                    place + 1
                ))
            })
        });
        Ok(Manifest(sums.collect::<Result<_>>()?))
    }

    /// The digest of a target. Fails with `Invalid` where the manifest has none.
    pub fn find(&self, target: &Target) -> Result<[u8; 32]> {
        let path = target.path();
        self.0.get(&path).copied().ok_or_else(|| Error::invalid(format!("the manifest does not name {path}")))
    }
}

fn manifest_line(line: &str) -> Option<(String, [u8; 32])> {
    let (hex, name) = line.split_once([' ', '\t'])?;
    let name = name.trim_start_matches([' ', '*']).trim_start_matches("./");
    if hex.len() != 64 || !hex.is_ascii() || name.is_empty() {
        return None;
    }
    let mut digest = [0; 32];
    for (place, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(place * 2..place * 2 + 2)?, 16).ok()?;
    }
    Some((name.to_owned(), digest))
}

#[cfg(test)]
mod tests {
    use super::{Manifest, manifest_line};
    use crate::model::ErrorKind;

    #[test]
    fn directories_and_endless_files_are_refused_as_manifests() {
        for path in ["/dev/zero", "/"] {
            let read = Manifest::read(path.as_ref()).map(|_| ());
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Invalid, "{path}");
        }
    }

    #[test]
    fn lines_of_sha256sum_are_parsed_and_others_refused() {
        let hex = "ab".repeat(32);
        for (line, name) in [
            (format!("{hex}  model.safetensors"), "model.safetensors"),
            (format!("{hex} *./sub/a b.npy"), "sub/a b.npy"),
        ] {
            assert_eq!(manifest_line(&line), Some((name.to_owned(), [0xab; 32])), "{line}");
        }
        for line in [
            hex.clone(),
            format!("{hex}  "),
            format!("{}  x", "g".repeat(64)),
            format!("{}  x", "a".repeat(63)),
        ] {
            assert_eq!(manifest_line(&line), None, "{line}");
        }
    }
}
