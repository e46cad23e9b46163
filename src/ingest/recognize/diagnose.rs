//! Describes a file that is not what its name promises.

use std::sync::Arc;

use crate::format::files::safetensors::HEADER_BYTES_MAX;
use crate::ingest::recognize::archives::begins_with;
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::File;

/// Bytes at the start of a file that show its kind.
const BEGINNING_BYTES: usize = 512;

/// Fewest bytes of a file that is called a text.
const TEXT_BYTES_MIN: usize = 8;
/// Most characters of a text that are shown.
const LINE_LETTERS_MAX: usize = 40;

/// Git-lfs limits its pointers to this length.
const POINTER_BYTES_MAX: u64 = 1024;

/// The first line of a git-lfs pointer.
/// Source: <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";

/// Signatures of files that often have the name of a container, with a description and advice.
const SIGNATURES: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "a zip archive; give it the suffix .pt if torch.save wrote it, .npz if numpy.savez did"),
    (b"\x1f\x8b", "compressed with gzip; unpack it with gunzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it with unzstd"),
    (b"\xfd7zXZ\0", "compressed with xz; unpack it with unxz"),
    (b"BZh", "compressed with bzip2; unpack it with bunzip2"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file; save its tensors as safetensors"),
];

/// Signatures of formats that are recognized under another suffix, with that suffix.
const OTHER_FORMATS: &[(&[u8], &str, &str)] =
    &[(b"GGUF", "a GGUF file", ".gguf"), (b"\x93NUMPY", "a NumPy array file", ".npy")];

/// The error of a file that does not parse as its name promises: it describes the file, if its first
/// bytes tell.
pub(in crate::ingest) fn diagnose(source: &Arc<dyn File>, name: &[u8], error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unreadable | ErrorKind::Unsupported) {
        return error;
    }
    let mut beginning = [0; BEGINNING_BYTES];
    let Ok(count) = source.read_at(&mut beginning, 0) else { return error };
    match instead(beginning.get(..count).unwrap_or_default(), name) {
        Some(instead) => Error::new(ErrorKind::Unreadable, format!("it is {instead}")),
        None => error,
    }
}

/// The kind of placeholder that a plain file is: a git-lfs pointer.
pub(in crate::ingest) fn pointer_note(source: &Arc<dyn File>, bytes: u64) -> Result<Option<String>> {
    if bytes < POINTER.len() as u64 || bytes > POINTER_BYTES_MAX {
        return Ok(None);
    }
    let mut beginning = [0; BEGINNING_BYTES];
    let count = source.read_at(&mut beginning, 0).map_err(|error| Error::io("reading it", error))?;
    Ok(pointer(beginning.get(..count).unwrap_or_default()).map(|pointer| format!("it is {pointer}")))
}

/// The kind of content that begins with these bytes, if the name promises another.
fn instead(beginning: &[u8], name: &[u8]) -> Option<String> {
    if let Some(pointer) = pointer(beginning) {
        return Some(pointer);
    }
    let is_other = |signature: &[u8]| beginning.starts_with(signature) && !begins_with(name, signature);
    if let Some((_, what)) = SIGNATURES.iter().find(|(signature, _)| is_other(signature)) {
        return Some((*what).to_owned());
    }
    for (signature, what, suffix) in OTHER_FORMATS {
        if beginning.starts_with(signature) && !name.ends_with(suffix.as_bytes()) {
            return Some(format!("{what}; give it the suffix {suffix}"));
        }
    }
    if is_safetensors(beginning) && !name.ends_with(b".safetensors") {
        return Some("a safetensors file; give it the suffix .safetensors".to_owned());
    }
    let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(beginning).trim_ascii_start();
    let begins =
        |word: &str| text.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word.as_bytes()));
    let is_html = ["<!doctype html", "<html", "<head", "<?xml"].into_iter().any(begins);
    if is_html {
        let text = "an HTML page, perhaps the answer of a site that wants you to log in or to accept a \
                    licence; do so, and download the file again";
        return Some(text.to_owned());
    }
    text_line(text).map(|line| {
        let suffix = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
        format!(
            "a text file that begins with \"{line}\"; give it a name without the suffix .{}, or download the \
             file again",
            String::from_utf8_lossy(suffix)
        )
    })
}

/// Whether a file begins as safetensors files do: the length of the header, then its JSON.
fn is_safetensors(beginning: &[u8]) -> bool {
    let Some((length, header)) = beginning.split_first_chunk() else { return false };
    (2..=HEADER_BYTES_MAX).contains(&u64::from_le_bytes(*length)) && header.starts_with(b"{\"")
}

/// The first line of a text, shortened. `None` for bytes that are not text, and for less than
/// [`TEXT_BYTES_MIN`], which other files begin with too.
fn text_line(beginning: &[u8]) -> Option<String> {
    // The beginning may end within a character.
    let text = match std::str::from_utf8(beginning) {
        Err(error) if error.error_len().is_some() => return None,
        Err(error) => std::str::from_utf8(beginning.get(..error.valid_up_to())?).ok()?,
        Ok(text) => text,
    };
    let is_text = |letter: char| !letter.is_control() || letter.is_whitespace();
    if text.len() < TEXT_BYTES_MIN || !text.chars().all(is_text) {
        return None;
    }
    let line = text.lines().find(|line| !line.trim().is_empty())?.trim();
    let is_long = line.chars().count() > LINE_LETTERS_MAX;
    let line: String = line.chars().filter(|letter| !letter.is_control()).take(LINE_LETTERS_MAX).collect();
    Some(format!("{line}{}", if is_long { "..." } else { "" }))
}

fn pointer(beginning: &[u8]) -> Option<String> {
    let rest = beginning.strip_prefix(POINTER)?;
    let size = rest.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"size "));
    let size = size.and_then(|digits| std::str::from_utf8(digits).ok()?.trim().parse::<u64>().ok());
    let size = size.map_or(String::new(), |size| format!(" of {size} bytes"));
    Some(format!(
        "a git-lfs pointer to a file{size}, not that file; run git lfs pull in its repository, and import it again"
    ))
}

#[cfg(test)]
mod tests {
    use super::{POINTER, instead};

    #[test]
    fn beginnings_of_other_files_are_told_from_those_of_containers() {
        let pointer = [POINTER, b"oid sha256:00\nsize 123\n"].concat();
        for (beginning, words) in [
            (pointer.as_slice(), "a git-lfs pointer to a file of 123 bytes"),
            (POINTER, "a git-lfs pointer to a file, not"),
            (b"PK\x03\x04\x14", "zip"),
            (b"\xef\xbb\xbf \n<!DOCTYPE HTML>", "HTML"),
            (b"<HTML>", "HTML"),
            (b"GGUF\x03", ".gguf"),
            (
                b"not a header",
                "a text file that begins with \"not a header\"; give it a name without the suffix .safetensors",
            ),
            ("\n404: Ä".repeat(64).as_bytes().split_last().unwrap().1, "begins with \"404: Ä\";"),
            (&[b'x'; 99], "xxxx...\";"),
        ] {
            let said = instead(beginning, b"x.safetensors").unwrap();
            assert!(said.contains(words), "{said}");
        }
        let container = [&9_u64.to_le_bytes()[..], b"{}       "].concat();
        for beginning in
            [&b""[..], b"P", b"<", b"<!", &container, b"size 1", b"text \x1b[31m text", b"latin \xe4\xf6"]
        {
            assert_eq!(instead(beginning, b"x.safetensors"), None, "{beginning:?}");
        }
        let safetensors = [&8_u64.to_le_bytes()[..], b"{\"a\":{}}"].concat();
        assert!(instead(&safetensors, b"x.onnx").unwrap().contains("a safetensors file"));
        assert_eq!(instead(b"GGUF\x01", b"x.gguf"), None);
        assert_eq!(instead(b"\x93NUMPY", b"x.npy"), None);
    }
}
