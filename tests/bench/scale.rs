//! Measures how cost grows with the collections of a store: 1 to 1,000, each with 1,000 tensors of 100 blocks. Draws the
//! plots `scale-*` and prints a table, which a whole run keeps.
//!
//! The store is sparse: every block is one of zeros in q8, whose payload is zeros too, so that it verifies in a hole of
//! the tier file. The logs are those of an import.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use tierfs::format::checksum;
use tierfs::format::log::catalog::{
    Content, Digests, Entry, FileEntry, NodeEntry, NodeType, ObjectEntry, TensorEntry,
};
use tierfs::format::log::record::Stored;
use tierfs::model::{Dtype, Encoder, EntryId, ObjectId, Owner, SeedId, Shape, StoreId, TensorId, Tier};
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Collection, ROOT, Store, Touched, add_blocks};

use crate::daemon::Mounted;
use crate::place::{Place, Removed, run};
use crate::plot::{Axis, Line, Plot};
use crate::read::{Buffer, Through, open};
use crate::report::RESULTS;
use crate::through::{files, of_process};
use crate::{Result, machine};

/// Collections of a whole run.
pub const LARGEST: u32 = 1000;
const TENSORS: u32 = 1000;
const BLOCKS: u32 = 100;
const BLOCK_BYTES: u32 = 4096;
const TIER: Tier = Tier::Q8;
/// Objects and their blocks of a batch.
const BATCH_TENSORS: u32 = 200;
/// Collections that the maker of the store has open at a time.
const OPEN_MAX: u32 = 50;
/// Larger stores are not scrubbed: it takes too long.
const SCRUBBED_MAX: u32 = 100;

/// The figures of one size of the store.
#[derive(Default)]
struct Costs {
    tensors: f64,
    mount: f64,
    first_byte: f64,
    list_one: f64,
    open_all: f64,
    list_again: f64,
    du: f64,
    /// The first one counts every collection.
    status: [f64; 2],
    compact: f64,
    scrub: f64,
    /// MiB of the daemon: with one collection in use, and after all were listed.
    memory: [f64; 2],
    descriptors: f64,
    /// Bytes of all logs.
    log: f64,
}

/// Measures up to `largest` collections, and draws the plots into `directory`.
pub fn measure(place: &Place, largest: u32, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let store = Removed(place.new_path("store"));
    Store::create(&FileDisk::create(&store.0)?, StoreId(1))?;
    let (mut made, mut found) = (0, Vec::new());
    let mut wanted = 1;
    while wanted <= largest {
        let begun = Instant::now();
        grow(&store.0, made, wanted)?;
        made = wanted;
        eprintln!("{made} collections: made in {:.1} s", begun.elapsed().as_secs_f64());
        let costs = costs(place, &store.0, made)?;
        eprintln!("{}", row(&costs));
        found.push(costs);
        wanted *= 10;
    }
    let rows: Vec<String> = found.iter().map(row).collect();
    let table = format!("{HEAD}\n{}\n", rows.join("\n"));
    println!("{table}");
    if largest == LARGEST {
        let (machine, when) = (machine::describe(), machine::when());
        let text = format!(
            "# Stores of many collections\n\nMachine: {machine}. {when}. Repeat with `scripts/bench.sh scale`.\n\n\
             {table}"
        );
        fs::create_dir_all(RESULTS)?;
        fs::write(Path::new(RESULTS).join("scale.md"), text)?;
    }
    for (name, plot) in plots(&found) {
        let path = directory.join(format!("{name}.svg"));
        fs::write(&path, plot.svg())?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Adds collections to the store, from one number up to another.
fn grow(path: &Path, from: u32, to: u32) -> Result<()> {
    let mut number = from;
    while number < to {
        let store = Store::open(Arc::new(FileDisk::new(path)), Access::Write, "tierfs-bench")?;
        for number in number..to.min(number + OPEN_MAX) {
            let collection = store.collection_made("b", &name_of(number), Owner::default())?;
            let end = fill(&collection, number)?;
            let file = path.join("b").join(name_of(number)).join(format!("tier{}.dat", TIER.byte()));
            File::options().write(true).open(file)?.set_len(end)?;
        }
        number += OPEN_MAX;
    }
    Ok(())
}

fn name_of(collection: u32) -> String {
    format!("c{collection:04}")
}

/// Makes the tensors. Returns where their last payload ends.
fn fill(collection: &Arc<Collection>, number: u32) -> Result<u64> {
    let mut touched = Touched::default();
    let zeros = vec![0; BLOCK_BYTES as usize];
    let (stored, _) =
        collection.store_blocks(TIER, Encoder::Absmax, Dtype::F32, &zeros, zeros.len(), &mut touched)?;
    let first = *stored.first().ok_or("nothing was stored")?;
    if first.checksum != checksum::of(&vec![0; first.len as usize]) {
        return Err("the payload of zeros is not zeros: the store cannot be sparse".into());
    }
    let slot = u64::from(first.len.next_multiple_of(64));
    let bytes = u64::from(BLOCKS) * u64::from(BLOCK_BYTES);
    let shape = Shape::new(&[bytes / Dtype::F32.bytes()]).ok_or("too many elements")?;
    let mut tensor = 0;
    while tensor < TENSORS {
        let of_batch = tensor..(tensor + BATCH_TENSORS).min(TENSORS);
        tensor = of_batch.end;
        collection.record(std::mem::take(&mut touched), |batch, state| {
            for tensor in of_batch {
                let name = format!("t{tensor:04}");
                let id = TensorId::of("b", &name_of(number), &name, TensorId(0));
                let creation = batch.next_sequence();
                let entry = ObjectEntry {
                    id: ObjectId::of(id, SeedId(0), creation),
                    tensor: id,
                    seed: SeedId(0),
                    creation,
                    dtype: Dtype::F32,
                    bytes,
                    block_bytes: BLOCK_BYTES,
                    extent: None,
                    parent: None,
                };
                batch.entry(Entry::Object(entry.clone()));
                let at = |block: u32| first.offset + u64::from(tensor * BLOCKS + block) * slot;
                let blocks: Vec<(u32, Stored)> =
                    (0..BLOCKS).map(|block| (block, Stored { offset: at(block), ..first })).collect();
                add_blocks(batch, &entry, &blocks);
                let node = EntryId(state.last_entry() + 1 + 2 * u64::from(tensor % BATCH_TENSORS));
                let (name, shape) = (name.as_str(), shape.clone());
                let described =
                    TensorEntry { name: name.into(), dtype: Dtype::F32, shape, parent: TensorId(0) };
                let file = FileEntry {
                    tensor: Some(described),
                    digests: Digests::NotTaken,
                    ..FileEntry::new(Content::Tensor, [entry.id])
                };
                let file = NodeType::File(Box::new(file));
                batch.entry(Entry::Node(Box::new(NodeEntry::new(node, 0o644, Owner::default(), 0, file))));
                let entry = EntryId(node.0 + 1);
                batch.entry(Entry::Name { parent: ROOT, entry, name: name.as_bytes().into(), node });
            }
            Ok(())
        })?;
    }
    collection.sync()?;
    Ok(first.offset + u64::from(TENSORS * BLOCKS) * slot)
}

fn costs(place: &Place, store: &Path, collections: u32) -> Result<Costs> {
    let mut costs = Costs { tensors: f64::from(collections * TENSORS), ..Costs::default() };
    for file in files(store)? {
        if file.ends_with("meta.log") {
            costs.log += fs::metadata(file)?.len() as f64;
        }
    }
    let seconds = |work: &mut dyn FnMut() -> Result<()>| {
        let begun = Instant::now();
        work().map(|()| begun.elapsed().as_secs_f64())
    };
    let begun = Instant::now();
    let mounted = Mounted::tierfs(place, store, &[])?;
    costs.mount = begun.elapsed().as_secs_f64();
    let all = mounted.path("b");
    // One of the middle, whose log is not the first in the page cache.
    let one = all.join(name_of(collections / 2));
    costs.first_byte = seconds(&mut || {
        use std::os::unix::fs::FileExt;
        let mut block = Buffer::new(BLOCK_BYTES as usize);
        open(&one.join("t0500"), Through::Nothing)?.read_exact_at(block.get(), 0)?;
        let is_right = block.get().iter().all(|byte| *byte == 0);
        if is_right { Ok(()) } else { Err("wrong bytes of a tensor of zeros".into()) }
    })?;
    costs.list_one = seconds(&mut || listed(&one, TENSORS))?;
    let process = mounted.process()?;
    costs.memory[0] = of_process(process, "VmRSS")?;
    costs.open_all = seconds(&mut || listed(&all, collections))?;
    costs.list_again = seconds(&mut || listed(&all, collections))?;
    costs.memory[1] = of_process(process, "VmRSS")?;
    costs.descriptors = fs::read_dir(format!("/proc/{process}/fd"))?.count() as f64;
    for status in &mut costs.status {
        *status = seconds(&mut || {
            drop(fs::read(mounted.path(".ctl/status"))?);
            Ok(())
        })?;
    }
    let program = |command: &str| {
        let mut program = Command::new(&place.tierfs);
        program.arg(command).arg(mounted.path(""));
        run(&mut program)
    };
    costs.du = seconds(&mut || program("du"))?;
    if collections <= SCRUBBED_MAX {
        costs.scrub = seconds(&mut || program("scrub"))?;
    }
    costs.compact = seconds(&mut || program("compact"))?;
    Ok(costs)
}

/// As `ls -l` does: the entries of a directory with their attributes.
fn listed(directory: &Path, wanted: u32) -> Result<()> {
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        entry.metadata()?;
        count += u32::from(!entry.file_name().as_encoded_bytes().starts_with(b"."));
    }
    if count == wanted { Ok(()) } else { Err(format!("{count} entries, not {wanted}").into()) }
}

const HEAD: &str = "| tensors | mount | first byte | `ls -l` of one collection | of all, first | again | `du` | status, first | again | scrub | compact | memory, one in use | all | descriptors | log |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

fn row(costs: &Costs) -> String {
    let ms = |seconds: f64| match seconds {
        0.0 => "-".to_owned(),
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds => format!("{:.1} ms", seconds * 1e3),
    };
    let times = [
        costs.mount,
        costs.first_byte,
        costs.list_one,
        costs.open_all,
        costs.list_again,
        costs.du,
        costs.status[0],
        costs.status[1],
        costs.scrub,
        costs.compact,
    ];
    let times = times.map(ms).join(" | ");
    let [one, all] = costs.memory;
    let log = costs.log / f64::from(1 << 20);
    let (tensors, descriptors) = (costs.tensors, costs.descriptors);
    format!("| {tensors} | {times} | {one:.0} MiB | {all:.0} MiB | {descriptors} | {log:.1} MiB |")
}

fn plots(found: &[Costs]) -> [(&'static str, Plot); 3] {
    let line = |name: &str, of: fn(&Costs) -> f64| Line {
        name: name.to_owned(),
        points: found.iter().map(|costs| (costs.tensors, of(costs))).filter(|point| point.1 > 0.0).collect(),
    };
    let plot = |title: &str, unit: &str, lines: Vec<Line>| Plot {
        title: title.to_owned(),
        labels: ["tensors of 100 blocks, 1,000 a collection".to_owned(), unit.to_owned()],
        axes: [Axis::Logarithmic, Axis::Logarithmic],
        lines,
    };
    let one = vec![
        line("mount", |costs| costs.mount),
        line("first byte", |costs| costs.first_byte),
        line("ls -l of a collection", |costs| costs.list_one),
        line("status, again", |costs| costs.status[1]),
    ];
    let all = vec![
        line("ls -l of all, first", |costs| costs.open_all),
        line("ls -l of all, again", |costs| costs.list_again),
        line("du", |costs| costs.du),
        line("status, first", |costs| costs.status[0]),
        line("scrub", |costs| costs.scrub),
        line("compact", |costs| costs.compact),
    ];
    let size = vec![
        line("memory, after all were listed", |costs| costs.memory[1]),
        line("memory, one in use", |costs| costs.memory[0]),
        line("log", |costs| costs.log / f64::from(1 << 20)),
    ];
    [
        ("scale-one", plot("Use of one collection, by size of the store", "s", one)),
        ("scale-all", plot("Use of all collections, by size of the store", "s", all)),
        ("scale-size", plot("Memory of the daemon and logs, by size of the store", "MiB", size)),
    ]
}
