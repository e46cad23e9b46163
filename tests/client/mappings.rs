//! Mappings: rows, alignment, files that are replaced or cached by nobody.

use std::fs;

use half::bf16;
use support::{Fixture, Place, Random, assert_same, container_of, set, tensors_of};
use tierfs_client::{ErrorKind, Tensor};

#[test]
fn rows_are_parts_of_the_mapping() {
    let place = Place::new();
    let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2, 2), }";
    let values: Vec<i32> = (0..12).collect();
    let file = npy(header, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    let tensor = Tensor::open(place.write("a.npy", file)).unwrap();
    // SAFETY: nobody writes to the file.
    let mapping = unsafe { tensor.map().unwrap() };
    assert_eq!(mapping.row::<i32>(2).unwrap(), [8, 9, 10, 11]);
    assert_eq!(mapping.row::<i32>(3).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(mapping.row::<i32>(usize::MAX).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(mapping.row::<u32>(0).unwrap_err().kind(), ErrorKind::WrongType);
    let scalar = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (), }", &[7]);
    let scalar = Tensor::open(place.write("scalar.npy", scalar)).unwrap();
    // SAFETY: as above.
    let mapping = unsafe { scalar.map().unwrap() };
    assert_eq!(mapping.as_slice::<u8>().unwrap(), [7]);
    assert_eq!(mapping.row::<u8>(0).unwrap_err().kind(), ErrorKind::Invalid);
}

/// A NumPy file whose header has no padding.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), data].concat()
}

#[test]
fn an_unaligned_mapping_is_refused_as_a_slice_and_copied_on_request() {
    let fixture = Fixture::new();
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (5, 10)}";
    let values: Vec<f64> = (0..50).map(f64::from).collect();
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut were_aligned = Vec::new();
    for spaces in 0..8 {
        let file = npy(&format!("{header}{:spaces$}", ""), &data);
        for path in [fixture.place.write("a.npy", &file), fixture.path("a.npy")] {
            fs::write(&path, &file).unwrap();
            let tensor = Tensor::open(&path).unwrap();
            // SAFETY: nobody writes to the file while it is mapped.
            let mapping = unsafe { tensor.map().unwrap() };
            let is_aligned = (file.len() - data.len()).is_multiple_of(align_of::<f64>());
            were_aligned.push(is_aligned);
            match mapping.as_slice::<f64>() {
                Ok(slice) => assert!(is_aligned && slice == values),
                Err(error) => assert!(!is_aligned && error.kind() == ErrorKind::Unaligned, "{error}"),
            }
            assert_eq!(mapping.row::<f64>(4).is_ok(), is_aligned);
            assert_eq!(mapping.elements::<f64>().unwrap(), values);
            assert_eq!(tensor.read::<f64>().unwrap(), values);
        }
    }
    assert!(were_aligned.contains(&true) && were_aligned.contains(&false));
    // The tensor of the same file begins at a page.
    let tensor = Tensor::open(fixture.path(".tensors/a")).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { tensor.map().unwrap() }.as_slice::<f64>().unwrap(), values);
    fixture.check();
}

#[test]
fn a_mapping_stays_that_of_the_file_that_was_opened() {
    let fixture = Fixture::new();
    let (old, new) =
        (container_of(&mut Random(1), &[("a", 300_000)]), container_of(&mut Random(2), &[("a", 200_000)]));
    let same = container_of(&mut Random(3), &[("a", 300_000)]);
    fs::write(fixture.path("m.safetensors"), &old).unwrap();
    let path = fixture.path(".tensors/a");
    let tensor = Tensor::open(&path).unwrap();
    // SAFETY: another file takes the name; nobody writes to this one.
    let mapping = unsafe { tensor.map().unwrap() };
    let bytes = |file: &[u8]| tensors_of(file)[0].1.clone();
    assert_eq!(mapping.row::<f32>(0).unwrap().len(), 1);
    let replace = |file: &[u8]| {
        fs::write(fixture.path("next"), file).unwrap();
        fs::rename(fixture.path("next"), fixture.path("m.safetensors")).unwrap();
    };
    // A tensor of the same type and shape is the same tensor with other values.
    replace(&same);
    assert_same(mapping.bytes(), &bytes(&old), "the mapping");
    let mut read = vec![0; tensor.nbytes()];
    tensor.read_bytes_into(&mut read).unwrap();
    assert_same(&read, &bytes(&same), "the file of the same shape");
    replace(&new);
    assert_same(mapping.bytes(), &bytes(&old), "the mapping");
    assert_eq!(tensor.read::<f32>().unwrap_err().kind(), ErrorKind::Changed);
    // SAFETY: as above.
    assert_eq!(unsafe { tensor.map().unwrap_err() }.kind(), ErrorKind::Changed);
    let mut again = vec![0; 800_000];
    Tensor::open(&path).unwrap().read_bytes_into(&mut again).unwrap();
    assert_same(&again, &bytes(&new), "the new file");
    fs::remove_file(fixture.path("m.safetensors")).unwrap();
    assert_same(mapping.bytes(), &bytes(&old), "the mapping of a removed file");
    assert_eq!(tensor.read::<f32>().unwrap_err().kind(), ErrorKind::NotFound);
    drop(mapping);
    fixture.check();
}

#[test]
fn encoded_and_uncached_tensors_are_mapped() {
    let fixture = Fixture::new();
    let values: Vec<bf16> = (0..700_000).map(|number| bf16::from_f32((number as f32).cos())).collect();
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let header = r#"{"w":{"dtype":"BF16","shape":[700,1000],"data_offsets":[0,1400000]}}"#;
    fs::write(fixture.path("m.safetensors"), support::safetensors_file(header, &data)).unwrap();
    let tensor = Tensor::open(fixture.path(".tensors/w")).unwrap();
    tensor.set_tier("q8", tierfs_client::Consent::Given).unwrap();
    let error = tensor.error().unwrap().unwrap();
    assert!(error.max > 0.0 && error.rms > 0.0 && error.rms < error.max && error.max < 0.01, "{error:?}");
    let read: Vec<bf16> = tensor.read().unwrap();
    let furthest = read.iter().zip(&values).map(|(read, value)| (read.to_f64() - value.to_f64()).abs());
    let furthest = furthest.fold(0.0, f64::max);
    assert!((furthest - error.max).abs() < 1e-6, "{furthest} {error:?}");
    for cache in ["kernel", "decoded", "none", "auto"] {
        set(&fixture.path(""), "cache", cache).unwrap();
        // SAFETY: nobody writes to the file or moves it.
        let mapping = unsafe { tensor.map().unwrap() };
        assert_eq!(mapping.row::<bf16>(699).unwrap(), &read[699_000..], "{cache}");
        assert_eq!(mapping.as_slice::<bf16>().unwrap(), read, "{cache}");
    }
    fixture.check();
}
