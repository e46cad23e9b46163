//! A mount whose files the kernel opens without a request.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use support::{
    Mapping, Mounted, Place, Random, answer, assert_same, container_of, files_below, npy_file, open_direct,
    read_at, run, script, tierfs,
};

const OPTIONS: [&str; 2] = ["-o", "ro,opens=kernel"];
/// Directories with files: the tree, tensors, and forms. The last two are not listed above.
const FOLDERS: [&str; 5] =
    ["", "demo/model/.tensors", "demo/model/.as/f32", "demo/model/.as/npy", "demo/small/.as/bf16"];

/// A store with exact and encoded containers, plain files and a link.
fn place() -> Place {
    let place = Place::new();
    let mut random = Random(5);
    let tensors = [("a", 100), ("b", 70_000), ("c.d", 3_000_000)];
    place.write("model/model.safetensors", container_of(&mut random, &tensors));
    place.write("model/config.json", b"{}");
    place.write("model/empty", b"");
    place.write("model/deep/er/rows.npy", npy_file(&random.floats(5000)));
    std::os::unix::fs::symlink("config.json", place.path("model/link")).unwrap();
    place.import("demo/model", &[&place.path("model")], &[]);
    let floats = random.floats(40_000);
    let header = r#"{"w":{"dtype":"F32","shape":[400,100],"data_offsets":[0,160000]}}"#;
    place.write("small/model.safetensors", support::safetensors_file(header, &floats));
    place.import("demo/small", &[&place.path("small")], &["--tier", "q8:all"]);
    place
}

/// The files below the folders with their bytes, by path.
fn content(mounted: &Mounted) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        for file in files_below(&mounted.mountpoint.join(folder)) {
            let name = Path::new(folder).join(file);
            let bytes = fs::read(mounted.mountpoint.join(&name)).unwrap();
            found.push((name.display().to_string(), bytes));
        }
    }
    found.sort();
    found
}

/// Names, sizes, modes, owners, times and numbers.
fn attributes(mounted: &Mounted) -> String {
    let folders = FOLDERS.map(|folder| format!("./{folder}")).join(" ");
    script(
        &mounted.mountpoint,
        &format!(
            "find {folders} \\( -type f -printf '%T@ ' -o -true \\) -printf '%p %y %s %m %u %i\\n' | sort"
        ),
    )
    .ok()
}

#[test]
fn each_file_is_the_same_as_on_a_mount_whose_daemon_opens_files() {
    let place = place();
    let mounted = place.mount(&["--read-only"]);
    let (wanted, shown) = (content(&mounted), attributes(&mounted));
    assert!(wanted.len() > 12, "{wanted:?}");
    mounted.unmount();
    let mounted = place.mount(&OPTIONS);
    for round in 0..2 {
        for ((name, got), (_, bytes)) in content(&mounted).iter().zip(&wanted) {
            assert_same(got, bytes, &format!("{name} in round {round}"));
        }
        assert_eq!(attributes(&mounted), shown);
    }
    let direct = open_direct(&mounted.path("demo/model/model.safetensors"));
    let mut pages = support::Aligned::new(1 << 20);
    let source = fs::read(place.path("model/model.safetensors")).unwrap();
    let got = read_at(&direct, pages.pages(1 << 20), 4096);
    assert_same(&pages.pages(1 << 20)[..got], &source[4096..4096 + got], "a direct read");
    let mapping = Mapping::of(&mounted.path("demo/model/model.safetensors"), libc::MAP_SHARED);
    assert_same(mapping.bytes(), &source, "a mapping");
    drop((mapping, direct));
    mounted.unmount();
}

#[test]
fn a_second_pass_over_the_files_needs_no_daemon() {
    let place = place();
    let mounted = place.mount(&OPTIONS);
    let wanted = fs::read(mounted.path("demo/model/deep/er/rows.npy")).unwrap();
    let list = "cat demo/model/deep/er/rows.npy demo/model/.tensors/c.d demo/model/config.json";
    script(&mounted.mountpoint, &format!("{list} >/dev/null")).ok();
    mounted.signal(libc::SIGSTOP);
    // In another process, which can be given up.
    let read =
        answer(Command::new("timeout").args(["20", "sh", "-c", list]).current_dir(&mounted.mountpoint));
    mounted.signal(libc::SIGCONT);
    assert_eq!(read.code, Some(0), "{}", read.err);
    assert!(wanted.len() > 5000 && read.out.len() > 3_000_000);
    mounted.unmount();
}

#[test]
fn more_files_than_the_daemon_keeps_open_are_read_by_many_threads() {
    let names: Vec<String> = (0..5000).map(|number| format!("t{number}")).collect();
    let tensors: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 4)).collect();
    let container = container_of(&mut Random(6), &tensors);
    let wanted = support::tensors_of(&container);
    assert_eq!(wanted.len(), 5000);
    let place = Place::new();
    let file = place.write("many.safetensors", &container);
    place.import("demo/many", &[&file], &[]);
    let mounted = place.mount(&OPTIONS);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (mounted, wanted) = (&mounted, &wanted);
            scope.spawn(move || {
                for at in 0..wanted.len() {
                    let (name, bytes) = &wanted[(at * 7 + thread * 1250) % wanted.len()];
                    let got = fs::read(mounted.mountpoint.join("demo/many/.tensors").join(name)).unwrap();
                    assert_same(&got, bytes, name);
                }
            });
        }
    });
    mounted.unmount();
}

#[test]
fn it_has_no_control_files_and_keeps_its_attributes() {
    let place = place();
    let mounted = place.mount(&OPTIONS);
    for path in [".ctl", "demo/.ctl", "demo/model/.ctl", "demo/model/.ctl/status"] {
        let error = fs::read(mounted.mountpoint.join(path)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{path}");
    }
    let file = mounted.mountpoint.join("demo/small/.tensors/w");
    assert_eq!(support::get(&file, "tier"), "q8");
    let refused = fs::write(&file, b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let path = mounted.mountpoint.clone();
    run(["status".as_ref(), path.as_os_str()]).failed(1, &["opens=kernel"]);
    mounted.unmount();
}

#[test]
fn a_mount_whose_files_may_change_refuses_it() {
    let place = place();
    let try_mount = |source: &Path, options: &[&str]| {
        fs::create_dir_all(place.path("other")).unwrap();
        answer(tierfs().arg("mount").arg(source).arg(place.path("other")).args(options))
    };
    let words = ["opens=kernel", "--read-only"];
    try_mount(&place.store(), &["--opens", "kernel"]).failed(1, &words);
    try_mount(&place.store(), &["-o", "opens=kernel"]).failed(1, &words);
    try_mount(&place.store(), &["-o", "ro,opens=both"]).failed(2, &["expected daemon or kernel"]);
    fs::create_dir(place.path("remote")).unwrap();
    let url = format!("file://{}", place.path("remote").display());
    run([
        "push".as_ref(),
        place.store().as_os_str(),
        "demo/model".as_ref(),
        url.as_ref(),
        "--create".as_ref(),
    ])
    .ok();
    try_mount(Path::new(&url), &["--opens", "kernel"]).failed(1, &words);
}
