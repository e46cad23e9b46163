//! The client on a bucket whose requests fail.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::memory::InMemory;
use tierfs::model::ErrorKind;
use tierfs::remote::client::{Client, Deadlines, Put};

use crate::faulty::{Call, Fault, Faulty};

fn content() -> Vec<u8> {
    (0..50_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// A bucket with one object, and a client whose first `count` requests of this kind meet a fault.
fn bucket(call: Call, fault: Fault, count: u64) -> (Arc<Faulty>, Client) {
    let objects = Arc::new(InMemory::new());
    let quiet = Faulty::over(&objects, |_| Fault::None).client();
    assert_eq!(quiet.create("piece/one", Bytes::from(content())).unwrap(), Put::Created);
    let plan = move |request: &crate::faulty::Request| {
        if request.call == call && request.number < count { fault } else { Fault::None }
    };
    let faulty = Faulty::over(&objects, plan);
    let client = faulty.client();
    (faulty, client)
}

#[test]
fn reads_give_the_right_bytes_whatever_fails_twice() {
    for fault in [Fault::Fails, Fault::Hangs, Fault::CutShort] {
        let (_, client) = bucket(Call::Get, fault, 2);
        assert_eq!(client.get("piece/one", 1 << 20).unwrap().unwrap(), content(), "{fault:?}");
        let (_, client) = bucket(Call::Get, fault, 2);
        let range = client.get_range("piece/one", 1234..100_001).unwrap().unwrap();
        assert_eq!(range, content()[1234..100_001], "{fault:?}");
    }
}

#[test]
fn a_body_that_ends_early_is_continued_and_not_read_again() {
    let (_, client) = bucket(Call::Get, Fault::CutShort, 3);
    assert_eq!(client.get("piece/one", 1 << 20).unwrap().unwrap(), content());
    let received = client.counts().received.load(Ordering::Relaxed);
    assert_eq!(received, content().len() as u64);
}

#[test]
fn a_server_that_hangs_gets_a_second_request_which_wins() {
    let (faulty, client) = bucket(Call::Get, Fault::Hangs, 1);
    let begun = Instant::now();
    assert_eq!(client.get("piece/one", 1 << 20).unwrap().unwrap(), content());
    assert!(begun.elapsed() < Duration::from_millis(190), "{:?}", begun.elapsed());
    assert_eq!((faulty.requests(), client.counts().hedges.load(Ordering::Relaxed)), (2, 1));
}

/// Requests that last as long as those of a real server in proportion to each other.
const PATIENT: Deadlines = Deadlines {
    stall: Duration::from_millis(300),
    silence: Duration::from_millis(600),
    upload: Duration::from_secs(10),
    total: Duration::from_secs(20),
    pause: Duration::from_millis(20),
    pause_max: Duration::from_secs(1),
};

#[test]
fn objects_that_never_come_delay_others_by_less_than_their_deadline() {
    let objects = Arc::new(InMemory::new());
    Faulty::over(&objects, |_| Fault::None).client().create("good", Bytes::from_static(b"here")).unwrap();
    let bucket =
        Faulty::over(
            &objects,
            |request| {
                if request.key.ends_with("/good") { Fault::None } else { Fault::Hangs }
            },
        );
    let client = Client::over(bucket, "models", "memory://models", PATIENT);
    let hang = |from: u64| {
        for number in from..from + 40 {
            let client = client.clone();
            // The deadline of these is later than the end of the test.
            std::thread::spawn(move || drop(client.get(&format!("bad/{number}"), 9)));
        }
    };
    hang(0);
    std::thread::sleep(Duration::from_secs(3));
    // The server is known to be silent by now, and others that hang come first.
    hang(40);
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    assert_eq!(client.get("good", 9).unwrap().unwrap(), b"here");
    println!("{:?}, limit {:?}", begun.elapsed(), client.window().limit_and_active());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn a_server_that_never_answers_is_an_error_after_the_deadline_and_not_a_hang() {
    for (call, fault) in [(Call::Get, Fault::Hangs), (Call::Get, Fault::Fails), (Call::List, Fault::Hangs)] {
        let (_, client) = bucket(call, fault, u64::MAX);
        let begun = Instant::now();
        let error = match call {
            Call::Get => client.get("piece/one", 1 << 20).unwrap_err(),
            _ => client.list("piece", None).unwrap_err(),
        };
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("memory://models/piece"), "{error}");
    }
}

#[test]
fn a_panic_of_a_request_is_an_error_of_that_request_alone() {
    for call in [Call::Get, Call::Put, Call::List] {
        let (_, client) = bucket(call, Fault::Panics, 1);
        let done = || match call {
            Call::Get => client.get("piece/one", 1 << 20).map(drop),
            Call::Put => client.put("piece/two", Bytes::from_static(b"new")),
            _ => client.list("piece", None).map(drop),
        };
        let error = done().unwrap_err();
        assert!(
            error.kind() == ErrorKind::Io && error.to_string().contains("panicked: a planned panic"),
            "{error}"
        );
        done().unwrap();
    }
}

#[test]
fn a_listing_without_an_end_is_an_error() {
    let (_, client) = bucket(Call::List, Fault::Unending, u64::MAX);
    let error = client.list("piece", None).unwrap_err();
    assert!(error.to_string().contains("its listing never ends"), "{error}");
}

#[test]
fn many_readers_of_a_dead_server_all_get_an_error_soon() {
    let (_, client) = bucket(Call::Get, Fault::Hangs, u64::MAX);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| assert_eq!(client.get("piece/one", 1 << 20).unwrap_err().kind(), ErrorKind::Io));
        }
    });
    // One after the other they would take 90 s.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn no_object_is_no_error_and_a_refusal_says_what_to_check() {
    let (_, client) = bucket(Call::Get, Fault::None, 0);
    assert_eq!(client.get("piece/two", 10).unwrap(), None);
    let (faulty, client) = bucket(Call::Get, Fault::Denied, u64::MAX);
    let error = client.get("piece/one", 1 << 20).unwrap_err();
    assert_eq!((error.kind(), faulty.requests()), (ErrorKind::Forbidden, 1));
    assert!(error.to_string().contains("tierfs doctor memory://models"), "{error}");
}

#[test]
fn answers_of_the_server_are_passed_on_as_they_are() {
    let objects = Arc::new(InMemory::new());
    let plan = |request: &crate::faulty::Request| match request.key.rsplit('/').next() {
        Some("wrong") => Fault::WrongByte,
        Some("gone") => Fault::NotFound,
        Some("there") => Fault::Exists,
        _ => Fault::None,
    };
    let client = Faulty::over(&objects, plan).client();
    let created = ["wrong", "gone", "there"].map(|key| client.create(key, Bytes::from_static(b"12")).ok());
    assert_eq!(created, [Some(Put::Created), None, Some(Put::Exists)]);
    // The caller compares the bytes with the key.
    assert_eq!(client.get("wrong", 9).unwrap().unwrap(), b"13");
    assert_eq!(client.get("gone", 9).unwrap(), None);
}

#[test]
fn objects_of_wrong_lengths_are_refused_before_their_bytes_are_kept() {
    let (_, client) = bucket(Call::Get, Fault::None, 0);
    assert_eq!(client.get("piece/one", 1000).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(client.get_range("piece/one", 0..1 << 20).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn one_of_two_creations_of_an_object_is_told_that_it_exists() {
    let (_, client) = bucket(Call::Put, Fault::None, 0);
    assert_eq!(client.create("piece/one", Bytes::from_static(b"other")).unwrap(), Put::Exists);
    assert_eq!(client.get("piece/one", 1 << 20).unwrap().unwrap(), content());
    // The first try has created it already.
    let (faulty, client) = bucket(Call::Put, Fault::AnswerLost, 1);
    assert_eq!(client.create("piece/two", Bytes::from_static(b"new")).unwrap(), Put::Exists);
    assert_eq!(faulty.requests(), 2);
    client.put("piece/two", Bytes::from_static(b"newer")).unwrap();
    assert_eq!(client.get("piece/two", 100).unwrap().unwrap(), b"newer");
}

#[test]
fn listings_continue_after_a_key_and_directories_stand_for_what_is_below() {
    for fault in [Fault::None, Fault::Fails, Fault::Hangs] {
        let (_, client) = bucket(Call::List, fault, 5);
        for key in ["snap/a/x/1", "snap/a/x/2", "snap/a/x/3", "snap/b%20c/y/1", "snapshots"] {
            client.create(key, Bytes::from_static(b"1")).unwrap();
        }
        let keys = |below, after| -> Vec<String> {
            client.list(below, after).unwrap().into_iter().map(|object| object.key).collect()
        };
        assert_eq!(keys("snap", None), ["snap/a/x/1", "snap/a/x/2", "snap/a/x/3", "snap/b%20c/y/1"]);
        assert_eq!(keys("snap/a/x", Some("snap/a/x/1")), ["snap/a/x/2", "snap/a/x/3"]);
        assert_eq!(client.directories("snap").unwrap(), ["a", "b%20c"]);
        client.delete(&["snap/a/x/1".to_owned(), "snap/a/x/9".to_owned()]).unwrap();
        assert_eq!(keys("snap/a", None), ["snap/a/x/2", "snap/a/x/3"]);
    }
}

#[test]
fn a_directory_of_a_file_system_is_a_remote_too() {
    let folder = tempfile::tempdir().unwrap();
    let client = Client::open(&format!("file://{}", folder.path().display())).unwrap();
    for key in ["snap/a%20%C3%A9%~/x/1", "snap/b/y/1"] {
        assert_eq!(client.create(key, Bytes::from(key.to_owned())).unwrap(), Put::Created);
        assert_eq!(client.create(key, Bytes::from_static(b"other")).unwrap(), Put::Exists);
        assert_eq!(client.get(key, 100).unwrap().unwrap(), key.as_bytes());
    }
    assert_eq!(client.directories("snap").unwrap(), ["a%20%C3%A9%~", "b"]);
    let keys: Vec<String> = client.list("snap", None).unwrap().into_iter().map(|object| object.key).collect();
    assert_eq!(keys, ["snap/a%20%C3%A9%~/x/1", "snap/b/y/1"]);
    client.delete(&keys).unwrap();
    assert_eq!(client.list("snap", None).unwrap(), []);
    assert_eq!(client.list("nothing", None).unwrap(), []);
    assert_eq!(client.directories("nothing").unwrap(), [""; 0]);
}

#[test]
fn urls_that_are_no_remote_are_refused_and_secrets_in_them_are_not_repeated() {
    for url in ["/srv/models", "s3://", "ftp://host/x", "file://relative"] {
        assert!(Client::open(url).is_err(), "{url}");
    }
    let error = Client::open("s3://AKIAKEY:hunter2@bucket/models").err().unwrap().to_string();
    assert!(!error.contains("hunter2") && error.contains("AWS_SECRET_ACCESS_KEY"), "{error}");
}
