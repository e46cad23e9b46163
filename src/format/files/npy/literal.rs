//! Parses the Python dict literal of a `.npy` header: three keys, in any order.
//!
//! Texts have no escapes, because no element type needs one. A size may end in `L`, as written by NumPy
//! under Python 2.

use crate::model::{DIMENSIONS_MAX, Error, Result};

/// The three values.
pub(super) struct Fields {
    pub(super) descr: String,
    pub(super) fortran_order: bool,
    /// The sizes. At most one more than a shape can have is kept.
    pub(super) dimensions: Vec<u64>,
}

/// Parses the whole of `text`.
pub(super) fn parse(text: &[u8]) -> Result<Fields> {
    let mut input = Scanner { rest: text };
    let (mut descr, mut fortran_order, mut dimensions) = (None, None, None);
    input.expect(b'{')?;
    while !input.take(b'}') {
        let key = input.text()?;
        input.expect(b':')?;
        let twice = match key.as_str() {
            "descr" => descr.replace(input.descr()?).is_some(),
            "fortran_order" => fortran_order.replace(input.boolean()?).is_some(),
            "shape" => dimensions.replace(input.sizes()?).is_some(),
            _ => return Err(Error::invalid(format!("unknown key {key:?}"))),
        };
        if twice {
            return Err(Error::invalid(format!("key {key:?} twice")));
        }
        if !input.take(b',') {
            input.expect(b'}')?;
            break;
        }
    }
    if let Some(byte) = input.peek() {
        return Err(Error::invalid(format!("byte {byte:#04x} after the dict")));
    }
    let missing = |key: &str| Error::invalid(format!("no key {key:?}"));
    Ok(Fields {
        descr: descr.ok_or_else(|| missing("descr"))?,
        fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
        dimensions: dimensions.ok_or_else(|| missing("shape"))?,
    })
}

struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    /// The next byte that is not white space, without taking it.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    /// Takes `byte` if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.advance(1);
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take(byte) {
            return Ok(());
        }
        let expected = char::from(byte);
        Err(match self.peek() {
            Some(found) => Error::invalid(format!("byte {found:#04x} instead of {expected:?}")),
            None => Error::invalid(format!("ends where {expected:?} is expected")),
        })
    }

    fn advance(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    /// Takes the bytes before the first one for which `ends` is true.
    fn until(&mut self, ends: impl Fn(u8) -> bool) -> &[u8] {
        let length = self.rest.iter().position(|byte| ends(*byte));
        let (taken, rest) = self.rest.split_at(length.unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn text(&mut self) -> Result<String> {
        let quote = match self.peek() {
            Some(quote @ (b'\'' | b'"')) => quote,
            _ => return Err(Error::invalid("a quoted text is expected")),
        };
        self.advance(1);
        let bytes = self.until(|byte| byte == quote || byte == b'\\' || byte == b'\n');
        let text = std::str::from_utf8(bytes)
            .map_err(|error| Error::invalid(format!("a text: {error}")))?
            .to_owned();
        if self.rest.first() != Some(&quote) {
            return Err(Error::invalid(format!("text {text:?} is not closed")));
        }
        self.advance(1);
        Ok(text)
    }

    fn descr(&mut self) -> Result<String> {
        match self.peek() {
            Some(b'[' | b'(') => {
                Err(Error::unsupported("structured elements, as in a record array, are not a tensor's"))
            }
            _ => self.text(),
        }
    }

    fn boolean(&mut self) -> Result<bool> {
        self.peek();
        match self.until(|byte| !byte.is_ascii_alphanumeric()) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => Err(Error::invalid("True or False is expected")),
        }
    }

    /// A tuple of sizes.
    fn sizes(&mut self) -> Result<Vec<u64>> {
        let mut sizes = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            let size = self.size()?;
            if sizes.len() <= DIMENSIONS_MAX {
                sizes.push(size);
            }
            let comma = self.take(b',');
            if !comma && sizes.len() < 2 {
                return Err(Error::invalid("shape is not a tuple"));
            }
            if !comma {
                self.expect(b')')?;
                break;
            }
        }
        Ok(sizes)
    }

    fn size(&mut self) -> Result<u64> {
        self.peek();
        let word = self.until(|byte| !byte.is_ascii_alphanumeric() && byte != b'-');
        let digits = word.strip_suffix(b"L").unwrap_or(word);
        let zeros_lead = digits.len() > 1 && digits.first() == Some(&b'0');
        std::str::from_utf8(digits)
            .ok()
            .filter(|digits| !zeros_lead && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| {
                let word = String::from_utf8_lossy(word);
                Error::invalid(format!("{word:?} is not the size of a dimension"))
            })
    }
}
