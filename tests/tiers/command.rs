//! The command line on a mount.

use std::path::Path;

use support::{Place, Random, container_of, get, run, set};

fn tierfs(words: &[&str], path: &Path) -> support::Answer {
    run(words.iter().map(|word| word.as_ref()).chain([path.as_os_str()]))
}

#[test]
fn commands_move_wait_and_say_why_not() {
    let place = Place::new();
    let model =
        place.write("m.safetensors", container_of(&mut Random(31), &[("a", 200_000), ("b", 100_000)]));
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&[]);
    let (collection, a) = (mounted.path("t/c"), mounted.path("t/c/a"));
    tierfs(&["tier", "q8"], &a).failed(1, &["lossy"]);
    assert_eq!(get(&a, "tier"), "exact");
    set(&collection, "lossy", "allow").unwrap();
    assert!(tierfs(&["tier", "q8"], &a).ok().contains("q8"));
    assert_eq!(get(&a, "tier"), "q8");
    assert!(tierfs(&["tier", "q5:all"], &collection).ok().contains("2 of 2 tensors now q5"));
    assert_eq!((get(&a, "tier"), get(&mounted.path("t/c/b"), "tier")), ("q5".to_owned(), "q5".to_owned()));
    let answer = tierfs(&["tier", "--json", "q8:all"], &collection);
    answer.failed(1, &[]);
    tierfs(&["evict"], &a).failed(1, &["reconstruct"]);
    tierfs(&["evict", "--cache"], &collection).ok();
    tierfs(&["evict", "--discard"], &collection).ok();
    assert_eq!(get(&a, "tier"), "absent");
    tierfs(&["tier", "q8"], &place.path("")).failed(1, &["it is not on a tierfs mount"]);
    tierfs(&["tier"], &a).failed(2, &[]);
}
