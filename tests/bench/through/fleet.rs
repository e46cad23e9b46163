//! Remotes as a fleet of machines uses them: copies by s5cmd, JuiceFS, no cache, a slow disk, a server that is away, and
//! several mounts on one cache.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::remote::{Cached, PASS, PLAIN, Stand, measured, same, stand};
use crate::Result;
use crate::daemon::Mounted;
use crate::place::{Place, Removed, run};
use crate::read;
use crate::seaweed::{Link, installed};
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Random;

/// The bucket of JuiceFS, which keeps files as blocks.
const BLOCKS: &str = "blocks";
/// Mounts that share a cache.
const MOUNTS: usize = 10;
const READS: u64 = 100;
const READ_BYTES: usize = 4096;
/// Each write of a slow disk takes this long, in microseconds.
const WRITE_TAKES: u32 = 20_000;
/// The time that a mount waits for a server that is away.
const AWAY: [&str; 2] = ["--timeout", "1"];
const UNCACHED: [&str; 2] = ["--cache", "none"];

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
    let (cold, file) = ("cold sequential read", "a file on the cache's file system");
    let get = "its client's plain GETs, 16 at a time";
    vec![
        row("cold-s5cmd", cold, "`s5cmd cp` to a file", "GB/s", Target::RatioAtLeast(1.0), against_copy),
        row("uncached", "the same with `--cache none`", get, "GB/s", Target::RatioAtLeast(0.75), uncached),
        row(
            "slow-disk",
            "the same, each write to the cache takes 20 ms",
            "`--cache none`",
            "GB/s",
            Target::RatioAtLeast(0.75),
            on_slow_disk,
        ),
        row(
            "away",
            "warm cache, the server is away: first read",
            file,
            "GB/s",
            Target::RatioAtLeast(0.95),
            away,
        ),
        row(
            "shared",
            "10 mounts on one cache read the file at the same time: received, of its bytes",
            "",
            "",
            Target::AtMost(1.05),
            shared,
        ),
        row(
            "random",
            "cold random reads of 4 KiB: received for each",
            "",
            "KiB",
            Target::AtMost(64.0),
            random,
        ),
    ]
}

/// Copies the file to the cache's file system: GB/s.
fn copied(stand: &Stand) -> Result<f64> {
    let to = Removed(stand.place.new_path("copy"));
    let mut command = Command::new(installed("s5cmd")?);
    command.args(["--endpoint-url", &format!("http://127.0.0.1:{}", stand.server.port), "cp"]);
    command.args(["--concurrency", "16", &format!("s3://{PLAIN}/model.safetensors")]).arg(&to.0);
    let begun = Instant::now();
    run(stand.server.keys(&mut command, stand.server.port))?;
    let took = begun.elapsed().as_secs_f64();
    Ok(std::fs::metadata(&to.0)?.len() as f64 / took / 1e9)
}

fn against_copy(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    installed("s5cmd")?;
    place.shared("copied", || stand.copied())?;
    let checked = same(&stand, &stand.mount(stand.server.port)?.file)?;
    let also = stand.clone();
    Contest::new(
        checked,
        move || Ok(measured(&stand.mount(stand.server.port)?, PASS)?.0),
        move || copied(&also),
    )
}

/// JuiceFS with its metadata in a file of SQLite, and its blocks in the same server.
pub fn juicefs(stand: &Stand) -> Result<Cached> {
    let program = installed("juicefs")?;
    let begin = |database: &Path, cache: &Path, options: &[&str]| {
        let mountpoint = stand.place.new_directory("mnt")?;
        let mut command = Command::new(&program);
        command.arg("mount").arg(format!("sqlite3://{}", database.display())).arg(&mountpoint);
        command.args(["--no-usage-report", "--no-bgjob", "--cache-dir"]).arg(cache).args(options);
        command.stderr(std::process::Stdio::null());
        // Its metadata keep no keys that came by the environment.
        stand.server.keys(&mut command, stand.server.port);
        Mounted::begin(command, mountpoint)
    };
    let made = stand.place.shared("juicefs", || {
        let folder = Removed(stand.place.new_directory("juicefs")?);
        let database = folder.0.join("metadata.db");
        let mut command = Command::new(&program);
        command.args(["format", "--storage", "s3", "--no-update", "--trash-days", "0", "--bucket"]);
        command.arg(format!("http://127.0.0.1:{}/{BLOCKS}", stand.server.port));
        command.arg(format!("sqlite3://{}", database.display())).arg(BLOCKS);
        run(stand.server.keys(&mut command, stand.server.port))?;
        let mounted = begin(&database, &folder.0.join("cache"), &[])?;
        std::fs::copy(&stand.source.path, mounted.path("model.safetensors"))?;
        // A close that fails to send is no error of the copy.
        std::fs::File::open(mounted.path("model.safetensors"))?.sync_all()?;
        drop(mounted);
        Ok(folder)
    })?;
    let cache = stand.place.new_directory("cache")?;
    let mounted = begin(&made.0.join("metadata.db"), &cache, &["--read-only"])?;
    Ok(Cached { file: mounted.path("model.safetensors"), mounted, _cache: Removed(cache) })
}

fn uncached(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    let mount = |stand: &Stand| stand.mount_with(&[], stand.server.port, &UNCACHED);
    let checked = same(&stand, &mount(&stand)?.file)?;
    let also = stand.clone();
    Contest::new(checked, move || Ok(measured(&mount(&stand)?, PASS)?.0), move || Ok(also.get()?.0))
}

fn on_slow_disk(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    let program = installed("strace")?.to_string_lossy().into_owned();
    let delay = format!("inject=pwrite64,pwritev:delay_enter={WRITE_TAKES}");
    let slowed = move |stand: &Stand| {
        let before =
            [&program, "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64,pwritev", "-e", &delay];
        stand.mount_with(&before, stand.server.port, &[])
    };
    let checked = same(&stand, &slowed(&stand)?.file)?;
    let also = stand.clone();
    Contest::new(
        checked,
        move || PASS(&slowed(&stand)?.file),
        move || PASS(&also.mount_with(&[], also.server.port, &UNCACHED)?.file),
    )
}

fn away(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    let cache = Removed(stand.place.new_path("cache"));
    let option = cache.0.to_string_lossy().into_owned();
    let mount = move |stand: &Stand, link: &Link, more: &[&str]| {
        stand.mount_with(&[], link.port, &[&["--cache", &option], more].concat())
    };
    let link = Link::plain(stand.server.port)?;
    let warm = mount(&stand, &link, &[])?;
    let checked = same(&stand, &warm.file)?;
    drop(warm);
    link.is_cut.store(true, Ordering::Relaxed);
    let checked = checked.and(same(&stand, &mount(&stand, &link, &AWAY)?.file)?);
    let also = stand.clone();
    let cold = |path: &Path| read::speed(path, read::CALL, read::Through::Cache, read::Pages::Cold);
    Contest::new(
        checked,
        move || {
            let _kept = &cache;
            // A read of a cached file is that of the file below, which the kernel may have.
            cold(&mount(&stand, &link, &AWAY)?.file)
        },
        move || cold(&also.source.path),
    )
}

fn shared(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    let link = Link::plain(stand.server.port)?;
    let checked = same(&stand, &stand.mount(link.port)?.file)?;
    Contest::alone(checked, move || {
        let cache = Removed(stand.place.new_path("cache"));
        let option = cache.0.to_string_lossy().into_owned();
        let mount = || stand.mount_with(&[], link.port, &["--cache", &option]);
        let mounts = (0..MOUNTS).map(|_| mount()).collect::<Result<Vec<_>>>()?;
        let files: Vec<&Path> = mounts.iter().map(|mount| mount.file.as_path()).collect();
        let before = link.received.load(Ordering::Relaxed);
        read::speed_of_many(&files, read::CALL, read::Through::Cache)?;
        let received = link.received.load(Ordering::Relaxed) - before;
        Ok(received as f64 / std::fs::metadata(files[0])?.len() as f64)
    })
}

fn random(place: &Rc<Place>) -> Result<Contest> {
    let stand = stand(place)?;
    let link = Link::plain(stand.server.port)?;
    let checked = same(&stand, &stand.mount(link.port)?.file)?;
    Contest::alone(checked, move || {
        let cached = stand.mount(link.port)?;
        let (file, source) = (File::open(&cached.file)?, File::open(&stand.source.path)?);
        let pages = source.metadata()?.len() / READ_BYTES as u64;
        let (mut random, mut page, mut wanted) = (Random::new(9), [0; READ_BYTES], [0; READ_BYTES]);
        // The first read is one of the beginning, which has the header.
        file.read_exact_at(&mut page, 0)?;
        read::forbid_read_ahead(&file)?;
        let before = link.received.load(Ordering::Relaxed);
        for _ in 0..READS {
            let at = (pages / 2 + random.next() % (pages / 2)) * READ_BYTES as u64;
            file.read_exact_at(&mut page, at)?;
            source.read_exact_at(&mut wanted, at)?;
            Checked::bytes("a random read", &page, &wanted)?;
        }
        Ok((link.received.load(Ordering::Relaxed) - before) as f64 / READS as f64 / 1024.0)
    })
}
