//! The pieces of a SentencePiece model, `tokenizer.model`: a protobuf message whose fields 1 are pieces.
//!
//! | field of a piece | value |
//! |---|---|
//! | 1 | its text |
//! | 2 | its score, f32 |
//! | 3 | its type: 1 normal (assumed), 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte |
//!
//! Source: `sentencepiece_model.proto` of <https://github.com/google/sentencepiece>.

use super::{BYTE, CONTROL, NORMAL, TOKENS_MAX, UNKNOWN, UNUSED};
use crate::format::cursor::Reader;
use crate::model::{Error, Result};

/// A piece.
#[derive(PartialEq, Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    /// Its type as in GGUF files, where pieces that users define are normal ones.
    pub(super) kind: i32,
}

/// The value of a field.
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed(u32),
    Wide,
}

/// The pieces of a model, in order.
///
/// # Errors
/// `Invalid` for other bytes.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Piece>> {
    let mut fields = Reader::new(bytes);
    let mut pieces = Vec::new();
    while let Some((number, value)) = next(&mut fields)? {
        if let (1, Value::Bytes(piece)) = (number, value) {
            pieces.push(one(piece)?);
        }
        if pieces.len() > TOKENS_MAX as usize {
            return Err(Error::unsupported(format!("more than {TOKENS_MAX} pieces")));
        }
    }
    if pieces.is_empty() { Err(damaged("without pieces")) } else { Ok(pieces) }
}

fn one(bytes: &[u8]) -> Result<Piece> {
    let mut fields = Reader::new(bytes);
    let mut piece = Piece { text: String::new(), score: 0.0, kind: NORMAL };
    while let Some((number, value)) = next(&mut fields)? {
        match (number, value) {
            (1, Value::Bytes(text)) => {
                let text =
                    std::str::from_utf8(text).map_err(|_| damaged("with a piece that is not UTF-8"))?;
                piece.text = text.to_owned();
            }
            (2, Value::Fixed(bits)) => piece.score = f32::from_bits(bits),
            (3, Value::Varint(kind)) => {
                piece.kind = match kind {
                    2 => UNKNOWN,
                    3 => CONTROL,
                    5 => UNUSED,
                    6 => BYTE,
                    _ => NORMAL,
                }
            }
            _ => {}
        }
    }
    Ok(piece)
}

/// The next field of a message; `None` at its end.
fn next<'a>(fields: &mut Reader<'a>) -> Result<Option<(u64, Value<'a>)>> {
    if fields.remaining() == 0 {
        return Ok(None);
    }
    let tag = varint(fields)?;
    let value = match tag & 7 {
        0 => Value::Varint(varint(fields)?),
        1 => {
            fields.skip(8).map_err(|_| damaged("that is cut off"))?;
            Value::Wide
        }
        2 => {
            let count = usize::try_from(varint(fields)?).map_err(|_| damaged("that is cut off"))?;
            Value::Bytes(fields.bytes(count).map_err(|_| damaged("that is cut off"))?)
        }
        5 => Value::Fixed(fields.u32().map_err(|_| damaged("that is cut off"))?),
        kind => return Err(damaged(&format!("with the wire type {kind}"))),
    };
    Ok(Some((tag >> 3, value)))
}

fn varint(fields: &mut Reader<'_>) -> Result<u64> {
    let mut value = 0;
    for place in 0..10 {
        let byte = fields.u8().map_err(|_| damaged("that is cut off"))?;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(damaged("with a number of more than 10 bytes"))
}

fn damaged(text: &str) -> Error {
    Error::invalid(format!("tokenizer.model: a SentencePiece model {text}"))
}

#[cfg(test)]
mod tests {
    use super::{Piece, parse};

    #[test]
    fn pieces_have_texts_scores_and_types_and_other_bytes_are_refused() {
        let bytes = [
            &[0x0a, 3, 0x0a, 1, b'a', 0x0a, 10, 0x0a, 1, b'b', 0x15][..],
            &(-1.5_f32).to_le_bytes(),
            &[0x18, 3, 0x12, 1, 0],
        ];
        let bytes = bytes.concat();
        let piece = |text: &str, score, kind| Piece { text: text.into(), score, kind };
        assert_eq!(parse(&bytes).unwrap(), [piece("a", 0.0, 1), piece("b", -1.5, 3)]);
        for len in 1..bytes.len() {
            if let Ok(pieces) = parse(&bytes[..len]) {
                assert!(pieces.len() <= 2);
            }
        }
        assert!(
            parse(b"").is_err()
                && parse(&[0xff; 11]).is_err()
                && parse(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xf]).is_err()
        );
    }
}
