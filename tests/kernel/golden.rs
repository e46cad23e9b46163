//! Golden requests and replies, which `tests/golden/fuse.py` made from the kernel's header.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tierfs::fs::kernel::{
    Attributes, Entry, Listing, Malformed, Opened, OpenedFlags, Operation, REPLY_HEADER_BYTES,
    REQUEST_HEADER_BYTES, Reply, Request, SetTime, Space,
};
use tierfs::vfs::Ino;

use crate::Taker;

const UNIQUE: u64 = 0x1122_3344_5566_7788;

fn cases(kind: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fuse.json");
    let mut all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let found: Vec<Value> = serde_json::from_value(all[kind].take()).unwrap();
    assert!(found.len() > 15, "{} golden {kind}", found.len());
    found
}

fn hex(value: &Value) -> Vec<u8> {
    let (digits, rest) = value.as_str().unwrap().as_bytes().as_chunks::<2>();
    assert!(rest.is_empty());
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.iter().map(byte).collect()
}

fn text(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).unwrap().into()
}

fn hexed(bytes: &[u8]) -> Value {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

fn set_time(time: Option<SetTime>) -> Value {
    match time {
        None => Value::Null,
        Some(SetTime::Now) => "now".into(),
        Some(SetTime::At(time)) => time.into(),
    }
}

/// The operation and its arguments, with the names of the golden cases.
fn described(operation: &Operation) -> (&'static str, Value) {
    match *operation {
        Operation::Lookup { name } => ("Lookup", json!({"name": text(name)})),
        Operation::Forget { .. } => ("Forget", json!({})),
        Operation::BatchForget(forgotten) => (
            "BatchForget",
            json!({"nodes": forgotten.inodes().map(|inode| inode.node.0).collect::<Vec<_>>()}),
        ),
        Operation::GetAttributes { handle } => ("GetAttributes", json!({"handle": handle})),
        Operation::SetAttributes(set) => (
            "SetAttributes",
            json!({"mode": set.mode, "user": set.user, "group": set.group, "bytes": set.bytes,
                "accessed": set_time(set.accessed), "modified": set_time(set.modified)}),
        ),
        Operation::ReadLink => ("ReadLink", json!({})),
        Operation::Symlink { name, target } => {
            ("Symlink", json!({"name": text(name), "target": text(target)}))
        }
        Operation::MakeNode { name, mode, umask } => {
            ("MakeNode", json!({"name": text(name), "mode": mode, "umask": umask}))
        }
        Operation::MakeDirectory { name, mode, umask } => {
            ("MakeDirectory", json!({"name": text(name), "mode": mode, "umask": umask}))
        }
        Operation::Unlink { name } => ("Unlink", json!({"name": text(name)})),
        Operation::RemoveDirectory { name } => ("RemoveDirectory", json!({"name": text(name)})),
        Operation::Rename { name, new_parent, new_name, flags } => (
            "Rename",
            json!({"name": text(name), "new_parent": new_parent.0, "new_name": text(new_name), "flags": flags.0}),
        ),
        Operation::Link { node, new_name } => ("Link", json!({"node": node.0, "new_name": text(new_name)})),
        Operation::Open { flags } => ("Open", json!({"flags": flags.0})),
        Operation::Create { name, mode, umask, flags } => {
            ("Create", json!({"name": text(name), "mode": mode, "umask": umask, "flags": flags.0}))
        }
        Operation::CreateNameless { mode, umask, flags } => {
            ("CreateNameless", json!({"mode": mode, "umask": umask, "flags": flags.0}))
        }
        Operation::Read { handle, offset, size, flags } => {
            ("Read", json!({"handle": handle, "offset": offset, "size": size, "flags": flags.0}))
        }
        Operation::Write { handle, offset, data, kills_setid, flags } => (
            "Write",
            json!({"handle": handle, "offset": offset, "data": hexed(data), "kills_setid": kills_setid,
                "flags": flags.0}),
        ),
        Operation::Allocate { handle, offset, bytes, flags } => {
            ("Allocate", json!({"handle": handle, "offset": offset, "bytes": bytes, "flags": flags.0}))
        }
        Operation::Seek { handle, offset, whence } => {
            ("Seek", json!({"handle": handle, "offset": offset, "whence": whence}))
        }
        Operation::CopyRange(copy) => (
            "CopyRange",
            json!({"from_handle": copy.from_handle, "from_offset": copy.from_offset, "to_node": copy.to_node.0,
                "to_handle": copy.to_handle, "to_offset": copy.to_offset, "bytes": copy.bytes,
                "flags": copy.flags, "is_wide": copy.is_wide}),
        ),
        Operation::Flush { handle } => ("Flush", json!({"handle": handle})),
        Operation::Fsync { handle } => ("Fsync", json!({"handle": handle})),
        Operation::Release { handle } => ("Release", json!({"handle": handle})),
        Operation::OpenDirectory => ("OpenDirectory", json!({})),
        Operation::ReadDirectory { offset, size } => {
            ("ReadDirectory", json!({"offset": offset, "size": size}))
        }
        Operation::ReadDirectoryPlus { offset, size } => {
            ("ReadDirectoryPlus", json!({"offset": offset, "size": size}))
        }
        Operation::ReleaseDirectory => ("ReleaseDirectory", json!({})),
        Operation::FsyncDirectory => ("FsyncDirectory", json!({})),
        Operation::Statfs => ("Statfs", json!({})),
        Operation::GetXattr { name, size } => ("GetXattr", json!({"name": text(name), "size": size})),
        Operation::SetXattr { name, value, flags } => {
            ("SetXattr", json!({"name": text(name), "value": hexed(value), "flags": flags.0}))
        }
        Operation::ListXattr { size } => ("ListXattr", json!({"size": size})),
        Operation::RemoveXattr { name } => ("RemoveXattr", json!({"name": text(name)})),
        Operation::Poll { handle, kernel_handle, events } => {
            ("Poll", json!({"handle": handle, "kernel_handle": kernel_handle, "events": events}))
        }
        Operation::Interrupt => ("Interrupt", json!({})),
        Operation::Destroy => ("Destroy", json!({})),
        Operation::Other(opcode) => ("Other", json!({"opcode": opcode})),
    }
}

#[test]
fn golden_requests_are_read_field_by_field() {
    for case in cases("requests") {
        let bytes = hex(&case["bytes"]);
        let request = Request::parse(&bytes).unwrap_or_else(|error| panic!("{error:?}: {case}"));
        assert_eq!((request.unique, request.node), (UNIQUE, Ino(0x0102_0304_0506_0708)), "{case}");
        assert_eq!((request.user, request.group, request.thread), (1001, 1002, 4321), "{case}");
        let (name, fields) = described(&request.operation);
        assert_eq!(case["operation"], name, "{case}");
        assert_eq!(case["fields"], fields, "{name}");
    }
}

#[test]
fn requests_that_are_cut_off_are_malformed_and_never_read() {
    for case in cases("requests") {
        let bytes = hex(&case["bytes"]);
        let has_reply = !matches!(case["operation"].as_str(), Some("Forget" | "BatchForget" | "Interrupt"));
        let is_known = case["operation"] != "Other";
        for len in 0..bytes.len() {
            let mut cut = bytes[..len].to_vec();
            let unique = (len >= REQUEST_HEADER_BYTES && has_reply).then_some(UNIQUE);
            let malformed = Err(Malformed { unique });
            // The length in the header is that of more bytes.
            assert_eq!(Request::parse(&cut), malformed, "{len} bytes of {case}");
            if len >= REQUEST_HEADER_BYTES && is_known {
                cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                assert_eq!(Request::parse(&cut), malformed, "all {len} bytes of {case}");
            }
        }
    }
}

#[test]
fn sizes_and_names_that_lie_are_malformed() {
    for case in cases("requests") {
        let mut longer = hex(&case["bytes"]);
        longer.push(1);
        assert!(Request::parse(&longer).is_err(), "{case}");
        let len = longer.len() as u32;
        longer[..4].copy_from_slice(&len.to_ne_bytes());
        let has_size = matches!(case["operation"].as_str(), Some("Write" | "SetXattr"));
        assert_eq!(Request::parse(&longer).is_err(), has_size, "{case}");
    }
    let lookup = |name: &[u8]| {
        let len = (REQUEST_HEADER_BYTES + name.len()) as u32;
        let mut bytes = [&len.to_ne_bytes()[..], &1_u32.to_ne_bytes(), &[0; 32], name].concat();
        bytes[8..16].copy_from_slice(&UNIQUE.to_ne_bytes());
        Request::parse(&bytes).map(|_| ())
    };
    assert_eq!(lookup(b"a\0"), Ok(()));
    for name in [&b""[..], b"\0", b"a", b"a/b\0", b"/\0"] {
        assert_eq!(lookup(name), Err(Malformed { unique: Some(UNIQUE) }), "{name:?}");
    }
    // More inodes than a request has bytes.
    let header = [&48_u32.to_ne_bytes()[..], &42_u32.to_ne_bytes(), &[0; 32]].concat();
    let many = [&header[..], &u32::MAX.to_ne_bytes(), &[0; 4]].concat();
    assert_eq!(Request::parse(&many), Err(Malformed { unique: None }));
    // A read or a write at 2^63.
    for opcode in [15_u32, 16] {
        let head = [&80_u32.to_ne_bytes()[..], &opcode.to_ne_bytes(), &[0; 32], &[0; 8]].concat();
        let far = [&head[..], &(1_u64 << 63).to_ne_bytes(), &[0; 24]].concat();
        assert_eq!(Request::parse(&far), Err(Malformed { unique: Some(0) }));
        let near = [&head[..], &((1_u64 << 63) - 1).to_ne_bytes(), &[0; 24]].concat();
        assert!(Request::parse(&near).is_ok());
    }
}

fn number(values: &Value, name: &str) -> u64 {
    values[name].as_u64().unwrap_or_else(|| panic!("{name} of {values}"))
}

fn small(values: &Value, name: &str) -> u32 {
    number(values, name).try_into().unwrap()
}

fn duration(values: &Value, name: &str) -> Duration {
    let [seconds, rest]: [u64; 2] = serde_json::from_value(values[name].clone()).unwrap();
    Duration::new(seconds, rest as u32)
}

fn attributes(values: &Value) -> Attributes {
    let of = &values["attributes"];
    let time = |name: &str| of[name].as_i64().unwrap();
    Attributes {
        node: Ino(number(of, "node")),
        bytes: number(of, "bytes"),
        blocks: number(of, "blocks"),
        accessed: time("accessed"),
        modified: time("modified"),
        changed: time("changed"),
        mode: small(of, "mode"),
        links: small(of, "links"),
        user: small(of, "user"),
        group: small(of, "group"),
        block_bytes: small(of, "block_bytes"),
    }
}

fn entry(values: &Value) -> Entry {
    let [name_for, attributes_for] = ["name_for", "attributes_for"].map(|name| duration(values, name));
    Entry { attributes: attributes(values), name_for, attributes_for }
}

fn opened(values: &Value) -> Opened {
    let flags = values["flags"].as_array().unwrap().iter().map(|flag| match flag.as_str().unwrap() {
        "direct" => OpenedFlags::DIRECT,
        "keeps_cache" => OpenedFlags::KEEPS_CACHE,
        "caches_listing" => OpenedFlags::CACHES_LISTING,
        "no_flush" => OpenedFlags::NO_FLUSH,
        other => panic!("flag {other}"),
    });
    let backing = values["backing"].as_u64().map(|backing| backing as u32);
    let flags = flags.fold(OpenedFlags::NONE, |all, flag| all | flag);
    Opened { handle: number(values, "handle"), flags, backing }
}

/// Replies with a listing that has room for all names but the last, if that is one too many.
fn list<T>(mut reply: Reply, values: &Value, names: Vec<T>, add: impl Fn(&mut Listing, T) -> bool) {
    let count = names.len();
    let mut listing = Listing::new(reply.place(small(values, "size")).unwrap());
    let added = names.into_iter().map(|name| add(&mut listing, name)).filter(|had_room| *had_room).count();
    assert_eq!(added, count - 1);
    let bytes = listing.bytes();
    reply.placed(bytes);
}

fn send(kind: &str, values: &Value, mut reply: Reply) {
    match kind {
        "ok" => reply.ok(),
        "dropped" => drop(reply),
        "data" => reply.data(&hex(&values["data"])),
        "placed" => {
            let data = hex(&values["data"]);
            reply.place(small(values, "place")).unwrap()[..data.len()].copy_from_slice(&data);
            reply.placed(data.len());
        }
        "entry" => reply.entry(&entry(values)),
        "attributes" => reply.attributes(duration(values, "valid_for"), &attributes(values)),
        "opened" => reply.opened(&opened(values)),
        "created" => reply.created(&entry(values), &opened(values)),
        "written" => reply.written(small(values, "bytes")),
        "length" => reply.length(small(values, "bytes")),
        "copied" => reply.copied(number(values, "bytes"), values["is_wide"] == true),
        "offset" => reply.offset(number(values, "offset")),
        "polled" => reply.polled(small(values, "events")),
        "space" => reply.space(&Space {
            blocks: number(values, "blocks"),
            blocks_free: number(values, "blocks_free"),
            blocks_available: number(values, "blocks_available"),
            files: number(values, "files"),
            files_free: number(values, "files_free"),
            block_bytes: small(values, "block_bytes"),
            name_bytes_max: small(values, "name_bytes_max"),
        }),
        "listing" => {
            let names: Vec<(u64, u32, u64, String)> =
                serde_json::from_value(values["names"].clone()).unwrap();
            list(reply, values, names, |listing, (shown, mode, next, name)| {
                listing.add(Ino(shown), mode, next, name.as_bytes())
            });
        }
        "entries" => {
            let entry = entry(values);
            let names: Vec<(u64, u64, String)> = serde_json::from_value(values["names"].clone()).unwrap();
            list(reply, values, names, |listing, (shown, next, name)| {
                listing.add_entry(&entry, Ino(shown), next, name.as_bytes())
            });
        }
        other => panic!("a reply of kind {other}"),
    }
}

#[test]
fn replies_are_the_golden_bytes() {
    for case in cases("replies") {
        let (taker, taken) = Taker::new();
        let reply = Reply::new(number(&case, "unique"), taker.route());
        send(case["kind"].as_str().unwrap(), &case["values"], reply);
        assert_eq!(hexed(&taken.recv().unwrap()), case["bytes"], "{case}");
        assert!(taken.recv().is_err(), "a second reply: {case}");
    }
}

#[test]
fn a_reply_that_is_withheld_sends_nothing_and_a_long_place_is_refused() {
    let (taker, taken) = Taker::new();
    Reply::new(1, taker.route()).withhold();
    assert!(taken.recv().is_err());
    let (taker, taken) = Taker::new();
    let mut reply = Reply::new(1, taker.route());
    assert!(reply.place(u32::MAX).is_none());
    assert!(reply.place(0).is_some());
    drop(reply);
    assert_eq!(taken.recv().unwrap().len(), REPLY_HEADER_BYTES);
}
