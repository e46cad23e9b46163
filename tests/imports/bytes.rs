//! Imported files compared byte for byte.

use std::sync::Arc;

use safetensors::Dtype;
use tierfs::format::log::catalog::{Digests, RecordedDigests};
use tierfs::ingest::{Blocking, Options, Origin, import_file, import_shards};
use tierfs::model::{Error, ErrorKind, Silent};
use tierfs::store::Collection;
use tierfs::store::Settings;
use tierfs::store::Sums;
use tierfs::store::Touched;
use tierfs::store::Writes;
use tierfs::store::{OpenObject, Verify};

use crate::fixture::{
    Numbers, STORE, create, f32s, file, find, import, npy_file, objects, on_each_disk, open, origin, paths,
    read, safetensors_file, stream, target, tensor,
};

/// Files of all kinds, and every path with the bytes it must have.
type Files = Vec<(&'static str, Vec<u8>)>;
type Tensors = Vec<(String, Vec<u8>)>;

fn everything() -> (Files, Tensors) {
    let mut numbers = Numbers(1);
    let tensors = [
        f32s("w", &[300, 70], &mut numbers),
        tensor("deep/er/half", Dtype::F16, &[33], numbers.bytes(66)),
        tensor("long", Dtype::I64, &[5000], numbers.bytes(40_000)),
        tensor("bytes", Dtype::U8, &[16_384], numbers.bytes(16_384)),
        tensor("none", Dtype::BF16, &[0, 7], Vec::new()),
        tensor("one", Dtype::F32, &[], numbers.bytes(4)),
    ];
    let container = safetensors_file(&tensors);
    let array = numbers.bytes(8 * 6 * 1000);
    let plain = numbers.bytes(100_001);
    let small = numbers.bytes(77);
    let files = vec![
        ("model.safetensors", container.clone()),
        ("sub/dir/x.npy", npy_file("<f8", "(6, 1000)", &array)),
        ("tokenizer.bin", plain.clone()),
        ("small.json", small.clone()),
        ("empty", Vec::new()),
        ("exactly", vec![9; 16 << 10]),
    ];
    let mut expected: Vec<(String, Vec<u8>)> =
        files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.clone())).collect();
    // The other parser of the format lists the tensors.
    let parsed = safetensors::SafeTensors::deserialize(&container).unwrap();
    expected.extend(parsed.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())));
    expected.push(("sub/dir/x".to_owned(), array));
    (files, expected)
}

fn assert_reads(collection: &Arc<Collection>, expected: &[(String, Vec<u8>)], ranges: u64, verify: Verify) {
    let mut numbers = Numbers(ranges);
    for (path, bytes) in expected {
        assert_eq!(find(collection, path).unwrap().bytes, bytes.len() as u64, "{path}");
        assert!(read(collection, path).unwrap() == *bytes, "{path}");
        let stream = stream(collection, path, verify);
        for _ in 0..ranges {
            let from = numbers.below(bytes.len() as u64 + 10);
            let longest = if numbers.below(2) == 0 { 100 } else { bytes.len() as u64 };
            let mut out = vec![0xee; numbers.below(longest + 5) as usize];
            let got = stream.read(from, &mut out).unwrap();
            let right = bytes.get(from as usize..).unwrap_or_default();
            let right = &right[..right.len().min(out.len())];
            assert!(out[..got] == *right, "{path}, {} bytes from {from}", out.len());
        }
    }
}

#[test]
fn every_range_of_an_imported_file_reads_as_the_source() {
    let (files, expected) = everything();
    on_each_disk(|disk| {
        for blocking in [Blocking::BySize, Blocking::bytes(4096).unwrap(), Blocking::head_dim(96).unwrap()] {
            let collection = match open(&disk) {
                Ok(collection) => collection,
                Err(_) => create(&disk),
            };
            let options = Options { blocking, ..Options::default() };
            for (path, bytes) in &files {
                let report = import(&collection, path, bytes, &options).unwrap();
                assert_eq!((report.bytes, report.stored), (bytes.len() as u64, bytes.len() as u64), "{path}");
            }
            assert_reads(&collection, &expected, 100, Verify::First);
            drop(collection);
            let collection = open(&disk).unwrap();
            assert!(collection.events().is_empty() && collection.damage().is_none());
            assert_reads(&collection, &expected, 2000 / expected.len() as u64, Verify::First);
            assert_reads(&collection, &expected, 20, Verify::Always);
            let mut all: Vec<String> = expected.iter().map(|(path, _)| path.clone()).collect();
            all.extend(["sub", "sub/dir"].map(str::to_owned));
            all.sort();
            assert_eq!(paths(&collection), all);
        }
    });
}

#[test]
fn every_byte_of_a_file_belongs_to_one_object() {
    let (files, _) = everything();
    on_each_disk(|disk| {
        let collection = create(&disk);
        for (path, bytes) in &files {
            import(&collection, path, bytes, &Options::default()).unwrap();
            let sum: u64 = objects(&collection, path).iter().map(|object| object.entry.bytes).sum();
            assert_eq!(sum, bytes.len() as u64, "{path}");
        }
    });
}

#[test]
fn shards_are_one_tensor_in_the_order_given() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let mut numbers = Numbers(5);
        let parts: Vec<Vec<u8>> = [40_000, 1, 16_384, 20_000].map(|count| numbers.bytes(count)).to_vec();
        let sources: Vec<_> = parts.iter().map(|part| file(part)).collect();
        let options = Options::default();
        import_shards(&collection, &target("kv/all"), &sources, &origin(), &options, &Silent).unwrap();
        drop(collection);
        let collection = open(&disk).unwrap();
        assert_reads(&collection, &[("kv/all".to_owned(), parts.concat())], 500, Verify::First);
        let seeds: Vec<u128> =
            objects(&collection, "kv/all").iter().map(|object| object.entry.seed.0).collect();
        assert_eq!(seeds, [1, 2, 3, 4]);
        let empty = [file(b"a"), file(b"")];
        let refused = import_shards(&collection, &target("no"), &empty, &origin(), &options, &Silent);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
        assert!(find(&collection, "no").is_none());
    });
}

#[test]
fn digests_equal_those_of_the_imported_bytes() {
    use sha2::Digest;
    on_each_disk(|disk| {
        let collection = create(&disk);
        let bytes = Numbers(8).bytes(5_000_000);
        let sha256: [u8; 32] = sha2::Sha256::digest(&bytes).into();
        import(&collection, "x", &bytes, &Options::default()).unwrap();
        let node = find(&collection, "x").unwrap();
        let blake3 = *blake3::hash(&bytes).as_bytes();
        assert_eq!(
            node.file().unwrap().digests,
            Digests::Recorded(Box::new(RecordedDigests { blake3, sha256: None }))
        );
        // The SHA-256 is computed only where it is compared; a file with another one is refused.
        let import = |name: &str, sha256: [u8; 32]| {
            let origin = Origin { sha256: Some(sha256), ..origin() };
            let (target, source) = (target(name), file(&bytes));
            let settings = Settings::new(STORE);
            import_file(&collection, &settings, &target, &source, &origin, &Options::default(), &Silent)
        };
        import("y", sha256).unwrap();
        let node = find(&collection, "y").unwrap();
        let taken = RecordedDigests { blake3, sha256: Some(sha256) };
        assert_eq!(node.file().unwrap().digests, Digests::Recorded(Box::new(taken)));
        assert_eq!(import("z", [0; 32]).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(find(&collection, "z").is_none());
    });
}

#[test]
fn computed_digests_are_remembered_until_the_file_changes() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        import(&collection, "x", &Numbers(8).bytes(300_000), &Options::default()).unwrap();
        let (node, parts) = (find(&collection, "x").unwrap().entry.id, objects(&collection, "x"));
        let asked = |byte| {
            let sums = Sums { sha256: [byte; 32], blake3: [byte; 32] };
            collection.sums(node, &parts, || Ok(sums)).unwrap().sha256[0]
        };
        assert_eq!((asked(1), asked(2)), (1, 1));
        let open = OpenObject::open(&collection, &parts[0], Verify::First).unwrap();
        open.write(70_000, b"other").unwrap();
        // Unflushed bytes have no version.
        assert_eq!((asked(3), asked(4)), (3, 4));
        let written = open.written(Writes::default()).unwrap();
        collection
            .record(Touched::default(), |batch, _| {
                written.add(batch);
                Ok(())
            })
            .unwrap();
        written.recorded();
        assert_eq!((asked(5), asked(6)), (5, 5));
        // A failed computation is not remembered.
        import(&collection, "y", b"y", &Options::default()).unwrap();
        let (node, parts) = (find(&collection, "y").unwrap().entry.id, objects(&collection, "y"));
        collection.sums(node, &parts, || Err(Error::invalid("not now"))).unwrap_err();
        let sums = Sums { sha256: [7; 32], blake3: [7; 32] };
        assert_eq!(collection.sums(node, &parts, || Ok(sums)).unwrap(), sums);
    });
}
