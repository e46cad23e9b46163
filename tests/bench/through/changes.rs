//! Writes through the mount, and imports.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown};
use crate::Result;
use crate::daemon::Mounted;
use crate::place::{Place, Removed, missing, run};
use crate::read::{self, CALL, Through};
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Source;

/// The rows.
pub fn rows() -> Vec<Row> {
    vec![
        Row::new(
            "mount-write.new",
            "1 MiB writes, new file, and close",
            "the store's file system through bindfs",
            "GB/s",
            Target::RatioAtLeast(1.0),
            written,
        ),
        Row::new(
            "mount-copy.shared",
            "`cp` of a safetensors file in the mount: time",
            "`cp` of it beside the store",
            "s",
            Target::RatioAtMost(0.2),
            copied,
        ),
        Row::new(
            "mount-import.exact",
            "import of a safetensors file, exact",
            "`cp` and sync of it",
            "GB/s",
            Target::RatioAtLeast(0.7),
            |place| imported(place, &[]),
        ),
        Row::new(
            "mount-import.in-place",
            "import of a safetensors file, in place: time",
            "`cp` and sync of it",
            "s",
            Target::RatioAtMost(0.5),
            |place| imported(place, &["--in-place"]),
        ),
        Row::new(
            "mount-move.down",
            "`tierfs tier q5` of an exact safetensors file: time",
            "import of it into q5",
            "s",
            Target::RatioAtMost(1.3),
            |place| moved(place, &[], Tier::Q5),
        ),
        Row::new(
            "mount-move.origin",
            "`tierfs tier exact` of a file in place, from q5: time",
            "import of it into q5",
            "s",
            Target::RatioAtMost(0.1),
            |place| moved(place, &["--in-place"], Tier::Exact),
        ),
    ]
}

/// Bytes of the file that is moved.
const MOVED_BYTES: u64 = 96 << 20;

/// Moves a file that was imported with these options, against an import of it. A file that becomes exact begins in q5.
fn moved(place: &Rc<Place>, options: &'static [&'static str], to: Tier) -> Result<Contest> {
    let directory = Removed(place.new_directory("moved")?);
    let path = directory.0.join("model.safetensors");
    let source = Source::make(&path, Dtype::F32, 24, place.scaled(MOVED_BYTES) / 24)?;
    let (place, also) = (place.clone(), place.clone());
    let whole = read::digest(&path, 0, Through::Cache)?;
    let pass = move || -> Result<(f64, Shown)> {
        let kept = Rc::new(Kept::import(&place, &path, Tier::Exact, options)?);
        kept.warm()?;
        let shown = Shown::new(&place, &kept, &[])?;
        let file = shown.file();
        let name = file.to_string_lossy().into_owned();
        for (attribute, value) in [("lossy", "allow"), ("encoder", "absmax")] {
            let name = format!("user.tierfs.{attribute}");
            run(Command::new("setfattr").args(["-n", &name, "-v", value]).arg(&file))?;
        }
        if to == Tier::Exact {
            place.run(&["tier", "q5:all", &name])?;
        }
        let begun = Instant::now();
        place.run(&["tier", &format!("{}:all", to.name()), &name])?;
        Ok((begun.elapsed().as_secs_f64(), shown))
    };
    let (_, shown) = pass()?;
    let checked = match to {
        Tier::Exact => {
            Checked::digest("the file made exact", read::digest(&shown.file(), 0, Through::Cache)?, whole)?
        }
        _ => super::check(&shown.file(), source.header_bytes, &source, to, Through::Cache)?,
    };
    drop(shown);
    Contest::new(
        checked,
        move || pass().map(|(seconds, _)| seconds),
        move || {
            let _source = &directory;
            let begun = Instant::now();
            let kept = Kept::import(&also, &source.path, Tier::Q5, &[])?;
            let seconds = begun.elapsed().as_secs_f64();
            drop(kept);
            Ok(seconds)
        },
    )
}

/// Writes a new file and closes it, in GB/s.
fn write(path: &Path, bytes: u64, content: &[u8]) -> Result<f64> {
    let begun = Instant::now();
    let mut file = File::create_new(path)?;
    for _ in 0..bytes / content.len() as u64 {
        file.write_all(content)?;
    }
    drop(file);
    Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

fn written(place: &Rc<Place>) -> Result<Contest> {
    let bytes = place.bytes() / 2;
    let content = crate::empty::hot()[..CALL].to_vec();
    let small = place.new_path("small.bin");
    fs::write(&small, b"a collection to write to")?;
    let kept = Rc::new(Kept::import(place, &small, Tier::Exact, &[])?);
    fs::remove_file(&small)?;
    let shown = Shown::new(place, &kept, &[])?;
    let below = Removed(place.new_directory("below")?);
    let mountpoint = place.new_directory("mnt")?;
    let mut command = Command::new("bindfs");
    command.arg("-f").arg(&below.0).arg(&mountpoint);
    if Command::new("bindfs").arg("--version").output().is_err() {
        return Err(missing("bindfs is not installed (scripts/setup.sh bench)"));
    }
    let bindfs = Mounted::begin(command, mountpoint)?;
    let mut expected = blake3::Hasher::new();
    for _ in 0..bytes / CALL as u64 {
        expected.update(&content);
    }
    let expected = expected.finalize();
    let ours = shown.path("new");
    let theirs = bindfs.path("new");
    let check = |path: &Path, what| -> Result<Checked> {
        write(path, bytes, &content)?;
        let checked = Checked::digest(what, read::digest(path, 0, Through::Cache)?, expected);
        fs::remove_file(path)?;
        checked
    };
    let checked = check(&ours, "a new file")?.and(check(&theirs, "a new file through bindfs")?);
    let also = content.clone();
    let pass = move |path: &PathBuf, content: &[u8]| -> Result<f64> {
        let speed = write(path, bytes, content)?;
        fs::remove_file(path)?;
        Ok(speed)
    };
    Contest::new(
        checked,
        move || {
            // The file remains for this pass only.
            let _mounted = &shown;
            pass(&ours, &content)
        },
        move || {
            let _mounted = (&bindfs, &below);
            pass(&theirs, &also)
        },
    )
}

/// Copies a file inside a tenant, where the copy shares its blocks, in seconds.
fn copied(place: &Rc<Place>) -> Result<Contest> {
    let source = place.source(Dtype::F32)?;
    let kept = Rc::new(Kept::import(place, &source.path, Tier::Exact, &[])?);
    kept.warm()?;
    let shown = Shown::new(place, &kept, &[])?;
    let pass = |from: &Path, to: &Path| -> Result<f64> {
        let begun = Instant::now();
        run(Command::new("cp").arg(from).arg(to))?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let (from, to) = (shown.file(), shown.path("copy.safetensors"));
    pass(&from, &to)?;
    let whole = read::digest(&source.path, 0, Through::Cache)?;
    let checked = Checked::digest("the copy", read::digest(&to, 0, Through::Cache)?, whole)?;
    fs::remove_file(&to)?;
    let beside = place.new_path("copy");
    Contest::new(
        checked,
        move || {
            let _mounted = &shown;
            let seconds = pass(&from, &to)?;
            fs::remove_file(&to)?;
            Ok(seconds)
        },
        move || {
            let seconds = pass(&source.path, &beside)?;
            fs::remove_file(&beside)?;
            Ok(seconds)
        },
    )
}

fn imported(place: &Rc<Place>, options: &'static [&'static str]) -> Result<Contest> {
    let source = place.source(Dtype::F32)?;
    let whole = read::digest(&source.path, 0, Through::Cache)?;
    let kept = Rc::new(Kept::import(place, &source.path, Tier::Exact, options)?);
    let shown = Shown::new(place, &kept, &[])?;
    let checked =
        Checked::digest("what was imported", read::digest(&shown.file(), 0, Through::Cache)?, whole)?;
    drop((shown, kept));
    let figure = move |seconds: f64, bytes: u64| match options.is_empty() {
        true => bytes as f64 / seconds / 1e9,
        false => seconds,
    };
    let bytes = source.bytes() + source.header_bytes;
    let (place, also, copied) = (place.clone(), source.clone(), place.new_path("copy"));
    Contest::new(
        checked,
        move || {
            let begun = Instant::now();
            let kept = Kept::import(&place, &source.path, Tier::Exact, options)?;
            let seconds = begun.elapsed().as_secs_f64();
            drop(kept);
            Ok(figure(seconds, bytes))
        },
        move || {
            let begun = Instant::now();
            run(Command::new("cp").arg(&also.path).arg(&copied))?;
            run(Command::new("sync").arg(&copied))?;
            let seconds = begun.elapsed().as_secs_f64();
            fs::remove_file(&copied)?;
            Ok(figure(seconds, bytes))
        },
    )
}
