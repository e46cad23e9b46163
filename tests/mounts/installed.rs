//! What scripts/install.sh puts onto a system: the helper of mount(8), manual pages, completions, the unit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Place, answer, imported, run, shell, text, wait_until};

fn installed(place: &Place) -> PathBuf {
    let root = place.path("root");
    let mut install = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install.sh"));
    install.env("DESTDIR", &root).env("PREFIX", "/usr").env("PROGRAM", support::program());
    answer(&mut install).ok();
    // As it would be found if this were the root.
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
    helper("ro,noauto,nofail,_netdev,noatime,x-systemd.automount,list=tensors,bogus", &["-n", "-s", "-v"])
        .ok();
    let options = options_of(&mountpoint).unwrap();
    assert!(options.split(',').any(|option| option == "ro"), "{options}");
    let listed = support::names(&mountpoint.join("demo/model"));
    assert!(!listed.is_empty() && listed.iter().all(|name| !name.ends_with(".safetensors")), "{listed:?}");
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
    let bash = root.join("usr/share/bash-completion/completions/tierfs");
    let script = format!(
        "source '{}'; COMP_WORDS=(tierfs mou); COMP_CWORD=1; _tierfs tierfs mou tierfs; echo \"${{COMPREPLY[@]}}\"",
        bash.display()
    );
    assert_eq!(text(&shell(&root, &script).stdout).trim(), "mount");
    for file in ["zsh/site-functions/_tierfs", "fish/vendor_completions.d/tierfs.fish"] {
        assert!(fs::read_to_string(root.join("usr/share").join(file)).unwrap().contains("umount"), "{file}");
    }
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/tierfs@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/tierfs mount --foreground ") && !unit.contains("@PREFIX@"));
    let mut remove = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install.sh"));
    answer(remove.arg("--remove").env("DESTDIR", &root).env("PREFIX", "/usr")).ok();
    let left = shell(&root, "find . ! -type d").stdout;
    assert_eq!(text(&left), "", "nothing is left");
}
