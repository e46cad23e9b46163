//! Embedding batches, against the reader and the writer of the daemon and golden files.

use std::fs;
use std::path::Path;

use support::{Place, Random, get, repository};
use tierfs::format::files::cgeb;
use tierfs_client::{AuxEncoding, ContentHash, Embeddings, ErrorKind, Record};

/// Compares a record with what the daemon's reader finds at the same place.
#[track_caller]
fn assert_equal(record: &Record, wanted: &cgeb::Record) {
    let header = wanted.header;
    for (floats, wanted) in [(record.vector, wanted.vector), (record.weights, wanted.weights)] {
        assert_eq!((floats.len(), floats.is_empty()), (wanted.len(), wanted.is_empty()));
        let bits = |values: &mut dyn Iterator<Item = f32>| values.map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&mut floats.iter()), bits(&mut wanted.iter()));
        assert_eq!(floats.get(0).map(f32::to_bits), wanted.get(0).map(f32::to_bits));
        assert_eq!(floats.get(floats.len()), None);
        let is_little = header.layout == cgeb::Layout::TwoLittle || wanted.is_empty();
        let slice = floats.as_slice();
        assert_eq!(slice.is_some(), is_little);
        assert!(slice.is_none_or(|slice| bits(&mut slice.iter().copied()) == bits(&mut wanted.iter())));
    }
    assert_eq!((record.selected, record.aux), (wanted.selected, wanted.aux));
    assert_eq!(record.pipeline_latency_us, header.pipeline_latency_us);
    let hash = match record.content_hash {
        ContentHash::Own(hash) => cgeb::ContentHash::Own(hash),
        ContentHash::OfPayload(hash) => cgeb::ContentHash::OfPayload(hash),
    };
    assert_eq!(hash, header.content_hash);
    let encoding = match record.aux_encoding {
        AuxEncoding::Raw => cgeb::AuxEncoding::Raw,
        AuxEncoding::Lz4 => cgeb::AuxEncoding::Lz4,
        AuxEncoding::Zstandard => cgeb::AuxEncoding::Zstandard,
    };
    assert_eq!(encoding, header.aux_encoding);
}

/// Compares all records of a batch with those that begin at these offsets of the file.
#[track_caller]
fn assert_batch(path: &Path, bytes: &[u8], starts: &[usize]) {
    // SAFETY: nobody writes to the file.
    let mapped = unsafe { Embeddings::open(path).unwrap() };
    for batch in [mapped, Embeddings::read(path).unwrap()] {
        assert_eq!(batch.path(), path);
        // In the middle, before the others were looked for.
        let middle = starts.len() / 2;
        let wanted = |place: usize| cgeb::Record::borrow(&bytes[starts[place]..]).unwrap();
        assert_equal(&batch.get(middle).unwrap().unwrap(), &wanted(middle));
        assert_eq!(batch.dimension(), wanted(0).vector.len());
        let all: Vec<Record> = batch.iter().map(Result::unwrap).collect();
        assert_eq!((all.len(), batch.count().unwrap()), (starts.len(), starts.len()));
        for (place, record) in all.iter().enumerate() {
            assert_equal(record, &wanted(place));
            assert_equal(&batch.get(place).unwrap().unwrap(), &wanted(place));
        }
        for place in [starts.len(), starts.len() + 1, usize::MAX] {
            assert!(batch.get(place).unwrap().is_none());
        }
    }
}

/// Where the records of a batch begin.
fn starts(bytes: &[u8]) -> Vec<usize> {
    let (mut found, mut next) = (Vec::new(), 0);
    while next < bytes.len() {
        found.push(next);
        let stride = cgeb::Record::borrow(&bytes[next..]).unwrap().header.stride().unwrap();
        next += usize::try_from(stride).unwrap();
    }
    found
}

#[test]
fn records_of_the_golden_batch_are_borrowed() {
    let golden = repository("tests/golden/batch.cgeb");
    let bytes = fs::read(&golden).unwrap();
    let floats = fs::read(repository("tests/golden/batch.f32")).unwrap();
    assert_batch(&golden, &bytes, &starts(&bytes));
    let batch = Embeddings::read(&golden).unwrap();
    let vectors = batch
        .iter()
        .flat_map(|record| record.unwrap().vector.iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
    assert_eq!(vectors.collect::<Vec<u8>>(), floats);
}

/// Records with an aux of each of these lengths, in turn in all layouts.
fn written(lengths: &[usize], dimension: usize) -> Vec<u8> {
    let mut random = Random(8);
    let mut bytes = Vec::new();
    for (number, length) in lengths.iter().enumerate() {
        let layout = [cgeb::Layout::One, cgeb::Layout::TwoLittle, cgeb::Layout::TwoBig][number % 3];
        let vector: Vec<f32> = (0..dimension).map(|value| (value * number) as f32 / 3.0).collect();
        let (aux, selected) = (random.bytes(*length), random.bytes(2));
        let is_first = layout == cgeb::Layout::One;
        let record = cgeb::NewRecord {
            layout,
            vector: &vector,
            weights: &[0.25, f32::NAN, -0.0],
            selected: &selected,
            aux: &aux,
            aux_encoding: if is_first || number % 2 == 0 {
                cgeb::AuxEncoding::Raw
            } else {
                cgeb::AuxEncoding::Zstandard
            },
            pipeline_latency_us: number as u64 * 1000,
            own_hash: is_first.then_some(77),
        };
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        bytes.extend(record.write().unwrap());
    }
    bytes
}

#[test]
fn records_of_different_lengths_are_found_one_after_another() {
    let place = Place::new();
    // Six times the first record fills the file too.
    for lengths in [&[5000, 5000, 9000, 5000, 5000, 100][..], &[0], &[1 << 20, 0], &[0, 0, 0, 0]] {
        for dimension in [0, 3, 1536] {
            let mut bytes = written(lengths, dimension);
            for is_padded in [false, true] {
                if is_padded {
                    bytes.resize(bytes.len().next_multiple_of(4096), 0);
                }
                assert_batch(&place.write("a.cgeb", &bytes), &bytes, &starts(&bytes));
            }
        }
    }
}

#[test]
fn a_batch_on_a_mount_tells_how_many_records_it_has() {
    let place = Place::new();
    let mut bytes = written(&[0; 100], 100);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let source = place.write("x.cgeb", &bytes);
    place.import("demo/m", &[&source], &[]);
    let mounted = place.mount(&["--read-only"]);
    let path = mounted.mountpoint.join("demo/m/x.cgeb");
    assert_eq!(get(&mounted.mountpoint.join("demo/m/.tensors/x.cgeb/x"), "shape"), "100x100");
    // SAFETY: nobody writes to the file.
    let batch = unsafe { Embeddings::open(&path).unwrap() };
    assert!(format!("{batch:?}").contains("Every"), "{batch:?}");
    assert_eq!(batch.count().unwrap(), 100);
    drop(batch);
    assert_batch(&path, &fs::read(&path).unwrap(), &starts(&bytes));
    let tensors = tierfs_client::tensors(&path).unwrap();
    assert!(tensors.keys().eq(["x", "x.selected", "x.weights"]), "{tensors:?}");
    // A batch of a form, whose tensor the mount has elsewhere.
    let form = mounted.mountpoint.join("demo/m/.as/cgeb/x.cgeb");
    assert_batch(&form, &fs::read(&form).unwrap(), &starts(&bytes));
    mounted.unmount();
}

#[test]
fn a_record_is_found_while_another_thread_waits_for_the_bytes_of_a_later_one() {
    let place = Place::new();
    let source = place.write("x.cgeb", written(&[0, 16 << 20, 0], 100));
    place.import("demo/m", &[&source], &[]);
    let mounted = place.mount(&["--read-only"]);
    // SAFETY: nobody writes to the file.
    let batch = unsafe { Embeddings::open(mounted.mountpoint.join("demo/m/x.cgeb")).unwrap() };
    assert!(format!("{batch:?}").contains("Found"), "{batch:?}");
    // The first two records are beside each other, and the last one is far from them.
    let (asked, answered) = std::sync::mpsc::channel();
    let wait = std::time::Duration::from_secs(5);
    mounted.signal(libc::SIGSTOP);
    let found = std::thread::scope(|scope| {
        let last = scope.spawn(|| batch.get(2).unwrap().is_some());
        // The other thread has no page of the last record.
        std::thread::sleep(wait / 10);
        let is_waiting = !last.is_finished();
        let first = scope.spawn(|| asked.send(batch.get(0).unwrap().is_some()));
        let found = answered.recv_timeout(wait);
        mounted.signal(libc::SIGCONT);
        assert!(first.join().unwrap().is_ok() && last.join().unwrap() && is_waiting);
        found
    });
    assert_eq!(found, Ok(true));
    assert_eq!(batch.count().unwrap(), 3);
    drop(batch);
    mounted.unmount();
}

#[test]
fn threads_find_the_same_records() {
    let place = Place::new();
    let bytes = written(&[5000, 0, 9000, 100].repeat(50), 10);
    let path = place.write("x.cgeb", &bytes);
    let batch = Embeddings::read(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let batch = &batch;
            scope.spawn(move || {
                for place in (thread..200).step_by(7) {
                    let latency = batch.get(place).unwrap().unwrap().pipeline_latency_us;
                    assert_eq!(latency, place as u64 * 1000);
                }
                assert!(batch.get(200).unwrap().is_none());
            });
        }
    });
    assert_eq!(batch.count().unwrap(), 200);
}

#[test]
fn damaged_batches_are_errors() {
    let place = Place::new();
    let bytes = written(&[10, 0], 20);
    let path = place.path("a.cgeb");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Embeddings::read(&path).map_err(|error| error.kind())
    };
    let first = cgeb::Record::borrow(&bytes).unwrap().header.record_bytes() as usize;
    for len in 0..first {
        assert_eq!(read(&bytes[..len]).unwrap_err(), ErrorKind::Invalid, "{len}");
    }
    // A second record that is cut off.
    for len in [4097, 4160, bytes.len() - 1] {
        let batch = read(&bytes[..len]).unwrap();
        assert_eq!(batch.count().unwrap_err().kind(), ErrorKind::Invalid, "{len}");
        assert!(batch.get(0).unwrap().is_some());
        assert_eq!(batch.get(1).unwrap_err().kind(), ErrorKind::Invalid);
        let kinds: Vec<bool> = batch.iter().map(|record| record.is_ok()).collect();
        assert_eq!(kinds, [true, false]);
    }
    // Every bit of a header: as the daemon's reader judges.
    for bit in 0..64 * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let ours = read(&damaged);
        match cgeb::Record::borrow(&damaged) {
            Ok(wanted) => assert_equal(&ours.unwrap().get(0).unwrap().unwrap(), &wanted),
            Err(_) => assert!(ours.is_err(), "bit {bit}"),
        }
    }
    let mut unknown = bytes.clone();
    unknown[5] = 3;
    assert_eq!(read(&unknown).unwrap_err(), ErrorKind::Unsupported);
}
