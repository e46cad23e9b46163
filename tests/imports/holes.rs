//! Files with holes: they stay sparse in the store and in what is exported from it, with the bytes of the source.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::directories::each_way;
use support::{Random, assert_same, files_below, header_of, run, safetensors_file};

const MIB: u64 = 1 << 20;

/// Bytes that a file takes on the disk, or all files below a directory.
fn used(path: &Path) -> u64 {
    if path.is_dir() {
        return files_below(path).into_iter().map(|file| used(&path.join(file))).sum();
    }
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_sparse_file_stays_sparse_in_the_store_and_in_an_export() {
    each_way(|way| {
        let data = Random(1).bytes(MIB as usize);
        // Data between holes, not at multiples of anything, and a hole at the end.
        let image = way.place.write("model/disk.img", b"");
        let file = File::options().write(true).open(&image).unwrap();
        file.set_len(48 * MIB + 1234).unwrap();
        file.write_all_at(&data, 11 * MIB + 777).unwrap();
        // A container with a tensor of zeros, which only needs its other one.
        let tensors = [("one", (MIB / 4) as usize), ("zeros", (16 * MIB / 4) as usize)];
        let weights = way.place.write("model/model.safetensors", safetensors_file(&header_of(&tensors), &[]));
        let file = File::options().append(true).open(&weights).unwrap();
        let header = file.metadata().unwrap().len();
        file.set_len(header + 17 * MIB).unwrap();
        File::options().write(true).open(&weights).unwrap().write_all_at(&data, header).unwrap();
        let folder = way.place.path("model");
        assert!(used(&folder) < 4 * MIB, "the test needs a file system with holes");
        way.import("t/c", &folder, &[]).ok();
        let stored = used(&way.place.store().join("t/c/data"));
        assert!(stored < 4 * MIB, "{stored} bytes");
        let out = way.place.path("out");
        let store = way.place.store();
        run(["export".as_ref(), store.as_os_str(), "t/c".as_ref(), out.as_os_str()]).ok();
        assert!(used(&out) < 4 * MIB, "{} bytes", used(&out));
        way.with_mount(|mounted| {
            for (name, source) in [("disk.img", &image), ("model.safetensors", &weights)] {
                let bytes = fs::read(source).unwrap();
                assert_same(&fs::read(mounted.path(Path::new("t/c").join(name))).unwrap(), &bytes, name);
                assert_same(&fs::read(out.join(name)).unwrap(), &bytes, name);
            }
            assert!(fs::read(mounted.path("t/c/zeros")).unwrap().iter().all(|byte| *byte == 0));
        });
        assert_eq!(way.counts("t/c", &folder, &["--checksum"]), [0, 2, 0]);
        if way.mounted.is_none() {
            run(["fsck".as_ref(), way.place.store().as_os_str()]).ok();
        }
    });
}
