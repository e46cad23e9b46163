//! Plugins and daemons that are killed, calls at the same time, a remote that hangs, secrets.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Acceptor, Bucket, Manners, Random, answer, ended, scale, tierfs, wait_until};

use super::plugin::{MULTI_NODE_READER_ONLY, Node, reader_in_a_namespace};
use super::wire::{
    ABORTED, DEADLINE_EXCEEDED, INTERNAL, INVALID_ARGUMENT, NOT_FOUND, UNANSWERED, UNAVAILABLE, call, text,
};

/// Moments at which a plugin is killed.
fn rounds() -> u64 {
    12 * u64::from(scale())
}

#[test]
fn ten_publishes_and_two_volumes_of_one_source_share_a_daemon_and_a_cache() {
    let node = Node::new();
    let url = node.url();
    let (volume, whole) = ([("remote", url.as_str()), ("collection", "t/c")], [("remote", url.as_str())]);
    node.stage("v", &volume).unwrap();
    node.stage("w", &whole).unwrap();
    for pod in 0..10 {
        node.publish("v", &format!("v{pod}"), &volume).unwrap();
        assert_eq!(fs::read(node.pod(&format!("v{pod}")).join("m.safetensors")).unwrap(), node.model);
    }
    node.publish("w", "w", &whole).unwrap();
    assert_eq!(fs::read(node.pod("w").join("t/c/m.safetensors")).unwrap(), node.model);
    assert_eq!(node.daemons().len(), 1);
    assert_eq!(fs::read_dir(node.state().join("cache")).unwrap().count(), 1);
    // Another source has another daemon.
    let newest = [("remote", url.as_str()), ("follow", "true")];
    node.stage("x", &newest).unwrap();
    assert_eq!(node.daemons().len(), 2);
    node.unstage("x").unwrap();
    (0..10).for_each(|pod| drop(node.unpublish("v", &format!("v{pod}")).unwrap()));
    node.unstage("v").unwrap();
    assert_eq!(fs::read(node.pod("w").join("t/c/m.safetensors")).unwrap(), node.model);
    node.unpublish("w", "w").unwrap();
    node.unstage("w").unwrap();
    node.is_clean();
}

#[test]
fn a_volume_that_follows_shows_newer_snapshots_below_its_tenant() {
    let node = Node::new();
    let url = node.url();
    let refused = node.stage("v", &[("remote", url.as_str()), ("collection", "t/c"), ("follow", "true")]);
    assert_eq!(refused.unwrap_err().code, INVALID_ARGUMENT);
    let volume = [("remote", url.as_str()), ("collection", "t"), ("follow", "true")];
    node.stage("v", &volume).unwrap();
    node.publish("v", "a", &volume).unwrap();
    assert_eq!(fs::read(node.pod("a").join("c/m.safetensors")).unwrap(), node.model);
    let new = node.place.write("in/new.txt", b"new");
    node.place.import("t/c", &[&new], &[]);
    answer(tierfs().arg("push").arg(node.place.store()).args(["t/c", &url])).ok();
    wait_until("the newer snapshot", || {
        fs::read(node.pod("a").join("c/new.txt")).is_ok_and(|bytes| bytes == b"new")
    });
    node.unpublish("v", "a").unwrap();
    node.unstage("v").unwrap();
    node.is_clean();
}

#[test]
fn the_plugin_is_replaced_under_ten_readers_in_namespaces_of_their_own() {
    let mut node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    node.stage("v", &volume).unwrap();
    let mut readers = Vec::new();
    for pod in 0..10 {
        let name = format!("p{pod}");
        node.publish("v", &name, &volume).unwrap();
        let file = node.pod(&name).join("m.safetensors");
        let mut reader = reader_in_a_namespace(&file, &node.place.path("in/m.safetensors"));
        let mut line = String::new();
        BufReader::new(reader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        readers.push(reader);
    }
    let daemons = node.daemons();
    for round in 0..4 {
        if round % 2 == 0 {
            node.kill()
        } else {
            node.terminate()
        }
        assert_eq!(node.daemons(), daemons, "the daemon goes on");
        node.start();
        node.stage("v", &volume).unwrap();
        node.publish("v", "p0", &volume).unwrap();
    }
    for mut reader in readers {
        reader.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert_eq!(ended(&mut reader, "a reader"), Some(0));
    }
    assert_eq!(node.daemons(), daemons);
    (0..10).for_each(|pod| drop(node.unpublish("v", &format!("p{pod}")).unwrap()));
    node.unstage("v").unwrap();
    node.is_clean();
}

#[test]
fn a_plugin_that_is_killed_at_any_moment_leaves_what_the_next_one_can_finish() {
    let mut node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    let began = Instant::now();
    node.stage("v", &volume).unwrap();
    let whole = began.elapsed() * 2;
    node.unstage("v").unwrap();
    let mut random = Random(11);
    for round in 0..rounds() {
        let moment = whole.mul_f64((random.next() % 1000) as f64 / 1000.0);
        std::thread::scope(|scope| {
            let walk = scope.spawn(|| {
                node.stage("v", &volume)?;
                node.publish("v", "a", &volume)?;
                node.unpublish("v", "a")?;
                node.unstage("v")
            });
            std::thread::sleep(moment);
            // SAFETY: kill takes two numbers and touches no memory of this process.
            unsafe { libc::kill(node.process() as i32, libc::SIGKILL) };
            if let Err(failure) = walk.join().unwrap() {
                assert_eq!(failure.code, UNANSWERED, "{failure:?}");
            }
        });
        node.kill();
        node.start();
        match round % 3 {
            // The orchestrator goes on, gives up, or knows nothing.
            0 => {
                node.stage("v", &volume).unwrap();
                node.publish("v", "a", &volume).unwrap();
                assert_eq!(fs::read(node.pod("a").join("m.safetensors")).unwrap(), node.model);
                assert_eq!(node.daemons().len(), 1);
            }
            1 => match node.publish("v", "a", &volume) {
                Ok(_) => assert_eq!(fs::read(node.pod("a").join("m.safetensors")).unwrap(), node.model),
                Err(failure) => assert_eq!(failure.code, NOT_FOUND, "{failure:?}"),
            },
            _ => {}
        }
        node.unpublish("v", "a").unwrap();
        node.unstage("v").unwrap();
        wait_until("the end of a daemon without a volume", || {
            fs::read_dir(node.state().join("mounts")).unwrap().count() == 0
        });
        node.is_clean();
    }
}

#[test]
fn daemons_that_have_died_are_started_again_with_all_mounts_of_their_volumes() {
    let mut node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    node.stage("v", &volume).unwrap();
    node.publish("v", "a", &volume).unwrap();
    node.publish("v", "b", &volume).unwrap();
    for is_restarted in [false, true] {
        let daemons = node.daemons();
        if is_restarted {
            node.kill();
        }
        for daemon in &daemons {
            // SAFETY: kill takes two numbers and touches no memory of this process.
            assert_eq!(unsafe { libc::kill(*daemon as i32, libc::SIGKILL) }, 0);
        }
        wait_until("the end of the daemon", || !node.daemons().contains(&daemons[0]));
        if is_restarted {
            node.start();
        }
        for pod in ["a", "b"] {
            let file = node.pod(pod).join("m.safetensors");
            wait_until("the mounts", || fs::read(&file).is_ok_and(|bytes| bytes == node.model));
        }
        assert_eq!((node.daemons().len(), node.mounts().len()), (1, 4));
        assert!(fs::write(node.pod("a").join("new"), b"x").is_err());
    }
    node.unpublish("v", "a").unwrap();
    node.unpublish("v", "b").unwrap();
    node.unstage("v").unwrap();
    node.is_clean();
}

#[test]
fn calls_for_one_volume_exclude_each_other_and_those_for_others_do_not() {
    let node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    let ids: Vec<String> = (0..6).map(|number| format!("v{number}")).collect();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for id in &ids {
                for _ in 0..2 {
                    let node = &node;
                    scope.spawn(move || {
                        // Of two at a time one may be told to come again.
                        let again = |call: &dyn Fn() -> Result<Vec<u8>, super::wire::Refused>| loop {
                            match call() {
                                Ok(_) => return,
                                Err(failure) => assert_eq!(failure.code, ABORTED, "{failure:?}"),
                            }
                        };
                        again(&|| node.stage(id, &volume));
                        again(&|| node.publish(id, id, &volume));
                    });
                }
            }
        });
        assert_eq!(node.daemons().len(), 1);
        assert_eq!(node.mounts().len(), 1 + 2 * ids.len(), "{:?}", node.mounts());
        std::thread::scope(|scope| {
            for id in &ids {
                let node = &node;
                scope.spawn(move || {
                    assert_eq!(fs::read(node.pod(id).join("m.safetensors")).unwrap(), node.model);
                    node.unpublish(id, id).unwrap();
                    node.unstage(id).unwrap();
                });
            }
        });
        node.is_clean();
    }
}

#[test]
fn a_remote_that_hangs_fails_the_stage_in_its_time_and_leaves_nothing() {
    let node = Node::new();
    let silent = Acceptor::start(|mut client| drop(client.read_to_end(&mut Vec::new())));
    let endpoint = format!("http://127.0.0.1:{}", silent.port());
    let secrets = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
        ("AWS_REGION", "r"),
    ];
    let volume = [("remote", "s3://bucket/prefix")];
    let message = node.stage_message("v", &volume, MULTI_NODE_READER_ONLY, &secrets);
    let began = Instant::now();
    let failure = call(&node.socket(), "Node/NodeStageVolume", &message, "5S").unwrap_err();
    assert!([DEADLINE_EXCEEDED, UNAVAILABLE].contains(&failure.code), "{failure:?}");
    assert!(failure.text.contains("s3://bucket/prefix"), "the plugin answers itself: {failure:?}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    node.is_clean();
}

/// All that other users may see of the processes of a node, and its log.
fn seen_by_others(node: &Node) -> String {
    let mut seen = node.log();
    for process in node.daemons().into_iter().chain([node.process()]) {
        seen += &String::from_utf8_lossy(&fs::read(format!("/proc/{process}/cmdline")).unwrap());
        let environment = fs::metadata(format!("/proc/{process}/environ")).unwrap();
        assert_eq!(environment.permissions().mode() & 0o077, 0);
    }
    seen + &fs::read_to_string("/proc/self/mountinfo").unwrap()
}

#[test]
fn secrets_are_in_the_environment_of_the_daemon_alone() {
    let mut node = Node::without_plugin();
    fs::create_dir(node.place.path("served")).unwrap();
    support::shell(&node.place.path(""), "mv bucket served/models");
    let bucket = Bucket::with(&node.place.path("served"), 3, Manners::default());
    let environment = bucket.environment();
    // The plugin itself could read nothing.
    node.environment = vec![("AWS_SESSION_TOKEN".to_owned(), "of-the-node".to_owned())];
    node.start();
    let mut secrets: Vec<(&str, &str)> = environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(|(name, _)| !name.contains("KEY") && !name.contains("METADATA") && !name.contains("PROFILE"))
        .collect();
    let secret = "hush-hush-hush-1234567890";
    secrets.extend([("AWS_ACCESS_KEY_ID", "the-key"), ("AWS_SECRET_ACCESS_KEY", secret)]);
    let volume = [("remote", "s3://models"), ("collection", "t/c")];
    let message = node.stage_message("v", &volume, MULTI_NODE_READER_ONLY, &secrets);
    node.call("Node/NodeStageVolume", &message).unwrap();
    node.publish("v", "a", &volume).unwrap();
    assert_eq!(fs::read(node.pod("a").join("m.safetensors")).unwrap(), node.model);
    let daemon = node.daemons()[0];
    let own = fs::read_to_string(format!("/proc/{daemon}/environ")).unwrap();
    assert!(own.contains(secret) && !own.contains("of-the-node"), "{own}");
    let seen = seen_by_others(&node);
    assert!(!seen.contains(secret) && !seen.contains("the-key"), "{seen}");
    assert_eq!(node.open_to_others(), Vec::<std::path::PathBuf>::new());
    // Other credentials have another daemon and another cache.
    let other: Vec<(&str, &str)> =
        secrets.iter().copied().filter(|(name, _)| *name != "AWS_ACCESS_KEY_ID").collect();
    let other = [other, vec![("AWS_ACCESS_KEY_ID", "another")]].concat();
    let message = node.stage_message("w", &volume, MULTI_NODE_READER_ONLY, &other);
    node.call("Node/NodeStageVolume", &message).unwrap();
    assert_eq!(node.daemons().len(), 2);
    assert_eq!(fs::read_dir(node.state().join("cache")).unwrap().count(), 2);
    node.unpublish("v", "a").unwrap();
    node.unstage("v").unwrap();
    node.unstage("w").unwrap();
    node.is_clean();
    assert!(!seen_by_others(&node).contains(secret));
}

#[test]
fn daemons_are_units_of_the_host_where_that_is_asked_for() {
    let mut node = Node::without_plugin();
    // Stand-ins, which write down their words. That of systemd starts the program with variables in its words replaced, and
    // waits for its mount.
    let bin = node.place.path("bin");
    fs::create_dir(&bin).unwrap();
    let said = node.place.path("said");
    for (name, body) in [
        ("systemctl", "exit 1"),
        (
            "systemd-run",
            "for word; do case $word in \
             --property=EnvironmentFile=*) set -a; . ${word#*File=}; set +a;; \
             --property=StandardOutput=append:*) out=${word#*append:};; \
             --property=StandardError=append:*) err=${word#*append:};; esac; done; \
             while [ \"$1\" != -- ]; do shift; done; shift; words=(); \
             for word; do word=${word//'$$'/$'\\x01'}; \
             while [[ $word =~ (.*)[$]\\{([A-Z_]+)\\}(.*) ]]; do name=${BASH_REMATCH[2]}; \
             word=${BASH_REMATCH[1]}${!name}${BASH_REMATCH[3]}; done; \
             words+=(\"${word//$'\\x01'/'$'}\"); done; set -- \"${words[@]}\"; for at; do :; done; \
             unset AWS_SESSION_TOKEN; setsid \"$@\" >>$out 2>>$err </dev/null & \
             child=$!; while kill -0 $child 2>/dev/null; do mountpoint -q $at && exit 0; sleep 0.02; done; exit 1",
        ),
    ] {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/bash\necho \"{name} $*\" >>{}\n{body}\n", said.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    node.environment = vec![("PATH".to_owned(), format!("{}:{path}", bin.display()))];
    node.arguments = ["--host-systemd", "--host-namespace", "/proc/self/ns/mnt"].map(str::to_owned).into();
    node.start();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    let message = node.stage_message("v", &volume, MULTI_NODE_READER_ONLY, &[("HF_TOKEN", "hush\"$x`y\\z")]);
    node.call("Node/NodeStageVolume", &message).unwrap();
    node.publish("v", "a", &volume).unwrap();
    node.kill();
    assert_eq!(fs::read(node.pod("a").join("m.safetensors")).unwrap(), node.model);
    let daemon = node.daemons()[0];
    let program = fs::read_link(format!("/proc/{daemon}/exe")).unwrap();
    assert!(program.starts_with(node.state().join("bin").canonicalize().unwrap()), "{}", program.display());
    let own = fs::read_to_string(format!("/proc/{daemon}/environ")).unwrap();
    assert!(own.contains("HF_TOKEN=hush\"$x`y\\z\0"), "{own}");
    // A new daemon runs the program of another directory.
    let programs = node.place.path("programs");
    node.arguments.extend(["--program-dir".to_owned(), programs.display().to_string()]);
    node.start();
    node.stage("x", &[("remote", url.as_str()), ("follow", "true")]).unwrap();
    let new = node.daemons().into_iter().find(|process| *process != daemon).unwrap();
    let program = fs::read_link(format!("/proc/{new}/exe")).unwrap();
    assert!(program.starts_with(programs.canonicalize().unwrap()), "{}", program.display());
    node.unstage("x").unwrap();
    // The error of a unit that does not start reaches the caller.
    let failure = node.stage("w", &[("remote", "file:///none-such")]).unwrap_err();
    assert_eq!(failure.code, NOT_FOUND, "{failure:?}");
    // Nothing takes a part of a word for a credential.
    let key = node.place.path("key-${HF_TOKEN}.pem").display().to_string();
    let volume = [("remote", url.as_str()), ("collection", "t/c"), ("trust", key.as_str())];
    let message = node.stage_message("w", &volume, MULTI_NODE_READER_ONLY, &[("HF_TOKEN", "hush")]);
    let failure = node.call("Node/NodeStageVolume", &message).unwrap_err();
    assert!(failure.text.contains("key-${HF_TOKEN}.pem") && !failure.text.contains("hush"), "{failure:?}");
    node.unpublish("v", "a").unwrap();
    node.unstage("v").unwrap();
    node.is_clean();
    let said = fs::read_to_string(said).unwrap();
    assert!(!said.contains("hush"), "{said}");
    let programs: BTreeSet<&str> = said.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(programs, BTreeSet::from(["systemctl", "systemd-run"]));
}

#[test]
fn records_that_were_lost_do_not_keep_a_volume_mounted() {
    let mut node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    node.stage("v", &volume).unwrap();
    node.publish("v", "a", &volume).unwrap();
    // Another volume may not take it away.
    let message = [text(1, "w"), text(2, node.pod("a").to_str().unwrap())].concat();
    node.call("Node/NodeUnpublishVolume", &message).unwrap();
    assert!(node.pod("a").join("m.safetensors").exists());
    node.kill();
    for entry in fs::read_dir(node.state().join("volumes")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    node.start();
    node.unpublish("v", "a").unwrap();
    node.unstage("v").unwrap();
    wait_until("the end of the daemon", || node.mounts().is_empty() && node.daemons().is_empty());
    assert!(!node.pod("a").exists());
}

/// Gives this thread, and what it starts, a mount namespace of its own.
fn leave_the_namespace() {
    // SAFETY: the calls take flags and texts that end with a zero, and touch no memory of this process.
    let left = unsafe {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        libc::unshare(libc::CLONE_NEWNS)
            | libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
    };
    assert_eq!(left, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_mount_whose_name_is_not_utf8_hides_no_volume() {
    // Other tests read the mounts of theirs.
    leave_the_namespace();
    let node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    node.stage("v", &volume).unwrap();
    node.publish("v", "a", &volume).unwrap();
    let daemons = node.daemons();
    let odd = node.place.path("").join(OsStr::from_bytes(b"\xff"));
    fs::create_dir(&odd).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&odd).status().unwrap().success());
    node.publish("v", "b", &volume).unwrap();
    assert_eq!((node.daemons(), node.mounts().len()), (daemons, 5));
    for pod in ["a", "b"] {
        assert_eq!(fs::read(node.pod(pod).join("m.safetensors")).unwrap(), node.model);
        node.unpublish("v", pod).unwrap();
    }
    node.unstage("v").unwrap();
    assert!(Command::new("umount").arg(&odd).status().unwrap().success());
    node.is_clean();
}

#[test]
fn a_record_that_cannot_be_read_ends_no_daemon() {
    let mut node = Node::new();
    let url = node.url();
    let volume = [("remote", url.as_str()), ("collection", "t/c")];
    node.stage("v", &volume).unwrap();
    node.publish("v", "a", &volume).unwrap();
    let daemons = node.daemons();
    let record = fs::read_dir(node.state().join("volumes")).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&record).unwrap();
    fs::write(&record, b"{").unwrap();
    for is_restarted in [false, true] {
        if is_restarted {
            node.kill();
            node.start();
        }
        let told = |node: &Node| node.log().matches("the record cannot be read").count();
        let before = told(&node);
        wait_until("two looks at the daemons", || told(&node) >= before + 2);
        assert_eq!(node.daemons(), daemons);
        assert_eq!(fs::read(node.pod("a").join("m.safetensors")).unwrap(), node.model);
        assert_eq!(node.unpublish("v", "a").unwrap_err().code, INTERNAL);
    }
    fs::write(&record, whole).unwrap();
    node.unpublish("v", "a").unwrap();
    node.unstage("v").unwrap();
    node.is_clean();
}
