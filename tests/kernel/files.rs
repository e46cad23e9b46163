//! The whole file system as bytes in, bytes out: files are found, read, written and renamed without a kernel.

use std::path::Path;
use std::sync::Arc;

use tierfs::model::Owner;
use tierfs::store::disk::Disk;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Store};

use crate::ask::*;
use crate::fixture::{Numbers, STORE, f32s, import, safetensors_file};

/// A store in a directory, with a container of two tensors. Returns its bytes, and those of the first tensor.
fn made(directory: &Path) -> (Kernel, Vec<u8>, Vec<u8>) {
    let disk: Arc<dyn Disk> = Arc::new(FileDisk::new(directory));
    Store::create(&*disk, STORE).unwrap();
    let store = Arc::new(Store::open(disk, Access::Write, "").unwrap());
    let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
    let mut seed = Numbers(3);
    let tensors = [f32s("layer.weight", &[300, 500], &mut seed), f32s("norm", &[7], &mut seed)];
    let bytes = safetensors_file(&tensors);
    import(&collection, "m.safetensors", &bytes, &Default::default()).unwrap();
    let [weight, _] = tensors;
    (Kernel::new(store), bytes, weight.bytes)
}

#[test]
fn an_imported_file_reads_as_it_came_through_any_sizes_of_requests() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, bytes, weight) = made(directory.path());
    let file = kernel.find("t/c/m.safetensors").unwrap();
    assert_eq!((file.bytes, file.is_directory()), (bytes.len() as u64, false));
    for size in [1 << 20, 128 << 10, 4096, 99_991] {
        assert!(kernel.read(file.node, size) == bytes, "requests of {size} bytes");
    }
    let tensor = kernel.find("t/c/.tensors/layer.weight").unwrap();
    assert!(kernel.read(tensor.node, 65_536) == weight);
    // A read past the end, and one of a handle that nobody opened.
    let handle = kernel.open(file.node, libc::O_RDONLY).unwrap();
    assert_eq!(kernel.ask(READ, file.node, &range(handle, 1 << 40, 4096)), Ok(Vec::new()));
    kernel.release(file.node, handle);
    assert_eq!(kernel.ask(READ, file.node, &range(handle, 0, 4096)), Err(libc::EBADF));
}

#[test]
fn names_attributes_and_listings_agree() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, bytes, _) = made(directory.path());
    let folder = kernel.find("t/c").unwrap();
    assert!(folder.is_directory());
    let file = kernel.find("t/c/m.safetensors").unwrap();
    let attributes = kernel.ask(GETATTR, file.node, &[numbers(&[0, 0]), long(0)].concat()).unwrap();
    assert_eq!((u64_at(&attributes, 16), u64_at(&attributes, 24)), (file.node, bytes.len() as u64));
    assert_eq!(u32_at(&attributes, 76), file.mode);
    assert_eq!(kernel.ask(OPENDIR, folder.node, &numbers(&[0, 0])).unwrap().len(), 16);
    assert_eq!(kernel.ask(OPENDIR, file.node, &numbers(&[0, 0])), Err(libc::ENOTDIR));
    let whole = kernel.list(folder.node, 1 << 16);
    // A listing continues where the one before had no more room.
    assert_eq!(kernel.list(folder.node, 48), whole);
    assert!(
        whole.iter().any(|(name, node, kind)| (&**name, *node, *kind) == ("m.safetensors", file.node, 8))
    );
    let entries = kernel.entries(folder.node);
    assert!(entries.contains(&("m.safetensors".to_owned(), file)), "{entries:?}");
    let names = entries.iter().map(|(name, _)| name);
    assert!(names.eq(whole.iter().map(|(name, ..)| name)), "{entries:?}");
    assert_eq!(kernel.ask(RELEASEDIR, folder.node, &[0; 24]), Ok(Vec::new()));
    assert_eq!(kernel.ask(FSYNCDIR, folder.node, &[0; 16]), Ok(Vec::new()));
    assert_eq!(kernel.find("t/c/absent"), Err(libc::ENOENT));
    assert_eq!(kernel.ask(STATFS, ROOT, &[]).unwrap().len(), 80);
}

#[test]
fn attributes_of_tierfs_are_read_and_set() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, ..) = made(directory.path());
    let tensor = kernel.find("t/c/.tensors/layer.weight").unwrap().node;
    let of = |size: u32, text: &str| [numbers(&[size, 0]), name(text)].concat();
    let tier = || kernel.ask(GETXATTR, tensor, &of(100, "user.tierfs.tier")).unwrap();
    assert_eq!(String::from_utf8(tier()).unwrap(), "exact");
    assert_eq!(u32_at(&kernel.ask(GETXATTR, tensor, &of(0, "user.tierfs.tier")).unwrap(), 0), 5);
    assert_eq!(kernel.ask(GETXATTR, tensor, &of(4, "user.tierfs.tier")), Err(libc::ERANGE));
    assert_eq!(kernel.ask(GETXATTR, tensor, &of(100, "user.tierfs.other")), Err(libc::ENODATA));
    let set = [numbers(&[7, 0]), name("user.tierfs.cache"), b"decoded".to_vec()].concat();
    assert_eq!(kernel.ask(SETXATTR, tensor, &set), Ok(Vec::new()));
    let cache = kernel.ask(GETXATTR, tensor, &of(100, "user.tierfs.cache")).unwrap();
    assert_eq!(String::from_utf8(cache).unwrap(), "decoded");
    let listed = kernel.ask(LISTXATTR, tensor, &numbers(&[1 << 16, 0])).unwrap();
    assert_eq!(listed, b"user.tierfs.dtype\0user.tierfs.shape\0");
    assert_eq!(kernel.ask(REMOVEXATTR, tensor, &name("user.tierfs.tier")), Err(libc::EPERM));
}

#[test]
fn a_new_file_is_written_synced_renamed_cut_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, ..) = made(directory.path());
    let folder = kernel.find("t/c").unwrap().node;
    let flags = (libc::O_RDWR | libc::O_CREAT).cast_unsigned();
    let body = [numbers(&[flags, libc::S_IFREG | 0o640, 0o022, 0]), name("new.bin")].concat();
    let created = kernel.ask(CREATE, folder, &body).unwrap();
    assert_eq!((created.len(), u32_at(&created, 100)), (144, libc::S_IFREG | 0o640));
    let (node, handle) = (u64_at(&created, 0), u64_at(&created, 128));
    let written: Vec<u8> = (0..300_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    for (place, part) in written.chunks(100_000).enumerate() {
        let count = kernel.ask(WRITE, node, &data(handle, 100_000 * place as u64, part)).unwrap();
        assert_eq!(u32_at(&count, 0), part.len() as u32);
    }
    assert_eq!(kernel.ask(FLUSH, node, &[long(handle), long(0), long(0)].concat()), Ok(Vec::new()));
    assert_eq!(kernel.ask(FSYNC, node, &[long(handle), long(0)].concat()), Ok(Vec::new()));
    kernel.release(node, handle);
    assert!(kernel.read(node, 1 << 20) == written);
    let both = [long(folder), name("new.bin"), name("renamed.bin")].concat();
    assert_eq!(kernel.ask(RENAME, folder, &both), Ok(Vec::new()));
    assert_eq!(kernel.find("t/c/new.bin"), Err(libc::ENOENT));
    let found = kernel.find("t/c/renamed.bin").unwrap();
    assert_eq!((found.node, found.bytes), (node, 300_000));
    // Without replacing, and in exchange with a file of another suffix.
    let flagged = |flags: u32| {
        [long(folder), numbers(&[flags, 0]), name("renamed.bin"), name("m.safetensors")].concat()
    };
    assert_eq!(kernel.ask(RENAME2, folder, &flagged(1)), Err(libc::EEXIST));
    assert_eq!(kernel.ask(RENAME2, folder, &flagged(2)), Err(libc::EINVAL));
    // FATTR_SIZE.
    let cut = [numbers(&[1 << 3, 0]), long(0), long(1000), vec![0; 64]].concat();
    let attributes = kernel.ask(SETATTR, node, &cut).unwrap();
    assert_eq!(u64_at(&attributes, 24), 1000);
    assert!(kernel.read(node, 4096) == written[..1000]);
    let linked = kernel.entry(LINK, folder, &[long(node), name("also.bin")].concat()).unwrap();
    assert_eq!(linked.node, node);
    for gone in ["renamed.bin", "also.bin"] {
        assert_eq!(kernel.ask(UNLINK, folder, &name(gone)), Ok(Vec::new()));
    }
    assert_eq!(kernel.find("t/c/also.bin"), Err(libc::ENOENT));
}

#[test]
fn directories_and_links_are_made_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, ..) = made(directory.path());
    let folder = kernel.find("t/c").unwrap().node;
    let made = kernel.entry(MKDIR, folder, &[numbers(&[0o755, 0o022]), name("d")].concat()).unwrap();
    assert!(made.is_directory());
    let link = kernel.entry(SYMLINK, made.node, &[name("link"), name("../m.safetensors")].concat()).unwrap();
    assert_eq!(kernel.ask(READLINK, link.node, &[]).unwrap(), b"../m.safetensors");
    let node = |mode: u32| [numbers(&[mode, 0, 0, 0]), name("n")].concat();
    assert_eq!(kernel.ask(MKNOD, made.node, &node(libc::S_IFIFO | 0o644)), Err(libc::EPERM));
    assert!(kernel.entry(MKNOD, made.node, &node(libc::S_IFREG | 0o644)).is_ok());
    assert_eq!(kernel.ask(RMDIR, folder, &name("d")), Err(libc::ENOTEMPTY));
    for gone in ["link", "n"] {
        assert_eq!(kernel.ask(UNLINK, made.node, &name(gone)), Ok(Vec::new()));
    }
    assert_eq!(kernel.ask(RMDIR, folder, &name("d")), Ok(Vec::new()));
}

#[test]
fn control_files_are_read_and_polled() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, ..) = made(directory.path());
    let status = kernel.find(".ctl/status").unwrap().node;
    let text = String::from_utf8(kernel.read(status, 4096)).unwrap();
    assert!(!text.is_empty());
    let jobs = kernel.find(".ctl/jobs").unwrap().node;
    let handle = kernel.open(jobs, libc::O_RDONLY).unwrap();
    let readable = u32::from(libc::POLLIN.cast_unsigned());
    let poll = [long(handle), long(5), numbers(&[1, readable])].concat();
    // Nothing has happened since it was opened.
    assert_eq!(u32_at(&kernel.ask(POLL, jobs, &poll).unwrap(), 0), 0);
    kernel.release(jobs, handle);
    assert_eq!(u32_at(&kernel.ask(POLL, jobs, &poll).unwrap(), 0), readable);
}

#[test]
fn both_kinds_of_requests_copy_a_range() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, bytes, _) = made(directory.path());
    let node = kernel.find("t/c/m.safetensors").unwrap().node;
    let from = kernel.open(node, libc::O_RDONLY).unwrap();
    for (opcode, called) in [(COPY_FILE_RANGE, "narrow"), (COPY_FILE_RANGE_64, "wide")] {
        let parent = kernel.find("t/c").unwrap().node;
        let flags = numbers(&[libc::O_RDWR.cast_unsigned(), libc::S_IFREG | 0o644, 0, 0]);
        let created = kernel.ask(CREATE, parent, &[flags, name(called)].concat()).unwrap();
        let (to, handle) = (u64_at(&created, 0), u64_at(&created, 128));
        let range = |at: u64| [from, at, to, handle, at, u64::MAX, 0].map(long).concat();
        let copied = |at| {
            let copied = kernel.ask(opcode, node, &range(at)).unwrap();
            if opcode == COPY_FILE_RANGE { u64::from(u32_at(&copied, 0)) } else { u64_at(&copied, 0) }
        };
        let mut done = 0;
        while done < bytes.len() as u64 {
            let more = copied(done);
            assert!(more > 0);
            done += more;
        }
        assert_eq!((done, copied(done)), (bytes.len() as u64, 0));
        kernel.release(to, handle);
        assert!(kernel.read(to, 1 << 20) == bytes, "{called}");
        assert_eq!(
            kernel.ask(LSEEK, to, &[long(handle), long(0), numbers(&[9, 0])].concat()),
            Err(libc::EINVAL)
        );
    }
}

#[test]
fn requests_without_a_reply_get_none_and_unknown_ones_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (kernel, bytes, _) = made(directory.path());
    let node = kernel.find("t/c/m.safetensors").unwrap().node;
    let forget = [numbers(&[1, 0]), long(node), long(1)].concat();
    for (opcode, body) in [(2, long(1)), (36, long(77)), (42, forget)] {
        assert_eq!(kernel.replies(opcode, node, &body).len(), 0, "{opcode}");
    }
    let file = kernel.find("t/c/m.safetensors").unwrap().node;
    assert!(kernel.read(file, 1 << 20) == bytes);
    for unknown in [0, 7, 26, 34, 39, 48, 49, 52, 4096, u32::MAX] {
        assert_eq!(kernel.ask(unknown, node, &[0; 64]), Err(libc::ENOSYS), "{unknown}");
    }
    assert_eq!(kernel.ask(LOOKUP, ROOT, b"without an end"), Err(libc::EINVAL));
    assert_eq!(kernel.ask(WRITE, node, &range(0, 0, 10)), Err(libc::EINVAL));
    let handle = kernel.open(file, libc::O_RDONLY).unwrap();
    assert_eq!(kernel.ask(READ, file, &range(handle, 0, u32::MAX)), Err(libc::EINVAL));
    assert!(kernel.send(b"short").is_empty());
    assert!(kernel.send(&[]).is_empty());
}
