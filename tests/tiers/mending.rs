//! Corrupt stored bytes that other files of the store, or a source that is imported again, have.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use support::{Mounted, Place, Random, get, npy_file, run, try_get, wait_until};

use crate::healing::{block, fields, flip, verified};

const BLOCK: usize = 16_384;

/// A file of some blocks, and one that differs from it in its last one.
fn sources(place: &Place) -> (PathBuf, PathBuf) {
    let mut data = Random(91).floats(6 * BLOCK / 4);
    let base = place.write("in/base/w.npy", npy_file(&data));
    *data.last_mut().unwrap() ^= 1;
    (base, place.write("in/child/w.npy", npy_file(&data)))
}

fn import(mounted: &Mounted, source: &Path, options: &[&str]) -> String {
    let store = mounted.store.to_str().unwrap();
    let arguments = ["import", store, "t/c", source.to_str().unwrap()];
    run(arguments.iter().chain(options)).ok()
}

/// The problems of the mount, in its status and in its metrics.
fn problems(mounted: &Mounted) -> String {
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    let lines: Vec<&str> = status.lines().filter_map(|line| line.strip_prefix("! ")).collect();
    let metrics = fs::read_to_string(mounted.path(".ctl/metrics")).unwrap();
    let counted = metrics.lines().find(|line| line.starts_with("tierfs_problems{")).unwrap();
    let counted: f64 = counted.rsplit_once(' ').unwrap().1.parse().unwrap();
    assert_eq!(counted as usize, lines.len(), "{status}");
    lines.join("\n")
}

#[test]
fn an_equal_block_of_the_parent_heals_and_one_that_differs_by_a_bit_does_not() {
    for tier in [None, Some("q8:all")] {
        let place = Place::new();
        let (base, child) = sources(&place);
        let options: Vec<&str> = tier.map_or(Vec::new(), |tier| vec!["--tier", tier]);
        place.import("t/base", &[&base], &options);
        place.import("t/c", &[&child], &[&options[..], &["--parent", "t/base"][..]].concat());
        let mounted = place.mount(&[]);
        let tensor = mounted.path("t/c/w");
        let wanted: Vec<_> = (0..6).map(|index| block(&tensor, index).unwrap()).collect();
        flip(&mounted, "w", &[2, 5]);
        assert_eq!(verified(&mounted, "w"), "corrupt 2 of 6", "{tier:?}");
        assert!(block(&tensor, 2).unwrap() == wanted[2], "{tier:?}");
        // A q8 block may be the same although a bit of its elements differs.
        let last = block(&tensor, 5);
        assert!(if tier.is_none() {
            last == Err(Errno::IO)
        } else {
            last.is_err() || last.unwrap() == wanted[5]
        });
        let left = if tier.is_none() { "corrupt 1 of 6" } else { "ok" };
        wait_until("it is stored anew", || {
            [left, "corrupt 1 of 6"].contains(&verified(&mounted, "w").as_str())
        });
        if tier.is_none() {
            assert!(get(&tensor, "why").contains("a block is corrupt: "), "{}", get(&tensor, "why"));
        }
    }
}

#[test]
fn a_parent_in_another_exact_layout_heals_what_its_elements_give() {
    for (parent, child) in [(&["--pack"][..], &[][..]), (&[], &["--pack"]), (&[], &["--tier", "q7:all"])] {
        let place = Place::new();
        let (base, other) = sources(&place);
        place.import("t/base", &[&base], parent);
        place.import("t/c", &[&other], &[child, &["--parent", "t/base"][..]].concat());
        let mounted = place.mount(&[]);
        let tensor = mounted.path("t/c/w");
        let wanted: Vec<_> = (0..6).map(|index| block(&tensor, index).unwrap()).collect();
        flip(&mounted, "w", &[1, 5]);
        assert_eq!(verified(&mounted, "w"), "corrupt 2 of 6", "{parent:?} {child:?}");
        assert!(block(&tensor, 1).unwrap() == wanted[1], "{parent:?} {child:?}");
        // The last block differs by a bit, which a lower tier may round away.
        match block(&tensor, 5) {
            Ok(found) => assert!(!child.is_empty() && found == wanted[5], "{parent:?} {child:?}"),
            Err(error) => assert_eq!(error, Errno::IO),
        }
        wait_until("it is stored anew", || verified(&mounted, "w") != "corrupt 2 of 6");
    }
}

#[test]
fn a_file_with_the_same_digest_heals_and_one_with_another_does_not() {
    let place = Place::new();
    let (base, child) = sources(&place);
    place.import("t/c", &[&base], &[]);
    place.import("t/near", &[&child], &[]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    let wanted = block(&tensor, 3).unwrap();
    flip(&mounted, "w", &[3]);
    assert_eq!(verified(&mounted, "w"), "corrupt 1 of 6");
    assert_eq!(
        block(&tensor, 3),
        Err(Errno::IO),
        "a file that differs elsewhere has the block, and is another"
    );
    mounted.unmount();
    place.import("t/same", &[&base], &["--no-share"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    assert!(block(&tensor, 3).unwrap() == wanted);
    wait_until("it is stored anew", || verified(&mounted, "w") == "ok");
    assert_eq!((problems(&mounted), try_get(&tensor, "why")), (String::new(), Err(Errno::NODATA)));
}

#[test]
fn damage_is_a_problem_until_an_import_of_the_source_mends_it() {
    for options in [&[][..], &["--tier", "q5:all"], &["--pack"]] {
        let place = Place::new();
        let (source, _) = sources(&place);
        place.import("t/c", &[&source], options);
        let mut mounted = place.mount(&[]);
        let wanted = fs::read(mounted.path("t/c/w.npy")).unwrap();
        flip(&mounted, "w", &[1, 4]);
        for how in ["plain", "checksum", "scrubbed", "known"] {
            mounted.unmount();
            mounted = place.mount(&[]);
            assert_eq!(problems(&mounted), "");
            if how == "plain" {
                assert!(fs::read(mounted.path("t/c/w")).is_err(), "{options:?}");
                let why = get(&mounted.path("t/c/w.npy"), "why");
                assert!(why.contains("payload crc") && why.contains("import --checksum"), "{why}");
            }
            if how == "scrubbed" {
                let found = run(["scrub".as_ref(), mounted.path("").as_os_str()]);
                assert_eq!(found.code, Some(3));
                assert!(found.out.contains("t/c/w.npy: import it again"), "{}", found.out);
            }
            if how == "known" {
                // By a command that has found it, or an earlier mount.
                mounted.unmount();
                assert_eq!(run(["scrub".as_ref(), place.store().as_os_str()]).code, Some(3));
                mounted = place.mount(&[]);
            }
            if ["plain", "scrubbed"].contains(&how) {
                let told = problems(&mounted);
                assert!(told.starts_with("t/c/w.npy: ") && told.contains("import it again"), "{told}");
            }
            let again = if how == "checksum" { &["--checksum"][..] } else { &[] };
            let dry = import(&mounted, &source, &[options, again, &["--dry-run"][..]].concat());
            assert!(dry.contains("would mend 1 file"), "{how}: {dry}");
            let text = import(&mounted, &source, &[options, again].concat());
            assert!(text.contains("mended 1 file") && !text.contains("unchanged"), "{how}: {text}");
            assert_eq!(verified(&mounted, "w"), "ok", "{options:?}");
            assert!(fs::read(mounted.path("t/c/w.npy")).unwrap() == wanted, "{options:?}");
            assert_eq!(problems(&mounted), "");
            assert_eq!(try_get(&mounted.path("t/c/w.npy"), "why"), Err(Errno::NODATA));
            let text = import(&mounted, &source, &[options, again].concat());
            assert!(text.contains("nothing new; 1 file unchanged"), "{text}");
            flip(&mounted, "w", &[1, 4]);
        }
        mounted.unmount();
        let found = run(["fsck".as_ref(), place.store().as_os_str()]);
        assert!(found.code == Some(3) && found.out.contains("import it again"), "{}", found.out);
        // The daemon is not needed, and what cannot be mended is replaced.
        place.import("t/c", &[&source], &[options, &["--checksum"][..]].concat());
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}

#[test]
fn another_source_does_not_mend() {
    let place = Place::new();
    let (source, other) = sources(&place);
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    flip(&mounted, "w", &[1]);
    let before = fields(&mounted, "w", "epoch");
    let text = import(&mounted, &other, &["--checksum"]);
    assert!(text.contains("1 file with 1 tensor"), "{text}");
    assert_ne!(fields(&mounted, "w", "epoch"), before);
    assert!(fs::read(mounted.path("t/c/w.npy")).unwrap() == fs::read(&other).unwrap());
}
