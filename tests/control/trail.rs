//! The trail of a store: `tierfs events`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde_json::Value;

use support::{Answer, Place, Random, get, npy_file, refused_set, run, set, wait_until};

use rustix::io::Errno;

fn events(place: &Place, options: &[&str]) -> Answer {
    let store = place.store();
    let words =
        ["events".as_ref(), store.as_os_str()].into_iter().chain(options.iter().map(|word| word.as_ref()));
    run(words)
}

fn lines(place: &Place, options: &[&str]) -> Vec<Value> {
    events(place, options).ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn newest(place: &Place) -> PathBuf {
    let entries = fs::read_dir(place.store().join(".tierfs.audit")).unwrap();
    entries.map(|entry| entry.unwrap().path()).max().unwrap()
}

#[test]
fn imports_moves_discards_settings_and_removals_are_told_over_mounts_and_kills() {
    let place = Place::new();
    let mut random = Random(81);
    let files = ["one.npy", "two.npy"].map(|name| place.write(name, npy_file(&random.floats(5000))));
    place.import("t/c", &[&files[0]], &[]);
    place.import("t/d", &[&files[1]], &["--tier", "q8:all"]);
    // Nothing new.
    place.import("t/c", &[&files[0]], &[]);
    let mounted = place.mount(&[]);
    let one = mounted.path("t/c/one");
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    set(&one, "tier", "q5:all").unwrap();
    refused_set(&one, "tier", "q9", Errno::INVAL);
    assert_eq!(get(&one, "tier"), "q5");
    wait_until("the move is told", || lines(&place, &[]).iter().any(|line| line["kind"] == "migration"));
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    set(&mounted.path("t/c/one"), "evict", "discard").unwrap();
    fs::write(mounted.path("t/.ctl/remove"), "d").unwrap();
    fs::create_dir(mounted.path("t/empty")).unwrap();
    fs::remove_dir(mounted.path("t/empty")).unwrap();
    set(&mounted.path("t/c/one"), "plan", "q3").unwrap_err();
    set(&mounted.path("t/c"), "tags", &"x".repeat(120)).unwrap();
    mounted.unmount();
    let told = lines(&place, &[]);
    let of_kind = |kind: &str| -> Vec<&Value> { told.iter().filter(|line| line["kind"] == kind).collect() };
    let imports: Vec<&str> = of_kind("import").iter().map(|line| line["path"].as_str().unwrap()).collect();
    assert_eq!(imports, ["t/c", "t/d"]);
    assert!(of_kind("import")[0]["text"].as_str().unwrap().contains("1 file with 1 tensor"));
    let user = rustix::process::getuid().as_raw();
    assert!(told.iter().all(|line| line["user"] == user), "{told:?}");
    let moves = of_kind("migration");
    assert!(
        moves[0]["text"].as_str().unwrap().contains("1 of 1 tensor now q5") && moves[0]["path"] == "t/c/one"
    );
    let removed: Vec<&str> = of_kind("removal").iter().map(|line| line["path"].as_str().unwrap()).collect();
    assert_eq!(removed, ["t/d", "t/empty"]);
    assert!(of_kind("refusal").is_empty());
    assert!(
        of_kind("control").iter().any(|line| line["text"] == "allow" && line["cause"] == "lossy, user 0")
    );
    assert!(events(&place, &["--verify"]).ok().starts_with("ok: each of "));
    let mounted = place.mount(&[]);
    for path in ["", "t/d", "t/c/one", "none"] {
        let shown = run(["events".into(), mounted.mountpoint.join(path)]).ok();
        let wanted = events(&place, &[path]).ok();
        assert!(shown == wanted && shown.is_empty() == (path == "none"), "{path}: {shown}");
    }
    mounted.unmount();
    assert_eq!(lines(&place, &["t/d"]).len(), 2);
    assert_eq!(lines(&place, &["/t/"]).len(), told.len());
    assert_eq!(
        (lines(&place, &["--since", "1h"]).len(), lines(&place, &["--since", "4000000000"]).len()),
        (told.len(), 0)
    );
    // One changed byte of a line in the middle.
    let file = fs::File::options().write(true).open(newest(&place)).unwrap();
    let text = fs::read_to_string(newest(&place)).unwrap();
    let at = text.lines().take(2).map(|line| line.len() as u64 + 1).sum::<u64>();
    file.write_all_at(b"[", at).unwrap();
    let broken = events(&place, &["--verify"]);
    assert!(broken.code == Some(3) && broken.out.contains("line 3 of "), "{broken:?}");
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn a_store_without_an_audit_has_no_trail_and_a_torn_line_is_cut_off() {
    let place = Place::new();
    let file = place.write("w.npy", npy_file(&Random(82).floats(500)));
    place.import("t/c", &[&file], &[]);
    let begun = fs::read(newest(&place)).unwrap();
    fs::write(newest(&place), [&begun[..], b"{\"torn\":"].concat()).unwrap();
    fs::write(&file, npy_file(&Random(83).floats(500))).unwrap();
    place.import("t/c", &[&file], &["--checksum"]);
    assert_eq!(lines(&place, &[]).len(), 2);
    assert!(events(&place, &["--verify"]).ok().contains("each of 2 lines"));
    let settings = place.store().join("tierfs.toml");
    let text = fs::read_to_string(&settings).unwrap();
    assert!(text.contains("audit = \"on\""));
    fs::write(&settings, text.replace("audit = \"on\"", "audit = \"off\"")).unwrap();
    place.import("t/d", &[&file], &[]);
    assert_eq!(lines(&place, &[]).len(), 2);
    fs::remove_dir_all(place.store().join(".tierfs.audit")).unwrap();
    events(&place, &[]).failed(1, &["no trail", "audit", ".ctl/events"]);
    run(["events".into(), place.path("")]).failed(1, &["is not a tierfs store"]);
}
