//! Forms, as the libraries that own the formats read them.

use std::fs;
use std::path::Path;

use crate::with_many_types;
use support::{
    Aligned, Mapping, Place, Random, assert_same, files_below, minilm, open_direct, python, read_at,
};

fn check(source: &Path, options: &[&str]) {
    let place = Place::new();
    place.import("t/c", &[source.parent().unwrap()], options);
    let mounted = place.mount(&["--read-only"]);
    let collection = mounted.path("t/c");
    python("forms.py", [source, &collection]);
}

mod heavy {
    use std::path::Path;

    use super::check;
    use support::minilm;

    #[test]
    fn every_form_of_a_model_opens_in_its_library_and_equals_the_source() {
        check(&minilm().join("model.safetensors"), &[]);
    }

    #[test]
    fn every_form_of_a_convolutional_model_opens_in_its_library_and_equals_the_source() {
        let silero = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/models/silero");
        check(&silero.join("silero_vad_16k.safetensors"), &["--in-place"]);
    }
}

#[test]
fn every_element_type_is_shown_and_cast_as_numpy_casts() {
    let (place, folder) = with_many_types();
    fs::rename(folder.join("sub/array.npy"), place.path("array.npy")).unwrap();
    fs::remove_dir(folder.join("sub")).unwrap();
    check(&folder.join("model.safetensors"), &["--block-bytes", "4096"]);
}

#[test]
fn arrays_are_cast_with_their_headers() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let forms = mounted.path("t/c/.as");
    let script = "import sys, numpy as np\n\
                  wanted = np.load(sys.argv[1] + '/sub/array.npy')\n\
                  for form, kind in (('f32', '<f4'), ('f16', '<f2')):\n\
                  \x20   with np.errstate(over='ignore'): cast = wanted.astype(kind)\n\
                  \x20   got = np.load(f'{sys.argv[2]}/{form}/sub/array.npy', mmap_mode='r')\n\
                  \x20   assert got.dtype == kind and got.offset % 4096 == 0 and np.array_equal(got, cast), form\n\
                  \x20   assert open(f'{sys.argv[2]}/{form}/sub/array', 'rb').read() == cast.tobytes(), form\n\
                  assert np.array_equal(np.load(sys.argv[2] + '/npy/sub/array.npy'), wanted)\n";
    support::python_line(script, [folder, forms]);
}

#[test]
fn any_range_of_a_form_equals_that_of_the_whole_form() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let forms = mounted.path("t/c/.as");
    let names = [
        "f16/model.safetensors",
        "bf16/deep/er/f64",
        "f32/matrix.f16",
        "q5/model.safetensors",
        "q3/matrix.f32",
        "npy/matrix.bf16.npy",
        "cgeb/matrix.f32.cgeb",
        "cgeb/matrix.bf16.cgei",
        "safetensors/_all.safetensors",
    ];
    let mut random = Random(3);
    for name in names {
        let path = forms.join(name);
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len() as u64, fs::metadata(&path).unwrap().len(), "{name}");
        let mapping = Mapping::of(&path, libc::MAP_SHARED);
        assert_same(mapping.bytes(), &whole, name);
        let direct = open_direct(&path);
        let mut buffer = Aligned::new(256 << 10);
        for _ in 0..60 {
            let len = 4096 * (1 + random.below(20));
            let at = 4096 * random.below(whole.len().div_ceil(4096));
            let wanted = &whole[at..whole.len().min(at + len)];
            let found = buffer.pages(len);
            assert_eq!(read_at(&direct, found, at as u64), wanted.len(), "{name} at {at}");
            assert_same(&found[..wanted.len()], wanted, name);
        }
    }
}

#[test]
fn sizes_of_forms_are_right_before_anything_is_read() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &["--tier", "q3:all"]);
    let mounted = place.mount(&["--list", "both"]);
    let forms = mounted.path("t/c/.as");
    let sizes: Vec<(std::path::PathBuf, u64)> = files_below(&forms)
        .into_iter()
        .map(|name| (name.clone(), fs::metadata(forms.join(name)).unwrap().len()))
        .collect();
    assert!(sizes.len() > 300, "{}", sizes.len());
    assert_eq!(mounted.stats()["read_bytes"], 0);
    for (name, size) in sizes {
        assert_eq!(fs::read(forms.join(&name)).unwrap().len() as u64, size, "{}", name.display());
    }
}

#[test]
fn a_model_in_a_directory_keeps_its_other_files_in_casts() {
    let place = Place::new();
    place.import("t/c", &[&minilm()], &[]);
    let mounted = place.mount(&[]);
    let cast = mounted.path("t/c/.as/bf16");
    let mut names = files_below(&minilm());
    assert_eq!(files_below(&cast), names);
    names.retain(|name| !name.ends_with("model.safetensors"));
    for name in names {
        assert_same(&fs::read(cast.join(&name)).unwrap(), &fs::read(minilm().join(&name)).unwrap(), "plain");
    }
    assert!(mounted.path("t/c/.as/npy/embeddings.LayerNorm.bias.npy").exists());
}
