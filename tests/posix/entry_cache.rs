//! The kernel's cache of names of tensors, which appear and disappear with their container.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use support::{Mounted, Place, Random, answer, container_of, names, shell, tierfs};

const TENSORS: usize = 40;

/// A container of tensors `t0`, `t1` and so on, of that many elements each.
fn container(tensors: usize, elements: usize) -> Vec<u8> {
    let called: Vec<String> = (0..tensors).map(|number| format!("t{number}")).collect();
    let tensors: Vec<(&str, usize)> = called.iter().map(|name| (name.as_str(), elements)).collect();
    container_of(&mut Random(elements as u64), &tensors)
}

fn lookups(mounted: &Mounted) -> u64 {
    mounted.stats()["operations"]["lookup"].as_u64().unwrap()
}

/// Whether the kernel supports the notification that names are out of date: Linux 6.16 and later.
fn kernel_can_be_told() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|text| text.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6_u32, 16_u32)
}

/// The sizes of the tensors in a directory, by stat of their names.
fn sizes(directory: &Path) -> Vec<(String, u64)> {
    let directory = directory.join(".tensors");
    let mut sizes: Vec<_> = names(&directory)
        .into_iter()
        .map(|name| (name.clone(), fs::metadata(directory.join(name)).unwrap().len()))
        .collect();
    sizes.sort();
    sizes
}

fn expected(tensors: usize, elements: usize) -> Vec<(String, u64)> {
    let mut sizes: Vec<_> = (0..tensors).map(|number| (format!("t{number}"), 4 * elements as u64)).collect();
    sizes.sort();
    sizes
}

struct Fixture {
    place: Place,
    mounted: Mounted,
    collection: PathBuf,
}

fn fixture() -> Fixture {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    let collection = mounted.path("acme/kept");
    fs::create_dir_all(&collection).unwrap();
    Fixture { place, mounted, collection }
}

#[test]
fn listed_names_of_tensors_are_not_looked_up_again() {
    let fixture = fixture();
    fs::write(fixture.collection.join("m.safetensors"), container(TENSORS, 64)).unwrap();
    assert_eq!(sizes(&fixture.collection), expected(TENSORS, 64));
    let before = lookups(&fixture.mounted);
    assert_eq!(sizes(&fixture.collection), expected(TENSORS, 64));
    let asked = lookups(&fixture.mounted) - before;
    // Lookups on the way to the statistics count too.
    assert_eq!(asked < TENSORS as u64 / 2, kernel_can_be_told(), "{asked} lookups");
}

#[test]
fn a_cached_name_leads_to_the_new_tensor_at_once_when_a_container_is_replaced() {
    let fixture = fixture();
    let (path, other) = (fixture.collection.join("m.safetensors"), fixture.collection.join(".m.partial"));
    for round in 0..30 {
        let (tensors, elements) = (TENSORS - round % 3, 64 + round);
        let bytes = container(tensors, elements);
        match round % 3 {
            0 => fs::write(&path, &bytes).unwrap(),
            1 => {
                fs::write(&other, &bytes).unwrap();
                fs::rename(&other, &path).unwrap();
            }
            _ => {
                let file = fixture.place.write("m.safetensors", &bytes);
                let imported =
                    answer(tierfs().arg("import").arg(fixture.place.store()).arg("acme/kept").arg(&file));
                imported.ok();
            }
        }
        // By name first, without a listing in between.
        for number in 0..TENSORS {
            let found = fs::metadata(fixture.collection.join(format!(".tensors/t{number}")));
            let wanted = (number < tensors).then_some(4 * elements as u64);
            assert_eq!(found.ok().map(|found| found.len()), wanted, "round {round}, t{number}");
        }
        assert_eq!(sizes(&fixture.collection), expected(tensors, elements), "round {round}");
    }
}

#[test]
fn cached_names_are_invalidated_when_their_container_moves_becomes_plain_or_is_removed() {
    let fixture = fixture();
    let (path, sub) = (fixture.collection.join("m.safetensors"), fixture.collection.join("sub"));
    fs::create_dir(&sub).unwrap();
    fs::write(&path, container(TENSORS, 64)).unwrap();
    assert_eq!(sizes(&fixture.collection).len(), TENSORS);
    let gone =
        |directory: &Path| (0..TENSORS).all(|number| !directory.join(format!(".tensors/t{number}")).exists());
    fs::rename(&path, sub.join("m.safetensors")).unwrap();
    assert!(gone(&fixture.collection));
    assert_eq!(sizes(&sub).len(), TENSORS);
    fs::rename(sub.join("m.safetensors"), &path).unwrap();
    assert!(gone(&sub));
    assert_eq!(sizes(&fixture.collection).len(), TENSORS);
    fs::rename(&path, fixture.collection.join("plain")).unwrap();
    assert!(gone(&fixture.collection), "a plain file has no tensors");
    fs::rename(fixture.collection.join("plain"), &path).unwrap();
    assert_eq!(sizes(&fixture.collection).len(), TENSORS);
    fs::remove_file(&path).unwrap();
    assert!(gone(&fixture.collection));
}

#[test]
fn a_mount_on_a_directory_without_cached_names_of_tensors_stays() {
    for (options, lists) in [(&["--keep-names", "off"][..], true), (&[], false)] {
        let place = Place::new();
        let mounted = place.mount(&[&["--create"], options].concat());
        // No name of a tensor may be looked up before.
        let (collection, other) = (mounted.path("acme/kept"), place.path("other"));
        let directory = collection.join("sub");
        fs::create_dir_all(&directory).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("here"), "x").unwrap();
        let path = collection.join("m.safetensors");
        fs::write(&path, container(TENSORS, 64)).unwrap();
        if lists {
            assert_eq!(sizes(&mounted.path("acme/kept")), expected(TENSORS, 64));
        }
        let bound = rustix::mount::mount_bind(&other, &directory);
        bound.unwrap();
        fs::write(&path, container(TENSORS, 65)).unwrap();
        assert_eq!(names(&directory), ["here"], "{options:?}");
        rustix::mount::unmount(&directory, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(sizes(&mounted.path("acme/kept")), expected(TENSORS, 65));
    }
}

#[test]
fn a_program_keeps_its_working_directory_when_all_names_are_looked_up_again() {
    let fixture = fixture();
    let path = fixture.collection.join("m.safetensors");
    let directory = fixture.collection.join("sub/deeper");
    fs::create_dir_all(&directory).unwrap();
    let open = fs::File::open(&directory).unwrap();
    let number = open.metadata().unwrap().ino();
    fs::write(&path, container(TENSORS, 64)).unwrap();
    // Without cached names the kernel gets no notification.
    assert_eq!(sizes(&fixture.collection), expected(TENSORS, 64));
    let new = fixture.place.write("new.safetensors", container(TENSORS, 65));
    let script = format!(
        "cp '{}' '{}' && stat '{}' >/dev/null && pwd -P && echo x >here && ls && python3 -c 'import os; print(os.getcwd())'",
        new.display(),
        path.display(),
        directory.display()
    );
    let said = String::from_utf8(shell(&directory, &script).stdout).unwrap();
    let here = directory.display();
    assert_eq!(said, format!("{here}\nhere\n{here}\n"));
    assert_eq!(fs::metadata(&directory).unwrap().ino(), number);
}
