//! A name that is given to other files while programs open it for reading and writing.

use std::fs;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use support::{goes_on, scale};

/// Enough bytes for verification on open.
const BYTES: usize = 1100 << 10;

#[test]
fn a_thread_never_gets_estale_twice_in_a_row() {
    let fixture = Fixture::new(&[]);
    let (path, other) = (fixture.path("replaced"), fixture.path("new"));
    fs::write(&path, vec![0; BYTES]).unwrap();
    let until = Instant::now() + Duration::from_secs(6) * scale();
    let (opens, refused, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let open = |writes: bool| {
        opens.fetch_add(1, Ordering::Relaxed);
        match fs::OpenOptions::new().read(true).write(writes).open(&path) {
            Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => {
                refused.fetch_add(1, Ordering::Relaxed);
                None
            }
            file => Some(file.unwrap()),
        }
    };
    let (by_kernel, ()) = fixture.by_kernel(|| {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut bytes = [0; 100];
                    while !is_over.load(Ordering::Relaxed) {
                        let Some(mut file) = open(false) else { continue };
                        file.read_exact(&mut bytes).unwrap();
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    }
                });
            }
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(open(true));
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            for version in (1..=u8::MAX).cycle() {
                fs::write(&other, vec![version; BYTES]).unwrap();
                fs::read(&other).unwrap();
                fs::rename(&other, &path).unwrap();
                if !goes_on(until, opens.load(Ordering::Relaxed), 10_000) {
                    is_over.store(true, Ordering::Relaxed);
                    break;
                }
            }
        });
    });
    assert!(by_kernel > 0);
    assert_eq!(refused.into_inner(), 0, "of {} opens were sent away twice", opens.into_inner());
}
