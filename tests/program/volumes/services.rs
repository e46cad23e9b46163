//! Each call, with right and wrong arguments.

use std::fs;
use std::os::unix::fs::symlink;

use support::{answer, run, tierfs};

use super::plugin::{MULTI_NODE_READER_ONLY, Node, SINGLE_NODE_WRITER};
use super::wire::{
    ALREADY_EXISTS, FAILED_PRECONDITION, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, UNIMPLEMENTED,
    Value, bytes_of, capability, fields, number, text, texts,
};

#[test]
fn the_plugin_names_itself_and_what_it_can_do() {
    let node = Node::new();
    let empty = |path| node.call(path, &[]).unwrap();
    let version = run(["--version"]).ok();
    let version = version.trim().strip_prefix("tierfs ").unwrap();
    assert_eq!(empty("Identity/GetPluginInfo"), [text(1, "csi.tierfs.io"), text(2, version)].concat());
    // One capability of the plugin, two fields deep: CONTROLLER_SERVICE.
    assert_eq!(empty("Identity/GetPluginCapabilities"), [10, 4, 10, 2, 8, 1]);
    assert_eq!(empty("Identity/Probe"), [10, 2, 8, 1]);
    assert_eq!(empty("Node/NodeGetInfo"), text(1, "node-1"));
    // STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, SINGLE_NODE_MULTI_WRITER.
    assert_eq!(
        empty("Node/NodeGetCapabilities"),
        [10, 4, 10, 2, 8, 1, 10, 4, 10, 2, 8, 2, 10, 4, 10, 2, 8, 5]
    );
    // CREATE_DELETE_VOLUME, CLONE_VOLUME, SINGLE_NODE_MULTI_WRITER.
    assert_eq!(
        empty("Controller/ControllerGetCapabilities"),
        [10, 4, 10, 2, 8, 1, 10, 4, 10, 2, 8, 7, 10, 4, 10, 2, 8, 13]
    );
    for path in ["Controller/ListVolumes", "Controller/CreateSnapshot", "Node/NodeExpandVolume", "Other/Call"]
    {
        assert_eq!(node.call(path, &[]).unwrap_err().code, UNIMPLEMENTED, "{path}");
    }
    // A message that is cut off.
    assert_eq!(node.call("Node/NodeStageVolume", &[10, 200]).unwrap_err().code, INVALID_ARGUMENT);
}

#[test]
fn a_volume_is_staged_published_measured_and_taken_away_and_each_call_can_be_repeated() {
    let node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    for _ in 0..2 {
        node.stage("v", &volume).unwrap();
        node.publish("v", "a", &volume).unwrap();
    }
    let file = node.pod("a").join("m.safetensors");
    assert_eq!(fs::read(&file).unwrap(), node.model);
    assert!(fs::write(node.pod("a").join("new"), b"x").is_err());
    // The daemon's mount, the staging path, and the pod; none of them twice.
    assert_eq!((node.mounts().len(), node.daemons().len()), (3, 1));
    let stats = |path: &str| node.call("Node/NodeGetVolumeStats", &[text(1, "v"), text(2, path)].concat());
    let found = stats(node.pod("a").to_str().unwrap()).unwrap();
    let units = fields(&found).into_iter().map(|(_, usage)| match usage {
        Value::Bytes(usage) => fields(&usage).pop(),
        Value::Number(_) => None,
    });
    assert_eq!(units.collect::<Vec<_>>(), [Some((4, Value::Number(1))), Some((4, Value::Number(2)))]);
    for path in ["some/path", "/", node.pod("b").to_str().unwrap()] {
        assert_eq!(stats(path).unwrap_err().code, NOT_FOUND, "{path}");
    }

    // The same identities with something else.
    let other = [("remote", url.as_str()), ("collection", "t")];
    assert_eq!(node.stage("v", &other).unwrap_err().code, ALREADY_EXISTS);
    assert_eq!(node.publish("v", "a", &other).unwrap_err().code, ALREADY_EXISTS);
    let message = node.stage_message("v", &volume, SINGLE_NODE_WRITER, &[]);
    assert_eq!(node.call("Node/NodeStageVolume", &message).unwrap_err().code, ALREADY_EXISTS);
    let message = node.publish_message("v", "a", &volume, SINGLE_NODE_WRITER, true);
    assert_eq!(node.call("Node/NodePublishVolume", &message).unwrap_err().code, ALREADY_EXISTS);
    // A mode of one pod.
    let message = node.publish_message("v", "b", &volume, SINGLE_NODE_WRITER, true);
    assert_eq!(node.call("Node/NodePublishVolume", &message).unwrap_err().code, FAILED_PRECONDITION);
    // A remote cannot be written to.
    let message = node.publish_message("v", "b", &volume, SINGLE_NODE_WRITER, false);
    assert_eq!(node.call("Node/NodePublishVolume", &message).unwrap_err().code, INVALID_ARGUMENT);
    assert_eq!(node.unstage("v").unwrap_err().code, FAILED_PRECONDITION);

    for _ in 0..2 {
        node.unpublish("v", "a").unwrap();
        assert!(!node.pod("a").exists());
    }
    for _ in 0..2 {
        node.unstage("v").unwrap();
        node.is_clean();
    }
    node.unpublish("never", "x").unwrap();
    node.unstage("never").unwrap();
    assert_eq!(node.publish("v", "a", &volume).unwrap_err().code, NOT_FOUND);
}

#[test]
fn missing_and_wrong_arguments_are_refused_and_leave_nothing() {
    let node = Node::new();
    let url = node.url();
    let good = [("remote", url.as_str()), ("collection", "t/c")];
    let whole = node.stage_message("v", &good, MULTI_NODE_READER_ONLY, &[]);
    // Without each of the fields that are required.
    for absent in [1, 3, 4, 6] {
        let kept = fields(&whole).into_iter().filter(|(number, _)| *number != absent);
        let message = kept.flat_map(|(at, value)| match value {
            Value::Bytes(bytes) => support::protobuf::field(at, &bytes),
            Value::Number(value) => number(at, value),
        });
        let message: Vec<u8> = message.collect();
        assert_eq!(
            node.call("Node/NodeStageVolume", &message).unwrap_err().code,
            INVALID_ARGUMENT,
            "{absent}"
        );
    }
    let store = node.place.store().display().to_string();
    for (attributes, code) in [
        (&[("remote", url.as_str()), ("colour", "blue")][..], INVALID_ARGUMENT),
        (&[("remote", &url), ("store", &store)], INVALID_ARGUMENT),
        (&[("store", &store), ("follow", "true")], INVALID_ARGUMENT),
        (&[("remote", &url), ("collection", "t/none")], NOT_FOUND),
        (&[("remote", &url), ("collection", "t/c"), ("snapshot", "77")], NOT_FOUND),
        (&[("remote", "file:///none-such")], NOT_FOUND),
        (&[("store", "/none-such")], NOT_FOUND),
    ] {
        let failure = node.stage("v", attributes).unwrap_err();
        assert_eq!(failure.code, code, "{attributes:?}: {failure:?}");
    }
    assert!(node.stage("v", &[("remote", &url), ("colour", "blue")]).unwrap_err().text.contains("colour"));
    // Block volumes.
    let block = [field_of_block(), text(1, "v"), text(3, node.staging("v").to_str().unwrap())].concat();
    let block = [block, texts(6, &good)].concat();
    assert_eq!(node.call("Node/NodeStageVolume", &block).unwrap_err().code, INVALID_ARGUMENT);
    // Secrets: the name is told, the value is not.
    let message = node.stage_message("v", &good, MULTI_NODE_READER_ONLY, &[("password", "hush")]);
    let failure = node.call("Node/NodeStageVolume", &message).unwrap_err();
    assert_eq!(failure.code, INVALID_ARGUMENT);
    assert!(failure.text.contains("password") && !failure.text.contains("hush"), "{failure:?}");
    node.is_clean();

    node.stage("v", &good).unwrap();
    let published = |path: &str, staging: &str| {
        let parts = [text(1, "v"), text(3, staging), text(4, path), capability(5, 3), texts(8, &good)];
        node.call("Node/NodePublishVolume", &parts.concat()).map_err(|failure| failure.code)
    };
    let staging = node.staging("v").display().to_string();
    let pod = |name: &str| node.pod(name).display().to_string();
    assert_eq!(published(&pod("a"), ""), Err(FAILED_PRECONDITION));
    assert_eq!(published(&pod("a"), "/elsewhere"), Err(FAILED_PRECONDITION));
    fs::create_dir_all(node.pod("real/inner")).unwrap();
    fs::write(node.pod("file"), b"x").unwrap();
    symlink("real", node.pod("link")).unwrap();
    for hostile in
        ["", "relative", "/", &pod("../pods/a"), &pod("link"), &pod("link/a"), &pod("file"), &pod("file/a")]
    {
        assert_eq!(published(hostile, &staging), Err(INVALID_ARGUMENT), "{hostile}");
    }
    assert_eq!(published(&pod("none/a"), &staging), Err(FAILED_PRECONDITION));
    // Something else is mounted there.
    let mount = |words: &str| support::shell(&node.pod(""), words);
    mount("mount -t tmpfs none real/inner");
    assert_eq!(published(&pod("real/inner"), &staging), Err(ALREADY_EXISTS));
    node.unpublish("v", "real/inner").unwrap();
    mount("mountpoint -q real/inner && umount real/inner");
    assert_eq!(fs::read(node.pod("file")).unwrap(), b"x");
    mount("rm -r file link real");
    node.unstage("v").unwrap();
    node.is_clean();
}

fn field_of_block() -> Vec<u8> {
    let (block, mode) = (support::protobuf::field(1, &[]), support::protobuf::field(3, &number(1, 1)));
    support::protobuf::field(4, &[block, mode].concat())
}

#[test]
fn a_volume_of_a_store_can_be_written_to_where_its_publish_is_not_read_only() {
    let node = Node::new();
    let store = node.place.store().display().to_string();
    let volume = [("store", store.as_str()), ("collection", "t/c")];
    let stage = node.stage_message("v", &volume, 7, &[]);
    node.call("Node/NodeStageVolume", &stage).unwrap();
    for (pod, read_only) in [("writer", false), ("reader", true)] {
        let message = node.publish_message("v", pod, &volume, 7, read_only);
        node.call("Node/NodePublishVolume", &message).unwrap();
    }
    fs::write(node.pod("writer").join("new.txt"), b"written").unwrap();
    assert_eq!(fs::read(node.pod("reader").join("new.txt")).unwrap(), b"written");
    assert!(fs::write(node.pod("reader").join("other.txt"), b"x").is_err());
    assert!(fs::remove_file(node.pod("reader").join("new.txt")).is_err());
    for pod in ["writer", "reader"] {
        node.unpublish("v", pod).unwrap();
    }
    node.unstage("v").unwrap();
    node.is_clean();
    let mut get = tierfs();
    let exported = node.place.path("out");
    answer(get.arg("export").arg(&store).arg("t/c").arg(&exported)).ok();
    assert_eq!(fs::read(exported.join("new.txt")).unwrap(), b"written");
}

#[test]
fn an_inline_volume_is_published_without_a_stage_and_names_only_paths_that_are_allowed() {
    let mut node = Node::new();
    let url = node.url();
    let ephemeral = ("csi.storage.k8s.io/ephemeral", "true");
    let volume =
        [("remote", url.as_str()), ("collection", "t/c"), ephemeral, ("csi.storage.k8s.io/pod.name", "p")];
    let publish = |node: &Node| {
        let pod = node.pod("a");
        let parts = [text(1, "csi-1"), text(4, pod.to_str().unwrap()), capability(5, 1), number(6, 1)];
        node.call("Node/NodePublishVolume", &[parts.concat(), texts(8, &volume)].concat())
    };
    assert_eq!(publish(&node).unwrap_err().code, PERMISSION_DENIED);
    node.is_clean();
    node.terminate();
    node.arguments = vec!["--inline-paths".to_owned(), node.place.path("").display().to_string()];
    node.start();
    publish(&node).unwrap();
    publish(&node).unwrap();
    assert_eq!(fs::read(node.pod("a").join("m.safetensors")).unwrap(), node.model);
    node.unpublish("csi-1", "a").unwrap();
    node.is_clean();
}

#[test]
fn the_controller_makes_static_volumes_and_clones_of_remotes_into_stores() {
    let node = Node::new();
    let (url, store) = (node.url(), node.place.store().display().to_string());
    let create = |name: &str, parameters: &[(&str, &str)], from: &[u8], bytes: u64| {
        let capacity = support::protobuf::field(2, &number(1, bytes));
        let parts = [text(1, name), capacity, capability(3, 1), texts(4, parameters), from.to_vec()];
        node.call("Controller/CreateVolume", &parts.concat())
    };
    let id_of = |answer: &[u8]| String::from_utf8(bytes_of(&bytes_of(answer, 1), 2)).unwrap();
    let from = |id: &str| support::protobuf::field(6, &support::protobuf::field(2, &text(1, id)));
    let remote = [("remote", url.as_str()), ("collection", "t/c")];
    let made = create("pvc-1", &remote, &[], 5).unwrap();
    assert_eq!(create("pvc-1", &remote, &[], 5).unwrap(), made);
    let codes = [
        create("pvc-1", &remote, &[], 6),
        create("pvc-1", &[("remote", &url)], &[], 5),
        create("", &remote, &[], 5),
        create("x", &[("remote", &url), ("colour", "blue")], &[], 5),
        create("x", &[("store", &store), ("collection", "t")], &from("none"), 5),
        // A clone lies in a store.
        create("x", &remote, &from(&id_of(&made)), 5),
        // The name of a collection that is there.
        create("x", &[("store", &store), ("collection", "t/c")], &from(&id_of(&made)), 5),
    ]
    .map(|answer| answer.unwrap_err().code);
    let invalid = INVALID_ARGUMENT;
    assert_eq!(codes, [ALREADY_EXISTS, ALREADY_EXISTS, invalid, invalid, NOT_FOUND, invalid, ALREADY_EXISTS]);

    let into = [("store", store.as_str()), ("collection", "t")];
    let cloned = create("pvc-2", &into, &from(&id_of(&made)), 5).unwrap();
    assert_eq!(create("pvc-2", &into, &from(&id_of(&made)), 5).unwrap(), cloned);
    let id = id_of(&cloned);
    let name = format!("t/{id}");
    let volume = [("store", store.as_str()), ("collection", name.as_str())];
    let stage = node.stage_message(&id, &volume, SINGLE_NODE_WRITER, &[]);
    node.call("Node/NodeStageVolume", &stage).unwrap();
    let publish = node.publish_message(&id, "a", &volume, SINGLE_NODE_WRITER, false);
    node.call("Node/NodePublishVolume", &publish).unwrap();
    assert_eq!(fs::read(node.pod("a").join("m.safetensors")).unwrap(), node.model);
    fs::write(node.pod("a").join("own"), b"x").unwrap();

    let validate = |id: &str, mode| {
        node.call("Controller/ValidateVolumeCapabilities", &[text(1, id), capability(3, mode)].concat())
    };
    assert_eq!(validate("none", 1).unwrap_err().code, NOT_FOUND);
    assert_eq!(fields(&validate(&id, 1).unwrap())[0].0, 1, "confirmed");
    assert_eq!(fields(&validate(&id_of(&made), 3).unwrap())[0].0, 1, "confirmed");
    assert_eq!(fields(&validate(&id_of(&made), 1).unwrap())[0].0, 2, "a message");

    let delete = |id: &str| node.call("Controller/DeleteVolume", &text(1, id));
    assert_eq!(delete(&id).unwrap_err().code, FAILED_PRECONDITION);
    node.unpublish(&id, "a").unwrap();
    node.unstage(&id).unwrap();
    for id in [&id, &id, &id_of(&made), "none"] {
        delete(id).unwrap();
    }
    assert_eq!(run(["ls", &store, &name]).code, Some(1), "the clone is removed");
    run(["ls", &store, "t/c"]).ok();
    node.is_clean();
}

#[test]
fn a_collection_of_somebody_else_under_the_name_of_a_clone_stays() {
    let mut node = Node::new();
    let (url, store) = (node.url(), node.place.store().display().to_string());
    let create = |node: &Node, name: &str, parameters: &[(&str, &str)], from: &[u8]| {
        let parts = [text(1, name), capability(3, 1), texts(4, parameters), from.to_vec()];
        node.call("Controller/CreateVolume", &parts.concat())
    };
    let id_of = |answer: &[u8]| String::from_utf8(bytes_of(&bytes_of(answer, 1), 2)).unwrap();
    let delete = |node: &Node, id: &str| node.call("Controller/DeleteVolume", &text(1, id)).unwrap();
    let origin = create(&node, "origin", &[("remote", &url), ("collection", "t/c")], &[]).unwrap();
    let from = support::protobuf::field(6, &support::protobuf::field(2, &text(1, &id_of(&origin))));
    let into = [("store", store.as_str()), ("collection", "t/mine")];
    let file = node.place.write("in/theirs", b"theirs");
    // The first call was not answered, as its record says.
    let unanswer = |node: &mut Node| {
        node.kill();
        for entry in fs::read_dir(node.state().join("created")).unwrap() {
            let path = entry.unwrap().path();
            let record = fs::read_to_string(&path).unwrap();
            fs::write(&path, record.replace("\"made\":true", "\"made\":false")).unwrap();
        }
        node.start();
    };
    let id = id_of(&create(&node, "pvc", &into, &from).unwrap());
    unanswer(&mut node);
    assert_eq!(id_of(&create(&node, "pvc", &into, &from).unwrap()), id);

    let replace = |node: &Node| {
        run(["rm", &store, "t/mine"]).ok();
        node.place.import("t/mine", &[&file], &[]);
    };
    replace(&node);
    delete(&node, &id);
    run(["stat", &store, "t/mine/theirs"]).ok();
    run(["rm", &store, "t/mine"]).ok();

    assert_eq!(id_of(&create(&node, "pvc", &into, &from).unwrap()), id);
    replace(&node);
    unanswer(&mut node);
    assert_eq!(create(&node, "pvc", &into, &from).unwrap_err().code, ALREADY_EXISTS);
    delete(&node, &id);
    run(["stat", &store, "t/mine/theirs"]).ok();
    run(["rm", &store, "t/mine"]).ok();

    assert_eq!(id_of(&create(&node, "pvc", &into, &from).unwrap()), id);
    delete(&node, &id);
    assert_eq!(run(["ls", &store, "t/mine"]).code, Some(1), "its own clone is removed");
}
