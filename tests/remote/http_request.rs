//! Requests of HTTP/1.1 as a server reads them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

/// The first byte of a client that begins with TLS.
const TLS_HANDSHAKE: u8 = 22;

/// A request, with the names of its headers in lower case.
pub struct HttpRequest {
    pub method: String,
    /// The path and the query, as they were sent.
    pub target: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// Reads a request. `None`, after the answer of a plain server, from a client that begins with TLS.
    pub fn read(client: &mut (impl Read + Write)) -> io::Result<Option<HttpRequest>> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte)?;
            head.push(byte[0]);
            if head == [TLS_HANDSHAKE] {
                client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")?;
                return Ok(None);
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
        let mut body = vec![0; len];
        client.read_exact(&mut body)?;
        Ok(Some(HttpRequest { method, target, headers, body }))
    }
}
