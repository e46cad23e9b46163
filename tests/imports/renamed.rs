//! A renamed file that cannot be recognized again: writes that were recorded before the failure.

use std::io;
use std::sync::Arc;

use tierfs::control::controls;
use tierfs::ingest::Options;
use tierfs::model::Owner;
use tierfs::store::disk::Disk;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::{Access, Store, Verify};
use tierfs::vfs::{ChildName, Ino, ListMode, Located, Vfs};

use crate::failing_disk::{FailingDisk, Failure};
use crate::fixture::{Numbers, STORE, f32s, import, safetensors_file};

fn store_with_a_container() -> MemoryDisk {
    let memory = MemoryDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(memory.clone());
    Store::create(&*disk, STORE).unwrap();
    let store = Store::open(disk, Access::Write, "").unwrap();
    store.create_tenant("t", Owner { uid: 0, gid: 0 }, 0o755).unwrap();
    let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
    let bytes = safetensors_file(&[f32s("w", &[6000], &mut Numbers(3))]);
    import(&collection, "m.safetensors", &bytes, &Options::default()).unwrap();
    collection.sync().unwrap();
    memory
}

fn vfs_on(disk: &FailingDisk) -> Vfs {
    let store = Arc::new(Store::open(Arc::new(disk.clone()), Access::Write, "").unwrap());
    Vfs::new(store, ListMode::Files, Verify::First, Owner { uid: 0, gid: 0 }, controls())
}

/// Renames a container with unflushed writes so that it becomes a plain file, on a disk whose call number `at`
/// fails. Returns whether that was reached, and whether the rename failed after the writes were recorded.
fn rename_fails_at(at: u64) -> (bool, bool) {
    let failing = FailingDisk::new(&store_with_a_container(), at, Failure::Once(io::ErrorKind::Other));
    let vfs = vfs_on(&failing);
    let mut directory = Ino::ROOT;
    for name in ["t", "c"] {
        directory = vfs.lookup(directory, name.as_bytes()).unwrap().0;
    }
    let (_, Located::Node(view)) = vfs.lookup(directory, b"m.safetensors").unwrap() else {
        panic!("no file")
    };
    let (tensors, _) = vfs.lookup(directory, b".tensors").unwrap();
    let (tensor, _) = vfs.lookup(tensors, b"w").unwrap();
    let open_file = vfs.open(&view).unwrap();
    if vfs.write(&open_file, 1000, &[1; 9000]).is_err() {
        return (true, false);
    }
    let renamed = vfs.rename(
        ChildName { parent: directory, name: b"m.safetensors" },
        ChildName { parent: directory, name: b"m.txt" },
        false,
    );
    let is_hit = renamed.is_err() && !open_file.is_changed();
    if is_hit {
        let pending = vfs.take_pending_invalidations();
        assert!(pending.nodes.contains(&tensor), "call {at}: the kernel keeps old pages of the tensor");
    }
    (failing.has_failed(), is_hit)
}

#[test]
fn the_kernel_is_told_of_writes_that_were_recorded_before_a_rename_failed() {
    let mut hits = 0;
    for at in 0.. {
        let (has_failed, is_hit) = rename_fails_at(at);
        hits += u32::from(is_hit);
        if !has_failed {
            break;
        }
    }
    assert!(hits > 0, "no rename failed after the writes were recorded");
}
