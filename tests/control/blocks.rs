//! Blocks, extents, tiers and checksums, against the files of the store.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use support::{Mounted, Place, Random, as_nobody, events, get, imported, npy_file, read_at, refused};

/// CRC32C, bit by bit (RFC 3720, B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 },
        )
    })
}

const FILES: [&str; 7] =
    ["a", "config.json", "deep/er/b", "model.safetensors", "sub/vocab.txt", "x", "x.npy"];

fn shown(mounted: &Mounted, what: &str, file: &str) -> String {
    fs::read_to_string(mounted.path("demo/model/.ctl").join(what).join(file)).unwrap()
}

fn stored_bytes(path: &Path, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    assert_eq!(read_at(&fs::File::open(path).unwrap(), &mut bytes, at), bytes.len());
    bytes
}

/// The fields of a line of `blocks`.
fn fields(line: &str) -> HashMap<&str, &str> {
    line.split(' ').skip(1).map(|field| field.split_once('=').unwrap()).collect()
}

#[test]
fn extents_locate_and_cover_the_bytes_of_exact_files() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&["--allow-other"]);
    for name in FILES {
        let wanted = match fs::read(source.join(name)) {
            Ok(bytes) => bytes,
            Err(_) => fs::read(mounted.path(Path::new("demo/model").join(name))).unwrap(),
        };
        let extents: Value = serde_json::from_str(&shown(&mounted, "extents", name)).unwrap();
        let mut end = 0;
        for extent in extents.as_array().unwrap() {
            let number = |key: &str| extent[key].as_u64().unwrap();
            assert_eq!(number("logical_offset"), end, "{name}");
            assert_eq!(number("logical_length"), number("length"), "{name}");
            let path = Path::new(extent["file"].as_str().unwrap());
            assert!(path.starts_with(place.store()));
            let found = stored_bytes(path, number("file_offset"), number("length"));
            assert!(found == wanted[end as usize..][..found.len()], "{name}");
            end += number("length");
        }
        assert_eq!(end, wanted.len() as u64, "{name}");
    }
    let whole: Value = serde_json::from_str(&shown(&mounted, "extents", "sub/vocab.txt")).unwrap();
    assert_eq!(whole.as_array().unwrap().len(), 1, "blocks that follow each other are one run");
    assert_eq!(whole[0]["verified"], false);
    fs::read(mounted.path("demo/model/sub/vocab.txt")).unwrap();
    let read: Value = serde_json::from_str(&shown(&mounted, "extents", "sub/vocab.txt")).unwrap();
    assert_eq!(read[0]["verified"], true);
    as_nobody(&mounted.path("demo/model/.ctl"), "cat extents/a").failed(1, &["Permission denied"]);
    as_nobody(&mounted.path("demo/model/.ctl"), "ls extents").failed(2, &["Permission denied"]);
}

#[test]
fn the_block_table_gives_the_location_and_checksum_of_each_block() {
    for tier in ["exact", "q8", "q5", "q3x"] {
        let (place, _) = match tier {
            "exact" => imported(&[]),
            tier => imported(&["--tier", &format!("{tier}:all")]),
        };
        let mounted = place.mount(&[]);
        for name in ["a", "x", "deep/er/b", "sub/vocab.txt"] {
            let path = mounted.path(Path::new("demo/model").join(name));
            let table = shown(&mounted, "blocks", name);
            assert_eq!(table.lines().count().to_string(), get(&path, "blocks"));
            let mut sum = 0;
            for (index, line) in table.lines().enumerate() {
                assert_eq!(line.split(' ').next(), Some(index.to_string().as_str()));
                let fields = fields(line);
                let number = |name: &str| fields[name].parse::<u64>().unwrap();
                assert_eq!(fields["tier"], if name == "sub/vocab.txt" { "exact" } else { tier });
                let file = place.store().join("demo/model").join(fields["file"]);
                let payload = stored_bytes(&file, number("offset"), number("bytes"));
                assert_eq!(fields["crc32c"], format!("{:08x}", crc32c(&payload)), "{name} {line}");
                assert_eq!(fields["chain"], "0");
                assert!(number("epoch") > 0);
                sum += payload.len();
            }
            assert_eq!(sum.to_string(), get(&path, "bytes_stored"));
        }
        mounted.unmount();
    }
}

#[test]
fn patches_on_encoded_blocks_are_counted() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(3).floats(64 << 10)));
    place.import("demo/model", &[&source], &["--tier", "q5:all"]);
    let mounted = place.mount(&[]);
    let file = fs::OpenOptions::new().write(true).open(mounted.path("demo/model/w")).unwrap();
    for round in 0..2 {
        file.write_all_at(&Random(4 + round).floats(1), 400).unwrap();
        file.sync_all().unwrap();
    }
    let chains: Vec<String> =
        shown(&mounted, "blocks", "w").lines().map(|line| fields(line)["chain"].to_owned()).collect();
    assert_eq!(chains[0], "2");
    assert!(chains[1..].iter().all(|chain| chain == "0"), "{chains:?}");
    assert_eq!(shown(&mounted, "verify", "w"), "ok\n");
    // A patch is checked with its block.
    let path = place.store().join("demo/model/delta.dat");
    let delta = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    delta.read_exact_at(&mut byte, 20).unwrap();
    delta.write_all_at(&[byte[0] ^ 4], 20).unwrap();
    let text = shown(&mounted, "verify", "w");
    assert!(text.ends_with(&format!("corrupt 1 of {}\n", chains.len())), "{text}");
}

#[test]
fn the_sizes_in_the_table_of_tiers_add_up() {
    for (options, tiers) in [(&[][..], &["exact"][..]), (&["--tier", "q7:all"], &["exact", "q7"])] {
        let (place, _) = imported(options);
        let mounted = place.mount(&[]);
        let table = shown(&mounted, "", "tiers");
        let rows: Vec<Vec<&str>> =
            table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), tiers, "{table}");
        let stats = mounted.stats();
        for row in &rows {
            for (place, key) in [(2, "blocks"), (3, "logical_bytes"), (4, "stored_bytes")] {
                assert_eq!(row[place], stats["tiers"][row[0]][key].to_string(), "{table}");
            }
        }
        // a, deep/er/b, norm, x; one has no blocks.
        let tensors: u64 = rows.iter().map(|row| row[1].parse::<u64>().unwrap()).sum();
        assert_eq!(tensors, 4, "{table}");
        mounted.unmount();
    }
}

#[test]
fn a_flipped_bit_reports_one_corrupt_block_and_one_event_until_the_block_changes() {
    for tier in ["exact", "q8"] {
        let place = Place::new();
        let source = place.write("w.npy", npy_file(&Random(9).floats(128 << 10)));
        place.import("demo/model", &[&source], &["--tier", &format!("{tier}:all")]);
        let mounted = place.mount(&["--verify", "always"]);
        assert_eq!(shown(&mounted, "verify", "w"), "ok\n");
        let table = shown(&mounted, "blocks", "w");
        let count = table.lines().count();
        let flip = || {
            let table = shown(&mounted, "blocks", "w");
            let fields = fields(table.lines().nth(1).unwrap());
            let path = place.store().join("demo/model").join(fields["file"]);
            let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            let at = fields["offset"].parse::<u64>().unwrap() + 100;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 16], at).unwrap();
        };
        flip();
        let wrong = format!("corrupt 1 of {count}\n");
        for _ in 0..3 {
            let text = shown(&mounted, "verify", "w");
            assert!(text.ends_with(&wrong) && text.contains("crc"), "{text}");
            refused(fs::read(mounted.path("demo/model/w")), libc::EIO);
        }
        let told = events(&mounted, "corruption");
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((&told[0]["path"], &told[0]["cause"]), (&"demo/model/w".into(), &"read".into()));
        assert!(told[0]["text"].as_str().unwrap().contains("block 1"), "{told:?}");
        // A block that is written whole is another block, and a later corruption of it is reported again.
        let bytes = (128 << 12) / count;
        let file = fs::OpenOptions::new().write(true).open(mounted.path("demo/model/w")).unwrap();
        file.write_all_at(&Random(1).bytes(bytes), bytes as u64).unwrap();
        file.sync_all().unwrap();
        assert_eq!(shown(&mounted, "verify", "w"), "ok\n");
        let told = events(&mounted, "corruption");
        assert_eq!(told.len(), 1, "{told:?}");
        flip();
        for _ in 0..2 {
            assert!(shown(&mounted, "verify", "w").ends_with(&wrong));
        }
        assert_eq!(events(&mounted, "corruption").len(), 2);
        drop(file);
        mounted.unmount();
    }
}

#[test]
fn a_file_that_is_written_and_truncated_during_a_check_is_not_reported_corrupt() {
    for tier in ["exact", "q8"] {
        let place = Place::new();
        let source = place.write("w.npy", npy_file(&Random(9).floats(128 << 10)));
        place.import("demo/model", &[&source], &["--tier", &format!("{tier}:all")]);
        let mounted = place.mount(&[]);
        let name = if tier == "exact" { "plain" } else { "w" };
        fs::write(mounted.path("demo/model/plain"), Random(2).bytes(700_001)).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(4);
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(mounted.path(Path::new("demo/model").join(name)))
                    .unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    let (at, many) = (random.below(100_000) as u64 * 4, 1 + random.below(30_000));
                    file.write_all_at(&random.floats(many), at).unwrap();
                    if name == "plain" {
                        file.set_len(random.below(900_000) as u64).unwrap();
                    }
                    file.sync_data().unwrap();
                }
            });
            let found: Vec<String> = (0..1000).map(|_| shown(&mounted, "verify", name)).collect();
            is_over.store(true, Ordering::Relaxed);
            let wrong = found.iter().find(|text| *text != "ok\n");
            assert_eq!(wrong, None, "{tier}");
        });
        assert!(events(&mounted, "corruption").is_empty());
        mounted.unmount();
    }
}
