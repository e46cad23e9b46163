//! Pushes over snapshots of others, and the variants that a push keeps.

use std::fs;
use std::path::Path;

use support::{Answer, Place, Random, answer, container_of, tierfs};

/// A store of its own below a directory, with one collection.
fn store(place: &Place, name: &str, seed: u64) -> std::path::PathBuf {
    let source =
        place.write(&format!("in/{name}/m.safetensors"), container_of(&mut Random(seed), &[("w", 40_000)]));
    let store = place.path(name);
    answer(tierfs().arg("init").arg(&store)).ok();
    answer(tierfs().arg("import").arg(&store).arg("acme/m").arg(source)).ok();
    store
}

fn push(store: &Path, url: &str, options: &[&str]) -> Answer {
    answer(tierfs().arg("push").arg(store).args(["acme/m", url]).args(options))
}

fn remote(place: &Place) -> String {
    fs::create_dir(place.path("bucket")).unwrap();
    format!("file://{}", place.path("bucket").display())
}

#[test]
fn a_push_over_the_snapshot_of_another_store_is_refused_until_it_is_forced() {
    let place = Place::new();
    let url = remote(&place);
    let [one, other] = [("one", 1), ("other", 2)].map(|(name, seed)| store(&place, name, seed));
    push(&one, &url, &["--create"]).ok();
    let refused =
        push(&other, &url, &[]).failed(1, &["snapshot 1 of acme/m", "--force", "acme/m=acme/OTHER"]);
    assert!(refused.contains("which this collection has not pushed"), "{refused}");
    // Under another name nothing is lost.
    answer(tierfs().arg("push").arg(&other).args(["acme/m=acme/n", &url])).ok();
    // A change of its own goes on, from any copy of the store.
    answer(tierfs().arg("import").arg(&one).arg("acme/m").arg(place.write("in/notes.txt", b"new"))).ok();
    let copy = place.path("copy");
    assert!(std::process::Command::new("cp").arg("-r").args([&one, &copy]).status().unwrap().success());
    push(&copy, &url, &[]).ok();
    // The first store does not know of the push of its copy, but has the same state.
    assert!(push(&one, &url, &[]).ok().contains("snapshot 2"));
    answer(tierfs().arg("import").arg(&one).arg("acme/m").arg(place.write("in/more.txt", b"more"))).ok();
    push(&one, &url, &[]).ok();
    answer(tierfs().arg("import").arg(&copy).arg("acme/m").arg(place.write("in/other.txt", b"other"))).ok();
    push(&copy, &url, &[]).failed(1, &["snapshot 3 of acme/m"]);
    push(&other, &url, &["--force"]).ok();
    push(&one, &url, &[]).failed(1, &["snapshot 4 of acme/m"]);
    push(&other, &url, &[]).ok();
}

#[test]
fn a_push_to_one_place_is_remembered_beside_pushes_to_many_others() {
    let place = Place::new();
    let url = remote(&place);
    let one = store(&place, "one", 5);
    let lines = |at: usize| format!("{:032x} {:032x} acme/{}\n", at, at, "n".repeat(200));
    let others: String = (0..4500).map(lines).collect();
    assert!(others.len() > 1 << 20);
    fs::write(one.join("acme/m/pushed"), others).unwrap();
    push(&one, &url, &["--create"]).ok();
    answer(tierfs().arg("import").arg(&one).arg("acme/m").arg(place.write("in/notes.txt", b"new"))).ok();
    assert!(push(&one, &url, &[]).ok().contains("snapshot 2"));
    assert!(fs::metadata(one.join("acme/m/pushed")).unwrap().len() <= 1 << 20);
}

#[test]
fn a_clone_is_pushed_over_the_snapshot_of_another_store_only_by_force() {
    let place = Place::new();
    let url = remote(&place);
    let one = store(&place, "one", 3);
    push(&one, &url, &["--create"]).ok();
    let other = place.path("other");
    answer(tierfs().arg("init").arg(&other)).ok();
    answer(tierfs().args(["clone", &url]).arg("acme/m").arg(&other)).ok();
    answer(tierfs().arg("import").arg(&one).arg("acme/m").arg(place.write("in/notes.txt", b"new"))).ok();
    push(&one, &url, &[]).ok();
    answer(tierfs().arg("import").arg(&other).arg("acme/m").arg(place.write("in/more.txt", b"more"))).ok();
    push(&other, &url, &[]).failed(1, &["clone of snapshot 1", "tierfs pull", "--force"]);
    push(&other, &url, &["--force"]).ok();
    push(&one, &url, &[]).failed(1, &["snapshot 3 of acme/m"]);
}

#[test]
fn a_push_keeps_the_variants_of_the_newest_snapshot_until_none_are_asked_for() {
    let place = Place::new();
    let url = remote(&place);
    let one = store(&place, "one", 4);
    let variants = || {
        let listed = answer(tierfs().args(["log", &url, "acme/m", "--json"])).ok();
        let rows: serde_json::Value = serde_json::from_str(&listed).unwrap();
        rows.as_array().unwrap().iter().map(|row| row["variants"].to_string()).collect::<Vec<_>>()
    };
    push(&one, &url, &["--create", "--variants", "q8,q5:all"]).ok();
    let first = variants();
    assert!(first.len() == 1 && first[0].contains("q5:all"), "{first:?}");
    // An unchanged state makes no snapshot.
    assert!(push(&one, &url, &[]).ok().contains("snapshot 1"));
    answer(tierfs().arg("import").arg(&one).arg("acme/m").arg(place.write("in/notes.txt", b"new"))).ok();
    push(&one, &url, &[]).ok();
    let seen = variants();
    assert!(seen.len() == 2 && seen[0] == seen[1], "{seen:?}");
    push(&one, &url, &["--variants", "none"]).ok();
    push(&one, &url, &["--variants", "q8,none"]).failed(1, &["none"]);
    let seen = variants();
    assert!(seen.len() == 3 && seen.iter().any(|row| !row.contains("q8")), "{seen:?}");
}
