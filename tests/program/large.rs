//! A store of a million blocks is mounted and read at once.

mod heavy {
    use std::fs;
    use std::path::Path;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use support::{Place, answer, read_at, run};

    const ROUNDS: usize = 3;
    /// If each block cost a few microseconds, this would take longer even on a fast machine.
    const FIRST_BYTE_MAX: Duration = Duration::from_secs(5);
    const STAT_MAX: Duration = Duration::from_secs(10);
    const DISK_BYTES_MAX: u64 = 640 << 20;

    #[test]
    fn a_store_of_a_million_blocks_serves_its_first_byte_soon() {
        let place = Place::new();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/make-large-store.sh");
        answer(Command::new(script).arg(place.store()).arg(support::program())).ok();
        let since = Instant::now();
        let stat = run([
            "stat".as_ref(),
            place.store().as_os_str(),
            "demo/large/values".as_ref(),
            "--json".as_ref(),
        ]);
        assert_eq!(stat.json()["blocks"], 1_048_576);
        assert!(since.elapsed() < STAT_MAX, "stat took {:?}", since.elapsed());
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let since = Instant::now();
            let mounted = place.mount(&[]);
            let file = fs::File::open(mounted.path("demo/large/values")).unwrap();
            let mut first = [0; 4];
            assert_eq!(read_at(&file, &mut first, 0), 4);
            times.push(since.elapsed());
            assert_eq!(f32::from_le_bytes(first), 1.0);
            let mut last = [1; 8];
            assert_eq!(read_at(&file, &mut last, (4 << 30) - 4), 4);
            assert_eq!(last[..4], [0; 4]);
            drop(file);
            let stats = mounted.stats();
            assert_eq!(stats["tiers"]["q3"]["blocks"], 1 << 20);
            mounted.unmount();
        }
        let best = times.iter().min().unwrap();
        assert!(*best < FIRST_BYTE_MAX, "{times:?}");
        let disk = support::shell(&place.path(""), "du -s --block-size=1 store | cut -f1").stdout;
        let disk: u64 = String::from_utf8(disk).unwrap().trim().parse().unwrap();
        assert!(disk < DISK_BYTES_MAX, "{disk} bytes of disk");
    }
}
