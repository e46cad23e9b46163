//! Packed tensors: exact, smaller, and used like others.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use half::bf16;
use support::{
    Aligned, Answer, Fixture, Mapping, Place, Random, assert_same, get, minilm, open_direct, read_at,
    refused_set, run, safetensors_file, set, usage,
};

use crate::healing::{fields, flip, verified};

const ELEMENTS: usize = 300_000;

fn tierfs(words: &[&str], path: &Path) -> Answer {
    run(words.iter().map(|word| word.as_ref()).chain([path.as_os_str()]))
}

/// bf16 numbers with the exponents of trained weights.
fn weights(random: &mut Random, count: usize) -> Vec<u8> {
    let mut bell = || (0..6).map(|_| random.below(1 << 20) as f32 / (1 << 20) as f32).sum::<f32>() - 3.0;
    (0..count).flat_map(|_| bf16::from_f32(bell() * 0.03).to_le_bytes()).collect()
}

/// A container with weights, bytes of 8 bits, and whole numbers.
fn container(random: &mut Random) -> Vec<u8> {
    let weights = weights(random, ELEMENTS);
    let small: Vec<u8> = (0..50_000).map(|_| 120 + (random.below(6) + random.below(6)) as u8).collect();
    let whole = random.bytes(80_000);
    let ends = [weights.len(), weights.len() + small.len(), weights.len() + small.len() + whole.len()];
    let header = serde_json::json!({
        "w": { "dtype": "BF16", "shape": [ELEMENTS / 100, 100], "data_offsets": [0, ends[0]] },
        "small": { "dtype": "I8", "shape": [50_000], "data_offsets": [ends[0], ends[1]] },
        "whole": { "dtype": "I64", "shape": [10_000], "data_offsets": [ends[1], ends[2]] },
    });
    safetensors_file(&header.to_string(), &[weights, small, whole].concat())
}

/// The real model with its tensors of f32 cast to bf16.
fn minilm_in_bf16() -> Vec<u8> {
    let bytes = fs::read(minilm().join("model.safetensors")).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let cast = |data: &[u8]| -> Vec<u8> {
        let values = data.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap()));
        values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect()
    };
    let mut tensors = Vec::new();
    for (name, view) in parsed.tensors() {
        let shape = view.shape().to_vec();
        tensors.push(match view.dtype() {
            safetensors::Dtype::F32 => (name, safetensors::Dtype::BF16, shape, cast(view.data())),
            dtype => (name, dtype, shape, view.data().to_vec()),
        });
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

fn stored(path: &Path) -> u64 {
    get(path, "bytes_stored").parse().unwrap()
}

/// Whether the collection has packed blocks.
fn has_packed(collection: &Path) -> bool {
    fs::read_to_string(collection.join(".ctl/tiers")).unwrap().lines().any(|line| line.starts_with("packed "))
}

/// Reads a file in each way that programs use.
fn assert_reads_as(path: &Path, wanted: &[u8]) {
    assert_same(&fs::read(path).unwrap(), wanted, "a read of all");
    let (file, direct, mut random) = (File::open(path).unwrap(), open_direct(path), Random(7));
    let (mut out, mut aligned) = (vec![0; 70_000], Aligned::new(64 << 10));
    for round in 0..400 {
        let at = random.below(wanted.len());
        let len = if round % 2 == 0 { 4096 } else { 1 + random.below(out.len() - 1) };
        let len = len.min(wanted.len() - at);
        assert_eq!(read_at(&file, &mut out[..len], at as u64), len);
        assert_same(&out[..len], &wanted[at..at + len], &format!("{len} bytes at {at}"));
        let page = at / 4096 * 4096;
        let pages = if round % 2 == 0 { 4096 } else { 64 << 10 };
        let got = read_at(&direct, aligned.pages(pages), page as u64);
        let end = (page + pages).min(wanted.len());
        assert_same(&aligned.pages(pages)[..got], &wanted[page..end], &format!("past the cache at {page}"));
    }
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        assert_same(Mapping::of(path, flags).bytes(), wanted, "a mapping");
    }
}

#[test]
fn a_real_model_packs_to_two_thirds_and_reads_as_it_was() {
    let place = Place::new();
    let (half, whole) = (minilm_in_bf16(), fs::read(minilm().join("model.safetensors")).unwrap());
    let half_path = place.write("half.safetensors", &half);
    let whole_path = minilm().join("model.safetensors");
    place.import("t/half", &[&half_path], &["--pack"]);
    place.import("t/whole", &[&whole_path], &["--pack"]);
    let mounted = place.mount(&[]);
    let [half_file, whole_file] =
        [mounted.path("t/half/half.safetensors"), mounted.path("t/whole/model.safetensors")];
    for (file, bytes, most) in [(&half_file, &half, 0.68), (&whole_file, &whole, 0.835)] {
        let share = stored(file) as f64 / bytes.len() as f64;
        assert!(share <= most, "{share} of {}", file.display());
        assert_eq!(get(file, "tier"), "exact");
        let blocks = fs::metadata(file).unwrap().blocks() * 512;
        assert!((blocks as f64) < (most + 0.01) * bytes.len() as f64, "{blocks} bytes by stat");
        let [_, logical, stored] = usage(&mounted, if most == 0.68 { "t/half" } else { "t/whole" });
        assert!(stored as f64 <= (most + 0.005) * logical as f64, "{stored} of {logical}");
        assert_reads_as(file, bytes);
    }
    for (file, source) in [(&half_file, &half_path), (&whole_file, &whole_path)] {
        support::script(&place.path(""), &format!("cmp {} {}", file.display(), source.display())).ok();
        let sums = format!("sha256sum {} | cut -d ' ' -f 1", source.display());
        assert_eq!(get(file, "sha256"), support::script(&place.path(""), &sums).ok().trim());
        assert_eq!(get(file, "blake3"), blake3::hash(&fs::read(source).unwrap()).to_hex().as_str());
    }
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn packing_and_unpacking_change_no_byte_no_time_and_no_digest() {
    let place = Place::new();
    let bytes = container(&mut Random(1));
    let source = place.write("m.safetensors", &bytes);
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let (collection, file) = (mounted.path("t/c"), mounted.path("t/c/m.safetensors"));
    let metadata = || {
        let found = fs::metadata(&file).unwrap();
        (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec(), found.len())
    };
    let (before, times, digest) = (stored(&file), metadata(), get(&file, "blake3"));
    let would = tierfs(&["pack", "--dry-run"], &collection).ok();
    assert!(would.contains("would change 1 tensor") && would.contains("2 left as they are"), "{would}");
    assert_eq!(stored(&file), before);
    let done = tierfs(&["pack", "--json"], &collection).json();
    let result = &done[0]["result"];
    assert_eq!((&result["moved"], &result["kept"]["not_packed"]), (&1.into(), &2.into()), "{done}");
    let packed = stored(&file);
    assert!(packed * 100 < before * 80, "{packed} of {before}");
    assert_eq!(result["bytes_stored"].as_u64().unwrap(), packed);
    assert!(get(&mounted.path("t/c/w"), "bits").parse::<f64>().unwrap() < 11.5);
    assert!(has_packed(&collection) && fs::metadata(&file).unwrap().blocks() * 512 <= packed + 4096);
    assert_reads_as(&file, &bytes);
    assert_eq!(
        (metadata(), get(&file, "blake3"), get(&file, "tier")),
        (times, digest.clone(), "exact".into())
    );
    tierfs(&["pack"], &collection).ok();
    tierfs(&["tier", "exact"], &collection).ok();
    assert_eq!(stored(&file), packed, "a move to exact leaves packed blocks packed");
    tierfs(&["pack"], &mounted.path("t/c/small")).ok();
    assert!(stored(&file) < packed, "a tensor that is named is packed, whatever its type");
    tierfs(&["pack"], &mounted.path("t/c/whole")).failed(1, &["it is of i64", "can be packed"]);
    tierfs(&["unpack"], &collection).ok();
    assert_eq!((stored(&file), has_packed(&collection)), (before, false));
    tierfs(&["pack", "--all"], &collection).ok();
    assert!(stored(&file) < packed);
    tierfs(&["unpack"], &file).ok();
    assert_same(&fs::read(&file).unwrap(), &bytes, "the unpacked file");
    assert_eq!((metadata(), get(&file, "blake3")), (times, digest));
    // The blocks are back in their data file, which the kernel reads by passthrough at once.
    let blocks = fs::read_to_string(mounted.path("t/c/.ctl/blocks/m.safetensors")).unwrap();
    assert!(blocks.contains("file=data/") && !blocks.contains("tier0.dat"), "{blocks}");
    let opens = mounted.counter("passthrough_opens");
    assert_same(&fs::read(&file).unwrap(), &bytes, "the unpacked file");
    assert!(mounted.counter("passthrough_opens") > opens);
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn files_that_arrive_where_pack_is_set_are_packed() {
    let place = Place::new();
    let bytes = container(&mut Random(2));
    let source = place.write("m.safetensors", &bytes);
    run(["init".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    let collection = mounted.path("t/c");
    fs::create_dir_all(collection.join("packed/below")).unwrap();
    assert_eq!(get(&collection, "pack"), "none");
    let text = refused_set(&collection, "pack", "zip", rustix::io::Errno::INVAL);
    assert!(text.contains("none or ladder"), "{text}");
    tierfs(&["set", "pack=ladder"], &collection.join("packed")).ok();
    assert_eq!(get(&collection.join("packed/below"), "pack"), "ladder");
    for name in ["packed/below/m.safetensors", "m.safetensors"] {
        fs::copy(&source, collection.join(name)).unwrap();
        assert_same(&fs::read(collection.join(name)).unwrap(), &bytes, name);
    }
    let [packed, plain] = ["packed/below/m.safetensors", "m.safetensors"].map(|name| collection.join(name));
    assert!(stored(&packed) * 100 < stored(&plain) * 80, "{} and {}", stored(&packed), stored(&plain));
    // A copy over it is packed too; a plain file is not.
    let other = container(&mut Random(3));
    fs::write(&packed, &other).unwrap();
    assert!(stored(&packed) * 100 < stored(&plain) * 80);
    assert_reads_as(&packed, &other);
    fs::write(collection.join("packed/plain"), weights(&mut Random(4), 50_000)).unwrap();
    assert_eq!(stored(&collection.join("packed/plain")), 100_000);
    mounted.unmount();
    place.import("t/c", &[place.write("packed/again.safetensors", &bytes).parent().unwrap()], &[]);
    // The default of the store applies without a setting.
    let settings = place.store().join("tierfs.toml");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("pack = \"none\"", "pack = \"ladder\"")).unwrap();
    place.import("t/d", &[&source], &[]);
    let mounted = place.mount(&[]);
    assert_eq!(get(&mounted.path("t/c"), "pack"), "ladder");
    assert!(stored(&mounted.path("t/d/m.safetensors")) * 100 < bytes.len() as u64 * 80);
    set(&mounted.path("t/d"), "pack", "none").unwrap();
    fs::copy(&source, mounted.path("t/d/two.safetensors")).unwrap();
    assert!(stored(&mounted.path("t/d/two.safetensors")) * 100 > bytes.len() as u64 * 95);
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn a_packed_import_in_place_no_longer_needs_its_source() {
    for by_daemon in [false, true] {
        let place = Place::new();
        let bytes = container(&mut Random(5));
        let source = place.write("source/m.safetensors", &bytes);
        run(["init".as_ref(), place.store().as_os_str()]).ok();
        let mounted = by_daemon.then(|| place.mount(&[]));
        place.import("t/c", &[&source], &["--in-place", "--pack"]);
        if let Some(mounted) = mounted {
            mounted.unmount();
        }
        fs::remove_file(&source).unwrap();
        let mounted = place.mount(&[]);
        let file = mounted.path("t/c/m.safetensors");
        assert_reads_as(&file, &bytes);
        assert!(stored(&file) * 100 < bytes.len() as u64 * 80);
        mounted.unmount();
    }
}

#[test]
fn writes_into_packed_tensors_read_back_and_a_compaction_packs_them_again() {
    let mut fixture = Fixture::new();
    let mut random = Random(6);
    let mut bytes = container(&mut random);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    let (collection, file) = (fixture.path(""), fixture.path("m.safetensors"));
    tierfs(&["pack"], &file).ok();
    let packed = stored(&file);
    let begin = bytes.len() - (2 * ELEMENTS + 50_000 + 80_000);
    let mut write = |at: usize, new: &[u8]| {
        File::options().write(true).open(&file).unwrap().write_all_at(new, at as u64).unwrap();
        bytes[at..at + new.len()].copy_from_slice(new);
    };
    // A few elements become a patch; a whole block is stored verbatim.
    write(begin + 1001, &[1, 2, 3, 4, 5]);
    assert_eq!(get(&fixture.path("w"), "chain"), "1");
    let new = weights(&mut random, 60_000);
    write(begin + 200_000, &new);
    assert!(stored(&file) > packed + 20_000);
    assert_reads_as(&file, &bytes);
    fixture.remount();
    let file = fixture.path("m.safetensors");
    assert_reads_as(&file, &bytes);
    let job = fixture.mounted().job(".ctl/compact", "start");
    assert!(job.contains("packed again"), "{job}");
    assert!(stored(&file).abs_diff(packed) < 3000, "{} and {packed}", stored(&file));
    assert_eq!(get(&fixture.path("w"), "chain"), "0");
    assert_reads_as(&file, &bytes);
    assert!(has_packed(&collection) || has_packed(&fixture.path("")));
    fixture.check();
}

#[test]
fn packed_tensors_go_to_lower_tiers_as_exact_ones_do() {
    let place = Place::new();
    let source = place.write("m.safetensors", container(&mut Random(8)));
    for name in ["t/plain", "t/packed"] {
        place.import(name, &[&source], if name == "t/packed" { &["--pack"] } else { &[] });
    }
    let mounted = place.mount(&[]);
    let w = |name: &str| mounted.path(name).join("w");
    tierfs(&["tier", "q8"], &w("t/packed")).failed(1, &["lossy does not allow it"]);
    for name in ["t/plain", "t/packed"] {
        tierfs(&["tier", "q8", "--lossy"], &w(name)).ok();
        assert_eq!(get(&w(name), "tier"), "q8");
    }
    assert_same(&fs::read(w("t/packed")).unwrap(), &fs::read(w("t/plain")).unwrap(), "q8 of both");
    tierfs(&["pack"], &w("t/packed")).ok();
    assert_eq!(get(&w("t/packed"), "tier"), "q8", "only exact blocks are packed");
}

#[test]
fn forms_and_copies_of_packed_tensors_are_those_of_exact_ones() {
    let place = Place::new();
    let source = place.write("m.safetensors", container(&mut Random(9)));
    for name in ["t/plain", "t/packed"] {
        place.import(name, &[&source], if name == "t/packed" { &["--pack"] } else { &[] });
    }
    let mounted = place.mount(&[]);
    for form in [".as/f32/m.safetensors", ".as/q8/m.safetensors", ".as/f16/w", "w"] {
        let [plain, packed]: [PathBuf; 2] = ["t/plain", "t/packed"].map(|name| mounted.path(name).join(form));
        assert_same(&fs::read(packed).unwrap(), &fs::read(plain).unwrap(), form);
    }
    let data = |name: &str| {
        let files = fs::read_dir(place.store().join("t").join(name)).unwrap();
        let blocks = files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512);
        blocks.sum::<u64>()
    };
    assert!(data("packed") < data("plain") + 700_000);
    // The kernel reads a pinned file by passthrough.
    let file = mounted.path("t/packed/m.safetensors");
    tierfs(&["pin"], &file).ok();
    let opens = mounted.counter("passthrough_opens");
    assert_same(&fs::read(&file).unwrap(), &fs::read(&source).unwrap(), "the pinned file");
    assert!(mounted.counter("passthrough_opens") > opens);
    tierfs(&["unpack"], &file).failed(1, &["pinned"]);
    tierfs(&["unpin"], &file).ok();
    mounted.unmount();
    place.import("t/exported", &[&source], &["--pack"]);
    let to = place.path("out");
    run(["export".as_ref(), place.store().as_os_str(), "t/packed".as_ref(), to.as_os_str()]).ok();
    assert_same(&fs::read(to.join("m.safetensors")).unwrap(), &fs::read(&source).unwrap(), "the export");
}

#[test]
fn a_tensor_that_is_written_while_it_is_packed_and_unpacked_reads_as_written() {
    let fixture = Fixture::new();
    let mut random = Random(10);
    let mut bytes = container(&mut random);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    let file = fixture.path("m.safetensors");
    let begin = bytes.len() - (2 * ELEMENTS + 50_000 + 80_000);
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let packer = scope.spawn(|| {
            let mut rounds = 0;
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                tierfs(&["pack"], &file).ok();
                if rounds % 3 == 2 {
                    tierfs(&["unpack"], &file).ok();
                }
                rounds += 1;
            }
            rounds
        });
        let open = File::options().read(true).write(true).open(&file).unwrap();
        let mut out = vec![0; 60_000];
        for round in 0..2000 * support::scale() {
            let at = begin + random.below(2 * ELEMENTS - 60_000);
            let len = 1 + random.below(if round % 10 == 0 { 50_000 } else { 40 });
            if round % 2 == 0 {
                let new = weights(&mut random, len.div_ceil(2));
                open.write_all_at(&new[..len], at as u64).unwrap();
                bytes[at..at + len].copy_from_slice(&new[..len]);
            }
            if round % 50 == 0 {
                open.sync_all().unwrap();
            }
            assert_eq!(read_at(&open, &mut out[..len], at as u64), len);
            assert_same(&out[..len], &bytes[at..at + len], &format!("{len} bytes at {at}, round {round}"));
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(packer.join().unwrap() > 3);
    });
    assert_same(&fs::read(&file).unwrap(), &bytes, "the file at the end");
    fixture.check();
}

#[test]
fn damaged_packed_blocks_are_healed_from_a_pinned_copy_and_without_one_only_they_are_lost() {
    let place = Place::new();
    let bytes = container(&mut Random(12));
    place.import("t/c", &[&place.write("m.safetensors", &bytes)], &["--pack"]);
    let mounted = place.mount(&[]);
    let file = mounted.path("t/c/m.safetensors");
    let metrics = fs::read_to_string(mounted.path(".ctl/metrics")).unwrap();
    let of_tier = |line: &&str| line.starts_with("tierfs_blocks{") && line.contains("tier=\"packed\"");
    let packed_blocks = metrics.lines().find(of_tier).and_then(|line| line.rsplit_once("} "));
    let blocks = fields(&mounted, "w", "epoch").len();
    assert_eq!(packed_blocks.unwrap().1.parse::<f64>().unwrap() as usize, blocks);
    tierfs(&["pin"], &file).ok();
    flip(&mounted, "w", &[1, 2]);
    assert_eq!(verified(&mounted, "w"), format!("corrupt 2 of {blocks}"));
    mounted.job("t/c/.ctl/scrub", "start");
    let scrubbed = fs::read_to_string(mounted.path("t/c/.ctl/scrub")).unwrap();
    assert!(scrubbed.contains("2 corrupt, 2 healed"), "{scrubbed}");
    assert_eq!(verified(&mounted, "w"), "ok");
    assert_eq!(mounted.stats()["healed"], 2);
    tierfs(&["unpin"], &file).ok();
    assert_reads_as(&file, &bytes);
    // Without another source.
    tierfs(&["pack"], &file).ok();
    assert_eq!(fields(&mounted, "w", "encoding"), vec!["ladder"; blocks]);
    flip(&mounted, "w", &[3]);
    mounted.job("t/c/.ctl/scrub", "start");
    let scrubbed = fs::read_to_string(mounted.path("t/c/.ctl/scrub")).unwrap();
    assert!(scrubbed.contains("1 corrupt, 0 healed"), "{scrubbed}");
    assert_eq!(verified(&mounted, "w"), format!("corrupt 1 of {blocks}"));
    mounted.unmount();
    assert_eq!(run(["fsck".as_ref(), place.store().as_os_str()]).code, Some(3));
    run(["fsck".as_ref(), "--repair".as_ref(), place.store().as_os_str()]);
    let mounted = place.mount(&[]);
    let weights = &bytes[bytes.len() - (2 * ELEMENTS + 130_000)..][..2 * ELEMENTS];
    let block_bytes = 16 << 10;
    assert_eq!(weights.len().div_ceil(block_bytes), blocks);
    let w = File::open(mounted.path("t/c/w")).unwrap();
    for (index, wanted) in weights.chunks(block_bytes).enumerate() {
        let mut found = vec![0; wanted.len()];
        let read = w.read_exact_at(&mut found, (index * block_bytes) as u64);
        if index == 3 {
            assert!(read.is_err(), "a damaged block is an error");
        } else {
            read.unwrap();
            assert_same(&found, wanted, &format!("block {index}"));
        }
    }
}
