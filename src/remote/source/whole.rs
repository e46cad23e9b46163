//! Downloads of whole files, for servers that answer no ranges. A file without a name takes the bytes; reads wait until
//! theirs are there.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use tokio::sync::watch;

use crate::remote::client::failure::Failure;
use crate::remote::source::agent::{Answer, Part};
use crate::remote::source::web::Found;

/// Files that are kept, those that were used last. More are only while all of them are read.
const KEPT_MAX: usize = 4;
/// Bytes of a read.
const CHUNK: u64 = 256 << 10;

/// The downloads of a source.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// By their last use.
    kept: Mutex<Vec<Arc<Download>>>,
    /// Held while a download is looked for and begun, so that each file is downloaded once.
    pub turn: tokio::sync::Mutex<()>,
}

/// The version of a file that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// That with this ETag.
    ETag(String),
    /// The present one, as far as the server says it.
    Present { e_tag: Option<String>, modified: Option<DateTime<Utc>> },
}

/// A file that is downloaded, or was.
#[derive(Debug)]
struct Download {
    at: String,
    e_tag: Option<String>,
    modified: Option<DateTime<Utc>>,
    bytes: u64,
    file: File,
    arrived: watch::Sender<Arrived>,
}

/// How far a download is.
#[derive(Clone, Debug)]
enum Arrived {
    Bytes(u64),
    Failed(Failure),
}

impl Whole {
    /// A part of a version of a file that is here, or on its way.
    pub fn found(&self, at: &str, wanted: &Wanted, range: &Range<u64>) -> Option<Found> {
        let mut kept = self.kept.lock();
        kept.retain(|download| matches!(*download.arrived.borrow(), Arrived::Bytes(_)));
        let is_wanted = |download: &Arc<Download>| {
            download.at == at
                && match wanted {
                    Wanted::ETag(e_tag) => download.e_tag.as_ref() == Some(e_tag),
                    Wanted::Present { e_tag, modified } => {
                        download.e_tag == *e_tag && download.modified == *modified
                    }
                }
        };
        let place = kept.iter().position(is_wanted)?;
        let download = kept.remove(place);
        let part = download.part(range);
        kept.push(download);
        Some(part)
    }

    /// The part of a file of which an answer sends all bytes.
    pub fn begin(&self, at: &str, answer: Answer, range: &Range<u64>) -> Result<Found, Failure> {
        let (e_tag, modified) = (answer.e_tag(), answer.modified());
        let Part { bytes, mut body } = answer.part(None)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| Failure::Local(error.into()))?);
        let arrived = watch::Sender::new(Arrived::Bytes(0));
        let download = Arc::new(Download { at: at.to_owned(), e_tag, modified, bytes, file, arrived });
        {
            let mut kept = self.kept.lock();
            kept.retain(|other| other.at != at);
            while kept.len() >= KEPT_MAX {
                // Readers have a part of theirs.
                let Some(unread) = kept.iter().position(|other| Arc::strong_count(other) == 1) else { break };
                kept.remove(unread);
            }
            kept.push(download.clone());
        }
        // It ends when nobody wants the file any more.
        let weak = Arc::downgrade(&download);
        tokio::spawn(async move {
            let mut at = 0;
            while at < bytes {
                let chunk = body.next().await;
                let Some(download) = Weak::upgrade(&weak) else { return };
                match download.take(at, chunk) {
                    Ok(end) => at = end,
                    Err(failure) => {
                        download.arrived.send_replace(Arrived::Failed(failure));
                        return;
                    }
                }
            }
        });
        Ok(download.part(range))
    }
}

impl Download {
    /// Keeps a chunk. Returns the end of it in the file.
    fn take(&self, at: u64, chunk: Option<Result<Bytes, Failure>>) -> Result<u64, Failure> {
        let chunk = chunk.ok_or_else(|| Failure::Transient("the body ended early".to_owned()))??;
        let end = at.saturating_add(chunk.len() as u64);
        if end > self.bytes {
            return Err(Failure::Refused("the server sent more than the file has".to_owned()));
        }
        self.file.write_all_at(&chunk, at).map_err(Failure::Local)?;
        self.arrived.send_replace(Arrived::Bytes(end));
        Ok(end)
    }

    /// A part of the file, as it arrives. While others arrive, the body has empty chunks: the server is not silent.
    fn part(self: &Arc<Download>, range: &Range<u64>) -> Found {
        let reading = (self.clone(), self.arrived.subscribe(), range.start..range.end.min(self.bytes));
        let body = stream::try_unfold(reading, async |(download, mut arrived, left)| {
            if left.is_empty() {
                return Ok(None);
            }
            let end = left.end.min(left.start.saturating_add(CHUNK));
            let now = arrived.borrow_and_update().clone();
            match now {
                Arrived::Failed(failure) => return Err(failure),
                Arrived::Bytes(there) if there < end => {
                    // The sender is in the download.
                    arrived
                        .changed()
                        .await
                        .map_err(|_| Failure::Transient("the download ended".to_owned()))?;
                    return Ok(Some((Bytes::new(), (download, arrived, left))));
                }
                Arrived::Bytes(_) => {}
            }
            let mut chunk = vec![0; (end - left.start) as usize];
            download.file.read_exact_at(&mut chunk, left.start).map_err(Failure::Local)?;
            Ok(Some((Bytes::from(chunk), (download, arrived, end..left.end))))
        });
        let part = Part { bytes: self.bytes, body: body.boxed() };
        Found { part, e_tag: self.e_tag.clone(), modified: self.modified }
    }
}
