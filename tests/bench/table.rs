//! The table: one row for each figure, with its reference and its target.

use std::rc::Rc;

use crate::place::Place;
use crate::{Result, inside, through};

/// The target of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// Ratio to the reference, at least; more is better.
    RatioAtLeast(f64),
    /// Ratio to the reference, at most; less is better.
    RatioAtMost(f64),
    /// The figure itself, in the row's unit, at least.
    AtLeast(f64),
    /// The figure itself, in the row's unit, at most.
    AtMost(f64),
    /// No target.
    Nothing,
}

/// Shows that answers were compared, byte for byte or by digest, before the measurement. Only the functions below make
/// one.
#[derive(Debug)]
pub struct Checked(());

impl Checked {
    /// Two digests of all bytes.
    pub fn digest(what: &str, ours: blake3::Hash, expected: blake3::Hash) -> Result<Checked> {
        match ours == expected {
            true => Ok(Checked(())),
            false => Err(format!("wrong bytes: {what}: BLAKE3 {ours} where {expected} is right").into()),
        }
    }

    /// The bytes themselves.
    pub fn bytes(what: &str, ours: &[u8], expected: &[u8]) -> Result<Checked> {
        if ours == expected {
            return Ok(Checked(()));
        }
        let place = ours.iter().zip(expected).take_while(|(ours, expected)| ours == expected).count();
        Err(format!("wrong bytes: {what}: the first at {place} of {}", expected.len()).into())
    }

    /// Values other than bytes.
    pub fn holds(what: &str, is_so: bool) -> Result<Checked> {
        if is_so { Ok(Checked(())) } else { Err(format!("wrong answer: {what}").into()) }
    }

    /// Both.
    pub fn and(self, _other: Checked) -> Checked {
        self
    }
}

/// One pass: its figure in the row's unit.
pub type Pass = Box<dyn FnMut() -> Result<f64>>;

/// A measurement that is ready to run.
pub struct Contest {
    /// The pass of tierfs.
    pub ours: Pass,
    /// The pass of the reference.
    pub reference: Option<Pass>,
}

impl Contest {
    /// Two passes that are measured in turn.
    pub fn new(
        _checked: Checked,
        ours: impl FnMut() -> Result<f64> + 'static,
        reference: impl FnMut() -> Result<f64> + 'static,
    ) -> Result<Contest> {
        Ok(Contest { ours: Box::new(ours), reference: Some(Box::new(reference)) })
    }

    /// One pass with a bound of its own.
    pub fn alone(_checked: Checked, ours: impl FnMut() -> Result<f64> + 'static) -> Result<Contest> {
        Ok(Contest { ours: Box::new(ours), reference: None })
    }
}

/// Prepares a row: makes its input and checks the answers.
pub type Prepare = Box<dyn Fn(&Rc<Place>) -> Result<Contest>>;

/// One row.
pub struct Row {
    /// Its name, for the command line.
    pub name: String,
    /// Rows that share their input; it is dropped when the next family begins.
    pub family: String,
    /// The measured operation.
    pub what: String,
    /// The reference; empty for none.
    pub reference: String,
    /// The unit of both figures.
    pub unit: &'static str,
    /// The target.
    pub target: Target,
    /// Prepares the measurement.
    pub prepare: Prepare,
}

impl Row {
    /// Makes a row; `name` is its family, a dot, and its own name.
    pub fn new(
        name: impl Into<String>,
        what: impl Into<String>,
        reference: impl Into<String>,
        unit: &'static str,
        target: Target,
        prepare: impl Fn(&Rc<Place>) -> Result<Contest> + 'static,
    ) -> Row {
        let name = name.into();
        let family = name.split('.').next().unwrap_or_default().to_owned();
        let (what, reference) = (what.into(), reference.into());
        Row { name, family, what, reference, unit, target, prepare: Box::new(prepare) }
    }

    /// Whether it goes through a mount.
    pub fn is_through(&self) -> bool {
        ["mount-", "decoded-", "form-mount", "form-decoded", "remote"]
            .iter()
            .any(|family| self.family.starts_with(family))
    }
}

/// All rows, those with the same input next to each other.
pub fn rows() -> Vec<Row> {
    let mut rows = through::rows();
    rows.extend(inside::rows());
    rows
}
