//! The client of an object storage: requests with deadlines, retries and a bounded number at a time.
//!
//! Each function blocks its thread. The requests run on threads of their own ([`runtime`]).
//!
//! - `object_store` repeats nothing itself (its ten tries last 2.3 s): the client must see each answer to know when a
//!   server has too much to do, and 60 s is the time that a server needs to restart. The HTTP client is wrapped to keep
//!   the status and the `Code` of a refusal only; the rest of such an answer quotes the signature of the request.
//! - A body that ends early or stalls is continued by a request for the rest. So a piece is hashed once, in order, and
//!   no byte is fetched twice.
//! - A request that receives nothing for 5 s leaves its place to others, and after 1 s while the server leaves requests
//!   without an answer: objects that it never sends would delay all others. Those who wait for a place give up when
//!   nothing was received for as long as a request may take: with one place left, 60 readers of a dead server would
//!   otherwise wait one after the other.
//! - One place in four is left for pieces that somebody waits for; otherwise 32 pieces ahead would delay the first byte
//!   of another file.
//! - A piece that could not be had is not asked for again for 2 s: the kernel repeats a failed read of several pages
//!   for the first of them alone.
//! - A mounted remote has 64 threads for requests of the kernel, where a local store has one a core: a read holds its
//!   thread until the piece is there.
//! - EACCES (`ErrorKind::Forbidden`) is the error where the host or the remote refuses; EPERM means that tierfs itself
//!   refuses.
//!
//! To add a service: `SCHEMES` and an arm of `open` in `url.rs`, by a client of `object_store`, and its feature in
//! Cargo.toml.

use std::future::Future;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};

use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::body::Reading;
use crate::remote::client::deadlines::{Pauses, REPEATED};
use crate::remote::client::directory::Directory;
use crate::remote::client::failure::Failure;
use crate::remote::client::rate::Rate;
use crate::remote::client::version::{Pin, unquoted};
use crate::remote::client::window::{Class, LIMIT_MIN, Permit, Window};

mod body;
pub(in crate::remote) mod credentials;
mod deadlines;
mod directory;
pub mod failure;
mod http_status;
mod listing;
pub(in crate::remote) mod program;
mod rate;
pub(in crate::remote) mod resolver;
pub mod runtime;
pub mod url;
pub mod version;
pub mod window;

pub(in crate::remote) use body::Wanted;
pub use deadlines::Deadlines;
pub use listing::{Level, ObjectListed};

/// Counts since the client was made.
#[derive(Default, Debug)]
pub struct Counts {
    /// Requests sent, repetitions and second requests included.
    pub requests: AtomicU64,
    /// Repetitions after a failure.
    pub retries: AtomicU64,
    /// Second requests beside a slow first one.
    pub hedges: AtomicU64,
    /// Bytes of objects received.
    pub received: AtomicU64,
    /// Bytes of objects sent.
    pub sent: AtomicU64,
    /// Requests that were given up, or answered with wrong bytes. An object that does not exist, or exists already, is an answer.
    pub failures: AtomicU64,
    /// How fast bytes are received.
    pub rate: Rate,
}

/// A hedge is allowed while at most one request in this many was one.
const REQUESTS_A_HEDGE: u64 = 20;
/// A whole object is expected to have at most so many bytes: a piece has, and most manifests.
const EXPECTED_MAX: u64 = 16 << 20;
/// An upload is not repeated after so many attempts that were not answered in time.
const TIMEOUTS_MAX: u32 = 4;

/// An object as it was read.
pub(in crate::remote) struct Tagged {
    pub bytes: Vec<u8>,
    pub tag: Tag,
}

/// The tags of an object as the server wrote them: some servers compare one of them, some the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::remote) struct Tag {
    e_tag: Option<String>,
    version: Option<String>,
}

impl Tag {
    /// Whether the server has said one.
    pub fn is_known(&self) -> bool {
        self.e_tag.is_some() || self.version.is_some()
    }
}

/// The outcome of creating an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// It was created.
    Created,
    /// It exists already.
    Exists,
}

/// How objects are created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Creation {
    /// The server refuses the second creation of an object.
    Conditional,
    /// The client looks first, and nobody else writes meanwhile.
    Plain,
}

/// Objects below a prefix of a bucket. Clones share the limits and the counts.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    creation: Creation,
}

struct Shared {
    objects: Arc<dyn ObjectStore>,
    /// With its final slash, or empty.
    prefix: String,
    place: String,
    /// The URL that keys are below, for messages.
    keys_at: String,
    deadlines: Deadlines,
    window: Arc<Window>,
    counts: Counts,
    /// The objects are its files.
    directory: Option<Directory>,
}

/// The bytes of an object; `None` if no object has the key.
type Answered = Result<Option<Vec<u8>>>;

/// A request and the parts of its answer.
type Body = BoxStream<'static, std::result::Result<Part, Failure>>;

/// A part of an answer.
enum Part {
    /// The length of the whole object; it comes first.
    Len(u64),
    Bytes(Bytes),
}

impl Client {
    /// The objects of `objects`. `place` names the remote in messages.
    pub fn over(objects: Arc<dyn ObjectStore>, prefix: &str, place: &str, deadlines: Deadlines) -> Client {
        Client::made(objects, prefix, place, deadlines, None)
    }

    fn made(
        objects: Arc<dyn ObjectStore>,
        prefix: &str,
        place: &str,
        deadlines: Deadlines,
        directory: Option<Directory>,
    ) -> Client {
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let place = place.trim_end_matches('/').to_owned();
        let (window, counts) = (Arc::default(), Counts::default());
        let keys_at = place.clone();
        let shared = Shared { objects, prefix, place, keys_at, deadlines, window, counts, directory };
        Client { shared: Arc::new(shared), creation: Creation::Conditional }
    }

    /// A client of the same remote with other deadlines, which counts anew.
    pub fn within(&self, deadlines: Deadlines) -> Client {
        let Shared { objects, prefix, place, keys_at, window, directory, .. } = &*self.shared;
        let (objects, prefix, place) = (objects.clone(), prefix.clone(), place.clone());
        let counts = Counts::default();
        let (window, directory) = (window.clone(), directory.clone());
        let keys_at = keys_at.clone();
        let shared = Shared { objects, prefix, place, keys_at, deadlines, window, counts, directory };
        Client { shared: Arc::new(shared), creation: self.creation }
    }

    /// The same client, of objects whose keys are below this URL in messages.
    pub(in crate::remote) fn with_keys_at(mut self, url: &str) -> Client {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            url.clone_into(&mut shared.keys_at);
        }
        self
    }

    /// A client of the same remote that creates objects by plain PUTs: for a server without conditional PUT, while nobody
    /// else writes.
    pub fn for_single_writer(&self) -> Client {
        Client { shared: self.shared.clone(), creation: Creation::Plain }
    }

    /// The remote's URL, for messages.
    pub fn place(&self) -> &str {
        &self.shared.place
    }

    /// The time that its requests may take.
    pub fn deadlines(&self) -> Deadlines {
        self.shared.deadlines
    }

    /// Counts of requests and bytes sent and received.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// The requests in flight.
    pub fn window(&self) -> &Window {
        &self.shared.window
    }

    /// An object of at most `len_max` bytes; `None` if no object has this key.
    pub fn get(&self, key: &str, len_max: u64) -> Result<Option<Vec<u8>>> {
        self.get_wanted(key, Wanted::whole(len_max))
    }

    /// A range of an object; `None` if no object has this key.
    pub fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Vec<u8>>> {
        self.get_wanted(key, Wanted::range(range))
    }

    /// A range of this version of an object; `Gone` if it was removed or replaced.
    pub fn get_version(&self, key: &str, range: Range<u64>, pin: &Pin) -> Result<Vec<u8>> {
        let gone = || Error::new(ErrorKind::Gone, format!("{}/{key}: it was removed", self.shared.place));
        self.get_wanted(key, Wanted::range(range).of(pin))?.ok_or_else(gone)
    }

    /// Whether an object has this key.
    pub fn exists(&self, key: &str) -> Result<bool> {
        runtime::wait(self.has(key))?
    }

    /// As [`Client::exists`], among other requests.
    pub(in crate::remote) async fn has(&self, key: &str) -> Result<bool> {
        let asked = self.head(key, None).await;
        match asked {
            Ok(_) => Ok(true),
            Err(Failure::NotFound) => Ok(false),
            Err(failure) => Err(self.error("looking for", key, &failure)),
        }
    }

    /// The ETag of an object, if it has one. `Failure::Exists` if it is not the one that is given.
    async fn head(&self, key: &str, e_tag: Option<&str>) -> std::result::Result<Option<String>, Failure> {
        let head = |patience| {
            let (shared, path) = (self.shared.clone(), self.path(key));
            let options = GetOptions {
                head: e_tag.is_none(),
                if_match: e_tag.map(str::to_owned),
                ..GetOptions::default()
            };
            async move {
                let path = path?;
                let answer = shared.soon(shared.objects.get_opts(&path, options), patience).await?;
                Ok(answer.map_err(Failure::from)?.meta.e_tag)
            }
        };
        let mut pauses = Pauses::new(self.shared.deadlines);
        let permit = self.shared.enter(Class::Demand, 0, &mut pauses).await?;
        self.repeated(head, pauses, Some(permit)).await
    }

    /// Whether the server compares the ETag of an object with the one that a request names. `None` if objects have none.
    pub(in crate::remote) fn compares_e_tags(&self, key: &str) -> Result<Option<bool>> {
        let failed = |failure: Failure| self.error("looking for", key, &failure);
        let Some(e_tag) = runtime::wait(self.head(key, None))?.map_err(failed)? else { return Ok(None) };
        let right = runtime::wait(self.head(key, Some(&e_tag)))?;
        let wrong = runtime::wait(self.head(key, Some("\"00000000000000000000000000000000\"")))?;
        match (right, wrong) {
            (Ok(_), Err(Failure::Exists)) => Ok(Some(true)),
            (Ok(_) | Err(Failure::Exists | Failure::Unsupported(_)), _) => Ok(Some(false)),
            (Err(failure), _) => Err(failed(failure)),
        }
    }

    fn get_wanted(&self, key: &str, wanted: Wanted) -> Result<Option<Vec<u8>>> {
        runtime::wait(self.got(key, wanted))?
    }

    /// Objects or ranges of them, all asked for at the same time. An answer is `None` if no object has its key.
    pub(in crate::remote) async fn got_each(&self, wanted: &[(String, Wanted)]) -> Vec<Answered> {
        join_all(wanted.iter().map(|(key, wanted)| self.got(key, wanted.clone()))).await
    }

    /// As [`Client::got_each`], for one object.
    pub(in crate::remote) async fn got(&self, key: &str, wanted: Wanted) -> Answered {
        let mut bytes = Vec::new();
        let fetched = self.fetch(key, wanted, Class::Demand, |chunk| {
            bytes.extend_from_slice(&chunk);
            Ok(())
        });
        match fetched.await {
            Ok(()) => Ok(Some(bytes)),
            Err(Failure::NotFound) => Ok(None),
            Err(failure) => Err(self.error("reading", key, &failure)),
        }
    }

    /// An object with its tags; `None` if no object has this key.
    pub(in crate::remote) fn get_tagged(&self, key: &str, len_max: u64) -> Result<Option<Tagged>> {
        let get = |patience| {
            let (shared, path) = (self.shared.clone(), self.path(key));
            async move {
                let path = path?;
                let whole = async {
                    let answer = shared.objects.get_opts(&path, GetOptions::default()).await?;
                    let len = answer.meta.size;
                    let tag = Tag { e_tag: answer.meta.e_tag.clone(), version: answer.meta.version.clone() };
                    if len > len_max {
                        return Err(Failure::WrongLength(len));
                    }
                    let bytes = answer.bytes().await?.to_vec();
                    shared.counts.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    Ok(Tagged { bytes, tag })
                };
                shared.soon(whole, patience).await?
            }
        };
        let found = runtime::wait(async {
            let mut pauses = Pauses::new(self.shared.deadlines);
            let permit = self.shared.enter(Class::Demand, 0, &mut pauses).await?;
            self.repeated(get, pauses, Some(permit)).await
        })?;
        match found {
            Ok(tagged) => Ok(Some(tagged)),
            Err(Failure::NotFound) => Ok(None),
            Err(failure) => Err(self.error("reading", key, &failure)),
        }
    }

    /// Creates an object, which must not exist yet. A creation that is repeated after a lost answer says
    /// `Exists`.
    pub fn create(&self, key: &str, bytes: Bytes) -> Result<Put> {
        let mode = match self.creation {
            Creation::Conditional => PutMode::Create,
            Creation::Plain if self.exists(key)? => return Ok(Put::Exists),
            Creation::Plain => PutMode::Overwrite,
        };
        match self.upload(key, bytes, mode)? {
            Ok(_) => Ok(Put::Created),
            Err(Failure::Exists) => Ok(Put::Exists),
            Err(failure) => Err(self.error("creating", key, &failure)),
        }
    }

    /// Creates an object or replaces it.
    pub fn put(&self, key: &str, bytes: Bytes) -> Result<()> {
        self.put_tagged(key, bytes).map(drop)
    }

    /// Creates an object or replaces it. Returns the ETag that a listing has of the object, empty if the server gives none.
    pub(in crate::remote) fn put_tagged(&self, key: &str, bytes: Bytes) -> Result<String> {
        let put = self.upload(key, bytes, PutMode::Overwrite)?;
        put.map_err(|failure| self.error("writing", key, &failure))
    }

    /// Replaces an object that has these tags. `Put::Exists` if it is another by now; `NotSupported` if the server cannot
    /// compare.
    pub(in crate::remote) fn replace(&self, key: &str, bytes: Bytes, tag: &Tag) -> Result<Put> {
        let Tag { e_tag, version } = tag.clone();
        let mode = PutMode::Update(UpdateVersion { e_tag, version });
        match self.upload(key, bytes, mode)? {
            Ok(_) => Ok(Put::Created),
            // It was removed meanwhile.
            Err(Failure::Exists | Failure::NotFound) => Ok(Put::Exists),
            Err(failure) => Err(self.error("writing", key, &failure)),
        }
    }

    fn upload(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<std::result::Result<String, Failure>> {
        let len = bytes.len() as u64;
        let deadline = self.shared.deadlines.upload;
        let timeouts = AtomicU32::new(0);
        let put = |_| {
            let (objects, path, timeouts) = (self.shared.objects.clone(), self.path(key), &timeouts);
            let (payload, options) = (PutPayload::from_bytes(bytes.clone()), PutOptions::from(mode.clone()));
            async move {
                let path = path?;
                let put = tokio::time::timeout(deadline, objects.put_opts(&path, payload, options));
                let timed_out = |_| {
                    timeouts.fetch_add(1, Ordering::Relaxed);
                    Failure::slow("the upload timed out")
                };
                let e_tag = put.await.map_err(timed_out)?.map_err(Failure::from)?.e_tag;
                Ok(e_tag.as_deref().map_or_else(String::new, |e_tag| unquoted(e_tag).to_owned()))
            }
        };
        let done = runtime::wait(async {
            let mut pauses = Pauses::new(self.shared.deadlines);
            // Those before may be uploads.
            pauses.total = pauses.total.max(deadline);
            let _permit = self.shared.enter(Class::Demand, len, &mut pauses).await?;
            let mut known = 0;
            loop {
                // Uploads leave no places to others.
                let mut pauses = Pauses::new(self.shared.deadlines);
                pauses.least_places = LIMIT_MIN;
                let sent = self.repeated(put, pauses, None).await;
                let timeouts = timeouts.load(Ordering::Relaxed);
                // On a slow link there are fewer uploads at a time by now.
                if sent.is_ok() || timeouts == known || timeouts >= TIMEOUTS_MAX {
                    break sent;
                }
                known = timeouts;
            }
        })?;
        if done.is_ok() {
            self.shared.counts.sent.fetch_add(len, Ordering::Relaxed);
        }
        Ok(done)
    }

    /// Removes objects. Those that do not exist are skipped.
    pub fn delete(&self, keys: &[String]) -> Result<()> {
        let deadline = self.shared.deadlines.upload;
        let delete = |_| {
            let objects = self.shared.objects.clone();
            let paths: Vec<_> = keys.iter().map(|key| self.path(key)).collect();
            async move {
                let paths = paths.into_iter().collect::<std::result::Result<Vec<Path>, Failure>>()?;
                let mut deleted = objects.delete_stream(stream::iter(paths).map(Ok).boxed());
                let all = async {
                    while let Some(deleted) = deleted.next().await {
                        match deleted.map_err(Failure::from) {
                            Ok(_) | Err(Failure::NotFound) => {}
                            Err(failure) => return Err(failure),
                        }
                    }
                    Ok(())
                };
                tokio::time::timeout(deadline, all)
                    .await
                    .map_err(|_| Failure::slow("the deletion timed out"))?
            }
        };
        let done = runtime::wait(async {
            let mut pauses = Pauses::new(self.shared.deadlines);
            let _permit = self.shared.enter(Class::Demand, 0, &mut pauses).await?;
            self.repeated(delete, pauses, None).await
        })?;
        let first = keys.first().map_or("", String::as_str);
        done.map_err(|failure| self.error("removing", first, &failure))
    }

    /// Passes an object, or a range of one, to `sink` in order. A body that ends early is continued where it
    /// ended, so that `sink` gets each byte once.
    pub(in crate::remote) async fn fetch(
        &self,
        key: &str,
        wanted: Wanted,
        class: Class,
        mut sink: impl FnMut(Bytes) -> std::io::Result<()> + Send,
    ) -> std::result::Result<(), Failure> {
        let of_range = |range: &Range<u64>| range.end.saturating_sub(range.start);
        let expected = wanted.range.as_ref().map_or(wanted.len_max.min(EXPECTED_MAX), of_range);
        let mut reading = Reading::of(wanted);
        let mut permit = None;
        let mut pauses = Pauses::new(self.shared.deadlines);
        loop {
            if permit.is_none() {
                permit = Some(self.shared.enter(class, expected, &mut pauses).await?);
            }
            let before = reading.at;
            let read = caught(self.read_on(key, &mut reading, &mut permit, &pauses, &mut sink));
            let failure = match read.await {
                Ok(()) => {
                    self.shared.window.succeeded();
                    return self.check_still(key, &reading).await;
                }
                Err(failure) => failure,
            };
            if reading.at > before {
                pauses = Pauses::new(self.shared.deadlines);
            }
            self.pause(failure, &mut pauses).await?;
        }
    }

    /// Reads on until the end of what is wanted. Returns at the first failure.
    async fn read_on(
        &self,
        key: &str,
        reading: &mut Reading,
        permit: &mut Option<Permit>,
        pauses: &Pauses,
        sink: &mut (impl FnMut(Bytes) -> std::io::Result<()> + Send),
    ) -> std::result::Result<(), Failure> {
        let deadlines = self.shared.deadlines;
        let mut body = self.body(key, reading)?;
        // The deadline of the operation holds until something arrives.
        let (mut stall, mut silence) =
            (deadlines.stall.min(pauses.left()), deadlines.silence.min(pauses.left()));
        let mut keeps_place = self.shared.keeps_place(pauses).min(stall);
        let mut left = None;
        while !reading.is_done() {
            let next = match tokio::time::timeout(keeps_place, body.next()).await {
                Ok(next) => Ok(next),
                Err(_) => {
                    left = permit.take().map(Permit::leave).or(left);
                    tokio::time::timeout(stall.saturating_sub(keeps_place), body.next()).await
                }
            };
            let next = match next {
                Ok(next) => next,
                Err(_) if !pauses.was_silent && self.may_hedge() => {
                    self.shared.counts.hedges.fetch_add(1, Ordering::Relaxed);
                    let mut second = self.body(key, reading)?;
                    let both = select(Box::pin(body.next()), Box::pin(second.next()));
                    let first = match tokio::time::timeout(silence.min(pauses.left()), both).await {
                        Ok(Either::Left((next, _))) => (next, true),
                        Ok(Either::Right((next, _))) => (next, false),
                        Err(_) => return Err(Failure::slow("the server sends nothing")),
                    };
                    if !first.1 {
                        body = second;
                    }
                    first.0
                }
                Err(_) => {
                    let next = tokio::time::timeout(silence.saturating_sub(stall), body.next()).await;
                    next.map_err(|_| Failure::slow("the server sends nothing"))?
                }
            };
            match next.ok_or_else(|| Failure::Transient("the body ended early".to_owned()))?? {
                Part::Len(len) => reading.learn(len)?,
                Part::Bytes(chunk) => {
                    let len = chunk.len() as u64;
                    reading.advance(len)?;
                    (stall, silence) = (deadlines.stall, deadlines.silence);
                    keeps_place = stall;
                    self.shared.counts.received.fetch_add(len, Ordering::Relaxed);
                    self.shared.counts.rate.add(len);
                    sink(chunk).map_err(Failure::Local)?;
                }
            }
        }
        Ok(())
    }

    /// A file here may have been written to while it was read. The answer of a server is one version throughout.
    async fn check_still(&self, key: &str, reading: &Reading) -> std::result::Result<(), Failure> {
        let Some(pin) = reading.pin.as_ref().filter(|_| self.shared.directory.is_some()) else {
            return Ok(());
        };
        let path = self.path(key)?;
        match self.shared.objects.head(&path).await.map_err(Failure::from) {
            Ok(meta) if pin.is_of(&meta) => Ok(()),
            Ok(_) => Err(Failure::Replaced),
            Err(failure) => Err(failure),
        }
    }

    fn may_hedge(&self) -> bool {
        let counts = &self.shared.counts;
        let (requests, hedges) =
            (counts.requests.load(Ordering::Relaxed), counts.hedges.load(Ordering::Relaxed));
        hedges.saturating_mul(REQUESTS_A_HEDGE) <= requests
    }

    /// A request for what is left, and its answer. It is sent when the stream is first polled.
    fn body(&self, key: &str, reading: &Reading) -> std::result::Result<Body, Failure> {
        self.shared.counts.requests.fetch_add(1, Ordering::Relaxed);
        let (shared, path, at) = (self.shared.clone(), self.path(key)?, reading.at);
        let mut options = GetOptions::new().with_range(reading.end.map(|end| GetRange::Bounded(at..end)));
        let pin = reading.pin.clone();
        if let Some(pin) = &pin {
            pin.ask(&mut options);
        }
        let request = async move {
            let answer =
                shared.objects.get_opts(&path, options).await.map_err(|error| match error.into() {
                    Failure::Exists | Failure::PastEnd if pin.is_some() => Failure::Replaced,
                    failure => failure,
                })?;
            if pin.is_some_and(|pin| !pin.is_of(&answer.meta)) {
                return Err(Failure::Replaced);
            }
            let len = answer.meta.size;
            let bytes = body::parts(answer).map_ok(Part::Bytes);
            Ok::<_, Failure>(stream::once(async move { Ok(Part::Len(len)) }).chain(bytes))
        };
        Ok(stream::once(request).try_flatten().boxed())
    }

    /// A request about something else than an object, among the others, and repeated as they are.
    pub(in crate::remote) async fn asked<T, Sent>(
        &self,
        request: impl Fn() -> Sent,
    ) -> std::result::Result<T, Failure>
    where
        Sent: Future<Output = std::result::Result<T, Failure>>,
    {
        let mut pauses = Pauses::new(self.shared.deadlines);
        let permit = self.shared.enter(Class::Demand, 0, &mut pauses).await?;
        let answered = |patience| {
            let answer = self.shared.soon(request(), patience);
            async move { answer.await? }
        };
        self.repeated(answered, pauses, Some(permit)).await
    }

    /// Repeats a request that may be repeated until it succeeds or fails for good.
    /// A request learns how long it may wait for an answer. One that stalls leaves its place, if it has one of its own, to
    /// others.
    async fn repeated<T, Sent>(
        &self,
        request: impl Fn(Duration) -> Sent,
        mut pauses: Pauses,
        mut permit: Option<Permit>,
    ) -> std::result::Result<T, Failure>
    where
        Sent: Future<Output = std::result::Result<T, Failure>>,
    {
        let has_place = permit.is_some();
        loop {
            if has_place && permit.is_none() {
                permit = Some(self.shared.enter(Class::Demand, 0, &mut pauses).await?);
            }
            self.shared.counts.requests.fetch_add(1, Ordering::Relaxed);
            let patience = pauses.left().min(self.shared.deadlines.silence);
            let mut answer = std::pin::pin!(caught(request(patience)));
            let answer = match tokio::time::timeout(self.shared.keeps_place(&pauses), &mut answer).await {
                Ok(answer) => answer,
                Err(_) => {
                    let _left = permit.take().map(Permit::leave);
                    answer.await
                }
            };
            match answer {
                Ok(done) => {
                    self.shared.window.succeeded();
                    return Ok(done);
                }
                Err(failure) => self.pause(failure, &mut pauses).await?,
            }
        }
    }

    /// Waits before a repetition, or returns the failure if there shall be none.
    async fn pause(&self, failure: Failure, pauses: &mut Pauses) -> std::result::Result<(), Failure> {
        let is_silent = matches!(failure, Failure::Silent(_));
        if is_silent {
            self.shared.window.note_silence();
        }
        // An object that the server never sends must not keep others waiting again and again.
        if failure.is_overload() && !(is_silent && pauses.was_silent) {
            self.shared.window.slow_down(if is_silent { pauses.least_places } else { LIMIT_MIN });
        }
        pauses.was_silent |= is_silent;
        let pause = match &failure {
            Failure::Later(_, wanted) => pauses.at_least(*wanted),
            // A directory that is away answers at once, and may stay away for long.
            Failure::Away(_) => None,
            _ if failure.is_transient() => pauses.next(),
            _ => None,
        };
        let Some(pause) = pause else {
            if !matches!(failure, Failure::NotFound | Failure::Exists) {
                self.shared.counts.failures.fetch_add(1, Ordering::Relaxed);
            }
            return Err(failure);
        };
        log::debug!("{}: a request is repeated: {failure}", self.shared.place);
        self.shared.counts.retries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn path(&self, key: &str) -> std::result::Result<Path, Failure> {
        let whole = format!("{}{key}", self.shared.prefix);
        Path::parse(&whole).map_err(|error| Failure::Refused(error.to_string()))
    }

    /// The error for users. `doing` says what was done to the object `key`.
    pub(in crate::remote) fn error(&self, doing: &str, key: &str, failure: &Failure) -> Error {
        let text = format!("{doing} {}/{key}: {failure}", self.shared.keys_at);
        match failure {
            Failure::NotFound | Failure::NoBucket(_) => Error::new(ErrorKind::NotFound, text),
            Failure::NoCredentials(_) => Error::new(ErrorKind::Forbidden, text),
            Failure::Unsupported(_) => Error::new(ErrorKind::NotSupported, text),
            Failure::Exists => Error::new(ErrorKind::Exists, text),
            Failure::Replaced => Error::new(ErrorKind::Gone, text),
            Failure::Denied(_) if self.shared.directory.is_some() => Error::new(ErrorKind::Forbidden, text),
            Failure::Denied(_) => Error::new(
                ErrorKind::Forbidden,
                format!(
                    "{text}; check the key, its rights on the bucket, and the clock of this machine (tierfs doctor {})",
                    self.shared.place
                ),
            ),
            Failure::WrongLength(_) | Failure::WrongBytes => Error::corrupt(text),
            Failure::Local(error) => Error::io(doing, std::io::Error::from(error.kind())),
            Failure::Away(_) | Failure::Refused(_) | Failure::PastEnd | Failure::Later(..) => {
                Error::new(ErrorKind::Io, text)
            }
            Failure::Transient(_) | Failure::Overload(_) | Failure::Silent(_) => Error::new(
                ErrorKind::Io,
                format!(
                    "{text}; the remote did not answer for {} s (tierfs doctor {} examines it)",
                    self.shared.deadlines.total.as_secs(),
                    self.shared.place
                ),
            ),
        }
    }
}

impl Shared {
    /// Waits for a place in the window, unless the client receives and sends nothing for too long: those who
    /// have places may each wait for a server that does not answer. The deadline of the operation begins anew
    /// whenever others make progress.
    async fn enter(
        &self,
        class: Class,
        bytes: u64,
        pauses: &mut Pauses,
    ) -> std::result::Result<Permit, Failure> {
        let moved = || {
            let counts = &self.counts;
            (counts.received.load(Ordering::Relaxed), counts.sent.load(Ordering::Relaxed))
        };
        let mut entering = std::pin::pin!(self.window.enter(class, bytes));
        loop {
            let before = moved();
            let entered = tokio::time::timeout(pauses.left(), &mut entering).await;
            let has_moved = moved() != before;
            if has_moved {
                pauses.since = Instant::now();
            }
            match entered {
                Ok(permit) => return Ok(permit),
                Err(_) if has_moved => {}
                Err(_) => return Err(Failure::Transient("earlier requests make no progress".to_owned())),
            }
        }
    }

    /// How long a request that receives nothing keeps its place.
    fn keeps_place(&self, pauses: &Pauses) -> Duration {
        let Deadlines { stall, silence, pause_max, .. } = self.deadlines;
        // A request that is left without an answer is repeated, and notes that again, in this time.
        let is_silent = pauses.was_silent || self.window.was_silent_within(silence + pause_max);
        if is_silent && self.window.may_leave() { stall / REPEATED } else { stall }
    }

    /// Waits for an answer without a body.
    async fn soon<T>(
        &self,
        answer: impl Future<Output = T>,
        patience: Duration,
    ) -> std::result::Result<T, Failure> {
        tokio::time::timeout(patience, answer).await.map_err(|_| Failure::slow("the server does not answer"))
    }
}

/// The outcome of a request. A panic, also of a crate, is a failure of this request alone.
async fn caught<T>(
    request: impl Future<Output = std::result::Result<T, Failure>>,
) -> std::result::Result<T, Failure> {
    let done = AssertUnwindSafe(request).catch_unwind().await;
    done.unwrap_or_else(|payload| Err(Failure::panicked(&*payload)))
}
