//! Pinned forms: the kernel reads them by passthrough, with the bytes of the time of the pin, also after a remount.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use crate::with_many_types;
use support::{Mounted, Place, Random, container_of, run, set, try_get, wait_until};

/// The content of a file, and the number of bytes that the daemon served meanwhile.
fn read(mounted: &Mounted, path: &Path) -> (Vec<u8>, u64) {
    let asked = || mounted.stats()["read_bytes"].as_u64().unwrap();
    let before = asked();
    let bytes = fs::read(path).unwrap();
    // The control file with this figure is read too.
    (bytes, asked() - before)
}

fn is_read_by_the_kernel(mounted: &Mounted, path: &Path, wanted: &[u8]) -> bool {
    let (bytes, asked) = read(mounted, path);
    assert!(bytes == wanted, "{}", path.display());
    asked < wanted.len() as u64 / 2
}

#[test]
fn pinned_forms_are_read_by_passthrough_and_keep_their_bytes() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let names = [
        "npy/matrix.f32.npy",
        "f16/model.safetensors",
        "q5/matrix.bf16",
        "cgeb/matrix.f32.cgeb",
        "cgeb/matrix.f32.cgei",
        "safetensors/matrix.u64.safetensors",
    ];
    let forms = mounted.path("t/c/.as");
    let wanted = names.map(|name| fs::read(forms.join(name)).unwrap());
    for name in names {
        let path = forms.join(name);
        assert_eq!(try_get(&path, "pin").unwrap(), "0");
        set(&path, "pin", "1").unwrap();
        assert_eq!(try_get(&path, "pin").unwrap(), "1");
    }
    for (name, wanted) in names.iter().zip(&wanted).filter(|(_, wanted)| wanted.len() > 100_000) {
        assert!(is_read_by_the_kernel(&mounted, &forms.join(name), wanted), "{name}");
    }
    // A move leaves the sources of a pinned form as they are.
    let collection = mounted.path("t/c");
    set(&collection, "lossy", "allow").unwrap();
    assert_eq!(set(&collection.join("matrix.f32"), "tier", "q3"), Err(Errno::BUSY));
    set(&collection.join("matrix.f16"), "dtype", "f16").unwrap();
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    for options in [&["--read-only"][..], &[]] {
        let mounted = place.mount(options);
        let forms = mounted.path("t/c/.as");
        for (name, wanted) in names.iter().zip(&wanted) {
            assert!(fs::read(forms.join(name)).unwrap() == *wanted, "{name}");
        }
        let large = names.iter().zip(&wanted).filter(|(_, wanted)| wanted.len() > 100_000);
        for (name, wanted) in large {
            // After the copy was compared.
            wait_until("the kernel reads it", || is_read_by_the_kernel(&mounted, &forms.join(name), wanted));
        }
        mounted.unmount();
    }
    let mounted = place.mount(&[]);
    for name in names {
        set(&mounted.path("t/c/.as").join(name), "pin", "0").unwrap();
    }
    set(&mounted.path("t/c/matrix.f32"), "tier", "q3").unwrap();
    let now = fs::read(mounted.path("t/c/.as/npy/matrix.f32.npy")).unwrap();
    assert!(now != wanted[0] && now[4096..] == fs::read(mounted.path("t/c/matrix.f32")).unwrap());
}

#[test]
fn a_pinned_form_follows_a_write_to_its_file() {
    let place = Place::new();
    let mut random = Random(8);
    let model = place.write("m.safetensors", container_of(&mut random, &[("w", 40_000), ("v", 10)]));
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&[]);
    let (tensor, container) = (mounted.path("t/c/w"), mounted.path("t/c/m.safetensors"));
    let forms = [mounted.path("t/c/.as/npy/w.npy"), mounted.path("t/c/.as/bf16/m.safetensors")];
    for form in &forms {
        set(form, "pin", "1").unwrap();
    }
    let data = container.metadata().unwrap().len() - 4 * 40_010;
    for (round, (path, at)) in [(&tensor, 400), (&container, data + 8000)].into_iter().enumerate() {
        let bytes = random.floats(50);
        fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&bytes, at).unwrap();
        let wanted = fs::read(&tensor).unwrap();
        assert!(fs::read(&forms[0]).unwrap()[4096..] == wanted, "round {round}");
        let cast = fs::read(&forms[1]).unwrap();
        let halves = wanted
            .chunks_exact(4)
            .map(|four| half::bf16::from_f32(f32::from_le_bytes(four.try_into().unwrap())));
        let found =
            cast[4096..4096 + 80_000].chunks_exact(2).map(|two| half::bf16::from_le_bytes([two[0], two[1]]));
        assert!(found.eq(halves), "round {round}");
        // The copy is made anew.
        let form = fs::read(&forms[0]).unwrap();
        wait_until("the kernel reads it again", || is_read_by_the_kernel(&mounted, &forms[0], &form));
        assert_eq!(try_get(&forms[0], "pin").unwrap(), "1");
    }
    // Another type has another header.
    let plain = mounted.path("t/c/plain");
    fs::write(&plain, random.floats(50_000)).unwrap();
    set(&plain, "dtype", "f32").unwrap();
    let form = mounted.path("t/c/.as/npy/plain.npy");
    set(&form, "pin", "1").unwrap();
    set(&plain, "shape", "500x100").unwrap();
    let header = fs::read(&form).unwrap()[..128].to_vec();
    assert!(String::from_utf8_lossy(&header).contains("(500, 100)"));
    fs::remove_file(&plain).unwrap();
    assert!(!form.exists());
}

#[test]
fn a_pin_of_an_unsupported_form_is_refused_with_a_reason() {
    let place = Place::new();
    let model = place.write("m.safetensors", container_of(&mut Random(8), &[("w", 4000)]));
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&[]);
    let forms = mounted.path("t/c/.as");
    for name in ["safetensors/_all.safetensors", "sha256/SHA256SUMS"] {
        assert_eq!(set(&forms.join(name), "pin", "1"), Err(Errno::PERM), "{name}");
    }
    assert_eq!(set(&forms.join("npy/w.npy"), "pin", "2"), Err(Errno::INVAL));
    assert_eq!(set(&forms.join("npy/w.npy"), "nothing", "1"), Err(Errno::NODATA));
    assert_eq!(try_get(&forms.join("npy/w.npy"), "tier"), Err(Errno::NODATA));
    for name in ["", "safetensors/_all.safetensors", "sha256/SHA256SUMS", "f16", "f16/.tensors", "tp"] {
        assert_eq!(try_get(&forms.join(name), "pin"), Err(Errno::NODATA), "{name}");
    }
}
