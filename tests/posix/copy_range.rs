//! copy_file_range(2): copies share blocks with their source where they can, and each file stays as it is when the other
//! changes. Compared with the sources and with vectors in memory.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use support::{Fixture, Mapping, Place, Random, assert_same, container_of, scale, set, shell_output};

const MIB: usize = 1 << 20;

fn both(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Copies a range with as many calls as it takes. Returns how many these were.
fn copy(from: &File, mut at: u64, to: &File, mut place: u64, bytes: usize) -> usize {
    let (mut left, mut calls) = (bytes, 0);
    while left > 0 {
        let copied = copy_file_range(from, Some(&mut at), to, Some(&mut place), left).unwrap();
        assert!(copied > 0 && copied <= left);
        left -= copied;
        calls += 1;
    }
    calls
}

/// Allocated bytes of the data files and tier files of a store.
fn allocated(store: &Path) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let files = support::files_below(store).into_iter().map(|file| fs::metadata(store.join(file)).unwrap());
    files.filter(|found| seen.insert(found.ino())).map(|found| found.blocks() * 512).sum()
}

/// The payload files alone: the log grows by the names.
fn payloads(store: &Path) -> u64 {
    let logs: u64 = support::files_below(store)
        .iter()
        .filter(|file| file.ends_with("meta.log"))
        .map(|file| fs::metadata(store.join(file)).unwrap().blocks() * 512)
        .sum();
    allocated(store) - logs
}

fn tensors(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = support::files_below(folder).into_iter();
    files.map(|file| (file.clone(), fs::read(folder.join(&file)).unwrap())).collect()
}

#[test]
fn cp_takes_no_space_and_the_copy_and_its_tensors_are_its_own() {
    let mut fixture = Fixture::new();
    let model = container_of(&mut Random(1), &[("a", 3_000_001), ("b/c", 77), ("d", 1_000_000)]);
    let plain = Random(2).bytes(20 * MIB + 77);
    fs::write(fixture.path("m.safetensors"), &model).unwrap();
    fs::write(fixture.path("plain"), &plain).unwrap();
    fs::create_dir(fixture.path("sub")).unwrap();
    fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    let before = payloads(&fixture.place.store());
    let folder = fixture.path("");
    for command in [
        "cp m.safetensors sub/m.safetensors",
        "cp --reflink=auto m.safetensors sub/plain-model",
        "cp plain sub/plain",
        "python3 -c 'import os
a, b = os.open(\"plain\", os.O_RDONLY), os.open(\"sub/python\", os.O_WRONLY | os.O_CREAT)
while os.copy_file_range(a, b, 1 << 30): pass'",
    ] {
        assert_eq!(shell_output(&folder, command), (0, String::new()), "{command}");
    }
    let copies: [(&str, &[u8]); 4] = [
        ("sub/m.safetensors", &model),
        ("sub/plain-model", &model),
        ("sub/plain", &plain),
        ("sub/python", &plain),
    ];
    for _ in 0..2 {
        copies.iter().for_each(|(name, wanted)| assert_same(&fixture.read(name), wanted, name));
        fixture.remount();
    }
    let after = payloads(&fixture.place.store());
    assert!(after <= before + 64 * 1024, "{before} bytes, then {after}");
    assert_eq!(tensors(&fixture.path("sub/.tensors")), tensors(&fixture.path(".tensors")));
    // Each changes alone.
    both(&fixture.path("sub/.tensors/a")).write_all_at(b"the copy's", 1 << 20).unwrap();
    both(&fixture.path("plain")).write_all_at(b"the source's", 70_000).unwrap();
    let mut changed = model.clone();
    // The data of the first tensor follow the header.
    let at = model.len() - 4 * (3_000_001 + 77 + 1_000_000) + (1 << 20);
    changed[at..at + 10].copy_from_slice(b"the copy's");
    let found = fixture.read("sub/m.safetensors");
    assert_same(&found, &changed, "the copy of the container");
    assert_same(&fixture.read("m.safetensors"), &model, "its source");
    let mut source = plain.clone();
    source[70_000..70_012].copy_from_slice(b"the source's");
    assert_same(&fixture.read("plain"), &source, "the source of the plain copies");
    // The copies outlive their sources, and the tiers are their own.
    fs::remove_file(fixture.path("m.safetensors")).unwrap();
    fs::remove_file(fixture.path("plain")).unwrap();
    fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    fixture.mounted().job(".ctl/compact", "start");
    set(&fixture.path("sub/m.safetensors"), "lossy", "allow").unwrap();
    for _ in 0..2 {
        assert_same(&fixture.read("sub/m.safetensors"), &changed, "the copy of the container");
        for (name, wanted) in &copies[1..] {
            assert_same(&fixture.read(name), wanted, name);
        }
        fixture.crash();
    }
    fixture.check();
}

#[test]
fn one_call_copies_a_large_file_without_a_byte_read_or_written() {
    let fixture = Fixture::new();
    let bytes = Random(3).bytes(96 * MIB);
    fs::write(fixture.path("from"), &bytes).unwrap();
    fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    let before = payloads(&fixture.place.store());
    let (from, to) = (File::open(fixture.path("from")).unwrap(), both(&fixture.path("to")));
    let begun = std::time::Instant::now();
    assert_eq!(copy(&from, 0, &to, 0, bytes.len()), 1);
    to.sync_all().unwrap();
    let took = begun.elapsed();
    drop((from, to));
    println!("{} MiB in {took:?}", bytes.len() / MIB);
    assert_eq!(payloads(&fixture.place.store()), before);
    assert_eq!(fixture.data_files(), 2);
    assert_same(&fixture.read("to"), &bytes, "the copy");
    // The kernel reads it where it is stored.
    let opens = fixture.mounted().counter("passthrough_opens");
    assert_same(&fixture.read("to"), &bytes, "the copy");
    println!("{} passthrough opens", fixture.mounted().counter("passthrough_opens") - opens);
    fixture.check();
}

/// A file and the bytes that it must have.
struct Known {
    path: PathBuf,
    bytes: Vec<u8>,
    open: Option<File>,
}

impl Known {
    fn file(&mut self) -> &File {
        self.open.get_or_insert_with(|| both(&self.path))
    }

    fn check(&self, when: &str) {
        assert_same(&fs::read(&self.path).unwrap(), &self.bytes, &format!("{} {when}", self.path.display()));
    }
}

/// An offset of a file: often one at which blocks begin, or its end.
fn offset(random: &mut Random, bytes: usize, past: usize) -> usize {
    match random.below(5) {
        0 => 0,
        1 | 2 => random.below(bytes / 16_384 + 1) * 16_384,
        3 => bytes,
        _ => random.below(bytes + past),
    }
}

fn random_copy(random: &mut Random, sources: &[Known], files: &mut [Known]) {
    let (one, other) = (random.below(sources.len() + files.len()), random.below(files.len()));
    let (path, from) = match sources.get(one) {
        Some(source) => (source.path.clone(), source.bytes.clone()),
        None => (files[one - sources.len()].path.clone(), files[one - sources.len()].bytes.clone()),
    };
    let at = offset(random, from.len(), 1).min(from.len());
    let most = [from.len(), 16_384 * random.below(40), random.below(300_000)][random.below(3)];
    let bytes = most.min(from.len() - at);
    let to = &mut files[other];
    let place = offset(random, to.bytes.len(), 100_000);
    let is_same = path == to.path;
    // Whoever opened the file before its writer reads what it was then.
    to.file();
    if place + bytes > 6 * MIB || is_same && at < place + bytes && place < at + bytes {
        return;
    }
    let seen = (random.below(3) == 0 && !to.bytes.is_empty()).then(|| {
        let mapping = Mapping::of(&to.path, libc::MAP_SHARED);
        assert_same(mapping.bytes(), &to.bytes, "a mapping before the copy");
        mapping
    });
    copy(&File::open(&path).unwrap(), at as u64, to.file(), place as u64, bytes);
    if bytes > 0 {
        to.bytes.resize(to.bytes.len().max(place + bytes), 0);
        to.bytes[place..place + bytes].copy_from_slice(&from[at..at + bytes]);
    }
    if let Some(mapping) = seen {
        let len = mapping.bytes().len();
        assert_same(mapping.bytes(), &to.bytes[..len], "a mapping after the copy");
    }
    if random.below(3) == 0 {
        to.check("after a copy");
    }
}

fn random_change(random: &mut Random, known: &mut Known) {
    let len = known.bytes.len();
    match random.below(6) {
        0 | 1 => {
            let (at, bytes) = (random.below(len + 1), random.below(50_000));
            let bytes = random.bytes(bytes);
            known.file().write_all_at(&bytes, at as u64).unwrap();
            known.bytes.resize(len.max(at + bytes.len()), 0);
            known.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        2 => {
            let to = [0, random.below(len + 1), random.below(2 * MIB)][random.below(3)];
            known.file().set_len(to as u64).unwrap();
            known.bytes.resize(to, 0);
        }
        3 => {
            let (at, bytes) = (random.below(len + 1), 1 + random.below(200_000));
            let punch = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            fallocate(known.file(), punch, at as u64, bytes as u64).unwrap();
            let end = (at + bytes).min(len);
            known.bytes[at.min(end)..end].fill(0);
        }
        4 => known.file().sync_all().unwrap(),
        _ => {
            known.open = None;
            if random.below(3) == 0 {
                fs::remove_file(&known.path).unwrap();
                known.bytes.clear();
                known.file();
            }
        }
    }
}

mod heavy {
    use super::*;

    #[test]
    fn random_copies_between_files_of_all_kinds_agree_with_vectors() {
        let place = Place::new();
        let model = container_of(&mut Random(4), &[("w", 300_000), ("v", 20_001), ("x", 77)]);
        let source = place.write("in/m.safetensors", &model);
        for (collection, options) in [
            ("demo/exact", &[][..]),
            ("demo/q8", &["--tier", "q8:all"]),
            ("demo/packed", &["--pack"]),
            ("demo/here", &["--in-place"]),
            ("other/exact", &["--block-bytes", "8192"]),
        ] {
            place.import(collection, &[&source], options);
        }
        let mut fixture = Fixture::unmounted(place).with_collection();
        let names = ["demo/exact", "demo/q8", "demo/packed", "demo/here", "other/exact"];
        let paths =
            names.iter().flat_map(|name| [format!("{name}/m.safetensors"), format!("{name}/.tensors/w")]);
        let read = |path: PathBuf| Known { bytes: fs::read(&path).unwrap(), path, open: None };
        let sources: Vec<Known> = paths.map(|path| read(fixture.mounted().path(path))).collect();
        fs::create_dir_all(fixture.mounted().path("demo/n")).unwrap();
        let named = ["m/a", "m/b", "m/c.safetensors", "n/d", "n/e.npy"];
        let path = |name: &&str| fixture.mounted().path("demo").join(name);
        let mut files: Vec<Known> =
            named.iter().map(|name| Known { path: path(name), bytes: Vec::new(), open: None }).collect();
        for file in &mut files {
            file.file();
        }
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let (mut random, rounds) = (Random(seed), 8 * scale());
        for round in 0..rounds {
            for _ in 0..60 {
                if random.below(5) < 3 {
                    random_copy(&mut random, &sources, &mut files);
                } else {
                    let file = random.below(files.len());
                    random_change(&mut random, &mut files[file]);
                }
            }
            files.iter().chain(&sources).for_each(|known| known.check(&format!("in round {round}")));
            files.iter_mut().for_each(|file| file.open = None);
            match round % 4 {
                0 => fixture.remount(),
                1 => {
                    let path = |name: &str| fixture.mounted().path("demo").join(name).join(".ctl/compact");
                    for name in ["m", "n"] {
                        fs::write(path(name), "start").unwrap();
                    }
                }
                2 => fixture.crash(),
                _ => fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap(),
            }
            files.iter().chain(&sources).for_each(|known| known.check(&format!("after round {round}")));
        }
        fixture.check();
    }
}

#[test]
fn space_of_a_source_that_is_gone_is_given_back_by_a_compaction() {
    let mut fixture = Fixture::new();
    let bytes = Random(8).bytes(24 * MIB);
    fs::write(fixture.path("whole"), &bytes).unwrap();
    let (from, to) = (File::open(fixture.path("whole")).unwrap(), both(&fixture.path("part")));
    copy(&from, 8 << 20, &to, 0, 4 * MIB);
    // Behind it come bytes of its own.
    to.write_all_at(&bytes[..100_000], 4 << 20).unwrap();
    drop((from, to));
    let wanted = [&bytes[8 * MIB..12 * MIB], &bytes[..100_000]].concat();
    fs::remove_file(fixture.path("whole")).unwrap();
    fixture.remount();
    assert!(payloads(&fixture.place.store()) > 23 << 20);
    fixture.mounted().job(".ctl/compact", "start");
    let left = payloads(&fixture.place.store());
    assert!(left < 5 << 20, "{left} bytes");
    for _ in 0..2 {
        assert_same(&fixture.read("part"), &wanted, "the copy of a part");
        fixture.crash();
    }
    fixture.check();
}

#[test]
fn a_copy_counts_in_full_in_quotas_and_a_refused_one_changes_nothing() {
    let fixture = Fixture::new();
    let bytes = Random(9).bytes(3 * MIB);
    fs::write(fixture.path("from"), &bytes).unwrap();
    fs::write(fixture.path(".ctl/quota"), "bytes=8000000").unwrap();
    let from = File::open(fixture.path("from")).unwrap();
    copy(&from, 0, &both(&fixture.path("one")), 0, bytes.len());
    let two = both(&fixture.path("two"));
    two.write_all_at(b"before", 0).unwrap();
    let refused = copy_file_range(&from, Some(&mut 0), &two, Some(&mut 10_000), bytes.len());
    assert_eq!(refused, Err(Errno::DQUOT));
    drop((from, two));
    assert_eq!(fixture.read("two"), b"before");
    assert_same(&fixture.read("one"), &bytes, "the copy");
    fixture.check();
}

#[test]
fn copies_across_tenants_and_from_made_files_have_the_bytes_and_share_nothing() {
    let fixture = Fixture::new();
    let model = container_of(&mut Random(5), &[("w", 500_000)]);
    fs::write(fixture.path("m.safetensors"), &model).unwrap();
    fs::create_dir_all(fixture.mounted().path("else/where")).unwrap();
    let to = fixture.mounted().path("else/where/m.safetensors");
    copy(&File::open(fixture.path("m.safetensors")).unwrap(), 0, &both(&to), 0, model.len());
    assert_same(&fs::read(&to).unwrap(), &model, "the copy of another tenant");
    let links = |folder: &str| {
        let listed = fs::read_dir(fixture.place.store().join(folder).join("data")).unwrap();
        listed.map(|entry| entry.unwrap().metadata().unwrap().nlink()).collect::<Vec<u64>>()
    };
    assert_eq!((links("demo/m"), links("else/where")), (vec![1], vec![1]));
    let (from, bytes) = (File::open(fixture.path(".as/npy/w.npy")).unwrap(), fixture.read(".as/npy/w.npy"));
    copy(&from, 0, &both(&fixture.path("made")), 0, bytes.len());
    assert_same(&fixture.read("made"), &bytes, "the copy of a file of a form");
    drop(from);
    fixture.check();
}

/// The stretches of data in a file, as lseek(2) finds them.
fn data_of(file: &File) -> Vec<(u64, u64)> {
    let (mut at, mut found) = (0, Vec::new());
    loop {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return found,
            begin => begin.unwrap(),
        };
        at = seek(file, SeekFrom::Hole(begin)).unwrap();
        found.push((begin, at));
    }
}

#[test]
fn lseek_finds_the_holes_and_cp_and_tar_leave_them_out() {
    let mut fixture = Fixture::new();
    let bytes = Random(6).bytes(100_000);
    let len = 40 << 20;
    let file = both(&fixture.path("sparse"));
    file.set_len(len).unwrap();
    let places = [3 << 20, 17 << 20, len - 100_000];
    places.iter().for_each(|at| file.write_all_at(&bytes, *at).unwrap());
    let check = |file: &File| {
        let data = data_of(file);
        assert_eq!(data.len(), places.len(), "{data:?}");
        for ((begin, end), at) in data.into_iter().zip(places) {
            assert!(begin <= at && at - begin < 131_072 && end >= at + 100_000 && end < at + 300_000);
        }
        let (hole, past) = (seek(file, SeekFrom::Hole(0)), seek(file, SeekFrom::Hole(len)));
        assert_eq!(
            (hole, past, seek(file, SeekFrom::Data(len))),
            (Ok(0), Err(Errno::NXIO), Err(Errno::NXIO))
        );
    };
    check(&file);
    drop(file);
    fixture.remount();
    check(&File::open(fixture.path("sparse")).unwrap());
    let blocks = fs::metadata(fixture.path("sparse")).unwrap().blocks();
    assert!(blocks * 512 < 2 << 20, "{blocks} blocks");
    let (folder, wanted) = (fixture.path(""), fixture.read("sparse"));
    let before = payloads(&fixture.place.store());
    let command = "cp sparse copy && cp --sparse=always sparse always && tar cSf x.tar sparse && mkdir t && tar xf x.tar -C t \
        && du -k x.tar | cut -f1";
    let (status, output) = shell_output(&folder, command);
    let kib: u64 = output.trim().parse().unwrap_or_else(|_| panic!("{status}: {output}"));
    assert!(kib < 1024, "the archive has {kib} KiB");
    for name in ["copy", "always", "t/sparse"] {
        assert_same(&fixture.read(name), &wanted, name);
        check(&File::open(fixture.path(name)).unwrap());
    }
    assert!(payloads(&fixture.place.store()) < before + (4 << 20));
    fixture.check();
}

#[test]
fn a_store_into_a_mapped_hole_is_data_at_once() {
    let fixture = Fixture::new();
    let file = both(&fixture.path("f"));
    file.set_len(8 << 20).unwrap();
    assert_eq!(data_of(&file), []);
    let mut mapping = support::WritableMapping::whole(&file, libc::MAP_SHARED);
    mapping.write(5 << 20, b"stored");
    let covers = |data: Vec<(u64, u64)>| data.iter().any(|(from, to)| (*from..*to).contains(&(5 << 20)));
    assert!(covers(data_of(&file)));
    drop((mapping, file));
    let read = File::open(fixture.path("f")).unwrap();
    let data = data_of(&read);
    assert!(covers(data.clone()) && data.len() == 1 && data[0].1 - data[0].0 < 1 << 20, "{data:?}");
    // Opened again, the file may be mapped with pages that the kernel has kept.
    fs::read(fixture.path("f")).unwrap();
    let again = both(&fixture.path("f"));
    let mut mapping = support::WritableMapping::whole(&again, libc::MAP_SHARED);
    mapping.write(1 << 20, b"more");
    assert!(data_of(&again).iter().any(|(from, to)| (*from..*to).contains(&(1 << 20))));
    drop((mapping, again, read));
    fixture.check();
}

#[test]
fn a_file_without_holes_has_its_end_as_the_only_one() {
    let place = Place::new();
    let source = place.write("in/m.safetensors", container_of(&mut Random(7), &[("w", 100_000)]));
    place.import("demo/m", &[&source], &["--tier", "q8:all"]);
    let fixture = Fixture::unmounted(place).with_collection();
    for name in ["m.safetensors", ".tensors/w", ".as/npy/w.npy"] {
        let file = File::open(fixture.path(name)).unwrap();
        let bytes = file.metadata().unwrap().len();
        assert_eq!(data_of(&file), [(0, bytes)], "{name}");
        assert_eq!(seek(&file, SeekFrom::Data(77)), Ok(77), "{name}");
    }
    fixture.check();
}
