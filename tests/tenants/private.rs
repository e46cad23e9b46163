//! No control file or form shows names that a user cannot list.

use std::fs;
use std::os::unix::fs::chown;

use support::{Mounted, Place, Random, as_user, npy_file, set_mode};

const ALICE: u32 = 65_534;
const BOB: u32 = 65_533;

/// The output of a line in the mount for a user; empty if it is denied.
fn seen_by(mounted: &Mounted, user: u32, line: &str) -> String {
    let answer = as_user(user, user, &mounted.mountpoint, line);
    assert!(answer.code == Some(0) || answer.err.contains("Permission denied"), "{line}: {answer:?}");
    answer.out
}

#[test]
fn a_user_who_may_not_list_a_directory_finds_its_names_nowhere() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    let folder = mounted.path("a/c");
    fs::create_dir_all(folder.join("sub")).unwrap();
    for name in ["hidden1.npy", "sub/hidden2.npy"] {
        fs::write(folder.join(name), npy_file(&Random(4).floats(64))).unwrap();
    }
    for name in ["", "hidden1.npy", ".tensors/hidden1", "sub", "sub/hidden2.npy", "sub/.tensors/hidden2"] {
        chown(folder.join(name), Some(ALICE), Some(ALICE)).unwrap();
    }
    let trees =
        [".ctl/blocks", ".ctl/verify", ".ctl/extents", ".as/npy", ".as/f16", ".as/q8", ".as/safetensors"];
    let wholes = [".as/safetensors/_all.safetensors", ".as/sha256/SHA256SUMS", ".ctl/status", ".ctl/tiers"];
    let lines = |below: &str| -> Vec<String> {
        let listed = trees.iter().map(|tree| format!("ls a/c/{tree}{below}"));
        let listed = listed.chain([".ctl", ".as", "."].map(|folder| format!("ls a/c/{folder}")));
        listed.chain(wholes.iter().map(|whole| format!("cat a/c/{whole}"))).collect()
    };
    let check = |mounted: &Mounted, below: &str, hidden: &str| {
        for line in lines(below) {
            let text = seen_by(mounted, BOB, &line);
            assert!(!text.contains(hidden), "{line}: {text:?}");
        }
        assert!(seen_by(mounted, BOB, &format!("ls a/c{below}")).is_empty());
        // A user who knows a name can read the file in every way.
        for line in
            [format!("cat a/c{below}/.tensors/{hidden}"), format!("cat a/c/.as/npy{below}/{hidden}.npy")]
        {
            assert!(!seen_by(mounted, BOB, &line).is_empty(), "{line}");
        }
        let line = format!("cat a/c/.ctl/verify{below}/{hidden}");
        assert_eq!(seen_by(mounted, BOB, &line), "ok\n", "{line}");
        let line = format!("ls a/c/.ctl/blocks{below} a/c/.as/npy{below} && cat a/c/.as/sha256/SHA256SUMS");
        assert!(seen_by(mounted, ALICE, &line).contains(hidden), "its owner lists it");
    };
    set_mode(&folder.join("sub"), 0o711);
    check(&mounted, "/sub", "hidden2");
    set_mode(&folder.join("sub"), 0o755);
    set_mode(&folder, 0o711);
    // The kernel may keep attributes for some seconds.
    mounted.unmount();
    let mounted = place.mount(&["--allow-other"]);
    check(&mounted, "", "hidden1");
    set_mode(&mounted.path("a/c"), 0o755);
    mounted.unmount();
    let mounted = place.mount(&["--allow-other", "--read-only"]);
    for line in ["ls a/c/.ctl/blocks", "ls a/c/.ctl/verify", "cat a/c/.as/sha256/SHA256SUMS"] {
        assert!(seen_by(&mounted, BOB, line).contains("hidden1"), "{line}");
    }
}

#[test]
fn damage_is_detailed_to_users_who_may_list_the_collection_and_counted_for_others() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    for name in ["alice/secret1", "alice/secret2", "alice/shown", "bob/own"] {
        fs::create_dir_all(mounted.path(name)).unwrap();
        for file in ["f1", "f2", "f3"] {
            fs::write(mounted.path(name).join(file), [1; 100]).unwrap();
        }
        let owner = if name.starts_with("alice") { ALICE } else { BOB };
        chown(mounted.path(name), Some(owner), Some(owner)).unwrap();
        chown(mounted.path(name).parent().unwrap(), Some(owner), Some(owner)).unwrap();
    }
    set_mode(&mounted.path("alice"), 0o711);
    set_mode(&mounted.path("alice/secret1"), 0o700);
    mounted.unmount();
    // One collection opens and takes no writes, the other does not open at all.
    let damage = |name: &str, from: usize| {
        let log = place.store().join(name).join("meta.log");
        let mut bytes = fs::read(&log).unwrap();
        bytes[from..from + 44].iter_mut().for_each(|byte| *byte ^= 0xff);
        fs::write(&log, &bytes).unwrap();
    };
    damage("alice/secret1", 256);
    damage("alice/secret2", 0);
    damage("bob/own", 256);
    let mounted = place.mount(&["--allow-other"]);
    // Root sees all of it.
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(["secret1", "secret2", "bob/own"].iter().all(|name| status.contains(name)), "{status}");
    let hidden = status.lines().filter(|line| line.starts_with('!') && line.contains("secret")).count();
    let all = status.lines().filter(|line| line.starts_with('!')).count();
    let texts = [".ctl/status", ".ctl/stats.json", ".ctl/metrics"];
    for text in texts {
        let seen = seen_by(&mounted, BOB, &format!("cat {text}"));
        assert!(!seen.is_empty() && !seen.contains("secret"), "{text}: {seen}");
    }
    let status = seen_by(&mounted, BOB, "cat .ctl/status");
    assert!(status.contains("bob/own") && status.contains(&format!("! {hidden} more problems")), "{status}");
    let stats: serde_json::Value =
        serde_json::from_str(&seen_by(&mounted, BOB, "cat .ctl/stats.json")).unwrap();
    assert_eq!(stats["problems"].as_array().unwrap().len(), all - hidden + 1, "{stats}");
    let metrics = seen_by(&mounted, BOB, "cat .ctl/metrics");
    let problems = metrics.lines().find(|line| line.starts_with("tierfs_problems{")).unwrap();
    assert!(problems.ends_with(&format!(" {all}.0")), "{problems}");
    for text in ["alice/.ctl/status", "alice/.ctl/quota", "alice/.ctl"] {
        let seen = seen_by(&mounted, BOB, &format!("cat {text} || ls {text}"));
        assert!(!seen.contains("secret"), "{text}: {seen}");
    }
    let status = seen_by(&mounted, ALICE, "cat .ctl/status alice/.ctl/status");
    assert!(
        status.contains("secret1") && status.contains("secret2") && status.contains("bob/own"),
        "{status}"
    );
    // A tenant that everybody may list, with collections that nobody else may list.
    set_mode(&mounted.path("alice"), 0o755);
    let status = seen_by(&mounted, BOB, "cat .ctl/status alice/.ctl/status");
    assert!(!status.contains("secret"), "{status}");
}

#[test]
fn a_report_leaves_out_what_the_user_may_not_read_and_names_it() {
    let place = Place::new();
    set_mode(&place.path(""), 0o755);
    let program = place.path("program");
    fs::copy(support::program(), &program).unwrap();
    let mounted = place.mount(&["--create", "--allow-other"]);
    for name in ["a/c/open.npy", "a/c/sub/below.npy", "a/c/closed.npy", "a/hidden/other.npy"] {
        let path = mounted.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, npy_file(&Random(4).floats(64))).unwrap();
    }
    set_mode(&mounted.path("a/c/closed.npy"), 0o600);
    set_mode(&mounted.path("a/c/sub"), 0o700);
    set_mode(&mounted.path("a/hidden"), 0o700);
    let folder = place.path("pages");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(BOB), Some(BOB)).unwrap();
    let line = format!("{} report {} -o page.html", program.display(), mounted.mountpoint.display());
    let answer = as_user(BOB, BOB, &folder, &line);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let page = || fs::read_to_string(folder.join("page.html")).unwrap().replace("<wbr>", "");
    let shown = page();
    assert!(
        shown.contains("open.npy") && !shown.contains("below.npy") && !shown.contains("other.npy"),
        "{shown}"
    );
    let told = answer.err.lines().find(|line| line.contains("may not read")).unwrap_or_default();
    assert!(told.contains("a/c/closed.npy") || told.contains("a/c/sub"), "{answer:?}");
    let all = as_user(0, 0, &folder, &line);
    assert!(all.code == Some(0) && all.err.is_empty(), "{all:?}");
    assert!(page().contains("other.npy"));
}
