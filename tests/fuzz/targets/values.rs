//! Values as text: of attributes, of `tierfs.toml`, of the command line. The first line, if there is one, names an
//! attribute that is set on a file of 24 bytes; the rest is the value.

use std::sync::Arc;

use tierfs::control::{Asked, Asker, Mounted, Reader, attribute, controls, set};
use tierfs::ingest::{Options, Origin, Target, import_file};
use tierfs::model::{
    DIMENSIONS_MAX, Dtype, Encoder, ErrorKind, MoveTo, Owner, Result, Shape, Silent, StoreId, TAGS_MAX, Tier,
    check_tag, parse_tags,
};
use tierfs::store::Settings;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Store};
use tierfs::store::{OpenObject, Verify};
use tierfs::vfs::{FileView, ListMode, Located, Vfs};

const FILE_BYTES: u64 = 24;

pub fn check(bytes: &[u8]) {
    if let Some(place) = bytes.iter().position(|byte| *byte == b'\n') {
        set_on_a_file(&bytes[..place], &bytes[place + 1..]);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(shape) = Shape::parse(text) {
        assert!(shape.dimensions().len() <= DIMENSIONS_MAX);
        let product = shape.dimensions().iter().map(|size| u128::from(*size)).product::<u128>();
        assert!(product == u128::from(shape.elements()) && product < 1 << 63);
        assert_eq!(Shape::parse(&shape.to_string()), Some(shape));
    }
    if let Some(dtype) = Dtype::from_name(text) {
        assert!(dtype.name().eq_ignore_ascii_case(text));
    }
    if let Some(tier) = Tier::from_name(text) {
        assert_eq!(Tier::from_name(tier.name()), Some(tier));
    }
    if let Some(encoder) = Encoder::from_name(text) {
        assert_eq!(encoder.name(), text);
    }
    if let Ok(MoveTo { aim, all }) = MoveTo::parse(text) {
        let again = text.strip_suffix(":again");
        assert!(aim.tier() != Tier::Absent && again.unwrap_or(text).ends_with(":all") == all);
        assert_eq!(MoveTo::parse_tier(text).is_err(), aim.keeps_bytes() || again.is_some());
    }
    if let Ok(tags) = parse_tags(text) {
        assert!(tags.len() <= TAGS_MAX && tags.iter().all(|tag| check_tag(tag).is_ok()));
        assert_eq!(parse_tags(&tags.join(",")).unwrap(), tags);
    }
    if let Ok(settings) = Settings::parse(text) {
        assert_eq!(Settings::parse(&settings.to_text()).ok(), Some(settings));
    }
}

/// After any request the file reads as before; an accepted value agrees with the size of the file and is the one that
/// is read afterwards.
fn set_on_a_file(name: &[u8], value: &[u8]) {
    let Ok(set_one) = attribute(name) else { return };
    let (vfs, before) = vfs();
    let mounted = Arc::new(Mounted::new(vfs.clone(), String::new(), Default::default()));
    let ino = vfs.ino(&Located::Node(before.clone())).unwrap();
    let asked = Asked { mounted, view: before, ino, user: 0 };
    let outcome = set(&asked, name, value);
    if let Err(error) = &outcome
        && error.kind() != ErrorKind::Absent
    {
        let why = asked.mounted.refusals.text(Asker { ino, user: 0 });
        assert!(why.is_some_and(|why| why.contains(" refused: ")), "refused, and no reason: {error}");
    }
    let view = view(&vfs);
    let get = |key: &str| -> Option<String> {
        let found = attribute(format!("user.tierfs.{key}").as_bytes());
        found.and_then(|found| found.get(&Reader { vfs: &vfs, refusals: None }, &view)).ok()
    };
    assert_eq!(bytes_of(&view), [5; FILE_BYTES as usize]);
    if outcome.is_err() {
        assert_eq!(get("dtype"), None, "refused, and a tensor all the same");
        return;
    }
    let text =
        std::str::from_utf8(value).unwrap_or_else(|_| panic!("no text is taken")).trim_end_matches('\n');
    let own = get(set_one.name);
    match set_one.name {
        "dtype" | "shape" => {
            let dtype = get("dtype").and_then(|name| Dtype::from_name(&name));
            let shape = get("shape").and_then(|text| Shape::parse(&text));
            let bytes = dtype.zip(shape.as_ref()).and_then(|(dtype, shape)| dtype.bytes_of(shape.elements()));
            assert_eq!(bytes, Some(FILE_BYTES));
            assert!(Dtype::from_name(text).is_none_or(|set| dtype == Some(set)));
            assert!(Shape::parse(text).is_none_or(|set| shape.as_ref() == Some(&set)));
        }
        "lossy" | "policy" | "encoder" | "writes" => assert_eq!(own.as_deref(), Some(text)),
        // Requested tiers have no effect on bytes that are not floats.
        _ => assert_eq!(get("tier").as_deref(), Some("exact")),
    }
}

fn bytes_of(view: &FileView) -> Vec<u8> {
    let objects = view.collection.objects_of(view.node.entry.id).unwrap_or_else(|error| panic!("{error}"));
    let read = objects.iter().map(|object| {
        let object = OpenObject::open(&view.collection, object, Verify::Always)?;
        let mut bytes = vec![0; object.bytes() as usize];
        object.read(0, &mut bytes).map(|()| bytes)
    });
    let parts: Vec<Vec<u8>> = read.collect::<Result<_>>().unwrap_or_else(|error| panic!("{error}"));
    parts.concat()
}

fn vfs() -> (Arc<Vfs>, FileView) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let id = StoreId(7);
    let made = Store::create(disk.as_ref(), id).and_then(|()| Store::open(disk, Access::Write, "fuzz"));
    let store = made.unwrap_or_else(|error| panic!("{error}"));
    store.create_tenant("t", Owner { uid: 0, gid: 0 }, 0o755).unwrap_or_else(|error| panic!("{error}"));
    let collection =
        store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap_or_else(|error| panic!("{error}"));
    let source = MemoryDisk::new().open("s", Open::Create).unwrap_or_else(|error| panic!("{error}"));
    source.write_at(&[5; FILE_BYTES as usize], 0).unwrap_or_else(|error| panic!("{error}"));
    let target = Target { directories: Vec::new(), name: b"file".to_vec() };
    let origin = Origin { mode: 0o644, owner: Owner { uid: 0, gid: 0 }, atime: 0, mtime: 0, sha256: None };
    import_file(&collection, &Settings::new(id), &target, &source, &origin, &Options::default(), &Silent)
        .unwrap_or_else(|error| panic!("{error}"));
    let vfs = Vfs::new(Arc::new(store), ListMode::Files, Verify::First, Owner { uid: 0, gid: 0 }, controls());
    let vfs = Arc::new(vfs);
    let view = view(&vfs);
    (vfs, view)
}

fn view(vfs: &Vfs) -> FileView {
    match vfs.walk(b"t/c/file") {
        Ok((_, Located::Node(view))) => view,
        _ => panic!("the file is gone"),
    }
}
