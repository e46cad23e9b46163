//! The operations of `model` on clones, whose remote fails at random: what is not here is fetched, what the remote has
//! is evicted now and then, and the collection is pushed and cloned again.

use std::fs;
use std::process::Command;

use support::{Bucket, Fixture, Random, answer, scale, tierfs};

use crate::model::{Model, Test, number};

const OPERATIONS: u64 = 600;
/// Pushes, each followed by a clone into an empty store.
const CLONES: u64 = 4;
const URL: &str = "s3://models/demo";

/// Publishes the collection, and puts a new store in place of the old, with a clone of which nothing is here.
fn clone_again(fixture: &mut Fixture, bucket: &Bucket) {
    let directory = fixture.place.path("buckets/models/demo");
    let environment = bucket.environment();
    fixture.while_unmounted(|store| {
        let run = |command: &mut Command| answer(command.envs(environment.clone())).ok();
        // Readers go through the server, and a push to the directory itself.
        let written = format!("file://{}", directory.display());
        run(tierfs().arg("push").arg(store).args(["demo/m", &written, "--create"]));
        answer(tierfs().arg("fsck").arg(store)).ok();
        fs::remove_dir_all(store).unwrap();
        run(tierfs().arg("init").arg(store));
        run(tierfs().args(["clone", URL, "demo/m"]).arg(store));
    });
}

#[test]
fn random_operations_on_clones_that_are_evicted_now_and_then_agree_with_a_naive_file_system() {
    let seed = number("TIERFS_MODEL_SEED", u64::from(std::process::id()));
    let operations = number("TIERFS_MODEL_OPERATIONS", OPERATIONS * u64::from(scale()));
    println!("TIERFS_MODEL_SEED={seed} makes the same operations");
    let mut test = Test { fixture: Fixture::new(), model: Model::default(), random: Random(seed) };
    fs::create_dir_all(test.fixture.place.path("buckets/models/demo")).unwrap();
    let bucket = Bucket::of(&test.fixture.place.path("buckets"), seed);
    test.fixture.environment = bucket.environment();
    clone_again(&mut test.fixture, &bucket);
    for done in 1..=operations {
        test.step();
        if test.random.below(30) == 0 {
            support::set(&test.at(""), "evict", "1").unwrap();
        }
        if done % (operations / CLONES).max(1) == 0 {
            test.compare(&format!("after {done} operations"));
            clone_again(&mut test.fixture, &bucket);
            test.compare(&format!("after {done} operations and a clone"));
        }
    }
    test.fixture.check();
    let (requests, faults) = bucket.counts();
    println!("{requests} requests, {faults} of them failed");
    assert!(faults > 0, "nothing failed");
}
