//! Codes of four bits in long groups: the sixteen products of a group are rounded once, and then looked up.

use std::ops::Range;

use super::product::{Products, Scratch};
use super::{Row, Spread};
use crate::codec::arch::{Job, Kernel};
use crate::model::Dtype;

/// Numbers that four bits can have.
const CODES: usize = 16;
/// Bytes of an element, and of the products of a group.
const EACH: usize = 2;
const TABLE: usize = CODES * EACH;
/// Groups whose products are computed at a time.
const GROUPS: usize = 16;
/// Values that are looked up at a time.
const STEP: usize = 32;

/// All codes of the groups of a step, the lower half of a byte first and the upper.
const LOWER_FIRST: [u8; GROUPS * CODES / 2] = all_codes(0, 4);
const UPPER_FIRST: [u8; GROUPS * CODES / 2] = all_codes(4, 0);

const fn all_codes(first: u32, second: u32) -> [u8; GROUPS * CODES / 2] {
    let mut codes = [0; GROUPS * CODES / 2];
    let mut at = 0;
    while at < codes.len() {
        let even = (at * 2 % CODES) as u8;
        codes[at] = even << first | (even + 1) << second;
        at += 1;
    }
    codes
}

/// Decodes a row of pairs to elements of two bytes. The lengths have been checked.
pub(super) struct LookUp<'a> {
    row: &'a Row<'a>,
    to: Dtype,
    out: &'a mut [u8],
    scratch: &'a mut Scratch,
    /// The length of a group, and the values that are left of the first.
    groups: (usize, usize),
    is_upper_first: bool,
}

impl<'a> LookUp<'a> {
    /// The job, or the other one if that takes less time.
    pub fn new(
        row: &'a Row<'a>,
        to: Dtype,
        out: &'a mut [u8],
        scratch: &'a mut Scratch,
    ) -> Result<LookUp<'a>, Products<'a, EACH>> {
        let zeros = row.zeros.map(Spread::groups);
        match (row.alphabet.is_upper_first(), row.scales.groups()) {
            (Some(is_upper_first), Some((len, first)))
                if len.is_multiple_of(STEP) && zeros.is_none_or(|zeros| zeros == Some((len, first))) =>
            {
                Ok(LookUp { row, to, out, scratch, groups: (len, first), is_upper_first })
            }
            _ => Err(Products { row, to, out, scratch }),
        }
    }
}

impl Job for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        if self.is_upper_first { decode::<K, true>(kernel, self) } else { decode::<K, false>(kernel, self) }
    }
}

#[inline(always)]
fn decode<K: Kernel, const IS_UPPER_FIRST: bool>(kernel: K, job: LookUp<'_>) {
    let LookUp { row, to, out, scratch, groups: (len, mut left), .. } = job;
    let mut tables = [0; GROUPS * TABLE];
    let (mut at, mut rest, mut group) = (row.skip, out, 0);
    while !rest.is_empty() {
        // Those of the values that are left, of which there are enough.
        let count = 1 + (rest.len() / EACH).saturating_sub(left).div_ceil(len);
        let known = group..group + count.min(GROUPS);
        let tables = &mut tables[..known.len() * TABLE];
        let codes = if IS_UPPER_FIRST { &UPPER_FIRST } else { &LOWER_FIRST };
        let scales = of_groups(row.scales, &known);
        let zeros = row.zeros.map(|zeros| of_groups(zeros, &known));
        let all = Row { codes, skip: 0, scales, zeros, ..*row };
        Products::<EACH> { row: &all, to, out: tables, scratch: &mut *scratch }.run(kernel);
        for table in tables.as_chunks::<TABLE>().0 {
            let count = left.min(rest.len() / EACH);
            let (here, after) = std::mem::take(&mut rest).split_at_mut(count * EACH);
            look_up::<K, IS_UPPER_FIRST>(kernel, table, row.codes, at, here);
            at += count;
            rest = after;
            left = len;
        }
        group = known.end;
    }
}

/// The numbers of some groups, each for all codes.
fn of_groups<'a>(numbers: Spread<'a>, groups: &Range<usize>) -> Spread<'a> {
    let numbers = numbers.numbers().get(groups.clone()).unwrap_or_default();
    Spread::Groups { len: CODES, first: CODES, numbers }
}

/// Looks up the codes from one on.
#[inline(always)]
fn look_up<K: Kernel, const IS_UPPER_FIRST: bool>(
    kernel: K,
    table: &[u8; TABLE],
    codes: &[u8],
    at: usize,
    out: &mut [u8],
) {
    let products = table.as_chunks::<EACH>().0;
    let single = |at: usize, out: &mut [u8]| {
        for (at, out) in (at..).zip(out.as_chunks_mut().0) {
            let byte = codes.get(at / 2).copied().unwrap_or_default();
            let is_upper = at.is_multiple_of(2) == IS_UPPER_FIRST;
            let code = if is_upper { byte >> 4 } else { byte & 15 };
            *out = products[usize::from(code)];
        }
    };
    let (head, rest) = out.split_at_mut((at % 2 * EACH).min(out.len()));
    single(at, head);
    let at = at.next_multiple_of(2);
    let whole = codes.get(at / 2..).unwrap_or_default().as_chunks().0;
    let (steps, tail) = rest.as_chunks_mut::<{ STEP * EACH }>();
    let done = at + steps.len() * STEP;
    for (codes, out) in whole.iter().zip(steps) {
        kernel.look_up_pairs::<IS_UPPER_FIRST>(table, codes, out);
    }
    single(done, tail);
}
