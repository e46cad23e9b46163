//! `tierfs doctor` with and without privileges, compared with the behaviour of a mount.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{answer, program, shell, text, tierfs};

fn row(rows: &Value, what: &str) -> Value {
    let rows = rows.as_array().unwrap();
    rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no {what} in {rows:?}")).clone()
}

#[test]
fn doctor_mounts_a_store_and_leaves_nothing_behind() {
    let folder = tempfile::TempDir::new().unwrap();
    let rows = answer(tierfs().args(["doctor", "--json"]).env("TMPDIR", folder.path())).json();
    assert_eq!(row(&rows, "mounting")["verdict"], "ok", "{rows}");
    // These tests of passthrough need a kernel that supports it.
    assert_eq!(row(&rows, "passthrough")["verdict"], "ok", "{rows}");
    let enabled = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let is_enabled = enabled.is_ok_and(|text| text.trim() == "Y");
    assert_eq!(row(&rows, "io_uring")["verdict"] == "ok", is_enabled, "{rows}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn doctor_warns_that_passthrough_needs_a_privilege_and_names_what_keeps_a_user_from_mounting() {
    let folder = tempfile::TempDir::new().unwrap();
    let copy = folder.path().join("tierfs");
    let prepared = "chmod 1777 .; cp \"$1\" tierfs";
    assert!(
        Command::new("bash")
            .args(["-euc", prepared, "bash"])
            .arg(program())
            .current_dir(folder.path())
            .status()
            .unwrap()
            .success()
    );
    let as_user = |more: &[&str], path: &Path| {
        let mut doctor = Command::new("/usr/bin/setpriv");
        doctor.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(more).arg(&copy);
        doctor.args(["doctor", "--json"]).env("TMPDIR", folder.path()).env("PATH", path);
        if path == folder.path() {
            // The crate that mounts looks in /bin too.
            doctor.env("FUSERMOUNT_PATH", folder.path().join("fusermount3"));
        }
        let found = answer(&mut doctor);
        (found.code, serde_json::from_str::<Value>(&found.out).unwrap())
    };
    let (code, rows) = as_user(&[], Path::new("/usr/bin:/bin"));
    let (device, mounting) = (row(&rows, "FUSE"), row(&rows, "mounting"));
    let passthrough = row(&rows, "passthrough");
    assert_eq!(passthrough["verdict"], "warn", "{rows}");
    assert!(passthrough["found"].as_str().unwrap().contains("CAP_SYS_ADMIN"), "{rows}");
    // Most systems let every user open the device, but not all.
    let is_open = text(&shell(folder.path(), "stat -Lc %a /dev/fuse").stdout).trim() == "666";
    assert_eq!(device["verdict"] == "ok", is_open, "{rows}");
    assert_eq!(code, Some(if is_open && mounting["verdict"] == "ok" { 0 } else { 1 }), "{rows}");
    if !is_open {
        let advice = device["advice"].as_str().unwrap();
        assert!(advice.contains("chmod 666 /dev/fuse") && !advice.contains("modprobe"), "{rows}");
    }
    let (code, rows) = as_user(&[], folder.path());
    assert_eq!(code, Some(1));
    assert!(row(&rows, "mounting")["advice"].as_str().unwrap().contains("install fuse3"), "{rows}");
    let (code, rows) = as_user(&["--no-new-privs"], Path::new("/usr/bin:/bin"));
    assert_eq!(code, Some(1));
    assert!(row(&rows, "mounting")["advice"].as_str().unwrap().contains("NoNewPrivs"), "{rows}");
}
