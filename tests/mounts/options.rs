//! Refused mounts, and the advice of the message.

use std::fs;

use support::{Place, answer, imported, tierfs};

#[test]
fn a_directory_with_files_is_hidden_only_on_request() {
    let (place, _) = imported(&[]);
    let hidden = place.write("mnt/hidden", b"mine");
    let mountpoint = hidden.parent().unwrap();
    let mut mount = tierfs();
    mount.arg("mount").arg(place.store()).arg(mountpoint);
    answer(&mut mount).failed(1, &[mountpoint.to_str().unwrap(), "not empty", "-o nonempty"]);
    assert_eq!(fs::read(&hidden).unwrap(), b"mine");
    let mounted = place.mount(&["-o", "nonempty"]);
    assert!(!hidden.exists() && mounted.path("demo/model").is_dir());
    mounted.unmount();
    assert_eq!(fs::read(&hidden).unwrap(), b"mine");
}

#[test]
fn a_misspelt_option_and_a_missing_store_are_refused_with_what_to_type() {
    let place = Place::new();
    let (nowhere, mountpoint) = (place.path("nowhere"), place.path("mnt"));
    fs::create_dir(&mountpoint).unwrap();
    let mount = |options: &[&str]| answer(tierfs().arg("mount").arg(&nowhere).arg(&mountpoint).args(options));
    mount(&["-o", "ro,allow_othr"])
        .failed(2, &["allow_othr", "did you mean allow_other", "keep_names=on|off"]);
    let init = format!("tierfs init {}", nowhere.display());
    mount(&[]).failed(1, &[&init, "--create"]);
    assert!(!nowhere.exists());
}
