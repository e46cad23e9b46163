//! Forms of files that change: a form always shows the present file.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;

use crate::with_many_types;
use support::{Mapping, Place, Random, container_of, npy_file, set};

const ELEMENTS: usize = 9000;

/// The elements of an npy file of a form.
fn data(file: &[u8]) -> &[u8] {
    &file[4096..]
}

#[test]
fn a_form_follows_each_write_to_its_tensor() {
    let place = Place::new();
    let mut random = Random(5);
    let model = place.write("m.safetensors", container_of(&mut random, &[("w", ELEMENTS), ("v", 10)]));
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&[]);
    let (tensor, container) = (mounted.path("t/c/w"), mounted.path("t/c/m.safetensors"));
    let form = mounted.path("t/c/.as/npy/w.npy");
    let cast = mounted.path("t/c/.as/f16/m.safetensors");
    let all = mounted.path("t/c/.as/safetensors/_all.safetensors");
    let open = fs::File::open(&form).unwrap();
    let mapping = Mapping::of(&form, libc::MAP_SHARED);
    let header = fs::read(&container).unwrap().len() - 4 * (ELEMENTS + 10);
    for round in 0..6 {
        let bytes = random.floats(300);
        let at = 4 * random.below(ELEMENTS - 300);
        let (path, skip) = if round % 2 == 0 { (&tensor, 0) } else { (&container, header) };
        fs::OpenOptions::new()
            .write(true)
            .open(path)
            .unwrap()
            .write_all_at(&bytes, (skip + at) as u64)
            .unwrap();
        let wanted = fs::read(&tensor).unwrap();
        assert!(wanted[at..at + 1200] == bytes[..]);
        assert!(data(&fs::read(&form).unwrap()) == wanted, "round {round}");
        let mut found = vec![0; wanted.len()];
        open.read_exact_at(&mut found, 4096).unwrap();
        assert!(found == wanted, "round {round}: a file that was open before");
        assert!(data(mapping.bytes()) == wanted, "round {round}: a mapping of before");
        let cast = fs::read(&cast).unwrap();
        let halves =
            data(&cast)[..2 * ELEMENTS].chunks_exact(2).map(|two| half::f16::from_le_bytes([two[0], two[1]]));
        let floats = wanted.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
        assert!(halves.eq(floats.map(half::f16::from_f32)), "round {round}: the cast");
        let all = fs::read(&all).unwrap();
        assert!(all.windows(1200).any(|window| window == bytes), "round {round}: all of them");
    }
}

#[test]
fn a_form_follows_moves_and_other_types() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let matrix = mounted.path("t/c/matrix.f32");
    let form = mounted.path("t/c/.as/npy/matrix.f32.npy");
    let exact = fs::read(&matrix).unwrap();
    assert!(data(&fs::read(&form).unwrap()) == exact);
    set(&matrix, "lossy", "allow").unwrap();
    set(&matrix, "tier", "q3").unwrap();
    let moved = fs::read(&matrix).unwrap();
    assert!(moved != exact);
    assert!(data(&fs::read(&form).unwrap()) == moved);
    // A plain file that is declared a tensor, and then a tensor of another type.
    let plain = mounted.path("t/c/plain");
    fs::write(&plain, &exact).unwrap();
    let form = mounted.path("t/c/.as/npy/plain.npy");
    assert!(!form.exists());
    for (dtype, shape, text) in [("f32", "833x84", "'<f4'"), ("u16", "69972x2", "'<u2'")] {
        set(&plain, "dtype", dtype).unwrap();
        set(&plain, "shape", shape).unwrap();
        let found = fs::read(&form).unwrap();
        assert!(data(&found) == exact);
        let header = String::from_utf8_lossy(&found[..200]).into_owned();
        assert!(fs::read(mounted.path("t/c/.as/q8/plain")).unwrap().len() == exact.len(), "{dtype}");
        assert!(header.contains(text) && header.contains(&shape.replace('x', ", ")), "{header}");
    }
}

#[test]
fn an_open_form_follows_a_container_that_becomes_plain_and_a_container_again() {
    let place = Place::new();
    let mut random = Random(6);
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let container = mounted.path("t/c/m.safetensors");
    fs::write(&container, container_of(&mut random, &[("w", ELEMENTS), ("v", 10)])).unwrap();
    let form = mounted.path("t/c/.as/f16/m.safetensors");
    let open = fs::File::open(&form).unwrap();
    let cast = fs::read(&form).unwrap();
    let write = |byte: &[u8]| {
        fs::OpenOptions::new().write(true).open(&container).unwrap().write_all_at(byte, 8).unwrap();
    };
    let check = |wanted: &[u8], what: &str| {
        let mut found = vec![0; wanted.len()];
        open.read_exact_at(&mut found, 0).unwrap();
        assert!(found == wanted, "{what}: what was open");
        assert!(fs::read(&form).unwrap() == wanted, "{what}");
    };
    check(&cast, "a container");
    write(b"x");
    check(&fs::read(&container).unwrap(), "a plain file");
    write(b"{");
    check(&cast, "a container again");
}

#[test]
fn an_open_form_stays_readable_when_its_file_is_replaced_or_removed() {
    let place = Place::new();
    let mut random = Random(9);
    let (first, second) = (random.floats(ELEMENTS), random.floats(ELEMENTS + 7));
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let array = mounted.path("t/c/x.npy");
    fs::write(&array, npy_file(&first)).unwrap();
    let form = mounted.path("t/c/.as/npy/x.npy");
    let mut open = fs::File::open(&form).unwrap();
    fs::write(mounted.path("t/c/new"), npy_file(&second)).unwrap();
    fs::rename(mounted.path("t/c/new"), &array).unwrap();
    assert!(data(&fs::read(&form).unwrap()) == second, "the form of the file that is there now");
    let mut found = Vec::new();
    open.read_to_end(&mut found).unwrap();
    assert!(data(&found) == first, "the form of the file that was there");
    let open = fs::File::open(&form).unwrap();
    fs::remove_file(&array).unwrap();
    assert!(!form.exists());
    let mut found = vec![0; second.len()];
    open.read_exact_at(&mut found, 4096).unwrap();
    assert!(found == second);
}

#[test]
fn an_unreadable_file_cannot_be_opened_in_a_form() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let matrix = mounted.path("t/c/matrix.f32");
    set(&matrix, "lossy", "allow").unwrap();
    set(&matrix, "evict", "discard").unwrap();
    let error =
        |name: &str| fs::read(mounted.path("t/c/.as").join(name)).map_err(|error| error.raw_os_error());
    for name in ["npy/matrix.f32.npy", "f16/model.safetensors", "q8/matrix.f32", "sha256/SHA256SUMS"] {
        assert_eq!(error(name), Err(Some(libc::ENODATA)), "{name}");
    }
    assert!(error("npy/matrix.f16.npy").is_ok());
}
