//! Requests of the kernel, one after the other, each as long as its header says. All are parsed, and answered by the file
//! system of a small store.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Replies, channel};
use std::time::Duration;

use tierfs::fs::kernel::{
    Operation, REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, ReplyHeader, Request, Sender, TRANSFER_BYTES_MAX,
};
use tierfs::fs::{Offline, Options};
use tierfs::ingest::{Origin, Target, import_file};
use tierfs::model::{Owner, Silent, StoreId};
use tierfs::store::Settings;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Store};

use super::bounded::Bounded;

const STORE: StoreId = StoreId(0x5707e);
/// By then a request is answered.
const PATIENCE: Duration = Duration::from_secs(60);
/// The inodes that small numbers stand for, from 2 on.
const PATHS: [&str; 9] = [
    "t",
    "t/c",
    "t/c/m.safetensors",
    "t/c/.tensors",
    "t/c/.tensors/w",
    ".ctl",
    ".ctl/status",
    "t/c/.as",
    ".ctl/jobs",
];
const NODE_AT: usize = 16;
/// More requests than this take too long.
const REQUESTS_MAX: usize = 64;

/// Takes the replies to one request.
struct Taker {
    replies: Replies<Vec<u8>>,
    place: Vec<u8>,
}

impl Sender for Taker {
    fn send(&mut self, header: &ReplyHeader, body: &[u8]) -> io::Result<()> {
        self.replies.send([header, body].concat()).map_err(io::Error::other)
    }

    fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > TRANSFER_BYTES_MAX {
            return None;
        }
        self.place.resize(len, 0);
        Some(&mut self.place)
    }

    fn send_placed(&mut self, header: &ReplyHeader, count: usize) -> io::Result<()> {
        let body = std::mem::take(&mut self.place);
        self.send(header, &body[..count])
    }
}

/// A file system with a container of one tensor and a plain file.
fn offline() -> Offline {
    let disk: Arc<dyn Disk> = Arc::new(Bounded(MemoryDisk::new()));
    Store::create(&*disk, STORE).unwrap();
    let store = Arc::new(Store::open(disk, Access::Write, "").unwrap());
    let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
    let header = br#"{"w":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}"#;
    let container = [&(header.len() as u64).to_le_bytes()[..], header, &[7; 32]].concat();
    for (name, bytes) in [("m.safetensors", &container[..]), ("plain", b"some bytes")] {
        let source = MemoryDisk::new().open("source", Open::Create).unwrap();
        source.write_at(bytes, 0).unwrap();
        let target = Target { name: name.into(), directories: Vec::new() };
        let origin =
            Origin { mode: 0o644, owner: Owner { uid: 0, gid: 0 }, atime: 1, mtime: 1, sha256: None };
        let (settings, options) = (Settings::new(STORE), Default::default());
        import_file(&collection, &settings, &target, &source, &origin, &options, &Silent).unwrap();
    }
    drop(collection);
    Offline::new(store, &Options::default()).unwrap()
}

/// Sends a request. Returns the replies that come until the file system has dropped the sender.
fn replies(offline: &Offline, request: &[u8]) -> Vec<Vec<u8>> {
    let (replies, taken): (_, Receiver<Vec<u8>>) = channel();
    offline.receive(request, Taker { replies, place: Vec::new() });
    let mut all = Vec::new();
    loop {
        match taken.recv_timeout(PATIENCE) {
            Ok(reply) => all.push(reply),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => panic!("no answer to {request:?}"),
        }
    }
}

/// The inode at a path.
fn found(offline: &Offline, path: &str) -> u64 {
    path.split('/').fold(1, |node, part| {
        let len = (REQUEST_HEADER_BYTES + part.len() + 1) as u32;
        let head = [len.to_ne_bytes(), 1_u32.to_ne_bytes()].concat();
        let request = [&head, &[0; 8][..], &node.to_ne_bytes(), &[0; 16], part.as_bytes(), b"\0"].concat();
        let reply = replies(offline, &request).pop().unwrap();
        u64_at(&reply, REPLY_HEADER_BYTES).unwrap_or_else(|| panic!("{path} is not there: {reply:?}"))
    })
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn check(bytes: &[u8]) {
    let requests = cut(bytes);
    requests.iter().for_each(|request| check_parsed(request));
    // Most damage is in one place; then the others are answered as before.
    if requests.iter().all(|request| Request::parse(request).is_err()) {
        return;
    }
    let offline = offline();
    let known: Vec<u64> = [1, 1].into_iter().chain(PATHS.map(|path| found(&offline, path))).collect();
    for mut request in requests {
        let node = u64_at(&request, NODE_AT).and_then(|node| known.get(usize::try_from(node).ok()?));
        if let (Some(place), Some(node)) = (request.get_mut(NODE_AT..NODE_AT + 8), node) {
            place.copy_from_slice(&node.to_ne_bytes());
        }
        check_answered(&offline, &request);
    }
}

/// The requests in these bytes. The last one has the rest.
fn cut(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    while !bytes.is_empty() && requests.len() < REQUESTS_MAX {
        let len = u32_at(bytes, 0).map_or(bytes.len(), |len| (len as usize).clamp(1, bytes.len()));
        let (request, rest) = bytes.split_at(len);
        requests.push(request.to_vec());
        bytes = rest;
    }
    requests
}

fn check_parsed(bytes: &[u8]) {
    match Request::parse(bytes) {
        Ok(request) => {
            assert_eq!(u32_at(bytes, 0), Some(bytes.len() as u32));
            assert_eq!(u64_at(bytes, 8), Some(request.unique));
            assert_eq!(u64_at(bytes, NODE_AT), Some(request.node.0));
            let (names, data): (&[&[u8]], &[u8]) = match &request.operation {
                Operation::Lookup { name } | Operation::Unlink { name } => (&[*name], &[]),
                Operation::Rename { name, new_name, .. } => (&[*name, *new_name], &[]),
                Operation::Create { name, .. } => (&[*name], &[]),
                Operation::Write { data, offset, .. } => {
                    assert!(offset.checked_add(data.len() as u64).is_some());
                    (&[], *data)
                }
                Operation::BatchForget(forgotten) => {
                    assert!(forgotten.inodes().count() * 16 + REQUEST_HEADER_BYTES < bytes.len());
                    (&[], &[])
                }
                _ => (&[], &[]),
            };
            assert!(data.len() <= bytes.len() && bytes.ends_with(data));
            for name in names {
                assert!(!name.is_empty() && !name.contains(&0) && !name.contains(&b'/'));
            }
        }
        Err(malformed) => {
            let unique = u64_at(bytes, 8).filter(|_| bytes.len() >= REQUEST_HEADER_BYTES);
            assert_eq!(malformed.unique, unique.filter(|_| is_due(bytes)));
        }
    }
}

/// Whether the kernel waits for a reply to a request with this header: not to one that forgets or interrupts.
fn is_due(request: &[u8]) -> bool {
    request.len() >= REQUEST_HEADER_BYTES && !matches!(u32_at(request, 4), Some(2 | 36 | 42))
}

fn check_answered(offline: &Offline, request: &[u8]) {
    let replies = replies(offline, request);
    assert_eq!(replies.len(), usize::from(is_due(request)), "{request:?}");
    for reply in replies {
        assert_eq!(u32_at(&reply, 0), Some(reply.len() as u32));
        assert_eq!(u64_at(&reply, 8), u64_at(request, 8));
        let error = u32_at(&reply, 4).unwrap().cast_signed();
        assert!((-4095..=0).contains(&error), "error {error}");
        assert!(error == 0 || reply.len() == REPLY_HEADER_BYTES);
    }
}
