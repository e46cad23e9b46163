//! An HTTP proxy between mounts and a server: it refuses requests, cuts answers short, changes them, and slows them down,
//! as a test says. It can keep answers, as a cache between machines and a bucket does.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use support::Acceptor;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// 503 SlowDown.
    Refused,
    /// The answer ends after half of its body.
    CutShort,
    /// A bit of the body differs.
    WrongByte,
    /// The connection ends without an answer.
    Closed,
    /// Nothing is ever answered.
    Hangs,
}

/// The fault of a request: its number, and its path.
type Plan = dyn Fn(u64, &str) -> Fault + Send + Sync;

/// Requests have no body: those of readers.
pub struct Proxy {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

struct Shared {
    target: u16,
    plan: Mutex<Arc<Plan>>,
    requests: AtomicU64,
    /// Requests that met a fault.
    faults: AtomicU64,
    /// Requests that the server got.
    passed: AtomicU64,
    /// The pause after each part of an answer, in milliseconds.
    pause: AtomicU64,
    keeps: AtomicBool,
    /// Answers by request and range. A request for an answer that is on its way waits for it.
    kept: Mutex<HashMap<String, Kept>>,
}

/// An answer, once it is there.
type Kept = Arc<Mutex<Option<Vec<u8>>>>;

/// Bytes of a part of an answer.
const PART: usize = 128 << 10;
const REFUSAL: &str = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>planned</Message></Error>";

impl Proxy {
    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    /// A proxy of the server at a port.
    pub fn to(target: u16) -> Proxy {
        let plan: Arc<Plan> = Arc::new(|_, _| Fault::None);
        let shared = Arc::new(Shared {
            target,
            plan: Mutex::new(plan),
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            keeps: AtomicBool::new(false),
            kept: Mutex::default(),
        });
        let serving = shared.clone();
        // A connection that breaks ends alone.
        let acceptor = Acceptor::start(move |client| drop(serving.serve(client)));
        Proxy { acceptor, shared }
    }

    /// Further requests meet these faults.
    pub fn plan(&self, plan: impl Fn(u64, &str) -> Fault + Send + Sync + 'static) {
        *self.shared.plan.lock() = Arc::new(plan);
    }

    /// Each connection passes on 128 KiB in this time, at most.
    pub fn slow_down(&self, pause: Duration) {
        self.shared.pause.store(pause.as_millis() as u64, Ordering::Relaxed);
    }

    /// From now on answers are kept, and the same request gets the same answer.
    pub fn keep_answers(&self) {
        self.shared.keeps.store(true, Ordering::Relaxed);
    }

    /// The requests so far, and those of them that the server got.
    pub fn requests(&self) -> (u64, u64) {
        (self.shared.requests.load(Ordering::Relaxed), self.shared.passed.load(Ordering::Relaxed))
    }

    /// The requests that met a fault.
    pub fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// One request of a connection.
    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        let path = text.split(' ').nth(1).unwrap_or_default();
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = (self.plan.lock().clone())(number, path);
        if fault != Fault::None {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        match fault {
            Fault::Closed => return Ok(()),
            Fault::Hangs => {
                // Until the client gives up.
                drop(client.read(&mut byte));
                return Ok(());
            }
            Fault::Refused => {
                let len = REFUSAL.len();
                return write!(
                    client,
                    "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{REFUSAL}"
                );
            }
            _ => {}
        }
        if self.keeps.load(Ordering::Relaxed) {
            client.write_all(&self.kept(&text)?)?;
        } else {
            self.pass(&mut self.ask(&text)?, &mut client, fault)?;
        }
        client.shutdown(Shutdown::Both)
    }

    /// Sends a request to the server.
    fn ask(&self, text: &str) -> io::Result<TcpStream> {
        let mut server = TcpStream::connect(("127.0.0.1", self.target))?;
        let (first, rest) = text.split_once("\r\n").unwrap_or_default();
        self.passed.fetch_add(1, Ordering::Relaxed);
        write!(server, "{first}\r\nConnection: close\r\n{rest}")?;
        Ok(server)
    }

    /// The answer to a request, asked of the server once.
    fn kept(&self, text: &str) -> io::Result<Vec<u8>> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let range = lines.find(|line| line.to_ascii_lowercase().starts_with("range:")).unwrap_or_default();
        let slot = self.kept.lock().entry(format!("{first} {range}")).or_default().clone();
        let mut answer = slot.lock();
        if answer.is_none() {
            let mut found = Vec::new();
            self.ask(text)?.read_to_end(&mut found)?;
            *answer = Some(found);
        }
        Ok(answer.clone().unwrap_or_default())
    }

    fn pass(&self, server: &mut TcpStream, client: &mut TcpStream, fault: Fault) -> io::Result<()> {
        let (mut part, mut passed, mut end) = (vec![0; PART], 0, None);
        loop {
            let count = server.read(&mut part)?;
            if count == 0 {
                return Ok(());
            }
            if end.is_none() {
                end = Some(if fault == Fault::CutShort { half_of(&part[..count]) } else { usize::MAX });
            }
            if fault == Fault::WrongByte && passed > 0 {
                part[count / 2] ^= 1;
            }
            let left = end.unwrap_or(usize::MAX) - passed;
            client.write_all(&part[..count.min(left)])?;
            passed += count;
            if count >= left {
                return Ok(());
            }
            let pause = self.pause.load(Ordering::Relaxed);
            if pause > 0 {
                std::thread::sleep(Duration::from_millis(pause * count as u64 / PART as u64));
            }
        }
    }
}

/// The bytes of the head of an answer and half of its body.
fn half_of(answer: &[u8]) -> usize {
    let text = String::from_utf8_lossy(answer);
    let head = text.find("\r\n\r\n").map_or(0, |end| end + 4);
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let len =
        lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).map(|(_, len)| len.parse());
    head + len.flatten().next().unwrap_or(0_usize) / 2
}
