//! Files that scripts/install.sh installs: the helper of mount(8), manual pages, completions, the unit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Place, answer, imported, names, run, shell, text, wait_until};

fn installed(place: &Place) -> PathBuf {
    let root = place.path("root");
    let mut install = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install.sh"));
    install.env("DESTDIR", &root).env("PREFIX", "/usr").env("PROGRAM", support::program());
    answer(&mut install).ok();
    // The text that it would have with this root.
    let helper = root.join("sbin/mount.tierfs");
    assert_eq!(fs::read_link(&helper).unwrap(), Path::new("/usr/bin/tierfs"));
    fs::remove_file(&helper).unwrap();
    std::os::unix::fs::symlink(root.join("usr/bin/tierfs"), helper).unwrap();
    root
}

/// The options of the topmost mount on a directory, as the kernel shows them.
fn options_of(mountpoint: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut fields = mounts.lines().rev().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = fields.find(|fields| fields[1] == mountpoint.to_str().unwrap())?;
    assert_eq!(found[2], "fuse.tierfs");
    Some(found[3].to_owned())
}

#[test]
fn mount_8_mounts_by_its_helper_with_the_options_of_fstab() {
    let (place, _) = imported(&[]);
    let root = installed(&place);
    let mountpoint = place.path("by-helper");
    fs::create_dir(&mountpoint).unwrap();
    let helper = |options: &str, more: &[&str]| {
        let mut helper = Command::new(root.join("sbin/mount.tierfs"));
        helper.arg(place.store()).arg(&mountpoint).args(more).args(["-o", options, "-t", "tierfs"]);
        answer(&mut helper)
    };
    helper("rw,relatime,bogus", &[]).failed(2, &["bogus"]);
    helper("rw,relatime", &["-f"]).ok();
    assert_eq!(options_of(&mountpoint), None, "-f mounts nothing");
    helper("ro,noauto,nofail,_netdev,noatime,x-systemd.automount,list=both,bogus", &["-n", "-s", "-v"]).ok();
    let options = options_of(&mountpoint).unwrap();
    assert!(options.split(',').any(|option| option == "ro"), "{options}");
    let listed = support::names(&mountpoint.join("demo/model"));
    assert!(
        ["a", "deep", "model.safetensors"].iter().all(|name| listed.contains(&(*name).to_owned())),
        "{listed:?}"
    );
    run(["umount".as_ref(), mountpoint.as_os_str()]).ok();
    wait_until("the end of the mount", || options_of(&mountpoint).is_none());
}

#[test]
fn a_store_and_a_mount_point_may_follow_two_dashes() {
    let (place, _) = imported(&[]);
    let mountpoint = place.path("dashes");
    fs::create_dir(&mountpoint).unwrap();
    let store = place.store();
    run(["mount".as_ref(), "--".as_ref(), store.as_os_str(), mountpoint.as_os_str()]).ok();
    assert!(options_of(&mountpoint).unwrap().starts_with("rw"));
    run(["umount".as_ref(), mountpoint.as_os_str()]).ok();
}

#[test]
fn pages_completions_and_the_unit_are_installed_and_removed() {
    let place = Place::new();
    let root = installed(&place);
    let help = run(["help"]).ok();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands
        .filter(|line| !line.starts_with("    "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"mount") && commands.contains(&"man"), "{commands:?}");
    for command in commands.iter().filter(|command| **command != "help") {
        let page = fs::read_to_string(root.join(format!("usr/share/man/man1/tierfs-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
        assert!(page.contains("Example: tierfs") || page.contains(".SH SUBCOMMANDS"), "{command}");
    }
    for (file, word) in [
        ("bash-completion/completions/tierfs", "complete "),
        ("zsh/site-functions/_tierfs", "#compdef tierfs"),
        ("fish/vendor_completions.d/tierfs.fish", "--command tierfs"),
    ] {
        let script = fs::read_to_string(root.join("usr/share").join(file)).unwrap();
        assert!(script.contains(word) && script.contains("TIERFS_COMPLETE"), "{file}: {script}");
    }
    let documents = root.join("usr/share/doc/tierfs");
    for document in ["README.md", "LICENSE-MIT", "docs/manual/names.md", "docs/CONTROL.md"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
        assert_eq!(fs::read(documents.join(document)).unwrap(), fs::read(source).unwrap(), "{document}");
    }
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/tierfs@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/tierfs mount --foreground ") && !unit.contains("@PREFIX@"));
    let mut remove = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install.sh"));
    answer(remove.arg("--remove").env("DESTDIR", &root).env("PREFIX", "/usr")).ok();
    let left = shell(&root, "find . ! -type d").stdout;
    assert_eq!(text(&left), "", "nothing is left");
}

#[test]
fn a_user_installs_below_a_prefix_and_is_told_what_was_left_out() {
    let place = Place::new();
    let prefix = place.path("home");
    fs::create_dir(&prefix).unwrap();
    // Without this only root may enter the folder of the test.
    let script = "chmod 755 .; cp -r \"$SOURCE/scripts\" \"$SOURCE/docs\" \"$SOURCE\"/README.md \"$SOURCE\"/LICENSE-* .; \
                  cp \"$PROGRAM\" tierfs; chown 65534:65534 home";
    let prepared = Command::new("bash")
        .args(["-euc", script])
        .current_dir(place.path(""))
        .env("SOURCE", env!("CARGO_MANIFEST_DIR"))
        .env("PROGRAM", support::program())
        .status();
    assert!(prepared.unwrap().success());
    let as_user = |arguments: &[&str]| {
        let mut install = Command::new("setpriv");
        install
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(place.path("scripts/install.sh"));
        install.args(arguments).env("PREFIX", &prefix).env("PROGRAM", place.path("tierfs"));
        answer(&mut install)
    };
    let said = as_user(&[]).ok();
    assert!(
        said.contains("left out") && said.contains("/sbin/mount.tierfs") && said.contains("tierfs@.service"),
        "{said}"
    );
    assert!(said.contains(&format!("{} is not in PATH", prefix.join("bin").display())), "{said}");
    run_installed(&prefix);
    assert!(prefix.join("share/man/man7/tierfs-tiers.7").exists());
    assert!(!prefix.join("lib/systemd").exists());
    fs::create_dir_all(prefix.join("share/zsh/own")).unwrap();
    as_user(&["--remove"]).ok();
    let left = text(&shell(&prefix, "find . -mindepth 1 | sort").stdout);
    assert_eq!(left, "./share\n./share/zsh\n./share/zsh/own\n", "only what others made is left");
}

fn run_installed(prefix: &Path) {
    let version = answer(Command::new(prefix.join("bin/tierfs")).arg("--version")).ok();
    assert!(version.starts_with("tierfs "), "{version}");
}

#[test]
fn the_manual_names_every_attribute_control_file_tier_and_status_without_a_warning_of_man() {
    let place = Place::new();
    let root = installed(&place);
    let manual = root.join("usr/share/man");
    let pages = shell(&manual, "find . -name '*.[17]' | sort");
    let pages = text(&pages.stdout);
    assert!(pages.lines().count() > 20, "{pages}");
    for page in pages.lines() {
        let mut man = Command::new("man");
        man.args(["--warnings=all", "-E", "UTF-8", "-Tutf8", "-l"]).arg(manual.join(page));
        let shown = answer(man.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "100"));
        assert_eq!(shown.err, "", "{page}");
        assert!(shown.ok().contains("tierfs"), "{page}");
    }
    let page = |name: &str| {
        let text = fs::read_to_string(manual.join(name)).unwrap();
        text.replace("\\-", "-").replace("\\&", "")
    };
    let program = page("man1/tierfs.1");
    for heading in ["EXIT STATUS", "ENVIRONMENT", "FILES", "HIDDEN DIRECTORIES", "SEE ALSO"] {
        assert!(
            program.contains(&format!(".SH \"{heading}\"")) || program.contains(&format!(".SH {heading}")),
            "{heading}"
        );
    }
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let control = page("man7/tierfs-control.7");
    for directory in [".ctl", "demo/.ctl", "demo/model/.ctl"] {
        for name in names(&mounted.path(directory)) {
            assert!(control.contains(&name), "{directory}/{name}");
        }
    }
    for form in names(&mounted.path("demo/model/.as")) {
        assert!(control.contains(&form), "{form}");
    }
    let listed = run(["stat".as_ref(), mounted.path("demo/model/x").as_os_str(), "--json".as_ref()]).json();
    for attribute in listed.as_object().unwrap().keys() {
        assert!(control.contains(&format!("user.tierfs.{attribute}")), "{attribute}");
    }
    let tiers = page("man7/tierfs-tiers.7");
    for (tier, bits) in [("q8", "8.5 bits"), ("q7", "7.5 bits"), ("q5", "5.5 bits"), ("q3", "3.5 bits")] {
        assert!(tiers.contains(tier) && tiers.contains(bits), "{tier}: {tiers}");
    }
}

#[test]
fn bash_completes_commands_tiers_options_tenants_collections_and_files() {
    let (place, _) = imported(&[]);
    let root = installed(&place);
    let script = root.join("usr/share/bash-completion/completions/tierfs");
    let complete = |words: &[&str]| {
        let store = place.store();
        let words: Vec<_> =
            words.iter().map(|word| if *word == "STORE" { store.to_str().unwrap() } else { *word }).collect();
        let (last, before) = (words[words.len() - 1], words.len() - 1);
        let line = format!(
            "PATH='{}':$PATH; source '{}'; COMP_WORDS=({}); COMP_CWORD={before}; COMP_TYPE=9; \
             _clap_complete_tierfs tierfs '{last}' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            root.join("usr/bin").display(),
            script.display(),
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
        );
        let found = text(&shell(&root, &line).stdout);
        found.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let check = || {
        assert_eq!(complete(&["tierfs", "umo"]), ["umount"]);
        assert_eq!(complete(&["tierfs", "tier", "q8"]), ["q8", "q8:all"]);
        assert_eq!(
            complete(&["tierfs", "mount", "-o", "ro,pass"]),
            ["ro,passthrough=on", "ro,passthrough=off"]
        );
        assert_eq!(complete(&["tierfs", "import", "STORE", "de"]), ["demo/"]);
        assert_eq!(complete(&["tierfs", "import", "STORE", "demo/mo"]), ["demo/model"]);
        assert_eq!(complete(&["tierfs", "ls", "STORE", "demo/model/x.n"]), ["demo/model/x.npy"]);
        assert_eq!(complete(&["tierfs", "import", "STORE", "demo/none"]), [""]);
    };
    check();
    // A mounted store is asked through its daemon.
    let mounted = place.mount(&[]);
    check();
    mounted.unmount();
}
