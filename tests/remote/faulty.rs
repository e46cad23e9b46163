//! A bucket in memory whose requests fail as a test says.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use tierfs::remote::client::{Client, Deadlines};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Get,
    Put,
    List,
    Delete,
}

/// A request.
pub struct Request<'a> {
    /// Counts from 0.
    pub number: u64,
    pub call: Call,
    pub key: &'a str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// The server refuses it this time.
    Fails,
    /// It takes effect, but the answer is lost.
    AnswerLost,
    /// There is never an answer.
    Hangs,
    /// The client library has a bug.
    Panics,
    /// The body ends after half of its bytes.
    CutShort,
    /// A bit of the body differs.
    WrongByte,
    NotFound,
    /// A listing has nothing.
    Empty,
    /// A listing begins anew at its end.
    Unending,
    /// The condition does not hold.
    Exists,
    /// An object is replaced although it must not exist.
    IgnoresCondition,
    Denied,
}

type Plan = dyn Fn(&Request) -> Fault + Send + Sync;

/// The time of a server, in seconds since 1970, which a test moves on, and when its objects were written.
#[derive(Default)]
pub struct Clock {
    now: AtomicU64,
    modified: Mutex<HashMap<String, u64>>,
}

impl Clock {
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    pub fn advance(&self, seconds: u64) {
        self.now.fetch_add(seconds, Ordering::SeqCst);
    }
}

pub struct Faulty {
    pub objects: Arc<InMemory>,
    clock: Option<Arc<Clock>>,
    requests: AtomicU64,
    received: AtomicU64,
    plan: Box<Plan>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Faulty")
    }
}

/// Deadlines that make a test of a hung server short.
pub const SHORT: Deadlines = Deadlines {
    stall: Duration::from_millis(60),
    silence: Duration::from_millis(200),
    upload: Duration::from_millis(400),
    total: Duration::from_millis(1500),
    pause: Duration::from_millis(1),
    pause_max: Duration::from_millis(20),
};

impl Faulty {
    /// A bucket over `objects`.
    pub fn over(
        objects: &Arc<InMemory>,
        plan: impl Fn(&Request) -> Fault + Send + Sync + 'static,
    ) -> Arc<Faulty> {
        Faulty::at(objects, None, plan)
    }

    /// A bucket whose server has this clock.
    pub fn at(
        objects: &Arc<InMemory>,
        clock: Option<&Arc<Clock>>,
        plan: impl Fn(&Request) -> Fault + Send + Sync + 'static,
    ) -> Arc<Faulty> {
        let (objects, clock) = (objects.clone(), clock.cloned());
        let (requests, received) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Faulty { objects, clock, requests, received, plan: Box::new(plan) })
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// The bytes of all GETs that were answered.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    /// A client of the bucket.
    pub fn client(self: &Arc<Faulty>) -> Client {
        Client::over(self.clone(), "models", "memory://models", SHORT)
    }

    async fn fault(&self, call: Call, key: &Path) -> Result<Fault> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let fault = (self.plan)(&Request { number, call, key: key.as_ref() });
        let path = key.to_string();
        match fault {
            Fault::Fails => Err(failed("a planned failure")),
            Fault::Hangs => std::future::pending().await,
            Fault::Panics => panic!("a planned panic"),
            Fault::NotFound => Err(Error::NotFound { path, source: "planned".into() }),
            Fault::Exists => Err(Error::AlreadyExists { path, source: "planned".into() }),
            Fault::Denied => Err(Error::PermissionDenied { path, source: "planned".into() }),
            _ => Ok(fault),
        }
    }
}

fn failed(text: &'static str) -> Error {
    Error::Generic { store: "Faulty", source: Box::new(std::io::Error::other(text)) }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fault = self.fault(Call::Put, key).await?;
        let options = if fault == Fault::IgnoresCondition { PutOptions::default() } else { options };
        let put = self.objects.put_opts(key, payload, options).await;
        if let Some(clock) = self.clock.as_ref().filter(|_| put.is_ok()) {
            clock.modified.lock().insert(key.to_string(), clock.now());
        }
        if fault == Fault::AnswerLost { Err(failed("the answer was lost")) } else { put }
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.fault(Call::Get, key).await?;
        let got = self.objects.get_opts(key, options).await?;
        self.received.fetch_add(got.range.end - got.range.start, Ordering::SeqCst);
        if !matches!(fault, Fault::CutShort | Fault::WrongByte) {
            return Ok(got);
        }
        let (meta, range, attributes, extensions) =
            (got.meta.clone(), got.range.clone(), got.attributes.clone(), got.extensions.clone());
        let mut bytes = got.bytes().await?.to_vec();
        match fault {
            Fault::CutShort => bytes.truncate(bytes.len() / 2),
            _ => {
                let middle = bytes.len() / 2;
                bytes.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 1);
            }
        }
        let chunks: Vec<Result<Bytes>> =
            bytes.chunks(1000).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        let payload = GetResultPayload::Stream(stream::iter(chunks).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        // All keys are one request, as of a bucket.
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        match (self.plan)(&Request { number, call: Call::Delete, key: "" }) {
            Fault::None => self.objects.delete_stream(keys),
            Fault::AnswerLost => {
                let done = self.objects.delete_stream(keys);
                done.map(|_| Err(failed("the answer was lost"))).boxed()
            }
            Fault::Hangs => stream::pending().boxed(),
            _ => stream::iter([Err(failed("a planned failure"))]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let key = prefix.map(Path::to_string).unwrap_or_default();
        match (self.plan)(&Request { number, call: Call::List, key: &key }) {
            Fault::None | Fault::NotFound | Fault::IgnoresCondition => {
                let clock = self.clock.clone();
                let timed = move |mut meta: ObjectMeta| {
                    if let Some(clock) = &clock {
                        let modified =
                            clock.modified.lock().get(meta.location.as_ref()).copied().unwrap_or(0);
                        meta.last_modified = (UNIX_EPOCH + Duration::from_secs(modified)).into();
                    }
                    meta
                };
                self.objects.list(prefix).map(move |listed| listed.map(&timed)).boxed()
            }
            Fault::Hangs => stream::pending().boxed(),
            Fault::Panics => stream::poll_fn(|_| panic!("a planned panic")).boxed(),
            Fault::Empty => stream::empty().boxed(),
            Fault::Unending => {
                let (objects, prefix) = (self.objects.clone(), prefix.cloned());
                stream::repeat_with(move || objects.list(prefix.as_ref())).flatten().boxed()
            }
            _ => stream::iter([Err(failed("a planned failure"))]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.fault(Call::List, &prefix.cloned().unwrap_or_default()).await?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
