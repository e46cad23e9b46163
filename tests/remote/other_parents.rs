//! Pushes and clones of differences whose parents have other bytes at the other place, under equal names, objects and
//! epochs.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use support::{Answer, Mounted, Place, Random, answer, assert_same, container_of, tierfs};

const NAME: &str = "m.safetensors";

/// Stores and a remote.
struct Stand {
    place: Place,
    url: String,
}

impl Stand {
    fn new() -> Stand {
        let place = Place::new();
        fs::create_dir(place.path("bucket")).unwrap();
        let url = format!("file://{}", place.path("bucket").display());
        Stand { place, url }
    }

    /// A store with a base of these bytes.
    fn store(&self, name: &str, base: &[u8]) -> PathBuf {
        let store = self.place.path(name);
        answer(tierfs().arg("init").arg(&store)).ok();
        self.import(&store, "l/base", base, &[]).ok();
        store
    }

    fn import(&self, store: &Path, collection: &str, bytes: &[u8], options: &[&str]) -> Answer {
        let source = self.place.write(&format!("in/{NAME}"), bytes);
        answer(tierfs().arg("import").arg(store).arg(collection).arg(source).arg("--checksum").args(options))
    }

    fn child(&self, store: &Path, bytes: &[u8]) {
        self.import(store, "l/child", bytes, &["--parent", "l/base", "--reconstruct", "delta"]).ok();
    }

    fn push(&self, store: &Path, collection: &str, options: &[&str]) -> Answer {
        answer(tierfs().arg("push").arg(store).args([collection, &self.url]).args(options))
    }

    fn clone(&self, collection: &str, store: &Path) -> Answer {
        answer(tierfs().arg("clone").args([&self.url, collection]).arg(store))
    }

    fn mount(&self, name: &str) -> Mounted {
        let options = ["--cache", "none"];
        self.place.mount_store_by(&mut tierfs(), PathBuf::from(&self.url), name, &options)
    }

    fn mount_store(&self, store: &Path) -> Mounted {
        self.place.mount_store_by(&mut tierfs(), store.to_owned(), "of-store", &[])
    }
}

fn bytes(seed: u64) -> Vec<u8> {
    container_of(&mut Random(seed), &[("w", 90_000)])
}

fn changed(base: &[u8]) -> Vec<u8> {
    let mut child = base.to_vec();
    let begin = child.len() - 4 * 90_000;
    child[begin..].iter_mut().step_by(7000).for_each(|byte| *byte ^= 1);
    child
}

fn read(mounted: &Mounted) -> std::io::Result<Vec<u8>> {
    fs::read(mounted.path("l/child").join(NAME))
}

#[track_caller]
fn assert_unread(mounted: &Mounted) {
    let error = read(mounted).expect_err("bytes of another parent");
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
}

#[test]
fn a_child_is_not_pushed_onto_the_parent_of_another_store() {
    let stand = Stand::new();
    let one = stand.store("one", &bytes(1));
    stand.push(&one, "l/base", &["--create"]).ok();
    let base = bytes(2);
    let other = stand.store("other", &base);
    stand.child(&other, &changed(&base));
    stand.push(&other, "l/child", &[]).failed(1, &["another l/base", "--force"]);
    stand.push(&other, "l/child", &["--force"]).failed(1, &["another l/base"]);
    stand.push(&other, "l/base", &["--force"]).ok();
    stand.push(&other, "l/child", &[]).ok();
    let mounted = stand.mount("remote");
    assert_same(&read(&mounted).unwrap(), &changed(&base), "the child");
}

#[test]
fn a_child_is_not_cloned_beside_the_parent_of_another_store() {
    let stand = Stand::new();
    let base = bytes(3);
    let one = stand.store("one", &base);
    stand.child(&one, &changed(&base));
    stand.push(&one, "l/base", &["--create"]).ok();
    stand.push(&one, "l/child", &[]).ok();
    let other = stand.store("other", &bytes(4));
    stand.clone("l/child", &other).failed(1, &["l/base of this store has other blocks"]);
    // Beside its own parent it is cloned, also after that was pushed again from another place, and pulled.
    let third = stand.place.path("third");
    answer(tierfs().arg("init").arg(&third)).ok();
    stand.clone("l/child", &third).failed(1, &["must be cloned first"]);
    stand.clone("l/base", &third).ok();
    stand.clone("l/child", &third).ok();
    let mounted = stand.mount_store(&third);
    assert_same(&read(&mounted).unwrap(), &changed(&base), "the clone");
    mounted.unmount();
    // A pull follows the child, as long as it is one of the same parent.
    let next = changed(&changed(&base)[..base.len() - 1]);
    let next = [&next[..], &base[base.len() - 1..]].concat();
    stand.child(&one, &next);
    stand.push(&one, "l/child", &[]).ok();
    let pull = || answer(tierfs().arg("pull").arg(&third).arg("l/child"));
    pull().ok();
    let mounted = stand.mount_store(&third);
    assert_same(&read(&mounted).unwrap(), &next, "after the pull");
    mounted.unmount();
    stand.child(&other, &changed(&bytes(4)));
    stand.push(&other, "l/base", &["--force"]).ok();
    stand.push(&other, "l/child", &["--force"]).ok();
    pull().failed(1, &["l/base of this store has other blocks"]);
    let mounted = stand.mount_store(&third);
    assert_same(&read(&mounted).unwrap(), &next, "after the refused pull");
}

#[test]
fn a_forced_parent_makes_its_published_child_an_error_and_no_other_bytes() {
    let stand = Stand::new();
    let base = bytes(5);
    let one = stand.store("one", &base);
    stand.child(&one, &changed(&base));
    stand.push(&one, "l/base", &["--create"]).ok();
    stand.push(&one, "l/child", &[]).ok();
    let other = stand.store("other", &bytes(6));
    stand.push(&other, "l/base", &["--force"]).ok();
    let mounted = stand.mount("remote");
    assert_unread(&mounted);
    mounted.unmount();
    let store = stand.place.path("clones");
    answer(tierfs().arg("init").arg(&store)).ok();
    stand.clone("l/base", &store).ok();
    stand.clone("l/child", &store).failed(1, &["l/base of this store has other blocks"]);
    // The snapshot of the base that the child needs is still there.
    let store = stand.place.path("earlier");
    answer(tierfs().arg("init").arg(&store)).ok();
    answer(tierfs().arg("clone").args([&stand.url, "l/base"]).arg(&store).args(["--at", "1"])).ok();
    stand.clone("l/child", &store).ok();
    let mounted = stand.mount_store(&store);
    assert_same(&read(&mounted).unwrap(), &changed(&base), "a clone of both");
}

#[test]
fn a_parent_without_the_blocks_of_its_published_child_is_pushed_by_force_only() {
    let stand = Stand::new();
    let base = bytes(7);
    let one = stand.store("one", &base);
    stand.child(&one, &changed(&base));
    stand.push(&one, "l/base", &["--create"]).ok();
    stand.push(&one, "l/child", &[]).ok();
    // What leaves the parent as it is, is pushed.
    let notes = stand.place.write("in/notes.txt", b"new");
    answer(tierfs().arg("import").arg(&one).arg("l/base").arg(notes)).ok();
    stand.push(&one, "l/base", &[]).ok();
    let mounted = stand.mount_store(&one);
    answer(tierfs().args(["tier", "exact"]).arg(mounted.path("l/child"))).ok();
    mounted.unmount();
    stand.import(&one, "l/base", &bytes(8), &[]).ok();
    stand.push(&one, "l/base", &[]).failed(1, &["l/child", "--force"]);
    let mounted = stand.mount("remote");
    assert_same(&read(&mounted).unwrap(), &changed(&base), "after the refused push");
    mounted.unmount();
    // The child is exact now, and needs no parent once it is pushed.
    stand.push(&one, "l/child", &[]).ok();
    stand.push(&one, "l/base", &[]).ok();
    let mounted = stand.mount("again");
    assert_same(&read(&mounted).unwrap(), &changed(&base), "after both pushes");
}
