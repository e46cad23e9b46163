//! A repository of a hub cache that everyday tools copy into a mount: the links below `snapshots` tell the formats of
//! the blobs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use support::{Fixture, Random, assert_same, container_of, get, names, run, script, tensors_of};

const COMMIT: &str = "1111111111111111111111111111111111111111";
const WEIGHTS: &str = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db";

/// A repository with two containers, one of them below a directory of the snapshot, and a text.
fn repository(fixture: &Fixture) -> (PathBuf, Vec<u8>) {
    let at = fixture.place.path("models--acme--tiny");
    let snapshot = at.join("snapshots").join(COMMIT);
    fs::create_dir_all(at.join("blobs")).unwrap();
    fs::create_dir_all(at.join("refs")).unwrap();
    fs::create_dir_all(snapshot.join("nested")).unwrap();
    let weights = container_of(&mut Random(1), &[("w", 30_000), ("deep/er", 501)]);
    fs::write(at.join("blobs").join(WEIGHTS), &weights).unwrap();
    fs::write(at.join("blobs/cc"), container_of(&mut Random(2), &[("v", 100)])).unwrap();
    fs::write(at.join("blobs/bb"), b"{}").unwrap();
    fs::write(at.join("blobs/dd"), b"no link leads here").unwrap();
    fs::write(at.join("refs/main"), COMMIT).unwrap();
    symlink(format!("../../blobs/{WEIGHTS}"), snapshot.join("model.safetensors")).unwrap();
    symlink("../../blobs/bb", snapshot.join("config.json")).unwrap();
    symlink("../../../blobs/cc", snapshot.join("nested/other.safetensors")).unwrap();
    (at, weights)
}

fn check(copy: &Path, weights: &[u8], context: &str) {
    let blobs = copy.join("blobs");
    for (tensor, values) in tensors_of(weights) {
        let path = blobs.join(".tensors").join(&tensor);
        assert_same(&fs::read(&path).unwrap(), &values, &format!("{context}: {}", path.display()));
    }
    assert_eq!(names(&blobs.join(".tensors")), ["deep", "v", "w"], "{context}");
    let link = copy.join("snapshots").join(COMMIT).join("model.safetensors");
    assert_same(&fs::read(&link).unwrap(), weights, context);
}

#[test]
fn a_repository_that_is_copied_into_a_mount_has_the_tensors_of_its_blobs() {
    let mut fixture = Fixture::lasting(std::time::Duration::from_secs(300));
    let (source, weights) = repository(&fixture);
    let (from, snapshot) = (source.display(), format!("snapshots/{COMMIT}"));
    for (round, line) in [
        format!("cp -a {from} m"),
        format!("rsync -a {from}/ m/"),
        format!("mkdir m && tar -C {from} -cf - . | tar -C m -xf -"),
        // Links first, as a checkout makes them, and blobs first.
        format!("mkdir m && cp -a {from}/snapshots m/ && cp -a {from}/blobs {from}/refs m/"),
        format!("mkdir m && cp -a {from}/blobs {from}/refs m/ && cp -a {from}/snapshots m/"),
        format!("mkdir m && cp -a {from}/snapshots m/ && rsync -a {from}/blobs {from}/refs m/"),
        // A link that gets its name when the blob is there.
        format!(
            "cp -a {from} m && cd m/{snapshot} && rm model.safetensors && ln -s ../../blobs/{WEIGHTS} draft \
             && mv draft model.safetensors"
        ),
    ]
    .into_iter()
    .enumerate()
    {
        script(&fixture.path(""), &format!("set -e; {line}")).ok();
        check(&fixture.path("m"), &weights, &line);
        let differing = script(&fixture.path(""), &format!("diff -r {from} m")).ok();
        assert_eq!(differing, "", "{line}");
        if round % 3 == 0 {
            fixture.remount();
            check(&fixture.path("m"), &weights, &format!("{line}, after a remount"));
        }
        script(&fixture.path(""), "rm -r m").ok();
    }
    fixture.check();
}

#[test]
fn a_link_of_a_snapshot_moves_its_blob_and_links_elsewhere_tell_nothing() {
    let fixture = Fixture::lasting(std::time::Duration::from_secs(300));
    let (source, weights) = repository(&fixture);
    script(&fixture.path(""), &format!("cp -a {} m", source.display())).ok();
    let link = fixture.path("m/snapshots").join(COMMIT).join("model.safetensors");
    run(["tier".as_ref(), "q5:all".as_ref(), "--lossy".as_ref(), link.as_os_str()]).ok();
    assert_eq!(get(&fixture.path("m/blobs").join(".tensors/w"), "tier"), "q5");
    fs::create_dir_all(fixture.path("other/blobs")).unwrap();
    fs::write(fixture.path("other/blobs/ee"), &weights).unwrap();
    symlink("blobs/ee", fixture.path("other/model.safetensors")).unwrap();
    symlink("../../other/blobs/ee", fixture.path("m/snapshots/model.safetensors")).unwrap();
    assert_eq!(names(&fixture.path("other/.tensors")).len(), 0);
    assert!(!fixture.path("other/blobs/.tensors/w").exists());
    fixture.check();
}
