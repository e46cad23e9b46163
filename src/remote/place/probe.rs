//! Examines a remote from this machine: what can be reached, what the keys permit, how fast it answers, and how
//! fast the disk of a cache takes its bytes.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::format::snapshot::keys;
use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::{Client, ObjectListed};
use crate::remote::place::disk_speed::write_speed;
use crate::remote::place::garbage::server_time;
use crate::remote::place::remote::{NO_IF_MATCH, Remote};
use crate::store::now_nanoseconds;

/// Requests at the same time in the measurements.
const STREAMS: [usize; 3] = [1, 8, 32];
/// Directories of pieces that are listed at a time.
const LISTED_AT_ONCE: usize = 32;
/// Requests with keys are refused from about this difference on, in seconds.
const CLOCK_MAX: i64 = 300;

/// How good something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Something cannot be done.
    Limited,
    /// Nothing can be read.
    Bad,
}

/// A finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Examined {
    /// Its subject.
    pub what: &'static str,
    /// How good it is.
    pub grade: Grade,
    /// The finding as a text.
    pub found: String,
    /// Advice, if it is not good.
    pub advice: &'static str,
}

const KEYS: &str = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT, the rights of the key, and the clock";
const CONDITIONS: &str = "use a bucket with conditional PUT (If-None-Match), or push with --single-writer";
const CLOCK: &str = "set the clock of this machine: servers refuse requests that were signed at another time";
const CACHE: &str =
    "choose another directory with --cache; without one that can be written, every read asks the remote";

/// Examines the remote at `url`, and the disk of the directory `cache`. Ends at the first finding without which
/// nothing else works.
pub fn examine(url: &str, cache: &Path) -> Vec<Examined> {
    let mut found = Vec::new();
    let opened = Client::open(url).and_then(Remote::open);
    let remote = match opened {
        Ok(remote) => {
            found.push(good("remote", format!("{} has the uuid {}", remote.place(), remote.id())));
            remote
        }
        Err(error) => {
            found.push(bad("remote", &error));
            return found;
        }
    };
    if let Err(error) = remote.check_ranges() {
        let advice = "nothing can be read from a mount: use a server or gateway with range requests";
        found.push(Examined { what: "ranges", grade: Grade::Bad, found: error.to_string(), advice });
        return found;
    }
    found.push(good("ranges", "parts of objects can be read".to_owned()));
    match remote.tenants() {
        Ok(tenants) => found.push(good("listing", format!("{} tenants", tenants.len()))),
        Err(error) => {
            found.push(bad("listing", &error));
            return found;
        }
    }
    found.push(conditions(&remote));
    found.push(e_tags(&remote));
    found.extend(clock(&remote));
    found.push(bandwidth(remote.client()));
    found.push(disk(cache));
    found
}

fn good(what: &'static str, found: String) -> Examined {
    Examined { what, grade: Grade::Good, found, advice: "" }
}

/// A finding without which nothing works. Errors other than a refusal of the keys say themselves what to do.
fn bad(what: &'static str, error: &Error) -> Examined {
    let advice = if error.kind() == ErrorKind::Forbidden { KEYS } else { "" };
    Examined { what, grade: Grade::Bad, found: error.to_string(), advice }
}

/// Whether a reader can say which version of an object it wants. Remotes do not need that.
fn e_tags(remote: &Remote) -> Examined {
    match remote.compares_e_tags() {
        Ok(Some(true)) => good("If-Match", "ETags are compared".to_owned()),
        Ok(Some(false)) => good("If-Match", NO_IF_MATCH.to_owned()),
        Ok(None) => good("If-Match", "objects have no ETags; pushes and mounts do not need them".to_owned()),
        Err(error) => {
            Examined { what: "If-Match", grade: Grade::Limited, found: error.to_string(), advice: "" }
        }
    }
}

fn conditions(remote: &Remote) -> Examined {
    match remote.check_conditions() {
        Ok(()) => good("push", "conditional PUT works".to_owned()),
        Err(error) if error.kind() == ErrorKind::Forbidden => {
            good("push", "these keys may only read".to_owned())
        }
        Err(error) => {
            Examined { what: "push", grade: Grade::Limited, found: error.to_string(), advice: CONDITIONS }
        }
    }
}

/// Compares the clocks, if the keys may write.
fn clock(remote: &Remote) -> Option<Examined> {
    let theirs = server_time(remote).ok()?;
    let ours = now_nanoseconds() / 1_000_000_000;
    let off = ours.saturating_sub(theirs);
    let found = format!("{} s from that of the server", off.unsigned_abs());
    let is_good = off.abs() < CLOCK_MAX;
    let (grade, advice) = if is_good { (Grade::Good, "") } else { (Grade::Limited, CLOCK) };
    Some(Examined { what: "clock", grade, found, advice })
}

/// Writes where the cache is or would be.
fn disk(cache: &Path) -> Examined {
    match write_speed(cache) {
        Ok(rate) => good("cache", format!("{} takes {rate} MB/s", cache.display())),
        Err(error) => {
            let found = format!("{}: {error}", cache.display());
            Examined { what: "cache", grade: Grade::Limited, found, advice: CACHE }
        }
    }
}

/// Reads pieces with several numbers of requests at the same time.
fn bandwidth(client: &Client) -> Examined {
    let most = STREAMS.iter().copied().max().unwrap_or(1);
    let measured = pieces(client, most).and_then(|pieces| {
        let measure =
            |streams: &usize| -> Result<(usize, u64)> { Ok((*streams, rate(client, &pieces, *streams)?)) };
        STREAMS.iter().map(measure).collect::<Result<Vec<_>>>()
    });
    match measured {
        Ok(rates) if rates.iter().all(|(_, rate)| *rate == 0) => {
            good("bandwidth", "not measured: the remote has no pieces yet".to_owned())
        }
        Ok(rates) => {
            let rates = rates.iter().map(|(streams, rate)| format!("{rate} MB/s by {streams}"));
            good("bandwidth", rates.collect::<Vec<_>>().join(", "))
        }
        Err(error) => bad("bandwidth", &error),
    }
}

/// The first pieces of the remote, the largest first.
fn pieces(client: &Client, most: usize) -> Result<Vec<ObjectListed>> {
    let mut found = Vec::new();
    let directories: Vec<String> =
        (0..=u8::MAX).map(|first| format!("{}{first:02x}", keys::PIECES)).collect();
    for some in directories.chunks(LISTED_AT_ONCE) {
        found.extend(client.list_each(some)?.into_iter().flatten());
        if found.len() >= most {
            break;
        }
    }
    found.sort_unstable_by_key(|listed| std::cmp::Reverse(listed.len));
    found.truncate(most);
    Ok(found)
}

/// Millions of bytes a second, with this many requests at the same time, one piece each.
fn rate(client: &Client, pieces: &[ObjectListed], streams: usize) -> Result<u64> {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    let read = || -> Result<()> {
        let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(()) };
        let read = client.get(&piece.key, piece.len)?;
        bytes.fetch_add(read.map_or(0, |read| read.len() as u64), Ordering::Relaxed);
        Ok(())
    };
    let done: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..streams).map(|_| scope.spawn(read)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    done.into_iter().collect::<Result<()>>()?;
    let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
    Ok(bytes.load(Ordering::Relaxed) / micros)
}
