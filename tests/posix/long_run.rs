//! A daemon after long work needs no more resources than before.

mod heavy {
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use support::{Fixture, Random, WritableMapping, container_of, npy_file};

    const OPERATIONS: usize = 100_000;
    const WARM_UP: usize = 20_000;
    /// Buffers of threads and the reserve of the allocator vary.
    const MEMORY_MARGIN: u64 = 6 << 20;

    /// Resident bytes and descriptors of a process.
    fn needs(process: i32) -> (u64, usize) {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        (kilobytes << 10, fs::read_dir(format!("/proc/{process}/fd")).unwrap().count())
    }

    /// A fixed number of files, and one operation on them.
    struct Work {
        root: PathBuf,
        random: Random,
        container: Vec<u8>,
        array: Vec<u8>,
    }

    impl Work {
        fn new(root: PathBuf) -> Work {
            let mut random = Random(5);
            let container = container_of(&mut random, &[("a", 100), ("deep/b", 2000)]);
            let array = npy_file(&random.floats(1000));
            fs::create_dir_all(root.join("d")).unwrap();
            for number in 0..20 {
                fs::write(root.join(format!("f{number}")), random.bytes(number * 3000 + 1)).unwrap();
            }
            fs::write(root.join("m.safetensors"), &container).unwrap();
            fs::write(root.join("x.npy"), &array).unwrap();
            Work { root, random, container, array }
        }

        fn opened(&self, path: &Path) -> File {
            OpenOptions::new().read(true).write(true).open(path).unwrap()
        }

        /// The resources of the idle daemon. Data files that were replaced stay open until a sync and a later record,
        /// so this waits for two of the periodic syncs.
        fn needs_at_rest(&self, daemon: i32) -> (u64, usize) {
            let until = Instant::now() + Duration::from_secs(12);
            let mut least = needs(daemon);
            while Instant::now() < until {
                self.opened(&self.root.join("f1")).write_all_at(&[1], 0).unwrap();
                std::thread::sleep(Duration::from_millis(500));
                let (memory, descriptors) = needs(daemon);
                least = (memory, least.1.min(descriptors));
            }
            least
        }

        fn step(&mut self, number: usize) {
            let path = self.root.join(format!("f{}", self.random.below(20)));
            let other = self.root.join(format!("t{}", self.random.below(5)));
            match number % 20 {
                0 => fs::write(&path, self.random.bytes(number % 40_000 + 1)).unwrap(),
                1..4 => drop(fs::read(&path).unwrap()),
                4 => self
                    .opened(&path)
                    .write_all_at(&self.random.bytes(500), self.random.below(30_000) as u64)
                    .unwrap(),
                5 => self.opened(&path).set_len(self.random.below(60_000) as u64).unwrap(),
                6 => {
                    fs::write(&other, b"replaces").unwrap();
                    fs::rename(&other, &path).unwrap();
                }
                7 => {
                    fs::hard_link(&path, &other).unwrap();
                    fs::remove_file(&other).unwrap();
                }
                8 => {
                    std::os::unix::fs::symlink("f1", &other).unwrap();
                    assert_eq!(fs::read_link(&other).unwrap(), Path::new("f1"));
                    fs::remove_file(&other).unwrap();
                }
                9 => {
                    fs::create_dir(&other).unwrap();
                    fs::remove_dir(&other).unwrap();
                }
                10 => {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + number as u32 % 8)).unwrap()
                }
                11 => assert!(fs::read_dir(&self.root).unwrap().count() > 20),
                12 => {
                    let mut value = [0; 100];
                    rustix::fs::getxattr(&path, "user.tierfs.tier", &mut value).unwrap();
                }
                13 => {
                    // A file that is unlinked while it is open.
                    let file = File::create(&other).unwrap();
                    fs::remove_file(&other).unwrap();
                    file.write_all_at(b"gone", 0).unwrap();
                }
                14 => assert!(fs::metadata(self.root.join(format!("absent-{number}"))).is_err()),
                15 => self.opened(&self.root.join(".tensors/a")).write_all_at(&[7; 4], 40).unwrap(),
                16 if number % 400 == 16 => self.opened(&path).sync_all().unwrap(),
                17 if number % 100 == 17 => {
                    fs::write(self.root.join("m.safetensors"), &self.container).unwrap();
                    fs::write(self.root.join("x.npy"), &self.array).unwrap();
                }
                18 if number % 100 == 18 => {
                    let map = self.root.join("mapped");
                    fs::write(&map, [0; 8192]).unwrap();
                    WritableMapping::of(&self.opened(&map), 8192, libc::MAP_SHARED)
                        .write(number % 8000, b"mapped");
                }
                _ => drop(fs::metadata(&path).unwrap()),
            }
        }
    }

    #[test]
    fn memory_and_descriptors_stay_constant_over_a_hundred_thousand_operations() {
        let fixture = Fixture::lasting(Duration::from_secs(600));
        let daemon = fixture.mounted().daemon().unwrap();
        let mut work = Work::new(fixture.path("steady"));
        for number in 0..WARM_UP {
            work.step(number);
        }
        let (memory, descriptors) = work.needs_at_rest(daemon);
        for number in WARM_UP..OPERATIONS {
            work.step(number);
        }
        let (memory_after, descriptors_after) = work.needs_at_rest(daemon);
        println!("{memory} then {memory_after} bytes, {descriptors} then {descriptors_after} descriptors");
        assert!(memory_after <= memory + MEMORY_MARGIN, "{memory} bytes, then {memory_after}");
        assert!(descriptors_after <= descriptors + 10, "{descriptors} descriptors, then {descriptors_after}");
        fixture.check();
    }
}
