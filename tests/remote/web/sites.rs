//! `https://` and `http://`: nginx with its lists, Python's server, which has no ranges, and imitations of faults.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{Place, Random, answer, assert_same, container_of, python_command, tierfs};
use tierfs::model::ErrorKind;
use tierfs::remote::client::version::Version;
use tierfs::remote::index::collections::shape_of;
use tierfs::remote::source::{Source, open};

use super::hubs::{by_key, read, refusal};
use super::{Process, Reply, Server, nginx};

/// Files with names that need escapes.
fn files(place: &Place) -> Vec<(&'static str, Vec<u8>)> {
    let model = container_of(&mut Random(5), &[("a", 200_000), ("b", 1000)]);
    let files = vec![
        ("README", b"text".to_vec()),
        ("empty", Vec::new()),
        ("llama/config & more.json", b"{}".to_vec()),
        ("llama/model.safetensors", model),
        ("llama/sub dir/100%.bin", vec![1; 70_000]),
        ("llama/\u{e4}\u{4e16}.txt", b"unicode".to_vec()),
    ];
    for (name, bytes) in &files {
        place.write(&format!("files/{name}"), bytes);
    }
    files
}

#[track_caller]
fn same_files(source: &dyn Source, files: &[(&str, Vec<u8>)]) {
    let objects = by_key(source.list("").unwrap());
    assert_eq!(
        objects.iter().map(|object| &*object.key).collect::<Vec<_>>(),
        files.iter().map(|(name, _)| *name).collect::<Vec<_>>()
    );
    for (object, (name, bytes)) in objects.iter().zip(files) {
        assert_eq!(object.bytes, bytes.len() as u64, "{name}");
        assert_same(&read(source, object), bytes, name);
    }
}

#[test]
fn lists_of_nginx_lead_to_the_same_files() {
    let place = Place::new();
    let files = files(&place);
    for (options, has_tags) in [("", true), ("autoindex_format json;", true), ("etag off;", false)] {
        let Some(nginx) = nginx(&place, "files", options) else { return };
        let url = format!("http://127.0.0.1:{}/", nginx.port);
        let source = open(&url).unwrap();
        same_files(&*source, &files);
        let level = source.level("").unwrap();
        assert_eq!((level.directories, level.objects.len()), (vec!["llama".to_owned()], 2));
        let level = source.level("llama").unwrap();
        assert_eq!((level.directories, level.objects.len()), (vec!["sub dir".to_owned()], 3));
        assert_eq!(has_tags, matches!(level.objects[0].version, Version::ETag(_)), "{options}");
        // A directory without its slash, and one file.
        let source = open(&format!("{url}llama")).unwrap();
        assert_eq!(source.list("").unwrap().len(), 4);
        let source = open(&format!("{url}llama/model.safetensors")).unwrap();
        let objects = source.list("").unwrap();
        assert_eq!((objects.len(), &*objects[0].key), (1, "model.safetensors"));
        assert_same(&read(&*source, &objects[0]), &files[3].1, "one file");
    }
}

#[test]
fn a_replaced_file_is_noticed_and_its_new_version_is_read_after_a_new_list() {
    let place = Place::new();
    files(&place);
    for options in ["", "if_modified_since off; etag off;"] {
        let Some(nginx) = nginx(&place, "files", options) else { return };
        let source = open(&format!("http://127.0.0.1:{}/llama/", nginx.port)).unwrap();
        let path = place.path("files/llama/model.safetensors");
        fs::write(&path, vec![1; 5000]).unwrap();
        let object = |source: &dyn Source| {
            let objects = source.list("").unwrap();
            objects.into_iter().find(|object| object.key == "model.safetensors").unwrap()
        };
        let before = object(&*source);
        // Another time, of the same length.
        fs::write(&path, vec![2; 5000]).unwrap();
        let times = fs::FileTimes::new().set_modified(std::time::SystemTime::now() + Duration::from_secs(5));
        fs::File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        let error = source.client().get_version(&before.at, 0..10, &before.pin()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{options}: {error}");
        assert_eq!(read(&*source, &object(&*source)), vec![2; 5000]);
        // Shorter, so that the range is not there any more.
        let before = object(&*source);
        fs::write(&path, vec![3; 100]).unwrap();
        let error = source.client().get_version(&before.at, 4000..5000, &before.pin()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{options}: {error}");
        fs::remove_file(&path).unwrap();
        let error = source.client().get_version(&before.at, 0..10, &before.pin()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{options}: {error}");
    }
}

fn python_server(place: &Place) -> Process {
    Process::start(|port| {
        let mut command: Command = python_command();
        command.args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1", "--directory"]);
        command.arg(place.path("files"));
        command
    })
}

#[test]
fn a_server_without_ranges_is_refused_or_asked_for_whole_files() {
    let place = Place::new();
    let files = files(&place);
    let server = python_server(&place);
    let source = open(&format!("http://127.0.0.1:{}/", server.port)).unwrap();
    let objects = by_key(source.list("").unwrap());
    let error =
        source.client().get_version(&objects[3].at, 5..10, &objects[3].pin()).unwrap_err().to_string();
    assert!(error.contains("status 200") && error.contains("https+whole://"), "{error}");
    fs::create_dir(place.path("mnt")).unwrap();
    let mut mount = tierfs();
    mount.args(["mount", "--cache", "none", &format!("http://127.0.0.1:{}/", server.port)]);
    answer(mount.arg(place.path("mnt"))).failed(1, &["status 200", "http+whole://"]);
    let source = open(&format!("http+whole://127.0.0.1:{}/", server.port)).unwrap();
    assert!(shape_of(&*source).is_ok());
    same_files(&*source, &files);
}

#[test]
fn a_whole_file_is_downloaded_once_and_reads_wait_for_their_bytes() {
    let bytes = Random(9).bytes(3 << 20);
    let (served, asked) = (bytes.clone(), Arc::new(AtomicU64::new(0)));
    let counted = asked.clone();
    let server = Server::start(move |request| {
        let reply = Reply::new(200, served.clone()).with("ETag", "\"v1\"");
        if request.method == "GET" {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        reply
    });
    let source = open(&format!("http+whole://127.0.0.1:{}/m.bin", server.port())).unwrap();
    let object = source.list("").unwrap().remove(0);
    // The last part is there at the end of the download only.
    let end = object.bytes;
    assert_eq!(
        source.client().get_version(&object.at, end - 10..end, &object.pin()).unwrap(),
        bytes[bytes.len() - 10..]
    );
    let source = open(&format!("http+whole://127.0.0.1:{}/m.bin", server.port())).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_same(&read(&*source, &object), &bytes, "parts of a whole file"));
        }
    });
    // One by each source.
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[test]
fn a_server_that_says_0_bytes_to_each_head_has_files_and_messages_name_their_urls() {
    let server = Server::start(|request| match (request.method.as_str(), request.path.as_str()) {
        ("HEAD", "/a/m.bin") => Reply::new(200, "").with("ETag", "\"v1\"").with("Content-Length", "0"),
        (_, "/a/m.bin") => Reply::bytes(request, b"0123456789").with("ETag", "\"v1\""),
        _ => Reply::new(403, ""),
    });
    let url = format!("http://127.0.0.1:{}/a/m.bin", server.port());
    let source = open(&url).unwrap();
    let object = source.list("").unwrap().remove(0);
    assert_eq!(object.bytes, 10);
    assert_eq!(source.client().get_version(&object.at, 2..5, &object.pin()).unwrap(), b"234");
    let none = format!("http://127.0.0.1:{}/a/none", server.port());
    let error = open(&none).unwrap().list("").unwrap_err().to_string();
    assert!(error.contains(&format!("{none}:")), "{error}");
}

#[test]
fn a_whole_file_that_ends_early_is_not_taken_for_the_file() {
    let server = Server::start(|_| {
        Reply::new(200, vec![1; 1000]).with("ETag", "\"a\"").with("Content-Length", "2000")
    });
    let deadlines = tierfs::remote::client::Deadlines { total: Duration::from_secs(2), ..Default::default() };
    let url = format!("http+whole://127.0.0.1:{}/m.bin", server.port());
    let source = tierfs::remote::source::open_within(&url, deadlines).unwrap();
    let object = source.list("").unwrap().remove(0);
    assert!(source.client().get_version(&object.at, 1500..1600, &object.pin()).is_err());
}

#[test]
fn lists_without_end_and_pages_that_are_none_are_refused() {
    let link = |name: &str| {
        Reply::new(200, format!("<title>Index of /</title><a href=\"{name}\">x</a>"))
            .with("Content-Type", "text/html")
    };
    let answers: Vec<(Reply, &str)> = vec![
        // A directory that contains itself.
        (link("again/"), "its directories do not end"),
        (Reply::new(200, "<html>Welcome</html>"), "it has no list of files that tierfs can read"),
        (Reply::new(200, vec![b'<'; 5 << 20]), "has more than 4 MiB"),
        (Reply::new(401, ""), "tierfs has no credentials for web servers"),
        (Reply::new(403, ""), "tierfs has no credentials for web servers"),
        (Reply::new(404, ""), "does not exist"),
        (Reply::new(429, "").with("Retry-After", "60"), "wants a pause of 60 s"),
        (Reply::to("/models/"), "redirects without end"),
    ];
    for (reply, wanted) in answers {
        let server = Server::start(move |_| reply.clone());
        let error = refusal(&*open(&format!("http://127.0.0.1:{}/models/", server.port())).unwrap());
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

#[test]
fn a_file_without_a_version_or_a_length_is_refused() {
    for (headers, wanted) in [
        (vec![], "which version it has"),
        (vec![("Last-Modified", "Thu, 01 Jan 1970 00:00:01 GMT")], "which version it has"),
        (vec![("Transfer-Encoding", "identity"), ("ETag", "\"a\"")], "how long the file is"),
    ] {
        let server = Server::start(move |_| {
            headers.iter().fold(Reply::new(200, "x"), |reply, (name, value)| reply.with(name, *value))
        });
        let error = refusal(&*open(&format!("http://127.0.0.1:{}/m.bin", server.port())).unwrap());
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

#[test]
fn a_server_that_ignores_conditions_is_compared_with_the_list() {
    let version = Arc::new(AtomicU64::new(1));
    let now = version.clone();
    let server = Server::start(move |request| {
        let now = now.load(Ordering::Relaxed);
        Reply::bytes(request, &vec![now as u8; 1000]).with("ETag", format!("\"{now}\""))
    });
    let source = open(&format!("http://127.0.0.1:{}/m.bin", server.port())).unwrap();
    let object = source.list("").unwrap().remove(0);
    assert_eq!(read(&*source, &object), vec![1; 1000]);
    assert_eq!(server.requests().last().unwrap().header("if-match"), "\"1\"");
    version.store(2, Ordering::Relaxed);
    let begun = Instant::now();
    let error = source.client().get_version(&object.at, 0..10, &object.pin()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(begun.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_file_that_the_server_refuses_is_left_out() {
    let server = Server::start(move |request| match &*request.path {
        "/" => {
            Reply::new(200, "<a href=\"secret\">x</a><a href=\"plain\">x</a><a href=\"unversioned\">x</a>")
        }
        "/secret" => Reply::new(403, ""),
        "/unversioned" => Reply::new(200, "text"),
        _ => Reply::new(200, "text").with("ETag", "\"a\""),
    });
    let source = open(&format!("http://127.0.0.1:{}/", server.port())).unwrap();
    let objects = source.list("").unwrap();
    assert_eq!(objects.iter().map(|object| &*object.key).collect::<Vec<_>>(), ["plain"]);
    assert_eq!(source.refused().as_deref(), Some("secret"));
}
