//! Many opens, and the limit of files that the kernel reads itself.

mod heavy {
    use std::fs;

    use crate::fixture::Fixture;
    use support::{Place, assert_same, read_at};

    const OPENS: usize = 10_000;

    /// Raises the limit of open files for this process and the daemons that it starts.
    fn raise_descriptors() {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = limit.maximum;
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        assert!(limit.current.is_none_or(|limit| limit > OPENS as u64 + 1000), "{limit:?}");
    }

    #[test]
    fn ten_thousand_opens_of_one_file_at_once_succeed() {
        raise_descriptors();
        let fixture = Fixture::new(&[]);
        fixture.check("sub/vocab.txt");
        let wanted = fixture.source("sub/vocab.txt");
        let (opens, files) = fixture.by_kernel(|| {
            (0..OPENS).map(|_| fs::File::open(fixture.path("sub/vocab.txt")).unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(opens, OPENS as u64);
        let mut got = [0; 100];
        for (place, file) in files.iter().enumerate() {
            let at = place % (wanted.len() - 100);
            assert_eq!(read_at(file, &mut got, at as u64), 100);
            assert_same(&got, &wanted[at..at + 100], "one of many");
        }
        drop(files);
        assert_same(&fixture.read_by_kernel(&fixture.path("sub/vocab.txt")), &wanted, "afterwards");
    }

    #[test]
    fn ten_opens_of_each_of_a_thousand_files_use_passthrough_up_to_its_limit() {
        const FILES: usize = 1000;
        const MOST: usize = 100;
        raise_descriptors();
        let place = Place::new();
        let content = |file: usize| -> Vec<u8> { (0..20_000).map(|at| (at * 7 + file * 13) as u8).collect() };
        for file in 0..FILES {
            place.write(&format!("model/{file}"), content(file));
        }
        place.import("demo/model", &[&place.path("model")], &[]);
        let settings = place.store().join("tierfs.toml");
        let text = fs::read_to_string(&settings).unwrap();
        assert!(text.contains("passthrough_files_max = 4096"), "{text}");
        let text = text.replace("passthrough_files_max = 4096", &format!("passthrough_files_max = {MOST}"));
        fs::write(&settings, text).unwrap();
        let mounted = place.mount(&[]);
        let path = |file: usize| mounted.path(format!("demo/model/{file}"));
        for file in 0..FILES {
            assert_same(&fs::read(path(file)).unwrap(), &content(file), "first");
        }
        let opens = || mounted.stats()["passthrough_opens"].as_u64().unwrap() as usize;
        for _ in 0..2 {
            let before = opens();
            let all: Vec<fs::File> =
                (0..OPENS).map(|place| fs::File::open(path(place % FILES)).unwrap()).collect();
            assert_eq!(opens() - before, MOST * OPENS / FILES);
            for (place, file) in all.iter().enumerate() {
                let mut got = [0; 64];
                assert_eq!(read_at(file, &mut got, 9000), 64);
                assert_eq!(got[..], content(place % FILES)[9000..9064]);
            }
            drop(all);
            // Closes are reported late: the next round waits until the kernel has none open.
            support::wait_until("room for other files", || {
                let before = opens();
                let all: Vec<fs::File> =
                    (FILES - MOST..FILES).map(|file| fs::File::open(path(file)).unwrap()).collect();
                let room = opens() - before == MOST;
                drop(all);
                room
            });
            support::wait_until("room for the first files", || {
                let before = opens();
                let all: Vec<fs::File> = (0..MOST).map(|file| fs::File::open(path(file)).unwrap()).collect();
                let room = opens() - before == MOST;
                drop(all);
                room
            });
        }
    }
}
