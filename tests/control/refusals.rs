//! Reasons of refused requests, as `why` gives them.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use support::{as_nobody, get, imported, mkfifo, put, refused, truncate, try_get, utimens};

#[test]
fn each_refusal_of_a_change_has_a_reason() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["--allow-other"]);
    let at = |name: &str| mounted.path("demo/model").join(name);
    fs::create_dir(mounted.path("demo/other")).unwrap();
    let told = |path: &Path, beginning: &str| {
        let why = get(path, "why");
        assert!(why.starts_with(beginning), "{}: {why}", path.display());
    };
    let tensor = at(".tensors/a");
    // The plain name and the name below .tensors are one inode: the last refusal counts.
    refused(put(&at("a"), "x"), libc::EACCES);
    told(&tensor, "open to write refused: a tensor is only read by its plain name");
    refused(truncate(&tensor, 0), libc::EPERM);
    told(&tensor, "truncate refused: the container sets the size of its tensors");
    refused(put(&at(".as/f16/x.npy"), "x"), libc::EROFS);
    told(&at(".as/f16/x.npy"), "open to write refused: forms are computed");
    refused(fs::write(at(".as/f16/new"), b"x"), libc::EPERM);
    told(&at(".as/f16"), "make new refused: ");
    refused(fs::remove_file(at(".as/f16/x.npy")), libc::EPERM);
    told(&at(".as/f16"), "remove x.npy refused: ");
    refused(mkfifo(&at("pipe")), libc::EPERM);
    told(&at(""), "make pipe refused: a mount has no pipes, sockets and devices");
    refused(fs::hard_link(at("x.npy"), mounted.path("demo/other/x")), libc::EXDEV);
    told(&mounted.path("demo/other"), "make x refused: a name in another collection");
    refused(utimens(&mounted.path("demo"), (5, 0), (5, 0)), libc::EPERM);
    told(&mounted.path("demo"), "change refused: a tenant has a mode and an owner");
    refused(fs::rename(at(".tensors/a"), at(".tensors/b")), libc::EPERM);
    told(&at(".tensors"), "rename a refused: ");
    refused(put(&at(".ctl/status"), "x"), libc::EPERM);
    told(&at(".ctl/status"), "open refused: status can only be read");
    // Another user is told nothing, and a missing name is no refusal.
    as_nobody(&mounted.mountpoint, "getfattr -n user.tierfs.why demo").failed(1, &[]);
    refused(fs::read(at("sub/none")), libc::ENOENT);
    assert_eq!(try_get(&at("sub"), "why"), Err(Errno::NODATA));
}
