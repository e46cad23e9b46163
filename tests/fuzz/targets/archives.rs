//! PyTorch checkpoints, NumPy archives and ONNX models: the parser reads only inside the file, and so are tensors, which
//! share no byte and have the bytes that their shapes ask for. The bytes behind the first are a pickle too, in an
//! archive that is valid otherwise.

use std::ops::Range;

use tierfs::format::budget::Budget;
use tierfs::format::files::{npz, onnx, torch};
use tierfs::model::{Dtype, Result, Shape};

/// A reader that counts the bytes read.
fn reader<'a>(bytes: &'a [u8], count: &'a mut u64) -> impl FnMut(&mut [u8], u64) -> Result<()> + 'a {
    move |out, at| {
        *count += out.len() as u64;
        let found = usize::try_from(at).ok().and_then(|at| bytes.get(at..at.checked_add(out.len())?));
        out.copy_from_slice(
            found.unwrap_or_else(|| panic!("reads {} bytes at {at} of {}", out.len(), bytes.len())),
        );
        Ok(())
    }
}

fn sound(tensors: impl Iterator<Item = (Dtype, Shape, Range<u64>)>, len: usize) {
    let mut ranges = Vec::new();
    for (dtype, shape, range) in tensors {
        assert_eq!(range.end.checked_sub(range.start), dtype.bytes_of(shape.elements()));
        assert!(range.end <= len as u64, "past the end");
        ranges.push((range.start, range.end));
    }
    ranges.retain(|(start, end)| start < end);
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|two| two[0].1 <= two[1].0), "an overlap");
}

pub fn check_torch(bytes: &[u8]) {
    let whole = of_pickle(bytes);
    for bytes in [bytes, &whole] {
        let mut read = 0;
        let found = torch::parse(&mut reader(bytes, &mut read), bytes.len() as u64, &mut Budget::default());
        assert!(read <= 2 * bytes.len() as u64 + (1 << 17), "{read} bytes read of {}", bytes.len());
        let Ok(found) = found else { continue };
        for torch::TensorView { dtype, shape, view, .. } in &found.views {
            let range = view.range(*dtype, shape);
            assert!(range.is_some_and(|range| range.end <= bytes.len() as u64), "a view past the end");
        }
        sound(
            found.tensors.into_iter().map(|entry| (entry.dtype, entry.shape, entry.begin..entry.end)),
            bytes.len(),
        );
    }
}

pub fn check_npz(bytes: &[u8]) {
    let mut read = 0;
    let Ok(found) = npz::parse(&mut reader(bytes, &mut read), bytes.len() as u64, &mut Budget::default())
    else {
        return;
    };
    sound(
        found.arrays.into_iter().map(|entry| (entry.dtype, entry.shape, entry.begin..entry.end)),
        bytes.len(),
    );
}

pub fn check_onnx(bytes: &[u8]) {
    let mut read = 0;
    let Ok(found) = onnx::parse(&mut reader(bytes, &mut read), bytes.len() as u64, &mut Budget::default())
    else {
        return;
    };
    let mut here = Vec::new();
    for onnx::Entry { dtype, shape, place, .. } in found.tensors {
        match place {
            onnx::Place::Here(range) => here.push((dtype, shape, range)),
            onnx::Place::Beside { location, range } => {
                let is_name = |name: &str| !name.contains('\n') && !["", ".", ".."].contains(&name);
                assert!(location.split('/').all(is_name), "{location:?}");
                assert_eq!(range.end.checked_sub(range.start), dtype.bytes_of(shape.elements()));
            }
        }
    }
    sound(here.into_iter(), bytes.len());
}

/// A checkpoint with a pickle and a storage of 4096 bytes.
fn of_pickle(pickle: &[u8]) -> Vec<u8> {
    zip(&[("x/data.pkl", pickle), ("x/data/0", &[7; 4096])])
}

/// An archive of these files, as they are.
pub fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let size = (data.len() as u32).to_le_bytes();
        let fields = [&[0; 12], &size[..], &size, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        directory.extend([&b"PK\x01\x02\0\0\0\0"[..], &fields, &[0; 10]].concat());
        directory.extend((bytes.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        bytes.extend([&b"PK\x03\x04\0\0"[..], &fields, name.as_bytes(), data].concat());
    }
    let (start, count) = (bytes.len() as u32, (entries.len() as u16).to_le_bytes());
    bytes.extend(&directory);
    bytes.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count].concat());
    bytes.extend([(directory.len() as u32).to_le_bytes(), start.to_le_bytes()].concat());
    bytes.extend([0; 2]);
    bytes
}
