//! Requests over io_uring, against the device: small files, small reads, and long reads that must not lose.

use std::rc::Rc;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown, check, check_empty, empty, small};
use crate::Result;
use crate::place::{Missing, Place};
use crate::read::{self, CALL, Pages, Through, latencies, percentile, speed, speed_of_many};
use crate::table::{Contest, Row, Target};

/// Reads of one pass of 4 KiB reads.
const SMALL_READS: usize = 8000;
const READERS: usize = 4;
const URING: [&str; 3] = ["--read-only", "--transport", "uring"];
const CLASSIC: [&str; 3] = ["--read-only", "--transport", "classic"];

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: &str,
                   what: &str,
                   reference: &str,
                   unit,
                   target,
                   prepare: fn(&Rc<Place>) -> Result<Contest>| {
        let what = format!("over io_uring: {what}");
        rows.push(Row::new(format!("mount-uring.{name}"), what, reference, unit, target, prepare));
    };
    let tensors = "4,000 tensors of 4 KiB: open, read, close";
    let (device, files) = ("by the device", "the store's file system");
    add(
        "small-first",
        &format!("{tensors}, first"),
        device,
        "thousand/s",
        Target::RatioAtLeast(1.5),
        |place| small_against_device(place, Mount::Fresh),
    );
    add(
        "small-again",
        &format!("{tensors}, again"),
        device,
        "thousand/s",
        Target::RatioAtLeast(1.5),
        |place| small_against_device(place, Mount::Same),
    );
    add(
        "files-first",
        &format!("{tensors}, first"),
        files,
        "thousand/s",
        Target::RatioAtLeast(0.1),
        |place| small_against_files(place, Mount::Fresh),
    );
    add(
        "files-again",
        &format!("{tensors}, again"),
        files,
        "thousand/s",
        Target::RatioAtLeast(0.18),
        |place| small_against_files(place, Mount::Same),
    );
    add("list-first", "`ls -l` of 10,000 tensors, first", files, "ms", Target::RatioAtMost(1.3), listed);
    let random = "random 4 KiB reads, O_DIRECT, q8 to f32";
    let empty = "empty daemon, by the device";
    add("random-p50", &format!("{random}, p50"), empty, "us", Target::RatioAtMost(1.0), |place| {
        random_reads(place, 50)
    });
    add("random-p99", &format!("{random}, p99"), empty, "us", Target::RatioAtMost(0.6), |place| {
        random_reads(place, 99)
    });
    let mut long = |name: &str, what: &str, prepare| {
        add(name, &format!("{what}, q8 to f32"), device, "GB/s", Target::RatioAtLeast(0.95), prepare);
    };
    long("read", "sequential read", |place| one_reader(place, CALL, Through::Cache));
    long("direct-1m", "sequential read, O_DIRECT, 1 MiB", |place| one_reader(place, CALL, Through::Nothing));
    long("direct-8m", "sequential read, O_DIRECT, 8 MiB", |place| {
        one_reader(place, 8 * CALL, Through::Nothing)
    });
    long("mapped", "mapped, every page touched", mapped);
    long("readers", "4 readers of one tensor, O_DIRECT 1 MiB", four_readers);
    rows
}

/// Whether each pass has a mount of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mount {
    Fresh,
    Same,
}

/// A mount over io_uring. Not every kernel offers that.
fn uring(place: &Place, kept: &Rc<Kept>) -> Result<Shown> {
    let shown = Shown::new(place, kept, &URING)?;
    let stats = std::fs::read_to_string(shown.mounted.path(".ctl/stats.json"))?;
    let stats: serde_json::Value = serde_json::from_str(&stats)?;
    if stats["transport"] == "uring" {
        return Ok(shown);
    }
    Err(Box::new(Missing("the kernel offers no FUSE over io_uring".to_owned())))
}

fn small_against_device(place: &Rc<Place>, mount: Mount) -> Result<Contest> {
    let small = small::small(place)?;
    let (fast, plain) = (uring(place, &small.kept)?, Shown::new(place, &small.kept, &CLASSIC)?);
    let right = small::checked(&fast.tensor(""), &small.plain.0)?;
    let right = right.and(small::checked(&plain.tensor(""), &small.plain.0)?);
    let same = (mount == Mount::Same).then_some((fast, plain)).map(Rc::new);
    let (place, also, other, again) = (place.clone(), place.clone(), small.clone(), same.clone());
    Contest::new(
        right,
        move || match &same {
            None => small::read_all(&uring(&place, &small.kept)?.tensor("")),
            Some(same) => small::read_all(&same.0.tensor("")),
        },
        move || match &again {
            None => small::read_all(&Shown::new(&also, &other.kept, &CLASSIC)?.tensor("")),
            Some(same) => small::read_all(&same.1.tensor("")),
        },
    )
}

fn small_against_files(place: &Rc<Place>, mount: Mount) -> Result<Contest> {
    let small = small::small(place)?;
    let same = uring(place, &small.kept)?;
    let right = small::checked(&same.tensor(""), &small.plain.0)?;
    let same = (mount == Mount::Same).then_some(same);
    let (place, plain) = (place.clone(), small.clone());
    Contest::new(
        right,
        move || match &same {
            None => small::read_all(&uring(&place, &small.kept)?.tensor("")),
            Some(same) => small::read_all(&same.tensor("")),
        },
        move || small::read_all(&plain.plain.0),
    )
}

fn listed(place: &Rc<Place>) -> Result<Contest> {
    let small = small::small(place)?;
    let right = small::checked(&uring(place, &small.kept)?.tensor(""), &small.plain.0)?;
    let (place, plain) = (place.clone(), small.clone());
    Contest::new(
        right,
        move || small::list(&uring(&place, &small.kept)?.tensor("")),
        move || small::list(&plain.plain.0),
    )
}

/// A large tensor over io_uring and by the device.
struct Both {
    fast: Rc<Shown>,
    plain: Rc<Shown>,
}

fn both(place: &Place) -> Result<Rc<Both>> {
    let source = place.source(Dtype::F32)?;
    place.shared("transports", || {
        let kept = Rc::new(Kept::import(place, &source.path, Tier::Q8, &[])?);
        let fast = Rc::new(uring(place, &kept)?);
        Ok(Both { fast, plain: Rc::new(Shown::new(place, &kept, &CLASSIC)?) })
    })
}

fn random_reads(place: &Rc<Place>, percent: usize) -> Result<Contest> {
    let (both, empty) = (both(place)?, empty(place)?);
    let checked = check(&both.fast.tensor("n0"), 0, &*place.source(Dtype::F32)?, Tier::Q8, Through::Nothing)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Nothing)?);
    let reads = place.scaled(SMALL_READS as u64) as usize;
    let mut seed = 0;
    Contest::new(
        checked,
        move || {
            seed += 1;
            Ok(percentile(&latencies(&both.fast.tensor("n0"), reads, seed)?, percent))
        },
        move || Ok(percentile(&latencies(&empty.path("big"), reads, 1)?, percent)),
    )
}

/// Reads of a large tensor on both mounts.
fn in_turn(
    place: &Rc<Place>,
    through: Through,
    pass: impl Fn(&Shown) -> Result<f64> + Clone + 'static,
) -> Result<Contest> {
    let both = both(place)?;
    let source = place.source(Dtype::F32)?;
    let checked = check(&both.fast.tensor("n0"), 0, &source, Tier::Q8, through)?;
    let checked = checked.and(check(&both.plain.tensor("n0"), 0, &source, Tier::Q8, through)?);
    let (also, again) = (both.clone(), pass.clone());
    Contest::new(
        checked,
        move || {
            both.fast.kept.warm()?;
            pass(&both.fast)
        },
        move || {
            also.plain.kept.warm()?;
            again(&also.plain)
        },
    )
}

fn one_reader(place: &Rc<Place>, call: usize, through: Through) -> Result<Contest> {
    in_turn(place, through, move |shown| speed(&shown.tensor("n0"), call, through, Pages::Cold))
}

fn mapped(place: &Rc<Place>) -> Result<Contest> {
    in_turn(place, Through::Cache, |shown| {
        let path = shown.tensor("n0");
        read::forget(&path)?;
        read::touch(&path)
    })
}

fn four_readers(place: &Rc<Place>) -> Result<Contest> {
    in_turn(place, Through::Nothing, |shown| {
        let path = shown.tensor("n0");
        speed_of_many(&[path.as_path(); READERS], CALL, Through::Nothing)
    })
}
