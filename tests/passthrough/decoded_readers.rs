//! Readers that map an encoded tensor by several names while a program writes to it and copies go all the time: an open
//! after a close shows no byte older than that close.

mod heavy {
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use support::{
        Mapping, Place, Random, SetOnDrop, WritableMapping, assert_same, container_of, goes_on, npy_file,
        read_at, scale,
    };

    /// Elements of the tensor, of four bytes each.
    const CELLS: usize = 1 << 20;
    /// A written element has these upper bits, and below them the number of its write. The source has none.
    const WRITTEN: u32 = 0x4b00_0000;
    const BUDGET: u64 = 16 << 20;

    /// A name under which the tensor is read: a path, and the tensor's first byte in it.
    struct Name(PathBuf, usize);

    /// The knowledge of readers about the writer.
    struct Published {
        /// For each element the last write to it before a close; 0 for none.
        closed: Vec<AtomicU32>,
        /// The last write that was begun.
        begun: AtomicU32,
        has_ended: AtomicBool,
    }

    impl Published {
        fn closed(&self) -> Vec<u32> {
            self.closed.iter().map(|number| number.load(Ordering::Acquire)).collect()
        }

        /// Compares a mapping with the writes that were closed before its file was opened.
        fn check(&self, cells: &[u8], closed: &[u32], source: &[u8], name: &Name) {
            let found: Vec<u32> = cells.as_chunks().0.iter().map(|cell| u32::from_le_bytes(*cell)).collect();
            let begun = self.begun.load(Ordering::Acquire);
            for (at, (found, closed)) in found.iter().zip(closed).enumerate() {
                let number = found.checked_sub(WRITTEN).filter(|number| (1..=begun).contains(number));
                let is_right = match number {
                    Some(number) => number >= *closed,
                    None => *closed == 0 && source[4 * at..4 * at + 4] == found.to_le_bytes(),
                };
                assert!(is_right, "{}: element {at} is {found:x}, after write {closed}", name.0.display());
            }
        }
    }

    /// Opens and maps the file again and again, and keeps some mappings, so that their copies stay.
    fn read(published: &Published, source: &[u8], names: &[Name], seed: u64) -> u64 {
        let (mut random, mut kept, mut looks) = (Random(seed), Vec::new(), 0);
        while !published.has_ended.load(Ordering::Relaxed) {
            let name = &names[random.below(names.len())];
            let closed = published.closed();
            let mapping = Mapping::of(&name.0, [libc::MAP_SHARED, libc::MAP_PRIVATE][random.below(2)]);
            kept.push((name, closed, mapping));
            if kept.len() > 2 {
                kept.swap_remove(random.below(2));
            }
            for (name, closed, mapping) in &kept {
                let cells = &mapping.bytes()[name.1..name.1 + source.len()];
                published.check(cells, closed, source, name);
            }
            looks += 1;
        }
        looks
    }

    /// Writes random ranges as fsx does, by either name, and closes the file after a few of them.
    fn write(published: &Published, names: &[Name], model: &mut [u8], time: Duration) -> u64 {
        let (mut random, mut number, mut closes) = (Random(71), 0, 0);
        let until = Instant::now() + time;
        while goes_on(until, closes, 20) {
            let Name(path, start) = &names[random.below(names.len())];
            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let mut done = Vec::new();
            for _ in 0..=random.below(4) {
                number += 1;
                published.begun.store(number, Ordering::Release);
                let at = random.below(CELLS);
                let most = if random.below(8) == 0 { 40_000 } else { 200 };
                let count = (1 + random.below(most)).min(CELLS - at);
                let bytes = (WRITTEN | number).to_le_bytes().repeat(count);
                let place = start + 4 * at;
                match random.below(8) {
                    0..5 => file.write_all_at(&bytes, place as u64).unwrap(),
                    5 => {
                        file.write_all_at(&bytes, place as u64).unwrap();
                        file.sync_data().unwrap();
                    }
                    _ => WritableMapping::whole(&file, libc::MAP_SHARED).write(place, &bytes),
                }
                model[4 * at..4 * (at + count)].copy_from_slice(&bytes);
                done.push((at, count, number));
                let at = 4 * random.below(CELLS);
                let mut found = vec![0; 4 * (1 + random.below(20_000)).min(CELLS - at / 4)];
                assert_eq!(read_at(&file, &mut found, (start + at) as u64), found.len());
                assert_same(&found, &model[at..at + found.len()], "what its writer reads");
            }
            drop(file);
            closes += 1;
            for (at, count, number) in done {
                published.closed[at..at + count]
                    .iter()
                    .for_each(|cell| cell.store(number, Ordering::Release));
            }
            // While a file is open for writing, nobody gets a copy.
            std::thread::sleep(Duration::from_millis(random.below(40) as u64));
        }
        closes
    }

    #[test]
    fn readers_that_map_an_encoded_tensor_see_what_was_closed_before_they_opened_it() {
        let (place, mut random) = (Place::new(), Random(19));
        let model = place.write("m.safetensors", container_of(&mut random, &[("a", 1000), ("t", CELLS)]));
        let others = ["x.npy", "y.npy"].map(|name| place.write(name, npy_file(&random.floats(CELLS))));
        place.import("demo/model", &[&model, &others[0], &others[1]], &["--tier", "q8:all"]);
        let mounted = place.mount(&["--decode-all", "-o", "decoded_cache=16M"]);
        let path = |name: &str| mounted.path(Path::new("demo/model").join(name));
        let source = fs::read(path("t")).unwrap();
        let start_in = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap();
            bytes.windows(source.len()).position(|bytes| *bytes == source).unwrap()
        };
        let paths = ["t", "m.safetensors", ".as/f32/m.safetensors"].map(path);
        let names = paths.map(|path| Name(path.clone(), start_in(&path)));
        let zero = |_| AtomicU32::new(0);
        let published = Published {
            closed: (0..CELLS).map(zero).collect(),
            begun: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
        };
        let (mut now, looks) = (source.clone(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _end = SetOnDrop(&published.has_ended);
            for seed in [1, 2] {
                let (published, source, names, looks) = (&published, &source, &names, &looks);
                scope.spawn(move || {
                    let _end = SetOnDrop(&published.has_ended);
                    looks.fetch_add(read(published, source, names, seed), Ordering::Relaxed);
                });
            }
            // Other files take the room of these copies.
            let (others, published, mounted) = (["x.npy", "y.npy"].map(path), &published, &mounted);
            scope.spawn(move || {
                let _end = SetOnDrop(&published.has_ended);
                while !published.has_ended.load(Ordering::Relaxed) {
                    others.iter().for_each(|other| drop(File::open(other).unwrap()));
                    let held = mounted.counter("decoded_bytes");
                    assert!(held <= BUDGET, "{held}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let time = Duration::from_secs(5) * scale();
            let closes = write(published, &names[..2], &mut now, time);
            println!("{closes} closes");
        });
        let (looks, hits) = (looks.into_inner(), mounted.counter("decoded_hits"));
        println!("{looks} looks, {hits} opens of copies");
        assert!(looks > 10 && hits > 10, "{looks} looks, {hits} opens of copies");
        for name in &names {
            let bytes = fs::read(&name.0).unwrap();
            assert_same(&bytes[name.1..name.1 + now.len()], &now, "at the end");
        }
        mounted.unmount();
    }
}
