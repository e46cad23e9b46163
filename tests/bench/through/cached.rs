//! Encoded files that the kernel reads from decoded copies in memory.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tierfs::model::{Dtype, Tier};

use super::decoded::ALL;
use super::{Kept, Shown, check, check_empty, empty};
use crate::Result;
use crate::daemon::DECODED_CACHE;
use crate::place::{Place, missing};
use crate::read::{self, CALL, Pages, Through, speed};
use crate::table::{Contest, Row, Target};

/// More than a file of 1 GiB, whatever the memory.
pub(super) const BUDGET: [&str; 2] = [DECODED_CACHE, "2G"];
const PYTHON: &str = "target/venv/bin/python";
/// How long a copy may take that is made in the background.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = ALL
        .into_iter()
        .map(|(tier, dtype)| {
            let (tier_name, dtype_name) = (tier.name(), if dtype == Dtype::Bf16 { "bf16" } else { "f32" });
            Row::new(
                format!("decoded-{tier_name}-{dtype_name}.first"),
                format!("first sequential read, decoded at the open, {tier_name} to {dtype_name}"),
                "empty daemon",
                "GB/s",
                Target::RatioAtLeast(1.0),
                move |place| first(place, tier, dtype),
            )
        })
        .collect();
    let row =
        |name: &str, what: &str, reference: &str, target, prepare: fn(&Rc<Place>) -> Result<Contest>| {
            Row::new(format!("decoded-q8-f32.{name}"), what, reference, "GB/s", target, prepare)
        };
    let (file, today) = ("a file on the store's file system", "without a decoded cache");
    rows.extend([
        row("again", "second read, q8 to f32", file, Target::RatioAtLeast(0.95), |place| {
            again(place, |path| speed(path, CALL, Through::Cache, Pages::Kept))
        }),
        row("walk-again", "second mapped walk, q8 to f32", file, Target::RatioAtLeast(0.95), |place| {
            again(place, read::touch)
        }),
        row("walk-first", "first mapped walk, q8 to f32", today, Target::RatioAtLeast(2.0), walk_first),
        row("page", "4 KiB, open included, q8 to f32", today, Target::RatioAtLeast(1.0), page),
        row(
            "load-four",
            "4 processes load a q8 model",
            "1 process, plain",
            Target::RatioAtLeast(0.77),
            |place| load_four(place, 1),
        ),
        row("load-same", "4 processes load a q8 model", "4 processes, plain", Target::Nothing, |place| {
            load_four(place, 4)
        }),
    ]);
    for (dtype, dtype_name) in [(Dtype::F32, "f32"), (Dtype::Bf16, "bf16")] {
        rows.push(Row::new(
            format!("mount-q8-{dtype_name}.again"),
            format!("second read of a decoded tensor, q8 to {dtype_name}"),
            "a file",
            "GB/s",
            Target::RatioAtLeast(0.55),
            move |place| auto_again(place, dtype),
        ));
    }
    rows
}

/// Sets an attribute.
pub(super) fn set(path: &Path, name: &str, value: &str) -> Result<()> {
    let c_path = CString::new(path.as_os_str().as_bytes())?;
    let c_name = CString::new(format!("user.tierfs.{name}"))?;
    // SAFETY: both strings end with zero, and all memory lives during the call.
    let code =
        unsafe { libc::setxattr(c_path.as_ptr(), c_name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if code == 0 { Ok(()) } else { Err(format!("{}: {}", path.display(), io::Error::last_os_error()).into()) }
}

/// A mount with a decoded cache, whose files are decoded when they are opened.
fn cached(place: &Place, tier: Tier, dtype: Dtype) -> Result<Rc<Shown>> {
    let source = place.source(dtype)?;
    place.shared(&format!("cached-{}-{dtype}", tier.name()), || {
        let kept = Rc::new(Kept::import(place, &source.path, tier, &[])?);
        let shown = Shown::new(place, &kept, &BUDGET)?;
        set(&shown.file(), "cache", "decoded")?;
        Ok(shown)
    })
}

/// Drops the copy of a file, and what the kernel has of it.
fn drop_copy(path: &Path) -> Result<()> {
    set(path, "evict", "cache")?;
    read::forget(path)?;
    set(path, "evict", "cache")
}

/// A counter of the mount.
fn counter(shown: &Shown, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(shown.mounted.path(".ctl/stats.json"))?;
    let stats: serde_json::Value = serde_json::from_str(&text)?;
    Ok(stats[name].as_u64().unwrap_or(0))
}

/// Drops all copies, those of forms too.
pub(super) fn drop_copies(shown: &Shown) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while counter(shown, "decoded_bytes")? > 0 {
        if Instant::now() > until {
            return Err("a decoded copy stays".into());
        }
        set(&shown.file(), "evict", "cache")?;
    }
    Ok(())
}

fn hits(shown: &Shown) -> Result<u64> {
    counter(shown, "decoded_hits")
}

/// Opens a file until it has a copy.
pub(super) fn decode(shown: &Shown, path: &Path) -> Result<()> {
    let (before, until) = (hits(shown)?, Instant::now() + PATIENCE);
    while hits(shown)? == before {
        if Instant::now() > until {
            return Err(format!("{} has no decoded copy", path.display()).into());
        }
        drop(std::fs::File::open(path)?);
    }
    Ok(())
}

fn first(place: &Place, tier: Tier, dtype: Dtype) -> Result<Contest> {
    let (shown, empty) = (cached(place, tier, dtype)?, empty(place)?);
    decode(&shown, &shown.tensor("n0"))?;
    let checked = check(&shown.tensor("n0"), 0, &*place.source(dtype)?, tier, Through::Cache)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Cache)?);
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            drop_copy(&shown.tensor("n0"))?;
            speed(&shown.tensor("n0"), CALL, Through::Cache, Pages::Kept)
        },
        move || speed(&empty.path("big"), CALL, Through::Cache, Pages::Cold),
    )
}

fn again(place: &Place, measure: fn(&Path) -> Result<f64>) -> Result<Contest> {
    let shown = cached(place, Tier::Q8, Dtype::F32)?;
    let source = place.source(Dtype::F32)?;
    let path = shown.tensor("n0");
    decode(&shown, &path)?;
    let checked = check(&path, 0, &source, Tier::Q8, Through::Cache)?;
    Contest::new(
        checked,
        move || {
            decode(&shown, &path)?;
            measure(&path)
        },
        move || measure(&source.path),
    )
}

/// The same mount without a cache.
fn plain(place: &Place) -> Result<Rc<Shown>> {
    let source = place.source(Dtype::F32)?;
    place.shared("plain-q8", || {
        let kept = Rc::new(Kept::import(place, &source.path, Tier::Q8, &[])?);
        Shown::new(place, &kept, &[])
    })
}

fn walk_first(place: &Rc<Place>) -> Result<Contest> {
    let (shown, plain) = (cached(place, Tier::Q8, Dtype::F32)?, plain(place)?);
    let source = place.source(Dtype::F32)?;
    decode(&shown, &shown.tensor("n0"))?;
    let checked = check(&shown.tensor("n0"), 0, &source, Tier::Q8, Through::Cache)?;
    let checked = checked.and(check(&plain.tensor("n0"), 0, &source, Tier::Q8, Through::Cache)?);
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            drop_copy(&shown.tensor("n0"))?;
            read::touch(&shown.tensor("n0"))
        },
        move || {
            plain.kept.warm()?;
            read::forget(&plain.tensor("n0"))?;
            read::touch(&plain.tensor("n0"))
        },
    )
}

/// A mount with a decoded cache that decides itself which files are decoded.
fn auto(place: &Place, dtype: Dtype) -> Result<Rc<Shown>> {
    let source = place.source(dtype)?;
    place.shared(&format!("auto-q8-{dtype}"), || {
        let kept = Rc::new(Kept::import(place, &source.path, Tier::Q8, &[])?);
        Shown::new(place, &kept, &BUDGET)
    })
}

/// Reads a file again that was read whole before, and decoded after that.
fn auto_again(place: &Place, dtype: Dtype) -> Result<Contest> {
    let (shown, source) = (auto(place, dtype)?, place.source(dtype)?);
    let path = shown.tensor("n0");
    let checked = check(&path, 0, &source, Tier::Q8, Through::Cache)?;
    decode(&shown, &path)?;
    let checked = checked.and(check(&path, 0, &source, Tier::Q8, Through::Cache)?);
    Contest::new(
        checked,
        move || speed(&path, CALL, Through::Cache, Pages::Kept),
        move || speed(&source.path, CALL, Through::Cache, Pages::Kept),
    )
}

/// Opens a file, reads one page, and closes it.
fn page(place: &Rc<Place>) -> Result<Contest> {
    let shown = auto(place, Dtype::F32)?;
    let plain = plain(place)?;
    let source = place.source(Dtype::F32)?;
    let checked = check(&shown.tensor("n0"), 0, &source, Tier::Q8, Through::Nothing)?;
    let checked = checked.and(check(&plain.tensor("n0"), 0, &source, Tier::Q8, Through::Nothing)?);
    let pages = move |path: &Path| {
        let count = 2000;
        let mut buffer = vec![0; 4096];
        read::forget(path)?;
        let begun = Instant::now();
        for at in 0..count {
            let file = std::fs::File::open(path)?;
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut buffer, at * 4096 * 61)?;
        }
        Ok((count * 4096) as f64 / begun.elapsed().as_secs_f64() / 1e9)
    };
    Contest::new(checked, move || pages(&shown.tensor("n0")), move || pages(&plain.tensor("n0")))
}

/// Processes that load a model with safetensors at the same time, in GB/s of one of them.
fn load(path: &Path, processes: usize) -> Result<f64> {
    let script = "import sys, time; from safetensors.numpy import load_file\n\
                  print(flush=True); sys.stdin.readline(); load_file(sys.argv[1]); print(flush=True)";
    let mut children = Vec::new();
    for _ in 0..processes {
        let mut command = Command::new(PYTHON);
        command.args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        children.push(command.spawn()?);
    }
    let line = |child: &mut std::process::Child| -> Result<()> {
        let output = child.stdout.as_mut().ok_or("no output")?;
        let mut byte = [0];
        Ok(io::Read::read_exact(output, &mut byte)?)
    };
    children.iter_mut().try_for_each(line)?;
    let begun = Instant::now();
    for child in &mut children {
        io::Write::write_all(child.stdin.as_mut().ok_or("no input")?, b"\n")?;
    }
    children.iter_mut().try_for_each(line)?;
    let took = begun.elapsed().as_secs_f64();
    for child in &mut children {
        if !child.wait()?.success() {
            return Err(format!("{} could not be loaded", path.display()).into());
        }
    }
    Ok(std::fs::metadata(path)?.len() as f64 / took / 1e9)
}

/// Four processes that load a model at the same time, and `references` that load its source.
fn load_four(place: &Rc<Place>, references: usize) -> Result<Contest> {
    if !Path::new(PYTHON).exists() {
        return Err(missing(PYTHON));
    }
    let shown = cached(place, Tier::Q8, Dtype::F32)?;
    let source = place.source(Dtype::F32)?;
    decode(&shown, &shown.file())?;
    let checked = check(&shown.tensor("n0"), 0, &source, Tier::Q8, Through::Cache)?;
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            drop_copy(&shown.file())?;
            load(&shown.file(), 4)
        },
        move || load(&source.path, references),
    )
}
