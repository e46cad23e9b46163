//! Measures at several sizes how cost grows, and draws the plots in `docs/plots/`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tierfs::format::log::catalog::{
    Content, Digests, Entry, FileEntry, NodeEntry, NodeType, ObjectEntry, TensorEntry,
};
use tierfs::format::log::record::Stored;
use tierfs::model::{Dtype, EntryId, ObjectId, Owner, SeedId, Shape, StoreId, TensorId, Tier};
use tierfs::store::ROOT;
use tierfs::store::Touched;
use tierfs::store::Verify;
use tierfs::store::add_blocks;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Store};
use tierfs::vfs::open::OpenFiles;

use crate::Result;
use crate::inside::opened::Opened;
use crate::inside::{codec, median};
use crate::place::{Place, Removed, run};
use crate::plot::{Axis, Line, Plot};
use crate::read::{Buffer, Through, open, speed_of_many};
use crate::run::Spread;
use crate::through::{Kept, Shown, check, empty};
use crate::values::{Source, rounded};

/// Passes of each point; the first does not count.
const PASSES: usize = 4;
const BLOCK_BYTES: u32 = 4096;

type Measure = fn(&Place) -> Result<Plot>;

/// Measures and draws all plots, into `directory` or beside the run's results.
pub fn draw(place: &Place, directory: &Path, is_kept: bool) -> Result<()> {
    let directory = if is_kept { directory.to_owned() } else { place.root.join("plots") };
    fs::create_dir_all(&directory)?;
    let plots: [(&str, Measure); 5] = [
        ("throughput-by-request", by_request),
        ("throughput-by-readers", by_readers),
        ("mount-time-by-blocks", |place| by_blocks(place, Cost::Time)),
        ("memory-by-blocks", |place| by_blocks(place, Cost::Memory)),
        ("read-latency-by-chain", by_chain),
    ];
    for (name, measure) in plots {
        let begun = Instant::now();
        let path = directory.join(format!("{name}.svg"));
        fs::write(&path, measure(place)?.svg())?;
        place.clear();
        println!("{}", path.display());
        eprintln!("  {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The median of some passes.
fn median_of(mut pass: impl FnMut() -> Result<f64>) -> Result<f64> {
    pass()?;
    let figures = (1..PASSES).map(|_| pass()).collect::<Result<Vec<_>>>()?;
    Ok(Spread::of(&figures).ok_or("no passes")?.median)
}

fn shown(place: &Place, source: &Source, tier: Tier) -> Result<Shown> {
    let kept = Rc::new(Kept::import(place, &source.path, tier, &[])?);
    let shown = Shown::new(place, &kept, &[])?;
    check(&shown.tensor("n0"), 0, source, tier, Through::Cache)?;
    Ok(shown)
}

/// A smaller tensor than in the table, because there are many points.
fn source(place: &Place) -> Result<Rc<Source>> {
    place.shared("source", || {
        let path = place.new_path("growth.safetensors");
        Source::make(&path, Dtype::F32, 1, place.bytes() / 4)
    })
}

fn by_request(place: &Place) -> Result<Plot> {
    let source = source(place)?;
    let empty = empty(place)?;
    let (q8, exact) = (shown(place, &source, Tier::Q8)?, shown(place, &source, Tier::Exact)?);
    let files: [(&str, PathBuf); 3] =
        [("q8 to f32", q8.tensor("n0")), ("exact", exact.tensor("n0")), ("empty daemon", empty.path("big"))];
    let mut lines = Vec::new();
    for (name, path) in files {
        let mut points = Vec::new();
        for power in 12..=23 {
            let call = 1_usize << power;
            // Small requests are slow: a part of the file is enough.
            let bytes = source.bytes().min((call as u64) << 13);
            let figure = median_of(|| direct(&path, call, bytes))?;
            points.push((call as f64 / 1024.0, figure));
        }
        lines.push(Line { name: name.to_owned(), points });
    }
    Ok(Plot {
        title: "Throughput by request size: O_DIRECT, one reader".to_owned(),
        labels: ["KiB of a request".to_owned(), "GB/s".to_owned()],
        axes: [Axis::Logarithmic, Axis::Logarithmic],
        lines,
    })
}

/// Reads the first bytes of a file with O_DIRECT, in GB/s.
fn direct(path: &Path, call: usize, bytes: u64) -> Result<f64> {
    let file = open(path, Through::Nothing)?;
    let mut buffer = Buffer::new(call);
    let begun = Instant::now();
    let mut offset = 0;
    while offset < bytes {
        match file.read_at(buffer.get(), offset)? {
            0 => break,
            count => offset += count as u64,
        }
    }
    Ok(offset as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

fn by_readers(place: &Place) -> Result<Plot> {
    let source = source(place)?;
    let empty = empty(place)?;
    let q8 = shown(place, &source, Tier::Q8)?;
    let (tensor, big) = (q8.tensor("n0"), empty.path("big"));
    let mut lines = Vec::new();
    for (name, path, through) in [
        ("q8, O_DIRECT", &tensor, Through::Nothing),
        ("q8, cold cache", &tensor, Through::Cache),
        ("empty, O_DIRECT", &big, Through::Nothing),
        ("empty, cold cache", &big, Through::Cache),
    ] {
        let mut points = Vec::new();
        for readers in [1, 2, 4, 8, 16] {
            let paths = vec![path.as_path(); readers];
            points.push((readers as f64, median_of(|| speed_of_many(&paths, 1 << 20, through))?));
        }
        lines.push(Line { name: name.to_owned(), points });
    }
    Ok(Plot {
        title: "Throughput of all readers of one tensor, 1 MiB calls, q8 to f32".to_owned(),
        labels: ["readers".to_owned(), "GB/s of all together".to_owned()],
        axes: [Axis::Logarithmic, Axis::Linear],
        lines,
    })
}

/// Costs that grow with the number of blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cost {
    Time,
    Memory,
}

fn by_blocks(place: &Place, cost: Cost) -> Result<Plot> {
    let largest = if place.is_quick() { 5 } else { 7 };
    let mut points = Vec::new();
    for power in 4..=largest {
        let blocks = 10_u32.pow(power);
        let store = Removed(place.new_path("store"));
        let first = many_blocks(&store.0, blocks)?;
        let figure = match cost {
            Cost::Time => median_of(|| mount_time(place, &store.0, &first))?,
            Cost::Memory => {
                let mounted = crate::daemon::Mounted::tierfs(place, &store.0, &[])?;
                let process = mounted.process()?;
                let before = crate::through::of_process(process, "VmRSS")?;
                first_block(&mounted.path("b/c/values"), &first)?;
                crate::through::of_process(process, "VmRSS")? - before
            }
        };
        points.push((f64::from(blocks), figure));
    }
    let (title, unit) = match cost {
        Cost::Time => ("Mount to first byte by number of blocks", "s"),
        Cost::Memory => ("Memory of the daemon by number of blocks", "MiB above a mount without"),
    };
    Ok(Plot {
        title: title.to_owned(),
        labels: ["blocks".to_owned(), unit.to_owned()],
        axes: [Axis::Logarithmic, Axis::Logarithmic],
        lines: vec![Line { name: "q3 blocks".to_owned(), points }],
    })
}

/// A store with a tensor of this many blocks in q3, as an import would log it. Only the first block has a payload: the
/// measurement reads no other block. Its elements.
fn many_blocks(path: &Path, blocks: u32) -> Result<Vec<u8>> {
    let disk = FileDisk::create(path)?;
    Store::create(&disk, StoreId(1))?;
    let store = Store::open(Arc::new(disk), Access::Write, "tierfs-bench")?;
    let collection = store.collection_made("b", "c", Owner::default())?;
    let (raw, _) = codec::payload(Tier::Q3)?;
    let raw = &raw[..BLOCK_BYTES as usize];
    let (tier, encoder) = (Tier::Q3, tierfs::model::Encoder::Absmax);
    let mut touched = Touched::default();
    let (stored, _) = collection.store_blocks(tier, encoder, Dtype::F32, raw, raw.len(), &mut touched)?;
    let first = *stored.first().ok_or("nothing was stored")?;
    let slot = u64::from(first.len.next_multiple_of(64));
    let tensor = TensorId::of("b", "c", "values", TensorId(0));
    let bytes = u64::from(blocks) * u64::from(BLOCK_BYTES);
    let entry = ObjectEntry {
        id: ObjectId::of(tensor, SeedId(0), 1),
        tensor,
        seed: SeedId(0),
        creation: 1,
        dtype: Dtype::F32,
        bytes,
        block_bytes: BLOCK_BYTES,
        extent: None,
        parent: None,
    };
    let mut done = 0;
    while done < blocks {
        let next = blocks.min(done + (32 << 10));
        collection.record(std::mem::take(&mut touched), |batch, _| {
            if done == 0 {
                batch.entry(Entry::Object(entry.clone()));
            }
            let there = |index| (index, Stored { offset: first.offset + u64::from(index) * slot, ..first });
            add_blocks(batch, &entry, &(done..next).map(there).collect::<Vec<_>>());
            Ok(())
        })?;
        done = next;
    }
    let shape = Shape::new(&[bytes / Dtype::F32.bytes()]).ok_or("too many elements")?;
    let file = FileEntry {
        content: Content::Tensor,
        objects: [entry.id].into(),
        tensor: Some(TensorEntry { name: "values".into(), dtype: Dtype::F32, shape, parent: TensorId(0) }),
        container: None,
        digests: Digests::NotTaken,
        error: None,
        why: Box::default(),
        records: None,
        view: None,
    };
    collection.record(Touched::default(), |batch, state| {
        let id = EntryId(state.last_entry() + 1);
        let node_type = NodeType::File(Box::new(file));
        let (mtime, created_at) = (0, 0);
        batch.entry(Entry::Node(Box::new(NodeEntry {
            id,
            mode: 0o644,
            uid: 0,
            gid: 0,
            atime: mtime,
            mtime,
            ctime: mtime,
            created_at,
            node_type,
        })));
        let name = b"values".as_slice().into();
        batch.entry(Entry::Name { parent: ROOT, entry: EntryId(id.0 + 1), name, node: id });
        Ok(())
    })?;
    collection.sync()?;
    Ok(rounded(Tier::Q3, Dtype::F32, raw))
}

/// Reads the first block, which must equal this.
fn first_block(path: &Path, right: &[u8]) -> Result<()> {
    // There is no read-ahead, because nothing follows.
    let mut block = Buffer::new(right.len());
    open(path, Through::Nothing)?.read_exact_at(block.get(), 0)?;
    if block.get() == right { Ok(()) } else { Err("wrong bytes: the first of many blocks".into()) }
}

fn mount_time(place: &Place, store: &Path, right: &[u8]) -> Result<f64> {
    let mountpoint = place.new_directory("mnt")?;
    let begun = Instant::now();
    run(Command::new(&place.tierfs).arg("mount").arg(store).arg(&mountpoint))?;
    let read = first_block(&mountpoint.join("b/c/values"), right);
    let seconds = begun.elapsed().as_secs_f64();
    run(Command::new(&place.tierfs).arg("umount").arg(&mountpoint))?;
    fs::remove_dir(&mountpoint)?;
    read?;
    Ok(seconds)
}

fn by_chain(place: &Place) -> Result<Plot> {
    const ELEMENTS: u64 = 512;
    let path = Removed(place.new_path("chain.safetensors"));
    let source = Source::make(&path.0, Dtype::F32, 1, ELEMENTS * 4)?;
    let opened = Opened::import(place, &source.path, Tier::Q8, "n0", &[])?;
    let open_file = OpenFiles::default().open(&opened.collection, opened.node, Verify::First)?;
    let raw = fs::read(&source.path)?.split_off(source.header_bytes as usize);
    let mut right = rounded(Tier::Q8, Dtype::F32, &raw);
    let mut points = Vec::new();
    for links in 0..=8_u64 {
        if links > 0 {
            let place = links * 4 * 7;
            let value = (links as f32).to_le_bytes();
            open_file.write(place, &value)?;
            open_file.flush()?;
            right[place as usize..][..4].copy_from_slice(&value);
        }
        let mut block = vec![0; right.len()];
        opened.open.read(0, &mut block)?;
        let epoch = opened.object.block(0, opened.object.layout()).ok_or("no block")?.epoch;
        let (found, _) = opened.object.deltas_size(0, epoch);
        if block != right || found as u64 != links {
            return Err(format!("wrong answer: {found} links where {links} were written").into());
        }
        let figure = median_of(|| median(2000, |_| Ok(opened.open.read(0, &mut block)?)))?;
        points.push((links as f64, figure));
    }
    Ok(Plot {
        title: "Read latency by length of the delta chain: 512 elements, q8 to f32, in process, p50"
            .to_owned(),
        labels: ["deltas on the block".to_owned(), "us".to_owned()],
        axes: [Axis::Linear, Axis::Linear],
        lines: vec![Line { name: "read, verified".to_owned(), points }],
    })
}
