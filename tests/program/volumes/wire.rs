//! Calls by gRPC, with messages of bytes that are written here.

use std::path::Path;

use bytes::Bytes;
use h2::client;
use http::{HeaderMap, Method, Request};
use support::protobuf::{field, varint};
use tokio::net::UnixStream;
use tokio::runtime::Builder;

/// The status of a call that failed.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: u32,
    pub text: String,
}

pub const INVALID_ARGUMENT: u32 = 3;
pub const DEADLINE_EXCEEDED: u32 = 4;
pub const NOT_FOUND: u32 = 5;
pub const ALREADY_EXISTS: u32 = 6;
pub const PERMISSION_DENIED: u32 = 7;
pub const FAILED_PRECONDITION: u32 = 9;
pub const ABORTED: u32 = 10;
pub const UNIMPLEMENTED: u32 = 12;
pub const INTERNAL: u32 = 13;
pub const UNAVAILABLE: u32 = 14;

/// A call that is not answered at all, as when the plugin is killed.
pub const UNANSWERED: u32 = 99;

/// A text.
pub fn text(number: u64, value: &str) -> Vec<u8> {
    field(number, value.as_bytes())
}

/// A number or a truth.
pub fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

/// A map of texts.
pub fn texts(number: u64, pairs: &[(&str, &str)]) -> Vec<u8> {
    let entry = |(name, value): &(&str, &str)| field(number, &[text(1, name), text(2, value)].concat());
    pairs.iter().flat_map(entry).collect()
}

/// A capability to mount, with an access mode.
pub fn capability(number_of: u64, mode: u64) -> Vec<u8> {
    field(number_of, &[field(2, &[]), field(3, &number(1, mode))].concat())
}

/// A value of a field.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message.
pub fn fields(mut bytes: &[u8]) -> Vec<(u64, Value)> {
    fn take(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte & 128 == 0 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = take(&mut bytes);
        let value = take(&mut bytes);
        match tag & 7 {
            0 => found.push((tag >> 3, Value::Number(value))),
            2 => {
                let (own, rest) = bytes.split_at(value as usize);
                found.push((tag >> 3, Value::Bytes(own.to_vec())));
                bytes = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

/// The bytes of the first field with this number.
pub fn bytes_of(message: &[u8], number: u64) -> Vec<u8> {
    let found = fields(message).into_iter().find(|(own, _)| *own == number);
    match found {
        Some((_, Value::Bytes(bytes))) => bytes,
        other => panic!("field {number} is {other:?}"),
    }
}

/// Makes a call; `timeout` is that of gRPC, such as 10S.
pub fn call(socket: &Path, path: &str, message: &[u8], timeout: &str) -> Result<Vec<u8>, Refused> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let unanswered = |why: String| Refused { code: UNANSWERED, text: why };
    runtime.block_on(async {
        let stream = UnixStream::connect(socket).await.map_err(|error| unanswered(error.to_string()))?;
        let broken = |error: h2::Error| unanswered(error.to_string());
        let (mut sender, connection) = client::handshake(stream).await.map_err(broken)?;
        let driven = tokio::spawn(connection);
        let answered = async {
            let request = Request::builder()
                .method(Method::POST)
                .uri(format!("http://localhost/csi.v1.{path}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("grpc-timeout", timeout)
                .body(())
                .unwrap();
            let (response, mut body) = sender.send_request(request, false).map_err(broken)?;
            let length = u32::try_from(message.len()).unwrap().to_be_bytes();
            let framed = [&[0], &length[..], message].concat();
            body.send_data(Bytes::from(framed), true).map_err(broken)?;
            let response = response.await.map_err(broken)?;
            let (head, mut body) = response.into_parts();
            let mut bytes = Vec::new();
            while let Some(part) = body.data().await {
                let part = part.map_err(broken)?;
                body.flow_control().release_capacity(part.len()).map_err(broken)?;
                bytes.extend_from_slice(&part);
            }
            let trailers = body.trailers().await.map_err(broken)?;
            outcome(&trailers.unwrap_or(head.headers), bytes)
        };
        let answered = answered.await;
        driven.abort();
        answered
    })
}

fn outcome(status: &HeaderMap, bytes: Vec<u8>) -> Result<Vec<u8>, Refused> {
    let header = |name: &str| status.get(name).map(|value| value.to_str().unwrap().to_owned());
    let code: u32 = header("grpc-status").unwrap().parse().unwrap();
    if code != 0 {
        return Err(Refused { code, text: plain(&header("grpc-message").unwrap_or_default()) });
    }
    let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
    assert_eq!((bytes[0], bytes.len()), (0, 5 + length), "one message without compression");
    Ok(bytes[5..].to_vec())
}

/// A text without the escapes of a status.
fn plain(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).unwrap()
}
