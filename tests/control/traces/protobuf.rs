//! The parts of OTLP that the tests look at, read from the bytes of a request.
//!
//! Source: `trace.proto`, `common.proto` and `resource.proto` of <https://github.com/open-telemetry/opentelemetry-proto>.

use std::collections::BTreeMap;

/// A span.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: Vec<u8>,
    pub id: Vec<u8>,
    pub parent: Vec<u8>,
    pub name: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Integers as decimal text.
    pub attributes: BTreeMap<String, String>,
    /// 0 unset, 1 ok, 2 error; and its description.
    pub status: (u64, String),
    /// Attributes of the process.
    pub resource: BTreeMap<String, String>,
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint of more than ten bytes");
}

/// The fields of a message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => {
                let (fixed, rest) = bytes.split_first_chunk::<8>().unwrap();
                bytes = rest;
                Value::Number(u64::from_le_bytes(*fixed))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (part, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(part)
            }
            5 => {
                let (fixed, rest) = bytes.split_first_chunk::<4>().unwrap();
                bytes = rest;
                Value::Number(u64::from(u32::from_le_bytes(*fixed)))
            }
            wire => panic!("wire type {wire}"),
        };
        found.push((tag >> 3, value));
    }
    found
}

fn messages(bytes: &[u8], wanted: u64) -> Vec<&[u8]> {
    let found = fields(bytes).into_iter();
    found
        .filter_map(|(number, value)| match value {
            Value::Bytes(part) if number == wanted => Some(part),
            _ => None,
        })
        .collect()
}

fn bytes_of(bytes: &[u8], wanted: u64) -> Vec<u8> {
    messages(bytes, wanted).last().map_or(Vec::new(), |found| found.to_vec())
}

fn text_of(bytes: &[u8], wanted: u64) -> String {
    String::from_utf8(bytes_of(bytes, wanted)).unwrap()
}

fn number_of(bytes: &[u8], wanted: u64) -> u64 {
    let mut found = fields(bytes).into_iter().filter(|(number, _)| *number == wanted);
    found.next_back().map_or(0, |(_, value)| match value {
        Value::Number(number) => number,
        Value::Bytes(_) => panic!("field {wanted} is not a number"),
    })
}

/// The attributes in a field. A key that appears twice fails.
fn attributes(bytes: &[u8], wanted: u64) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for pair in messages(bytes, wanted) {
        let any = bytes_of(pair, 2);
        let value = match fields(&any).first() {
            Some((1, Value::Bytes(text))) => String::from_utf8(text.to_vec()).unwrap(),
            Some((2, Value::Number(bool))) => (*bool == 1).to_string(),
            Some((3, Value::Number(number))) => number.cast_signed().to_string(),
            Some((4, Value::Number(double))) => f64::from_bits(*double).to_string(),
            _ => String::new(),
        };
        let key = text_of(pair, 1);
        assert!(found.insert(key.clone(), value).is_none(), "{key} appears twice");
    }
    found
}

/// The spans of an `ExportTraceServiceRequest`.
pub fn spans(request: &[u8]) -> Vec<Span> {
    let mut found = Vec::new();
    for of_resource in messages(request, 1) {
        let resource = attributes(&bytes_of(of_resource, 1), 1);
        for of_scope in messages(of_resource, 2) {
            for span in messages(of_scope, 2) {
                let status = bytes_of(span, 15);
                found.push(Span {
                    trace: bytes_of(span, 1),
                    id: bytes_of(span, 2),
                    parent: bytes_of(span, 4),
                    name: text_of(span, 5),
                    start: number_of(span, 7),
                    end: number_of(span, 8),
                    attributes: attributes(span, 9),
                    status: (number_of(&status, 3), text_of(&status, 2)),
                    resource: resource.clone(),
                });
            }
        }
    }
    found
}
