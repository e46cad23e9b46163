//! Spans of traces: requests of the kernel, decodes, jobs, and syncs of logs.
//!
//! Without the feature `traces` all of this is empty. With it a call looks at one flag until `begin` was called, which
//! only a mount with a collector does. Code anywhere in the crate makes spans by these functions, whether the feature
//! is on or not; `remote/traces.rs` exports them.
//!
//! A span is the current one of its thread until its guard is dropped, and spans made meanwhile are its children. The
//! functions `note_...` add to the current span.
//!
//! To add a span, or an attribute of one: a function in each half of this file, one of them empty.

#[cfg(not(feature = "traces"))]
pub use off::*;
#[cfg(feature = "traces")]
pub use on::*;

#[cfg(not(feature = "traces"))]
mod off {
    //! The functions of a program without traces: they do nothing.

    use std::fmt::Display;

    use crate::model::Tier;

    /// The guard of a span.
    #[must_use]
    pub struct Entered;

    /// Begins the span of a request about an inode, and a name in it if there is one.
    #[inline(always)]
    pub fn request(_operation: &'static str, _inode: u64, _name: Option<&[u8]>) -> Entered {
        Entered
    }

    /// Begins a span for encoded payloads of a tier that are fetched and decoded into `bytes` bytes.
    #[inline(always)]
    pub fn decode(_tier: Tier, _bytes: u64) -> Entered {
        Entered
    }

    /// Begins the span of a file of `bytes` bytes that is decoded as a whole.
    #[inline(always)]
    pub fn decode_file(_inode: u64, _bytes: u64) -> Entered {
        Entered
    }

    /// Begins the span of a job.
    #[inline(always)]
    pub fn job(_number: u64, _request: &str, _path: &str) -> Entered {
        Entered
    }

    /// Begins the span of a sync of a collection's files and log.
    #[inline(always)]
    pub fn sync(_collection: impl FnOnce() -> String) -> Entered {
        Entered
    }

    /// Work that runs in the present span, on any thread.
    #[inline(always)]
    pub fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        work
    }

    /// Notes the bytes that a request has read or written.
    #[inline(always)]
    pub fn note_bytes(_bytes: u64) {}

    /// Notes the tier of blocks that a request has read.
    #[inline(always)]
    pub fn note_tier(_tier: Tier) {}

    /// Notes the new value of an attribute.
    #[inline(always)]
    pub fn note_value(_value: &[u8]) {}

    /// Notes the error number that a request is answered with.
    #[inline(always)]
    pub fn note_errno(_number: i32) {}

    /// Notes that the work of the span has failed.
    #[inline(always)]
    pub fn note_failure(_why: &dyn Display) {}

    /// Notes the end of a job: its state, and the bytes that it has processed.
    #[inline(always)]
    pub fn note_end(_state: &'static str, _bytes: u64) {}
}

#[cfg(feature = "traces")]
mod on {
    //! The functions of a program with traces, by the crate `tracing`.

    use std::cell::Cell;
    use std::fmt::Display;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tracing::field::Empty;
    use tracing::span::EnteredSpan;
    use tracing::{Span, info_span};

    use crate::model::{Tier, beginning};

    /// The target of all spans. A subscriber tells them by it from those of other crates.
    pub const TARGET: &str = "tierfs";
    /// Most bytes of a name or value in a span.
    const TEXT_BYTES_MAX: usize = 200;
    /// The tier of a request that has read blocks of several.
    const MIXED: &str = "mixed";

    /// Whether there is a subscriber.
    static IS_ON: AtomicBool = AtomicBool::new(false);

    thread_local! {
        /// The tiers that the request of this thread has read, a bit for each.
        static TIERS: Cell<u16> = const { Cell::new(0) };
    }

    /// Begins to make spans, for the subscriber that was set.
    pub fn begin() {
        IS_ON.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn is_on() -> bool {
        IS_ON.load(Ordering::Relaxed)
    }

    /// The guard of a span.
    #[must_use]
    pub struct Entered {
        _span: Option<EnteredSpan>,
    }

    /// The guard of the span of a request.
    #[must_use]
    pub struct Request(Option<EnteredSpan>);

    impl Drop for Request {
        fn drop(&mut self) {
            let Some(span) = &self.0 else { return };
            let tiers = TIERS.take();
            let mut found = (0..).zip(Tier::ALL).filter(|(place, _)| tiers >> place & 1 == 1);
            if let Some((_, tier)) = found.next() {
                let name = if found.next().is_some() { MIXED } else { tier.name() };
                span.record("tierfs.tier", name);
            }
        }
    }

    /// Begins the span of a request about an inode, and a name in it if there is one.
    pub fn request(operation: &'static str, inode: u64, name: Option<&[u8]>) -> Request {
        if !is_on() {
            return Request(None);
        }
        TIERS.set(0);
        let span = info_span!(
            target: TARGET,
            parent: None,
            "request",
            otel.name = operation,
            otel.kind = "server",
            otel.status_code = Empty,
            otel.status_description = Empty,
            tierfs.operation = operation,
            tierfs.inode = %inode,
            tierfs.name = Empty,
            tierfs.value = Empty,
            tierfs.bytes = Empty,
            tierfs.tier = Empty,
            tierfs.errno = Empty,
        );
        if let Some(name) = name {
            record_text(&span, "tierfs.name", name);
        }
        Request(Some(span.entered()))
    }

    /// Begins a span for encoded payloads of a tier that are fetched and decoded into `bytes` bytes. Makes no span
    /// outside of another: the threads of a job would make one for each of its blocks.
    pub fn decode(tier: Tier, bytes: u64) -> Entered {
        if !is_on() || Span::current().is_none() {
            return Entered { _span: None };
        }
        let bytes = bytes.cast_signed();
        let span = info_span!(target: TARGET, "decode", tierfs.tier = tier.name(), tierfs.bytes = bytes);
        Entered { _span: Some(span.entered()) }
    }

    /// Begins the span of a file of `bytes` bytes that is decoded as a whole.
    pub fn decode_file(inode: u64, bytes: u64) -> Entered {
        if !is_on() {
            return Entered { _span: None };
        }
        let span = info_span!(
            target: TARGET,
            parent: None,
            "decode file",
            otel.status_code = Empty,
            otel.status_description = Empty,
            tierfs.inode = %inode,
            tierfs.bytes = bytes.cast_signed(),
        );
        Entered { _span: Some(span.entered()) }
    }

    /// Begins the span of a job.
    pub fn job(number: u64, request: &str, path: &str) -> Entered {
        if !is_on() {
            return Entered { _span: None };
        }
        let span = info_span!(
            target: TARGET,
            parent: None,
            "job",
            otel.status_code = Empty,
            otel.status_description = Empty,
            tierfs.job = number.cast_signed(),
            tierfs.request = beginning(request, TEXT_BYTES_MAX),
            tierfs.path = path,
            tierfs.state = Empty,
            tierfs.bytes = Empty,
        );
        Entered { _span: Some(span.entered()) }
    }

    /// Begins the span of a sync of a collection's files and log.
    pub fn sync(collection: impl FnOnce() -> String) -> Entered {
        if !is_on() {
            return Entered { _span: None };
        }
        let span = info_span!(
            target: TARGET,
            "sync",
            otel.status_code = Empty,
            otel.status_description = Empty,
            tierfs.collection = collection(),
        );
        Entered { _span: Some(span.entered()) }
    }

    /// Work that runs in the present span, on any thread.
    pub fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let span = if is_on() { Span::current() } else { Span::none() };
        move || span.in_scope(work)
    }

    /// Notes the bytes that a request has read or written.
    pub fn note_bytes(bytes: u64) {
        if is_on() {
            Span::current().record("tierfs.bytes", bytes.cast_signed());
        }
    }

    /// Notes the tier of blocks that a request has read.
    #[inline]
    pub fn note_tier(tier: Tier) {
        if is_on()
            && let Some(place) = Tier::ALL.iter().position(|known| *known == tier)
        {
            TIERS.set(TIERS.get() | 1 << place);
        }
    }

    /// Notes the new value of an attribute.
    pub fn note_value(value: &[u8]) {
        if is_on() {
            record_text(&Span::current(), "tierfs.value", value);
        }
    }

    /// Notes the error number that a request is answered with.
    pub fn note_errno(number: i32) {
        if is_on() {
            Span::current().record("tierfs.errno", i64::from(number));
        }
    }

    /// Notes that the work of the span has failed.
    pub fn note_failure(why: &dyn Display) {
        if is_on() {
            let span = Span::current();
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", why.to_string());
        }
    }

    /// Notes the end of a job: its state, and the bytes that it has processed.
    pub fn note_end(state: &'static str, bytes: u64) {
        if is_on() {
            let span = Span::current();
            span.record("tierfs.state", state);
            span.record("tierfs.bytes", bytes.cast_signed());
        }
    }

    /// Records a name or value, which may be any bytes.
    fn record_text(span: &Span, field: &'static str, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        span.record(field, beginning(&text, TEXT_BYTES_MAX));
    }
}
