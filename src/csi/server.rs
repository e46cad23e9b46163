//! The server: gRPC on a Unix socket, by tonic. Each call is answered by a thread; nothing else here is asynchronous.

use std::convert::Infallible;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::csi::calls::{IDENTITY, answer};
use crate::csi::driver::Driver;
use crate::csi::failure::{Code, Failure};
use crate::model::{Error, Result};

/// Threads that move bytes; calls have threads of their own, at most so many.
const THREADS: usize = 2;
const CALLS_MAX: usize = 64;
/// The time for a call without a deadline, and the longest one.
const LIMIT: Duration = Duration::from_secs(100);
/// A call ends before its deadline, so that its own answer arrives; it cleans up meanwhile.
const MARGIN: Duration = Duration::from_secs(2);
/// A plugin that is asked to end waits so long for calls that go on.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves until there are bytes to read from `stop`.
pub(in crate::csi) fn serve(driver: Arc<Driver>, listener: UnixListener, stop: UnixStream) -> Result<()> {
    let failed = |error: io::Error| Error::io("serving calls", error);
    listener.set_nonblocking(true).map_err(failed)?;
    stop.set_nonblocking(true).map_err(failed)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(THREADS).max_blocking_threads(CALLS_MAX).thread_name("csi").enable_all();
    let runtime = builder.build().map_err(failed)?;
    let served = runtime.block_on(async {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let stop = tokio::net::UnixStream::from_std(stop)?;
        let (ends, ended) = tokio::sync::oneshot::channel();
        let stopped = async move {
            stop.readable().await.unwrap_or_else(|error| log::warn!("{error}"));
            // The receiver goes with the server.
            ends.send(()).unwrap_or_default();
        };
        let server = Server::builder().serve_with_incoming_shutdown(
            Calls { driver, places: Arc::new(Semaphore::new(CALLS_MAX)) },
            UnixListenerStream::new(listener),
            stopped,
        );
        let too_late = async move {
            // The server may end first, for another reason.
            ended.await.unwrap_or_default();
            tokio::time::sleep(PATIENCE).await;
        };
        tokio::select! {
            served = server => served.map_err(io::Error::other),
            () = too_late => Ok(()),
        }
    });
    runtime.shutdown_timeout(PATIENCE);
    served.map_err(failed)
}

/// All services.
#[derive(Clone)]
struct Calls {
    driver: Arc<Driver>,
    /// For calls that take time.
    places: Arc<Semaphore>,
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let given = request.headers().get("grpc-timeout").and_then(|value| value.to_str().ok());
        let until = Instant::now() + time_for(given);
        let call = Call { driver: self.driver.clone(), places: self.places.clone(), path, until };
        Box::pin(async move { Ok(Grpc::new(Whole).unary(call, request).await) })
    }
}

/// The time for a call by its header `grpc-timeout`: digits and a unit.
fn time_for(given: Option<&str>) -> Duration {
    let parsed = given.and_then(|text| {
        let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let count: u64 = count.parse().ok()?;
        Some(match unit {
            "H" => Duration::from_secs(count.checked_mul(3600)?),
            "M" => Duration::from_secs(count.checked_mul(60)?),
            "S" => Duration::from_secs(count),
            "m" => Duration::from_millis(count),
            "u" => Duration::from_micros(count),
            "n" => Duration::from_nanos(count),
            _ => return None,
        })
    });
    let limit = parsed.unwrap_or(LIMIT).min(LIMIT);
    limit.saturating_sub(MARGIN.min(limit / 3))
}

/// One call.
struct Call {
    driver: Arc<Driver>,
    places: Arc<Semaphore>,
    path: String,
    until: Instant,
}

impl UnaryService<Vec<u8>> for Call {
    type Response = Vec<u8>;
    type Future = BoxFuture<Response<Vec<u8>>, Status>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let (driver, path, until) = (self.driver.clone(), self.path.clone(), self.until);
        let work = move || {
            let answered = answer(&driver, &path, request.get_ref(), until);
            answered.inspect_err(|failure| log::info!("{path}: {failure}"))
        };
        // These take no time, and must not wait for calls that do: their caller would end the plugin.
        if self.path.trim_start_matches('/').starts_with(IDENTITY) {
            let answered = work().map(Response::new);
            return Box::pin(async move { answered.map_err(status) });
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Box::pin(async { Err(status(Failure::new(Code::Aborted, "too many calls go on"))) });
        };
        // A caller that goes away does not end it.
        let answered = tokio::task::spawn_blocking(move || {
            let answered = work();
            drop(place);
            answered
        });
        Box::pin(async move {
            match answered.await {
                Ok(Ok(bytes)) => Ok(Response::new(bytes)),
                Ok(Err(failure)) => Err(status(failure)),
                Err(_) => Err(Status::internal("the call has panicked")),
            }
        })
    }
}

fn status(Failure { code, text }: Failure) -> Status {
    Status::new((code as i32).into(), text)
}

/// Messages as their bytes.
struct Whole;

impl Codec for Whole {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Whole;
    type Decoder = Whole;

    fn encoder(&mut self) -> Whole {
        Whole
    }

    fn decoder(&mut self) -> Whole {
        Whole
    }
}

impl Encoder for Whole {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Whole {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> std::result::Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LIMIT, time_for};

    #[test]
    fn a_call_ends_before_the_deadline_of_its_caller() {
        for (given, expected) in [
            (Some("10S"), Duration::from_secs(8)),
            (Some("3000m"), Duration::from_secs(2)),
            (Some("999999999H"), LIMIT - Duration::from_secs(2)),
            (Some("0n"), Duration::ZERO),
            (Some("S"), LIMIT - Duration::from_secs(2)),
            (Some("12\u{e9}"), LIMIT - Duration::from_secs(2)),
            (None, LIMIT - Duration::from_secs(2)),
        ] {
            assert_eq!(time_for(given), expected, "{given:?}");
        }
    }
}
