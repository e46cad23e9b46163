//! Files that programs make and close at once, as caches do: with O_DIRECT or without, one after another or from many
//! threads, read while they are being written.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use support::{Mapping, Place, Random, assert_same, fsck};

const ALIGN: usize = 4096;

/// Bytes that begin at a page, as O_DIRECT wants them.
struct Aligned {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + ALIGN];
        let begin = bytes.as_ptr().align_offset(ALIGN);
        Aligned { bytes, begin, len }
    }

    fn of(content: &[u8]) -> Aligned {
        let mut made = Aligned::new(content.len());
        made.all().copy_from_slice(content);
        made
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.len]
    }
}

fn content(number: usize, len: usize) -> Vec<u8> {
    Random(number as u64 + 1).bytes(len)
}

fn direct(path: &Path, options: &mut OpenOptions) -> File {
    options.custom_flags(libc::O_DIRECT).open(path).unwrap()
}

fn read_direct(path: &Path, len: usize) -> Vec<u8> {
    let mut read = Aligned::new(len.next_multiple_of(ALIGN));
    let file = direct(path, OpenOptions::new().read(true));
    let (mut done, all) = (0, read.all());
    while done < len {
        done += file.read_at(&mut all[done..], done as u64).unwrap();
    }
    all[..len].to_vec()
}

#[test]
fn files_of_many_writers_have_their_bytes_by_each_way_of_reading() {
    const FILES: usize = 48;
    let len = |number: usize| match number % 4 {
        0 => 2 << 20,
        1 => (256 << 10) + 4096,
        2 => 3_000_001,
        _ => 4096,
    };
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    for directory in 0..8 {
        fs::create_dir_all(mounted.path(&format!("t/c/{directory:02x}"))).unwrap();
    }
    let name = |number: usize| format!("t/c/{:02x}/{number}.bin", number % 8);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|it| *it < FILES) {
                    let path = mounted.path(&name(number));
                    let draft = path.with_extension("tmp");
                    let mut options = OpenOptions::new();
                    let options = options.write(true).create_new(true);
                    let bytes = content(number, len(number));
                    let file =
                        if number % 3 == 0 { options.open(&draft) } else { Ok(direct(&draft, options)) };
                    let file = file.unwrap();
                    let whole = bytes.len() / ALIGN * ALIGN;
                    file.write_all_at(Aligned::of(&bytes[..whole]).all(), 0).unwrap();
                    // The daemon takes any range.
                    file.write_all_at(&bytes[whole..], whole as u64).unwrap();
                    drop(file);
                    fs::rename(&draft, &path).unwrap();
                }
            });
        }
    });
    let check = |root: &dyn Fn(&str) -> std::path::PathBuf| {
        for number in 0..FILES {
            let (path, expected) = (root(&name(number)), content(number, len(number)));
            assert_same(&read_direct(&path, expected.len()), &expected, "read with O_DIRECT");
            assert_same(&fs::read(&path).unwrap(), &expected, "read");
            assert_same(Mapping::of(&path, libc::MAP_PRIVATE).bytes(), &expected, "mapped");
        }
    };
    check(&|path| mounted.path(path));
    mounted.unmount();
    fsck(&place.store());
    let again = place.mount(&[]);
    check(&|path| again.path(path));
    again.unmount();
}

#[test]
fn appends_to_a_new_file_are_read_at_once_by_every_descriptor() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let path = mounted.path("t/c/tokens");
    let (mut random, mut expected) = (Random(7), Vec::new());
    let writer = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
    let reader = File::open(&path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Reads the page that is written next all the time, so that some read is on its way during each write.
        scope.spawn(|| {
            let other = File::open(&path).unwrap();
            let mut bytes = [0; 8192];
            while !stop.load(Ordering::Relaxed) {
                let len = other.metadata().unwrap().len();
                other.read_at(&mut bytes, len / 4096 * 4096).unwrap();
            }
        });
        for _ in 0..400 {
            let token = {
                let len = 1 + random.below(3000);
                random.bytes(len)
            };
            let at = expected.len();
            std::io::Write::write_all(&mut &writer, &token).unwrap();
            expected.extend(token);
            let from = at.saturating_sub(5000);
            let mut read = vec![0; expected.len() - from];
            reader.read_exact_at(&mut read, from as u64).unwrap();
            assert_same(&read, &expected[from..], "the descriptor from before");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_same(&fs::read(&path).unwrap(), &expected, "while it is open to write");
    drop(writer);
    assert_same(&fs::read(&path).unwrap(), &expected, "after the close");
    let mut read = vec![0; expected.len()];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert_same(&read, &expected, "the descriptor from before, after the close");
}

#[test]
fn a_bin_file_becomes_a_container_only_if_it_begins_like_one() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let path = mounted.path("t/c/pytorch_model.bin");
    let why = || support::get(&path, "why");
    let has_why = || support::try_get(&path, "why").is_ok();
    fs::write(&path, content(1, 100_000)).unwrap();
    assert!(!has_why());
    // A zip archive that is no checkpoint.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"PK\x03\x04", 0).unwrap();
    drop(file);
    assert!(why().contains("kept as a plain file"), "{}", why());
    fs::write(&path, [b"PK\x03\x04".as_slice(), &content(2, 100_000)].concat()).unwrap();
    assert!(why().contains("kept as a plain file"), "{}", why());
    fs::write(&path, content(3, 100_000)).unwrap();
    assert!(!has_why());
    assert_same(&fs::read(&path).unwrap(), &content(3, 100_000), "ordinary again");
}
