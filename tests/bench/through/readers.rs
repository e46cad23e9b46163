//! Several readers at a time.

use std::path::Path;
use std::rc::Rc;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown, check};
use crate::Result;
use crate::place::{Place, Removed};
use crate::read::{self, CALL, Through, speed_of_many};
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Source;

const READERS: usize = 4;

/// The rows.
pub fn rows() -> Vec<Row> {
    let one = "one reader";
    let row = |name: &str, what: &str, least, prepare: fn(&Rc<Place>) -> Result<Contest>| {
        Row::new(format!("mount-readers.{name}"), what, one, "GB/s", Target::RatioAtLeast(least), prepare)
    };
    vec![
        row("direct", "4 readers of one tensor, O_DIRECT 1 MiB, q8 to f32", 1.6, |place| {
            on_one(place, Through::Nothing)
        }),
        row("one", "4 readers of one tensor, cold kernel cache, q8 to f32", 2.0, |place| {
            on_one(place, Through::Cache)
        }),
        row("four", "4 readers of four tensors, cold kernel cache, q8 to f32", 1.0, on_four),
    ]
}

fn on_one(place: &Place, through: Through) -> Result<Contest> {
    let source = place.source(Dtype::F32)?;
    let shown = place.shared("one", || {
        let kept = Rc::new(Kept::import(place, &source.path, Tier::Q8, &[])?);
        Shown::new(place, &kept, &[])
    })?;
    let path = shown.tensor("n0");
    let checked = check(&path, 0, &source, Tier::Q8, through)?;
    let alone = path.clone();
    let kept = shown.kept.clone();
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            speed_of_many(&[path.as_path(); READERS], CALL, through)
        },
        move || {
            kept.warm()?;
            speed_of_many(&[alone.as_path()], CALL, through)
        },
    )
}

fn on_four(place: &Rc<Place>) -> Result<Contest> {
    let (source, _removed) = {
        let path = place.new_path("four.safetensors");
        let bytes = place.bytes() / READERS as u64;
        (Source::make(&path, Dtype::F32, READERS as u32, bytes)?, Removed(path))
    };
    let kept = Rc::new(Kept::import(place, &source.path, Tier::Q8, &[])?);
    let shown = Rc::new(Shown::new(place, &kept, &[])?);
    let paths: Vec<_> = (0..READERS).map(|number| shown.tensor(&format!("n{number}"))).collect();
    let mut hasher = blake3::Hasher::new();
    for path in &paths {
        hasher.update(&std::fs::read(path)?);
    }
    let checked = Checked::digest("four tensors", hasher.finalize(), source.expected(Tier::Q8)?)?;
    let first = paths.first().cloned().ok_or("no readers")?;
    let also = shown.clone();
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            speed_of_many(
                &paths.iter().map(|path| path.as_path()).collect::<Vec<&Path>>(),
                CALL,
                Through::Cache,
            )
        },
        move || {
            also.kept.warm()?;
            read::speed(&first, CALL, Through::Cache, read::Pages::Cold)
        },
    )
}
