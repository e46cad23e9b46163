//! Weights that change a little at each step: imported as a version, pushed, and shown by a mount that follows.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tierfs::model::Dtype;

use super::remote::{Stand, stand};
use crate::Result;
use crate::daemon::Mounted;
use crate::place::{Place, Removed};
use crate::seaweed::cpu_of;
use crate::table::{Checked, Contest, Row, Target};
use crate::values::{Random, Source};

const COLLECTION: &str = "run/policy";
const NAME: &str = "model.safetensors";
const TENSORS: u32 = 8;
/// Of the elements of a step, one in so many is another one.
const CHANGED: u64 = 100;
/// Bytes of a small model.
const SMALL: u64 = 45 << 20;
/// Seconds between two looks of the mount.
const PERIOD: &str = "0.1";
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(2);

/// The rows.
pub fn rows() -> Vec<Row> {
    let row = |name: &str, what: &str, unit, target, prepare: fn(&Rc<Place>) -> Result<Contest>| {
        Row::new(format!("remote.{name}"), what, "", unit, target, prepare)
    };
    let what =
        "1 % of 45 MB of bf16 changes: import as a version, push, and a mount that looks each 0.1 s shows it";
    let cpu = "the same of 512 MiB, all read once: processor time of import, push and reader (8 B parameters: 16 GB)";
    vec![
        row("step", what, "s", Target::AtMost(1.0), |place| {
            steps(place, SMALL, Some(stand(place)?), |took| took.seconds)
        }),
        row("step-file", "the same through `file://`", "s", Target::AtMost(1.0), |place| {
            steps(place, SMALL, None, |took| took.seconds)
        }),
        row("step-cpu", cpu, "s/GB", Target::Nothing, |place| {
            steps(place, place.bytes() / 2, Some(stand(place)?), |took| took.cpu_seconds / took.gigabytes)
        }),
    ]
}

/// The cost of a step.
struct Took {
    seconds: f64,
    cpu_seconds: f64,
    gigabytes: f64,
}

fn steps(
    place: &Rc<Place>,
    bytes: u64,
    stand: Option<Rc<Stand>>,
    figure: fn(Took) -> f64,
) -> Result<Contest> {
    let mut run = Run::begin(place, bytes, stand)?;
    let checked = run.compared()?;
    run.step()?;
    let checked = checked.and(run.compared()?);
    Contest::alone(checked, move || Ok(figure(run.step()?)))
}

/// A run whose first weights are published, and mounted elsewhere.
struct Run {
    mounted: Mounted,
    publisher: Publisher,
    weights: Weights,
    _removed: Removed,
}

/// The weights, in memory and as a file.
struct Weights {
    path: PathBuf,
    header_bytes: usize,
    bytes: Vec<u8>,
    random: Random,
}

/// The store of the trainer, and where it pushes.
struct Publisher {
    place: Rc<Place>,
    stand: Option<Rc<Stand>>,
    store: PathBuf,
    url: String,
}

impl Run {
    fn begin(place: &Rc<Place>, bytes: u64, stand: Option<Rc<Stand>>) -> Result<Run> {
        let folder = place.new_directory("steps")?;
        let removed = Removed(folder.clone());
        let tensor_bytes = bytes / u64::from(TENSORS) / 4096 * 4096;
        let source = Source::make(&folder.join(NAME), Dtype::Bf16, TENSORS, tensor_bytes)?;
        let (bytes, header_bytes) = (fs::read(&source.path)?, source.header_bytes as usize);
        let weights = Weights { path: source.path.clone(), header_bytes, bytes, random: Random::new(21) };
        let url = match &stand {
            // Each row has a place of its own there.
            Some(_) => format!("s3://models/{}", folder.file_name().unwrap_or_default().to_string_lossy()),
            None => {
                fs::create_dir(folder.join("bucket"))?;
                format!("file://{}", folder.join("bucket").display())
            }
        };
        let store = folder.join("store");
        let publisher = Publisher { place: place.clone(), stand, store, url };
        publisher.publish(&weights.path)?;
        let mounted = publisher.mount(&folder.join("cache"))?;
        Ok(Run { mounted, publisher, weights, _removed: removed })
    }

    /// Changes some weights, and measures until the mount shows them. All are read and compared then.
    fn step(&mut self) -> Result<Took> {
        self.weights.change()?;
        let gigabytes = self.weights.bytes.len() as f64 / 1e9;
        let before = self.cpu()?;
        let begun = Instant::now();
        let number = self.publisher.publish(&self.weights.path)?;
        let directory = self.mounted.path(COLLECTION);
        while shown(&directory)? != number {
            if begun.elapsed() > PATIENCE {
                return Err(format!("snapshot {number} is not shown").into());
            }
            std::thread::sleep(STEP);
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.compared()?;
        Ok(Took { seconds, cpu_seconds: self.cpu()? - before, gigabytes })
    }

    fn compared(&self) -> Result<Checked> {
        let found = fs::read(self.mounted.path(COLLECTION).join(NAME))?;
        Checked::bytes("the weights of a step", &found, &self.weights.bytes)
    }

    /// Processor time of the programs that have ended, and of the mount's daemon.
    fn cpu(&self) -> Result<f64> {
        Ok(cpu_of_children()? + cpu_of(self.mounted.process()?)?)
    }
}

impl Weights {
    /// Moves some elements by one unit of their last place, and writes the file again.
    fn change(&mut self) -> Result<()> {
        let (random, elements) = (&mut self.random, self.bytes.split_at_mut(self.header_bytes).1);
        let elements = elements.as_chunks_mut::<2>().0;
        let count = elements.len() as u64;
        for _ in 0..count / CHANGED {
            let at = (random.next() % count) as usize;
            elements[at] = (u16::from_le_bytes(elements[at]) ^ 1).to_le_bytes();
        }
        let file = File::create(&self.path)?;
        Ok(file.write_all_at(&self.bytes, 0)?)
    }
}

impl Publisher {
    /// Imports the weights and pushes them. Returns the number of the snapshot.
    fn publish(&self, weights: &Path) -> Result<u64> {
        let (store, from) = (self.store.to_string_lossy(), weights.to_string_lossy());
        self.place.run(&["import", &store, COLLECTION, &from, "--previous"])?;
        let mut push = Command::new(&self.place.tierfs);
        push.arg("push").arg(&self.store).args([COLLECTION, &self.url, "--create", "--json"]);
        let output = self.keys(&mut push).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stdout).into_owned().into());
        }
        let pushed: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        Ok(pushed["snapshot"].as_u64().ok_or("push does not name a snapshot")?)
    }

    fn mount(&self, cache: &Path) -> Result<Mounted> {
        let mountpoint = self.place.new_directory("mnt")?;
        let mut command = Command::new(&self.place.tierfs);
        command.args(["mount", "-f", "--follow", PERIOD, "--cache"]).arg(cache);
        self.keys(&mut command).arg(&self.url).arg(&mountpoint);
        Mounted::begin(command, mountpoint)
    }

    fn keys<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match &self.stand {
            Some(stand) => stand.server.keys(command, stand.server.port),
            None => command,
        }
    }
}

/// The number of the snapshot that a collection shows.
fn shown(directory: &Path) -> Result<u64> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let mut value = [0_u8; 32];
    // SAFETY: both texts end in zero, and the buffer has the length that is given.
    let len = unsafe {
        libc::getxattr(
            path.as_ptr(),
            c"user.tierfs.snapshot".as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    let len = usize::try_from(len).map_err(|_| std::io::Error::last_os_error())?;
    Ok(std::str::from_utf8(value.get(..len).unwrap_or_default())?.parse()?)
}

/// Seconds of processor time of all programs that this one has started and waited for.
fn cpu_of_children() -> Result<f64> {
    // SAFETY: all fields are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is that of a value of this type.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}
