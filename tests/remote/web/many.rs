//! Directories of many shards: their headers are read many at a time, also those that are longer than the first read.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::{Place, Random, answer, assert_same, container_of, tierfs};

use super::hub::oid;
use super::{Reply, Request, Server};

const SHARDS: usize = 48;
/// An answer takes this long, so that requests that are made together meet.
const TAKES: Duration = Duration::from_millis(20);

/// A site with many shards, each with a header of more than 128 KiB. It counts the requests that are answered together.
struct Shards {
    server: Server,
    files: Arc<Vec<Vec<u8>>>,
    together: Arc<AtomicUsize>,
}

impl Shards {
    fn start() -> Shards {
        let names: Vec<String> = (0..1500).map(|number| format!("{number:0>100}")).collect();
        let tensors: Vec<(&str, usize)> = names.iter().map(|name| (&**name, 1)).collect();
        let file = |seed| container_of(&mut Random(seed), &tensors);
        let files: Arc<Vec<Vec<u8>>> = Arc::new((0..SHARDS as u64).map(file).collect());
        assert!(files[0].len() > 200_000, "{} bytes", files[0].len());
        let (together, now) = (Arc::<AtomicUsize>::default(), AtomicUsize::new(0));
        let (most, served) = (together.clone(), files.clone());
        let server = Server::start(move |request| {
            let is_range = !request.header("range").is_empty();
            if is_range {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(TAKES);
            }
            let reply = reply(&served, request);
            if is_range {
                now.fetch_sub(1, Ordering::SeqCst);
            }
            reply
        });
        Shards { server, files, together }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/acme/m/", self.server.port())
    }

    /// The requests for bytes of files.
    fn ranges(&self) -> usize {
        self.server.requests().iter().filter(|request| !request.header("range").is_empty()).count()
    }
}

fn reply(files: &[Vec<u8>], request: &Request) -> Reply {
    if request.path == "/acme/m/" {
        let list = (0..files.len()).fold(String::new(), |mut list, number| {
            writeln!(list, "<a href=\"{number:03}.safetensors\">x</a>").unwrap();
            list
        });
        return Reply::new(200, list).with("Content-Type", "text/html");
    }
    let name = request.path.strip_prefix("/acme/m/").and_then(|name| name.strip_suffix(".safetensors"));
    let file = name.and_then(|name| files.get(name.parse::<usize>().ok()?));
    file.map_or_else(
        || Reply::new(404, ""),
        |bytes| Reply::bytes(request, bytes).with("ETag", format!("\"{}\"", oid(bytes))),
    )
}

#[test]
fn headers_of_a_directory_of_shards_are_read_many_at_a_time() {
    let (place, shards) = (Place::new(), Shards::start());
    let mut command = tierfs();
    command.env("HOME", place.path("home"));
    let options = ["--cache", "none"];
    let mounted = place.mount_store_by(&mut command, shards.url().into(), "mounted", &options);
    assert_eq!(support::names(&mounted.path("acme/m")).len(), SHARDS);
    println!("{} requests, {} together", shards.ranges(), shards.together.load(Ordering::SeqCst));
    // The first read of a header, and the rest of it; and a byte before the mount.
    assert_eq!(shards.ranges(), 2 * SHARDS + 1);
    assert!(shards.together.load(Ordering::SeqCst) >= 6);
    for number in [0, SHARDS - 1] {
        let found = std::fs::read(mounted.path("acme/m").join(format!("{number:03}.safetensors"))).unwrap();
        assert_same(&found, &shards.files[number], "a shard");
    }
    mounted.unmount();
}

#[test]
fn an_import_in_place_of_many_shards_reads_their_headers_many_at_a_time() {
    let (place, shards) = (Place::new(), Shards::start());
    answer(tierfs().arg("init").arg(place.store())).ok();
    let mut command = tierfs();
    command.arg("import").arg(place.store()).args(["acme/m", &shards.url(), "--in-place"]);
    answer(&mut command).ok();
    println!("{} requests, {} together", shards.ranges(), shards.together.load(Ordering::SeqCst));
    assert_eq!(shards.ranges(), 2 * SHARDS);
    assert!(shards.together.load(Ordering::SeqCst) >= 6);
    let mounted = place.mount(&["--cache", "none"]);
    for number in [0, SHARDS / 2, SHARDS - 1] {
        let found = std::fs::read(mounted.path("acme/m").join(format!("{number:03}.safetensors"))).unwrap();
        assert_same(&found, &shards.files[number], "a shard");
    }
    mounted.unmount();
}
