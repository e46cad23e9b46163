//! Codes of floats of eight bits: the products of a group are rounded once, and looked up for many rows.

use super::{Alphabet, Row, Spread};
use crate::codec::arch::{InstructionSet, Job, Kernel};
use crate::model::{Dtype, Error, Result};

/// Codes without their signs.
const MAGNITUDES: usize = 128;
/// Bytes of an element.
const EACH: usize = 2;
/// Values that are looked up at a time.
const STEP: usize = 64;

/// The products of all codes with the scale of each group, as elements of two bytes.
pub struct KnownProducts {
    /// Of each group the lower bytes of the elements, then the upper ones.
    tables: Vec<[u8; MAGNITUDES * EACH]>,
}

impl KnownProducts {
    /// Values that take as long to decode as the products of a group.
    pub const OF_A_GROUP: u64 = 2 * MAGNITUDES as u64;

    /// The products of groups with these scales. `None` if this instruction set decodes rows as fast without them, or if a
    /// product is not that of the other sign but for its sign.
    ///
    /// Fails as [`Row::decode`] does.
    pub fn new(
        set: InstructionSet,
        alphabet: &Alphabet,
        scales: &[f32],
        factor: f32,
        to: Dtype,
    ) -> Result<Option<KnownProducts>> {
        let is_signed = matches!(alphabet, Alphabet::E4m3 | Alphabet::E5m2);
        if !is_signed || to.bytes() as usize != EACH || !set.run(HasLongTables) {
            return Ok(None);
        }
        let mut codes = [0; 2 * MAGNITUDES];
        for (code, number) in codes.iter_mut().zip(0_u8..=255) {
            *code = number;
        }
        let mut tables = Vec::with_capacity(scales.len());
        for scale in scales {
            let mut products = [0; 2 * MAGNITUDES * EACH];
            let row = Row {
                alphabet,
                codes: &codes,
                skip: 0,
                scales: Spread::Groups { len: 2 * MAGNITUDES, first: 2 * MAGNITUDES, numbers: &[*scale] },
                zeros: None,
                factor,
                divisor: 1.0,
            };
            row.decode_with(set, to, &mut products)?;
            let (above, below) = products.as_chunks::<EACH>().0.split_at(MAGNITUDES);
            let mut table = [0; MAGNITUDES * EACH];
            let (lower, upper) = table.split_at_mut(MAGNITUDES);
            for ((lower, upper), [low, high]) in lower.iter_mut().zip(upper).zip(above) {
                (*lower, *upper) = (*low, *high);
            }
            if !above.iter().zip(below).all(|(above, below)| [above[0], above[1] ^ 0x80] == *below) {
                return Ok(None);
            }
            tables.push(table);
        }
        Ok(Some(KnownProducts { tables }))
    }

    /// Decodes as many values as `out` has room for. They are of the groups from `group` on, which have `len` values each, the
    /// first of them `left`.
    ///
    /// Fails with [`Invalid`](crate::model::ErrorKind::Invalid) if there are fewer codes or groups than values.
    pub fn decode(
        &self,
        set: InstructionSet,
        codes: &[u8],
        group: usize,
        len: usize,
        left: usize,
        out: &mut [u8],
    ) -> Result<()> {
        let count = out.len() / EACH;
        let tables = self.tables.get(group..).unwrap_or_default();
        let more = count.saturating_sub(left).div_ceil(len.max(1));
        let is_covered = len > 0 && left > 0 && tables.len() > more && codes.len() >= count;
        if !is_covered || !out.len().is_multiple_of(EACH) {
            return Err(Error::invalid(format!("{} codes do not give {count} values", codes.len())));
        }
        set.run(LookUp { tables, codes, len, left, out });
        Ok(())
    }
}

struct HasLongTables;

impl Job for HasLongTables {
    type Output = bool;

    #[inline(always)]
    fn run<K: Kernel>(self, _: K) -> bool {
        K::HAS_LONG_TABLES
    }
}

struct LookUp<'a> {
    tables: &'a [[u8; MAGNITUDES * EACH]],
    codes: &'a [u8],
    len: usize,
    left: usize,
    out: &'a mut [u8],
}

impl Job for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let LookUp { tables, mut codes, len, mut left, out: mut rest } = self;
        for table in tables {
            let count = left.min(rest.len() / EACH);
            let (now, after) = codes.split_at(count);
            let (here, rest_of_out) = std::mem::take(&mut rest).split_at_mut(count * EACH);
            let (steps, tail) = now.as_chunks::<STEP>();
            let (outs, out_tail) = here.as_chunks_mut::<{ STEP * EACH }>();
            for (codes, out) in steps.iter().zip(outs) {
                kernel.look_up_signed(table, codes, out);
            }
            let (lower, upper) = table.split_at(MAGNITUDES);
            for (code, out) in tail.iter().zip(out_tail.as_chunks_mut().0) {
                let place = usize::from(code & 0x7f);
                *out = [lower[place], upper[place] ^ (code & 0x80)];
            }
            (codes, rest, left) = (after, rest_of_out, len);
        }
    }
}
