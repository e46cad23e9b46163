//! A collector: an HTTP server that keeps the spans of all requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::protobuf::{Span, spans};

/// A collector on a free port. Its thread ends with the process.
pub struct Collector {
    pub url: String,
    spans: Arc<Mutex<Vec<Span>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    pub fn new() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (found, requests) = (Arc::<Mutex<Vec<Span>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (kept, heads) = (found.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, heads) = (kept.clone(), heads.clone());
                std::thread::spawn(move || answer(stream, &kept, &heads));
            }
        });
        Collector { url, spans: found, requests }
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }

    /// The first lines of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Answers the requests of a connection.
fn answer(stream: TcpStream, kept: &Mutex<Vec<Span>>, heads: &Mutex<Vec<String>>) {
    let mut input = BufReader::new(stream.try_clone().unwrap());
    let mut output = stream;
    loop {
        let mut head = String::new();
        if input.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
        let (mut length, mut is_protobuf) = (0, false);
        loop {
            let mut line = String::new();
            input.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "content-type" => is_protobuf = value == "application/x-protobuf",
                _ => {}
            }
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body).unwrap();
        assert!(is_protobuf, "{head}");
        kept.lock().unwrap().extend(spans(&body));
        heads.lock().unwrap().push(head.trim_end().to_owned());
        output
            .write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
            )
            .unwrap();
    }
}
