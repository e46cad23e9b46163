//! Metrics over HTTP, for `tierfs mount --metrics` and `tierfs csi --metrics`.
//!
//! One thread waits for all connections, so that those which send nothing, or read nothing, delay nobody. Each
//! connection is closed after one answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::context::Mounted;
use crate::control::metrics;
use crate::model::{Error, Result};

/// A request must be here this long after its connection began.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// An answer must be taken within this time.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Connections at the same time. A further one takes the place of the oldest that has sent no request yet.
const CONNECTIONS_MAX: usize = 64;
/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
const CHUNK_BYTES: usize = 4096;
/// The pause after the system had no room for a connection.
const PAUSE: Duration = Duration::from_millis(50);
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Answers `GET /metrics` at an address with all metrics of the mount, until the process ends. Everybody who
/// can connect may ask. Fails if the address cannot be listened to.
pub fn serve_metrics(mounted: &Arc<Mounted>, at: SocketAddr) -> Result<()> {
    let mounted = Arc::downgrade(mounted);
    serve_metrics_text(at, move || {
        let mounted = mounted.upgrade()?;
        Some(metrics::text(&mounted, mounted.vfs.owner().uid))
    })
}

/// Answers `GET /metrics` at an address with the OpenMetrics text that `make` makes, until the process ends. `None` stands for
/// metrics that have ended. Requests wait for one another. Fails if the address cannot be listened to.
pub fn serve_metrics_text(
    at: SocketAddr,
    make: impl Fn() -> Option<Result<String>> + Send + 'static,
) -> Result<()> {
    let failed = |error| Error::io(format!("serving metrics at {at}"), error);
    let listener = TcpListener::bind(at).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let serve = move || {
        let mut server = Server { listener, connections: Vec::new(), make };
        // It ends with the process.
        while server.step().is_ok() {}
        log::error!("the server of metrics has ended");
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map(drop).map_err(failed)
}

struct Server<M> {
    listener: TcpListener,
    connections: Vec<Connection>,
    make: M,
}

struct Connection {
    stream: TcpStream,
    /// When it is given up.
    until: Instant,
    state: State,
}

enum State {
    /// The request so far.
    Asking(Vec<u8>),
    /// The answer, and how much of it was taken.
    Answering(Vec<u8>, usize),
    /// The answer was sent. The client closes first, since bytes that nobody reads would destroy the answer.
    Closing,
}

impl<M: Fn() -> Option<Result<String>>> Server<M> {
    /// Waits until something can be done, and does it.
    fn step(&mut self) -> io::Result<()> {
        let mut waiting = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waiting.extend(self.connections.iter().map(|connection| {
            let flags = match connection.state {
                State::Answering(..) => PollFlags::OUT,
                State::Asking(_) | State::Closing => PollFlags::IN,
            };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), flags)
        }));
        let now = Instant::now();
        let first = self.connections.iter().map(|connection| connection.until).min();
        let timeout = first.map(|until| timespec(until.saturating_duration_since(now)));
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = waiting.iter().map(|waiting| !waiting.revents().is_empty()).collect();
        drop(waiting);
        let (make, now) = (&self.make, Instant::now());
        let mut ready = is_ready.iter().skip(1);
        self.connections.retain_mut(|connection| {
            let is_ready = ready.next().is_some_and(|is_ready| *is_ready);
            (!is_ready || connection.go_on(make)) && connection.until > now
        });
        if is_ready.first() == Some(&true) {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_err() {
                    return;
                }
                if self.connections.len() >= CONNECTIONS_MAX {
                    self.drop_oldest();
                }
                let until = Instant::now() + REQUEST_WITHIN;
                self.connections.push(Connection { stream, until, state: State::Asking(Vec::new()) });
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                log::debug!("a connection for metrics: {error}");
                self.drop_oldest();
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Drops the oldest connection, rather one that has sent no request.
    fn drop_oldest(&mut self) {
        let asks = |connection: &Connection| matches!(connection.state, State::Asking(_));
        let oldest = self.connections.iter().position(asks).unwrap_or(0);
        if oldest < self.connections.len() {
            self.connections.remove(oldest);
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    // One millisecond more, so that the time has passed then.
    let time = time.saturating_add(Duration::from_millis(1));
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

impl Connection {
    /// Reads or writes what can be. Returns whether the connection lives on.
    fn go_on(&mut self, make: &dyn Fn() -> Option<Result<String>>) -> bool {
        match self.tried(make) {
            Ok(lives) => lives,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn tried(&mut self, make: &dyn Fn() -> Option<Result<String>>) -> io::Result<bool> {
        let mut chunk = [0; CHUNK_BYTES];
        match &mut self.state {
            State::Asking(request) => {
                let count = self.stream.read(&mut chunk)?;
                if count == 0 {
                    return Ok(false);
                }
                request.extend_from_slice(chunk.get(..count).unwrap_or_default());
                if let Some(answer) = answer_to(request, make) {
                    self.until = Instant::now() + TAKEN_WITHIN;
                    self.state = State::Answering(answer, 0);
                }
            }
            State::Answering(answer, taken) => {
                *taken += self.stream.write(answer.get(*taken..).unwrap_or_default())?;
                if *taken >= answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.until = Instant::now() + REQUEST_WITHIN;
                    self.state = State::Closing;
                }
            }
            State::Closing => return Ok(self.stream.read(&mut chunk)? > 0),
        }
        Ok(true)
    }
}

/// The whole answer to a request; `None` until its head is whole.
fn answer_to(request: &[u8], make: &dyn Fn() -> Option<Result<String>>) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if request.len() < REQUEST_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(text("431 Request Header Fields Too Large", "", "the request is too long\n"));
        }
        Err(error) => return Some(text("400 Bad Request", "", &format!("{error}\n"))),
    }
    let path = parsed.path.unwrap_or_default();
    // A proxy names the server too.
    let path = path
        .strip_prefix("http://")
        .map_or(path, |rest| rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"));
    if path.split('?').next() != Some("/metrics") {
        return Some(text("404 Not Found", "", "the metrics are at /metrics\n"));
    }
    if parsed.method != Some("GET") {
        return Some(text("405 Method Not Allowed", "allow: GET\r\n", "use GET\n"));
    }
    let Some(made) = make() else {
        return Some(text("503 Service Unavailable", "", "the mount has ended\n"));
    };
    Some(match made {
        Ok(shown) if wants_classic(parsed.headers) => {
            typed("200 OK", "", metrics::CLASSIC_MEDIA_TYPE, &metrics::classic(&shown))
        }
        Ok(shown) => typed("200 OK", "", metrics::MEDIA_TYPE, &shown),
        Err(error) => {
            log::error!("metrics: {error}");
            text("500 Internal Server Error", "", &format!("{error}\n"))
        }
    })
}

/// Whether a program asks for plain text and does not know OpenMetrics.
fn wants_classic(headers: &[httparse::Header]) -> bool {
    let accepted = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accepted: Vec<String> =
        accepted.map(|header| String::from_utf8_lossy(header.value).to_ascii_lowercase()).collect();
    let names = |media_type: &str| accepted.iter().any(|value| value.contains(media_type));
    names("text/plain") && !names("application/openmetrics-text")
}

fn text(status: &str, lines: &str, text: &str) -> Vec<u8> {
    typed(status, lines, PLAIN_TEXT, text)
}

fn typed(status: &str, lines: &str, media_type: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {len}\r\n{lines}connection: close\r\n\r\n"
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::{REQUEST_BYTES_MAX, answer_to};

    fn status(request: &str) -> Option<String> {
        let answer = String::from_utf8(answer_to(request.as_bytes(), &|| None)?).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        Some(head.split(' ').nth(1).unwrap().to_owned())
    }

    #[test]
    fn requests_are_answered_once_their_head_is_whole() {
        let whole = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(status(&whole[..end]), None, "{end}");
        }
        // The metrics of these tests have ended.
        for request in [whole, "GET /metrics?x=1 HTTP/1.0\r\n\r\n", "GET http://h:9/metrics HTTP/1.1\r\n\r\n"]
        {
            assert_eq!(status(request).as_deref(), Some("503"), "{request}");
        }
    }

    #[test]
    fn other_requests_are_refused_by_their_kind() {
        let long = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(REQUEST_BYTES_MAX));
        let many = format!("GET /metrics HTTP/1.1\r\n{}", "x: y\r\n".repeat(100));
        for (request, wanted) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/.. HTTP/1.1\r\n\r\n", "404"),
            ("GET http://h HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\nbody", "405"),
            ("GET /metrics HTTP/9\r\n\r\n", "400"),
            ("\u{0}\r\n\r\n", "400"),
            (&long, "431"),
            (&many, "431"),
        ] {
            assert_eq!(status(request).as_deref(), Some(wanted), "{request}");
        }
    }
}
