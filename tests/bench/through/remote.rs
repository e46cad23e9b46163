//! Remotes: one object storage on this machine, read and written by tierfs and by others in turn.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tierfs::model::{Dtype, Tier};

use super::fleet::{self, juicefs};
use super::small::{TENSORS, checked, list, read_all};
use super::{Kept, bytes_on_disk};
use crate::Result;
use crate::daemon::{DECODED_CACHE, Mounted};
use crate::place::{Place, Removed, run};
use crate::read::{self, CALL, Pages, Through, speed};
use crate::seaweed::{DELAY, Link, NARROW, Seaweed, cpu_of, installed};
use crate::table::{Checked, Contest, Row, Target};
use crate::values::{Random, Source};

/// Where the collections are published; a bucket is made by the first PUT.
const URL: &str = "s3://models/demo";
/// Where the same files lie as they are.
pub(super) const PLAIN: &str = "plain";
const SMALL_FILES: u32 = 4000;
const SMALL_BYTES: u64 = 4096;
/// The model that is tuned: its rows and columns, and the tensors of a layer. A norm has no columns.
const HIDDEN: u64 = 1024;
const INNER: u64 = 2816;
const HEADS: u64 = 256;
const VOCABULARY: u64 = 8192;
const LAYERS: u64 = 10;
const LAYER: [(&str, u64, u64); 9] = [
    ("input_layernorm", HIDDEN, 0),
    ("mlp.down_proj", HIDDEN, INNER),
    ("mlp.gate_proj", INNER, HIDDEN),
    ("mlp.up_proj", INNER, HIDDEN),
    ("post_attention_layernorm", HIDDEN, 0),
    ("self_attn.k_proj", HEADS, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("self_attn.q_proj", HIDDEN, HIDDEN),
    ("self_attn.v_proj", HEADS, HIDDEN),
];

/// The rows.
pub fn rows() -> Vec<Row> {
    let row = |name: &str,
               what: &str,
               reference: &str,
               unit,
               target,
               prepare: fn(&Rc<Place>) -> Result<Contest>| {
        Row::new(format!("remote.{name}"), what, reference, unit, target, prepare)
    };
    let (get, file) = ("its client's plain GETs, 16 at a time", "a file on the cache's file system");
    let mut rows = vec![
        row("cold", "cold sequential read", get, "GB/s", Target::RatioAtLeast(0.75), |place| {
            against_get(place, |stand| Ok(stand.cold(PASS)?.0), |got| got.0)
        }),
        row("cold-cpu", "the same: the daemon's processor time", get, "s/GB", Target::AtMost(0.7), |place| {
            against_get(place, |stand| Ok(stand.cold(PASS)?.1), |got| got.1)
        }),
        row("cold-walk", "cold mapped walk", get, "GB/s", Target::Nothing, |place| {
            against_get(place, |stand| Ok(stand.cold(read::touch)?.0), |got| got.0)
        }),
        row(
            "link",
            "cold sequential read over a link of 1 Gbit/s",
            "the link",
            "GB/s",
            Target::RatioAtLeast(0.9),
            over_link,
        ),
        row("again", "second read", file, "GB/s", Target::RatioAtLeast(0.95), |place| again(place, PASS)),
        row("walk-again", "second mapped walk", file, "GB/s", Target::RatioAtLeast(0.95), |place| {
            again(place, read::touch)
        }),
        row("first-trips", "first 4 KiB after a mount: round trips", "", "", Target::AtMost(3.0), |place| {
            first(place, |trips, _| trips)
        }),
        row("first-bytes", "first 4 KiB after a mount: received", "", "MiB", Target::AtMost(1.1), |place| {
            first(place, |_, bytes| bytes)
        }),
    ];
    let peers: [(&str, &str, Start); 4] = [
        ("rclone", "rclone mount", rclone),
        ("s3fs", "s3fs", s3fs),
        ("weed", "weed mount", weed),
        ("juicefs", "JuiceFS", juicefs),
    ];
    for (name, title, start) in peers {
        let mut add = |row_name: String, what: &str, unit, target, figure| {
            let prepare = move |place: &Rc<Place>| against_peer(place, start, figure);
            rows.push(Row::new(format!("remote.{row_name}-{name}"), what, title, unit, target, prepare));
        };
        add("cold".to_owned(), "cold sequential read", "GB/s", Target::RatioAtLeast(1.0), Figure::Cold);
        add("cpu".to_owned(), "the same: the daemon's processor time", "s/GB", Target::Nothing, Figure::Cpu);
        add("again".to_owned(), "second read", "GB/s", Target::RatioAtLeast(2.0), Figure::Again);
    }
    rows.extend(fleet::rows());
    let small = format!("{SMALL_FILES} tensors of 4 KiB: open, read, close, first");
    rows.push(row("small", &small, "rclone mount of files", "thousand/s", Target::Nothing, |place| {
        small_files(place, read_all)
    }));
    let listed = format!("`ls -l` of {SMALL_FILES} tensors, first");
    rows.push(row("list", &listed, "rclone mount of files", "ms", Target::Nothing, |place| {
        small_files(place, list)
    }));
    rows.push(row(
        "push",
        "`tierfs push`",
        "`rclone copy` of the file",
        "GB/s",
        Target::RatioAtLeast(0.9),
        push,
    ));
    rows.push(row(
        "push-again",
        "a second push: time",
        "the first",
        "s",
        Target::RatioAtMost(0.02),
        push_again,
    ));
    rows.push(row(
        "push-tuned",
        "push of a fine-tune of one layer in ten, its norms too: bytes, of the first's",
        "",
        "",
        Target::AtMost(0.12),
        push_tuned,
    ));
    rows
}

/// A pass over a file, in GB/s.
pub(super) type Pass = fn(&Path) -> Result<f64>;
pub(super) const PASS: Pass = |path| speed(path, CALL, Through::Cache, Pages::Kept);

/// The server with a published model, and the model's file as it is.
pub(super) struct Stand {
    pub server: Seaweed,
    pub place: Rc<Place>,
    pub source: Source,
    kept: Rc<Kept>,
    made: Cell<u32>,
}

/// A mount with a cache of its own.
pub(super) struct Cached {
    pub mounted: Mounted,
    /// The path of the model's file.
    pub file: PathBuf,
    pub _cache: Removed,
}

impl Cached {
    /// A pass over the model's file.
    fn pass(&self, pass: Pass) -> Result<f64> {
        pass(&self.file)
    }
}

impl Stand {
    /// A mount of the remote with an empty cache, by the server's port or another.
    pub fn mount(&self, port: u16) -> Result<Cached> {
        self.mount_with(&[], port, &[])
    }

    /// The same by the program with its arguments that stands before tierfs, with options, which may name another cache.
    pub fn mount_with(&self, before: &[&str], port: u16, options: &[&str]) -> Result<Cached> {
        let (mountpoint, cache) = (self.place.new_directory("mnt")?, self.place.new_path("cache"));
        let tierfs = self.place.tierfs.as_os_str();
        let mut words = before.iter().map(OsStr::new).chain([tierfs]);
        let mut command = Command::new(words.next().unwrap_or(tierfs));
        command.args(words).args(["mount", "-f", DECODED_CACHE, "off"]);
        if !options.contains(&"--cache") {
            command.arg("--cache").arg(&cache);
        }
        self.server.keys(command.args(options), port);
        command.arg(URL).arg(&mountpoint);
        let mounted = Mounted::begin(command, mountpoint)?;
        let file = mounted.path("b/c/model.safetensors");
        Ok(Cached { mounted, file, _cache: Removed(cache) })
    }

    /// A cold pass: GB/s, and the daemon's seconds a GB.
    fn cold(&self, pass: Pass) -> Result<(f64, f64)> {
        measured(&self.mount(self.server.port)?, pass)
    }

    /// Reads all pieces with the client alone: GB/s, and its seconds a GB.
    pub fn get(&self) -> Result<(f64, f64)> {
        let mut command = Command::new(std::env::current_exe()?);
        self.server.keys(command.args(["get", URL, "piece"]), self.server.port);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [seconds, cpu, bytes] = numbers[..] else {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        };
        if bytes < self.source.bytes() as f64 {
            return Err("the client read fewer bytes than the file has".into());
        }
        Ok((bytes / seconds / 1e9, cpu / bytes * 1e9))
    }

    /// Runs `tierfs push` and returns what it prints as JSON.
    fn push(&self, store: &Path, collection: &str, url: &str, options: &[&str]) -> Result<serde_json::Value> {
        let mut command = Command::new(&self.place.tierfs);
        command.arg("push").arg(store).args([collection, url, "--create", "--json"]).args(options);
        let output = self.server.keys(&mut command, self.server.port).output()?;
        if !output.status.success() {
            // With --json the error is there.
            return Err(String::from_utf8_lossy(&output.stdout).into_owned().into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// A number that no other call returns.
    fn number(&self) -> u32 {
        self.made.replace(self.made.get() + 1)
    }

    fn rclone(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(installed("rclone")?);
        run(self.server.rclone_keys(command.args(arguments)))
    }

    /// The model's file in the bucket of plain files.
    pub fn copied(&self) -> Result<()> {
        let path = self.source.path.to_string_lossy();
        self.rclone(&[
            "copyto",
            &path,
            &format!("w:{PLAIN}/model.safetensors"),
            "--s3-upload-concurrency",
            "8",
        ])
    }
}

/// A pass over a file of a mount: GB/s, and the daemon's seconds a GB.
pub(super) fn measured(cached: &Cached, pass: Pass) -> Result<(f64, f64)> {
    let process = cached.mounted.process()?;
    let bytes = fs::metadata(&cached.file)?.len() as f64;
    let before = cpu_of(process)?;
    let speed = pass(&cached.file)?;
    Ok((speed, (cpu_of(process)? - before) / bytes * 1e9))
}

pub(super) fn stand(place: &Rc<Place>) -> Result<Rc<Stand>> {
    let also = place.clone();
    place.shared("stand", || {
        let server = Seaweed::start(&also)?;
        let folder = also.new_directory("source")?;
        // Half of the other rows' bytes: they lie in the store, in the server and in caches.
        let source = Source::make(&folder.join("model.safetensors"), Dtype::F32, 16, also.bytes() / 32)?;
        let kept = Rc::new(Kept::import(&also, &source.path, Tier::Exact, &[])?);
        let stand = Stand { server, place: also.clone(), source, kept, made: Cell::new(0) };
        stand.push(&stand.kept.path, "b/c", URL, &[])?;
        Ok(stand)
    })
}

/// Compares a file with the source.
pub(super) fn same(stand: &Stand, path: &Path) -> Result<Checked> {
    let wanted = read::digest(&stand.source.path, 0, Through::Cache)?;
    Checked::digest(&path.display().to_string(), read::digest(path, 0, Through::Cache)?, wanted)
}

fn against_get(
    place: &Rc<Place>,
    ours: fn(&Stand) -> Result<f64>,
    theirs: fn((f64, f64)) -> f64,
) -> Result<Contest> {
    let stand = stand(place)?;
    let checked = same(&stand, &stand.mount(stand.server.port)?.file)?;
    let also = stand.clone();
    Contest::new(checked, move || ours(&stand), move || Ok(theirs(also.get()?)))
}

fn again(place: &Rc<Place>, pass: Pass) -> Result<Contest> {
    let stand = stand(place)?;
    let cached = stand.mount(stand.server.port)?;
    // The second comparison reads the cached file.
    let checked = same(&stand, &cached.file)?.and(same(&stand, &cached.file)?);
    Contest::new(checked, move || cached.pass(pass), move || pass(&stand.source.path))
}

fn over_link(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    let checked = same(&stand, &stand.mount(stand.server.port)?.file)?;
    let link = Link::narrow(stand.server.port)?;
    Contest::new(checked, move || Ok(measured(&stand.mount(link.port)?, PASS)?.0), || Ok(NARROW / 1e9))
}

/// Reads 4 KiB of a tensor on a new mount, far from the server: round trips one after another, and MiB received.
fn first(place: &Rc<Place>, figure: fn(f64, f64) -> f64) -> Result<Contest> {
    let stand = stand(place)?;
    let checked = same(&stand, &stand.mount(stand.server.port)?.file)?;
    let link = Link::far(stand.server.port)?;
    Contest::alone(checked, move || {
        let cached = stand.mount(link.port)?;
        let before = link.received.load(Ordering::Relaxed);
        let begun = Instant::now();
        let mut page = [0; 4096];
        File::open(cached.mounted.path("b/c/n7"))?.read_exact_at(&mut page, 8192)?;
        // The rest is time of processors.
        let trips = (begun.elapsed().as_secs_f64() / DELAY.as_secs_f64()).floor();
        let received = link.received.load(Ordering::Relaxed) - before;
        Ok(figure(trips, received as f64 / f64::from(1 << 20)))
    })
}

/// Mounts the bucket of plain files with an empty cache.
type Start = fn(&Stand) -> Result<Cached>;

fn rclone(stand: &Stand) -> Result<Cached> {
    let (mountpoint, cache) = (stand.place.new_directory("mnt")?, stand.place.new_path("cache"));
    let mut command = Command::new(installed("rclone")?);
    stand.server.rclone_keys(command.args(["mount", &format!("w:{PLAIN}")]).arg(&mountpoint));
    command.args(["--read-only", "--vfs-cache-mode", "full", "--vfs-read-chunk-streams", "8"]);
    command.args(["--vfs-read-chunk-size", "8M", "--log-level", "ERROR", "--cache-dir"]).arg(&cache);
    let mounted = Mounted::begin(command, mountpoint)?;
    Ok(Cached { file: mounted.path("model.safetensors"), mounted, _cache: Removed(cache) })
}

fn s3fs(stand: &Stand) -> Result<Cached> {
    let (mountpoint, cache) = (stand.place.new_directory("mnt")?, stand.place.new_directory("cache")?);
    let keys = cache.join("keys");
    stand.server.s3fs_keys(&keys)?;
    let mut command = Command::new(installed("s3fs")?);
    let options = format!(
        "url=http://127.0.0.1:{},use_path_request_style,passwd_file={},use_cache={},ro,parallel_count=16,multipart_size=16",
        stand.server.port,
        keys.display(),
        cache.join("files").display()
    );
    command.arg(PLAIN).arg(&mountpoint).args(["-f", "-o", &options]).stderr(std::process::Stdio::null());
    let mounted = Mounted::begin(command, mountpoint)?;
    Ok(Cached { file: mounted.path("model.safetensors"), mounted, _cache: Removed(cache) })
}

fn weed(stand: &Stand) -> Result<Cached> {
    let (mountpoint, cache) = (stand.place.new_directory("mnt")?, stand.place.new_directory("cache")?);
    let mut command = Command::new(installed("weed")?);
    command.arg("mount").arg(format!("-filer={}", stand.server.filer()));
    command.arg(format!("-filer.path=/buckets/{PLAIN}")).arg(format!("-dir={}", mountpoint.display()));
    command.arg(format!("-cacheDir={}", cache.display())).args(["-cacheCapacityMB=2048", "-readOnly"]);
    command.stderr(std::process::Stdio::null());
    let mounted = Mounted::begin(command, mountpoint)?;
    Ok(Cached { file: mounted.path("model.safetensors"), mounted, _cache: Removed(cache) })
}

/// The figure that is compared with another program.
#[derive(Clone, Copy)]
enum Figure {
    Cold,
    Cpu,
    Again,
}

fn against_peer(place: &Rc<Place>, start: Start, figure: Figure) -> Result<Contest> {
    let stand = stand(place)?;
    place.shared("copied", || stand.copied())?;
    let (ours, theirs) = (stand.mount(stand.server.port)?, start(&stand)?);
    let checked = same(&stand, &ours.file)?.and(same(&stand, &theirs.file)?);
    let also = stand.clone();
    match figure {
        Figure::Cold => Contest::new(
            checked,
            move || Ok(measured(&stand.mount(stand.server.port)?, PASS)?.0),
            move || Ok(measured(&start(&also)?, PASS)?.0),
        ),
        Figure::Cpu => Contest::new(
            checked,
            move || Ok(measured(&stand.mount(stand.server.port)?, PASS)?.1),
            move || Ok(measured(&start(&also)?, PASS)?.1),
        ),
        // Both have read it once. The kernel forgets the pages of neither.
        Figure::Again => Contest::new(checked, move || ours.pass(PASS), move || theirs.pass(PASS)),
    }
}

/// A file of many small tensors, published, and the same tensors as files in the bucket of plain files.
struct Small {
    stand: Rc<Stand>,
    plain: Removed,
}

const SMALL_PLACE: &str = "b/small";

fn small(place: &Rc<Place>) -> Result<Rc<Small>> {
    let stand = stand(place)?;
    installed("rclone")?;
    place.shared("small-files", || {
        let path = place.new_path("small.safetensors");
        let source = Source::make(&path, Dtype::F32, SMALL_FILES, SMALL_BYTES)?;
        let _removed = Removed(path);
        let (store, from) = (stand.kept.path.to_string_lossy(), source.path.to_string_lossy());
        place.run(&["import", &store, SMALL_PLACE, &from])?;
        stand.push(&stand.kept.path, SMALL_PLACE, URL, &[])?;
        let bytes = fs::read(&source.path)?;
        let plain = Removed(place.new_directory("plain")?);
        let tensors = bytes[source.header_bytes as usize..].chunks(SMALL_BYTES as usize);
        for (number, tensor) in tensors.enumerate() {
            fs::write(plain.0.join(format!("n{number}")), tensor)?;
        }
        let from = plain.0.to_string_lossy();
        stand.rclone(&["copy", &from, &format!("w:{PLAIN}/small"), "--transfers", "16"])?;
        Ok(Small { stand: stand.clone(), plain })
    })
}

fn small_files(place: &Rc<Place>, measure: fn(&Path) -> Result<f64>) -> Result<Contest> {
    let small = small(place)?;
    let stand = small.stand.clone();
    let (ours, theirs) = (stand.mount(stand.server.port)?, rclone(&stand)?);
    let right = checked(&ours.mounted.path(SMALL_PLACE).join(TENSORS), &small.plain.0)?
        .and(checked(&theirs.mounted.path("small"), &small.plain.0)?);
    drop((ours, theirs));
    let also = stand.clone();
    Contest::new(
        right,
        move || measure(&stand.mount(stand.server.port)?.mounted.path(SMALL_PLACE).join(TENSORS)),
        move || {
            let _kept = &small;
            measure(&rclone(&also)?.mounted.path("small"))
        },
    )
}

/// The server, and the model that is pushed with its store.
type Pushed = (Rc<Stand>, Rc<(Source, Kept)>);

/// The input of a push: a quarter of the other rows' bytes, since each pass leaves a copy on the server.
fn pushed(place: &Rc<Place>) -> Result<Pushed> {
    let stand = stand(place)?;
    let pushed = place.shared("pushed", || {
        let folder = place.new_directory("push")?;
        let source = Source::make(&folder.join("pushed.safetensors"), Dtype::F32, 16, place.bytes() / 64)?;
        let kept = Kept::import(place, &source.path, Tier::Exact, &[])?;
        Ok((source, kept))
    })?;
    Ok((stand, pushed))
}

fn push(place: &Rc<Place>) -> Result<Contest> {
    let (stand, pushed) = pushed(place)?;
    installed("rclone")?;
    let found = stand.push(&pushed.1.path, "b/c", "s3://models/checked", &[])?;
    let right = Checked::holds("a first push sends all bytes", sent(&found)? >= pushed.0.bytes())?;
    let (also, theirs, bytes) = (stand.clone(), pushed.clone(), pushed.0.bytes() as f64);
    Contest::new(
        right,
        move || {
            let begun = Instant::now();
            stand.push(&pushed.1.path, "b/c", &format!("s3://models/push{}", stand.number()), &[])?;
            Ok(bytes / begun.elapsed().as_secs_f64() / 1e9)
        },
        move || {
            let (from, begun) = (theirs.0.path.to_string_lossy(), Instant::now());
            let to = format!("w:copies/{}", also.number());
            also.rclone(&["copy", &from, &to, "--s3-upload-concurrency", "8", "--s3-chunk-size", "8M"])?;
            Ok(bytes / begun.elapsed().as_secs_f64() / 1e9)
        },
    )
}

/// Bytes that a push has sent.
fn sent(pushed: &serde_json::Value) -> Result<u64> {
    Ok(pushed["bytes_sent"].as_u64().ok_or("push does not say what it sent")?)
}

fn push_again(place: &Rc<Place>) -> Result<Contest> {
    let (stand, pushed) = pushed(place)?;
    let url = "s3://models/again";
    stand.push(&pushed.1.path, "b/c", url, &[])?;
    let found = stand.push(&pushed.1.path, "b/c", url, &[])?;
    let right = Checked::holds("a second push sends nothing", sent(&found)? == 0)?;
    let (also, theirs) = (stand.clone(), pushed.clone());
    let timed = |stand: &Stand, store: &Path, url: &str| -> Result<f64> {
        let begun = Instant::now();
        stand.push(store, "b/c", url, &[])?;
        Ok(begun.elapsed().as_secs_f64())
    };
    Contest::new(
        right,
        move || timed(&stand, &pushed.1.path, url),
        move || timed(&also, &theirs.1.path, &format!("s3://models/first{}", also.number())),
    )
}

/// Writes a small llama in bf16, its tensors in the order in which transformers saves them. The last layer
/// depends on `tuning`.
fn write_model(path: &Path, tuning: u64) -> Result<()> {
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN])];
    for layer in 0..LAYERS {
        let of_layer = LAYER.iter().map(|(name, rows, columns)| {
            let shape = if *columns == 0 { vec![*rows] } else { vec![*rows, *columns] };
            (format!("model.layers.{layer}.{name}.weight"), shape)
        });
        tensors.extend(of_layer);
    }
    tensors.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in &tensors {
        let begin = end;
        end += shape.iter().product::<u64>() * Dtype::Bf16.bytes();
        let entry = serde_json::json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let last = format!("model.layers.{}.", LAYERS - 1);
    for (seed, (name, shape)) in (0..).zip(&tensors) {
        let seed: u64 = if name.starts_with(&last) { seed + tuning } else { seed };
        let count = shape.iter().product::<u64>() as usize;
        file.write_all(&Random::new(seed).elements(Dtype::Bf16, count))?;
    }
    Ok(file.flush()?)
}

fn push_tuned(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    let folder = Removed(place.new_directory("tuned")?);
    let path = folder.0.join("model.safetensors");
    let import = |tuning| -> Result<Kept> {
        write_model(&path, tuning)?;
        Kept::import(place, &path, Tier::Exact, &[])
    };
    let (base, tuned) = (import(0)?, import(1 << 32)?);
    drop(folder);
    // The pass needs the stores, not only their paths.
    let both = Rc::new((base, tuned));
    let place_of_base = "b/c";
    let right = Checked::holds("the store has the model's bytes", bytes_on_disk(&both.0.path)? > 200 << 20)?;
    Contest::alone(right, move || {
        let url = format!("s3://models/tuned{}", stand.number());
        let first = sent(&stand.push(&both.0.path, place_of_base, &url, &[])?)?;
        let options = ["--dedup-with", place_of_base];
        let second = sent(&stand.push(&both.1.path, "b/c=b/tuned", &url, &options)?)?;
        Ok(second as f64 / first as f64)
    })
}
