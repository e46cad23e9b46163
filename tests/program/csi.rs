//! The plugin for Kubernetes, as a client of the Container Storage Interface in Python calls it: the calls of csi-sanity,
//! and those that a kubelet makes for pods. They need root.

use support::{Place, program, python_command, repository};

/// Runs a script of tests/python/csi, which must succeed. A script has the time that nextest gives to a test.
#[track_caller]
fn walk(script: &str) {
    let place = Place::new();
    let script = repository("tests/python/csi").join(script);
    let output = python_command().arg(script).arg(program()).arg(place.path("")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}");
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_plugin_tells_its_identity_and_its_capabilities() {
    walk("identity.py");
}

#[test]
fn each_call_of_a_node_answers_as_the_specification_says_once_and_again() {
    walk("node.py");
}

#[test]
fn volumes_and_clones_of_a_controller_keep_their_names_and_bytes() {
    walk("controller.py");
}

#[test]
fn calls_at_the_same_time_leave_one_mount_for_a_volume_and_none_at_its_end() {
    walk("together.py");
}

#[test]
fn ten_pods_share_a_daemon_and_read_on_while_the_plugin_is_killed() {
    walk("pods.py");
}

#[test]
fn a_reboot_a_silent_remote_and_a_store_in_use_leave_other_volumes_alone() {
    walk("troubles.py");
}

#[test]
fn the_files_for_kubernetes_fit_its_schemas_and_the_plugin() {
    walk("manifests.py");
}
