//! Random ranges through each way of reading, of sharded files and of encoded tensors.

mod heavy {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, Ordering};

    use support::{Aligned, Mapping, Place, Random, assert_same, open_direct, read_at, scale};

    const PAGE: usize = 4096;
    const RANGES: usize = 100_000;
    const QUANTIZED_RANGES: usize = 20_000;
    /// Odd, without a common factor, from a few bytes to megabytes.
    const PARTS: [usize; 7] = [1, 4097, 1_234_567, 16_383, 333, 2_000_003, 77_777];

    /// A range of a file: mostly short, sometimes long, sometimes past its end.
    fn range(random: &mut Random, len: usize) -> (usize, usize) {
        let longest = [16, 700, PAGE, 3 * PAGE, 70_000][random.below(5)];
        (random.below(len + 10), 1 + random.below(longest))
    }

    fn clipped(source: &[u8], at: usize, count: usize) -> &[u8] {
        let at = at.min(source.len());
        &source[at..(at + count).min(source.len())]
    }

    fn by_pread(path: &Path, source: &[u8], ranges: usize, random: &mut Random) {
        let file = fs::File::open(path).unwrap();
        let mut out = vec![0; 1 << 17];
        for _ in 0..ranges * scale() as usize {
            let (at, count) = range(random, source.len());
            let got = read_at(&file, &mut out[..count], at as u64);
            assert_same(&out[..got], clipped(source, at, count), &format!("pread of {count} at {at}"));
        }
    }

    fn directly(path: &Path, source: &[u8], ranges: usize, random: &mut Random) {
        let file = open_direct(path);
        let mut memory = Aligned::new(1 << 17);
        for _ in 0..ranges * scale() as usize {
            let (at, count) = range(random, source.len());
            let (at, count) = (at / PAGE * PAGE, count.next_multiple_of(PAGE));
            let got = read_at(&file, memory.pages(count), at as u64);
            let wanted = clipped(source, at, count);
            assert_same(&memory.pages(count)[..got], wanted, &format!("O_DIRECT of {count} at {at}"));
        }
    }

    fn by_mapping(mapping: &Mapping, source: &[u8], ranges: usize, random: &mut Random) {
        for _ in 0..ranges * scale() as usize {
            let (at, count) = range(random, source.len());
            let (got, wanted) = (clipped(mapping.bytes(), at, count), clipped(source, at, count));
            assert_same(got, wanted, &format!("a mapping's {count} at {at}"));
        }
    }

    /// The whole file, and its shards.
    fn cut_into_parts(place: &Place) -> (Vec<u8>, Vec<PathBuf>) {
        let whole = Random(4).bytes(PARTS.iter().sum());
        let mut at = 0;
        let parts = PARTS.iter().enumerate().map(|(number, bytes)| {
            at += bytes;
            place.write(&format!("part-{number}"), &whole[at - bytes..at])
        });
        let parts = parts.collect();
        (whole, parts)
    }

    fn shards_read_like_the_whole(options: &[&str]) {
        let place = Place::new();
        let (whole, parts) = cut_into_parts(&place);
        let paths: Vec<&Path> = parts.iter().map(PathBuf::as_path).collect();
        let options: Vec<&str> =
            ["--shard-of", "deep/whole.bin"].into_iter().chain(options.iter().copied()).collect();
        place.import("demo/cut", &paths, &options);
        let mounted = place.mount(&[]);
        let path = mounted.path("demo/cut/deep/whole.bin");
        assert_same(&fs::read(&path).unwrap(), &whole, "the whole");
        let mut random = Random(5);
        by_pread(&path, &whole, RANGES, &mut random);
        directly(&path, &whole, RANGES, &mut random);
        by_mapping(&Mapping::of(&path, libc::MAP_SHARED), &whole, RANGES, &mut random);
        by_mapping(&Mapping::of(&path, libc::MAP_PRIVATE), &whole, RANGES, &mut random);
    }

    #[test]
    fn seven_odd_parts_read_like_the_whole_in_every_range() {
        shards_read_like_the_whole(&[]);
    }

    #[test]
    fn seven_odd_parts_in_odd_blocks_read_like_the_whole() {
        shards_read_like_the_whole(&["--block-bytes", "5000"]);
    }

    /// A tensor of a container in a tier, and the bytes of a plain read of all of it.
    fn encoded(place: &Place, elements: usize) -> (PathBuf, support::Mounted, Vec<u8>) {
        let mut random = Random(6);
        let file = support::container_of(&mut random, &[("before", 77), ("x", elements), ("after", 3)]);
        let source = place.write("x.safetensors", &file);
        place.import("demo/encoded", &[&source], &["--tier", "q5:all"]);
        let mounted = place.mount(&[]);
        let path = mounted.path("demo/encoded/x");
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), elements * 4);
        let exact = &file[file.len() - 3 * 4 - whole.len()..file.len() - 3 * 4];
        assert_ne!(whole, exact, "in 5 bits it cannot be what it was");
        (path, mounted, whole)
    }

    #[test]
    fn every_range_of_an_encoded_tensor_equals_that_of_the_whole() {
        let place = Place::new();
        let (path, mounted, whole) = encoded(&place, 700_001);
        // With a cold cache, ranges are decoded and not served from memory.
        let path = mounted.path("demo/encoded").join(path.file_name().unwrap());
        let mut random = Random(7);
        directly(&path, &whole, QUANTIZED_RANGES, &mut random);
        by_pread(&path, &whole, QUANTIZED_RANGES, &mut random);
        by_mapping(&Mapping::of(&path, libc::MAP_SHARED), &whole, QUANTIZED_RANGES, &mut random);
        // The container has the same bytes at another offset.
        let container = fs::read(mounted.path("demo/encoded/x.safetensors")).unwrap();
        let end = container.len() - 3 * 4;
        assert_same(&container[end - whole.len()..end], &whole, "the container's range");
    }

    #[test]
    fn eight_threads_read_one_mapping_correctly() {
        let place = Place::new();
        let (path, mounted, whole) = encoded(&place, 4_000_003);
        mounted.unmount();
        // The cache is empty now: all threads fault pages in at once.
        let mounted = place.mount(&[]);
        let mapping = Mapping::of(&path, libc::MAP_SHARED);
        let compared = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (mapping, whole, compared) = (&mapping, &whole, &compared);
                scope.spawn(move || {
                    by_mapping(mapping, whole, 5000, &mut Random(thread));
                    compared.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(compared.into_inner(), 8);
        drop(mapping);
        mounted.unmount();
    }
}
