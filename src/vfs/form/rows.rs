//! One array over the embedding batches and arrays of a directory: `all.npy`, `all.fbin` and `all.fvecs` in `.as/npy`.
//!
//! | file | before the rows | a row | elements |
//! |---|---|---|---|
//! | `all.npy` | a header of NumPy, 4,096 bytes | its elements | those of the arrays |
//! | `all.fbin` | the number of rows u32, the length of a row u32 | its elements | f32 |
//! | `all.fvecs` | nothing | its length u32, its elements | f32 |
//!
//! The header has the same length for every number of rows. So rows keep their places when files are added whose names
//! sort after the others. `vfs/tree/rows.rs` says what becomes of open files when names come in between.

use std::sync::Arc;

use crate::format::files::npy;
use crate::format::log::catalog::Content;
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape, quoted_name};
use crate::store::{Collection, Node, State};
use crate::stream::is_castable;
use crate::vfs::form::batch::DIMENSION_MAX;
use crate::vfs::form::kind::RowFormat;
use crate::vfs::form::names::wrapped_dtype;
use crate::vfs::form::pieces::{ALIGNMENT, tensor};
use crate::vfs::form::plan::pieces;
use crate::vfs::form::recipe::{Part, Recipe, Shown, Source};
use crate::vfs::form::vectors::bytes_of_vectors;

/// The most files of a directory that are shown as one array.
const MEMBERS_MAX: usize = 1 << 14;
/// Bytes before the rows of `all.fbin`.
const COUNTS_BYTES: u64 = 8;

/// A file with rows.
struct Member {
    file: Arc<Node>,
    tensor: Arc<Node>,
    rows: u64,
}

/// The files of a directory that have rows, in the order of their names. At least one.
pub struct Members {
    members: Vec<Member>,
    dtype: Dtype,
    /// Elements of a row, at least one.
    dimension: u64,
    rows: u64,
}

impl Members {
    /// Those of no files, for tests.
    #[cfg(test)]
    pub fn none(dtype: Dtype, dimension: u64, rows: u64) -> Members {
        Members { members: Vec::new(), dtype, dimension, rows }
    }

    /// The files with rows of a directory. Takes time in proportion to its names.
    ///
    /// # Errors
    /// `NotFound` without such files, `Unsupported` for files that are not one array.
    pub fn of(state: &State, directory: EntryId) -> Result<Members> {
        let names = state.directory(directory);
        let names = names.ok_or_else(|| Error::new(ErrorKind::NotDirectory, "not a directory of files"))?;
        let entries = names.after(EntryId(0));
        let files = entries.filter_map(|(_, name, id)| Some((name, state.node(id)?)));
        let mut files: Vec<_> = files.filter(|(_, node)| may_have_rows(node)).take(MEMBERS_MAX + 1).collect();
        if files.len() > MEMBERS_MAX {
            let text = format!("it has more than {MEMBERS_MAX} batches and arrays");
            return Err(Error::unsupported(text));
        }
        files.sort_unstable_by_key(|(name, _)| *name);
        let mut found: Option<Members> = None;
        for (name, file) in &files {
            let refused = |text: String| {
                let name = String::from_utf8_lossy(name);
                Error::unsupported(format!("{:?} {text}", quoted_name(&name)))
            };
            let (tensor, dtype, [rows, dimension]) = matrix(state, file).map_err(refused)?;
            let member = Member { file: (*file).clone(), tensor, rows };
            match &mut found {
                None => found = Some(Members { members: vec![member], dtype, dimension, rows }),
                Some(all) if (all.dtype, all.dimension) != (dtype, dimension) => {
                    let first = files.first().map(|(name, _)| String::from_utf8_lossy(name));
                    let first = first.unwrap_or_default();
                    return Err(refused(format!(
                        "has rows of {dimension} {dtype}, {:?} of {} {}",
                        quoted_name(&first),
                        all.dimension,
                        all.dtype
                    )));
                }
                Some(all) => {
                    all.rows = all.rows.saturating_add(rows);
                    all.members.push(member);
                }
            }
        }
        let found = found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "it has no embedding batches and no arrays of two dimensions")
        })?;
        found.bytes(RowFormat::Fvecs).map(|_| found)
    }

    /// Whether these begin with the rows of others, which so keep their places.
    pub fn begin_with(&self, others: &Members) -> bool {
        let is_same = |(one, other): (&Member, &Member)| {
            (one.file.entry.id, one.rows) == (other.file.entry.id, other.rows)
        };
        (self.dtype, self.dimension) == (others.dtype, others.dimension)
            && self.members.len() >= others.members.len()
            && self.members.iter().zip(&others.members).all(is_same)
    }

    /// The number of files.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.members.iter().map(|member| &member.file)
    }

    /// Fails with `Unsupported` where a format cannot have these rows.
    pub fn check(&self, format: RowFormat) -> Result<()> {
        let refused = |text: String| Err(Error::unsupported(text));
        match format {
            RowFormat::Npy => return Ok(()),
            _ if !is_castable(self.dtype) => {
                return refused(format!("{} elements are not floats", self.dtype));
            }
            _ if self.dimension > u64::from(DIMENSION_MAX) => {
                return refused(format!("rows of {} elements, more than {DIMENSION_MAX}", self.dimension));
            }
            RowFormat::Fbin if self.rows > u64::from(u32::MAX) => {
                return refused(format!("{} rows, more than {}", self.rows, u32::MAX));
            }
            RowFormat::Fbin | RowFormat::Fvecs => {}
        }
        Ok(())
    }

    /// The names of the files that cannot have these rows, with the reason.
    pub fn why_refused(&self) -> Option<String> {
        let refused =
            RowFormat::ALL.into_iter().filter_map(|format| Some((format, self.check(format).err()?)));
        let (formats, errors): (Vec<RowFormat>, Vec<Error>) = refused.unzip();
        let names: Vec<&str> = formats.into_iter().map(RowFormat::name).collect();
        Some(format!("{}: {}", names.join(" and "), errors.first()?))
    }

    /// Bytes of the file in a format. Fails with `Unsupported` for more than 2^63 - 1.
    pub fn bytes(&self, format: RowFormat) -> Result<u64> {
        let plain = |bytes: Option<u64>| bytes.and_then(|bytes| bytes.checked_mul(self.rows));
        let rows = match format {
            RowFormat::Npy => plain(self.dtype.bytes_of(self.dimension)),
            RowFormat::Fbin => plain(self.dimension.checked_mul(4)),
            RowFormat::Fvecs => bytes_of_vectors(self.rows, self.dimension),
        };
        let begin = self.begin(format)?.len() as u64;
        let bytes = rows.and_then(|bytes| bytes.checked_add(begin)).filter(|bytes| *bytes <= i64::MAX as u64);
        bytes.ok_or_else(|| Error::unsupported("its rows have more than 2^63 - 1 bytes"))
    }

    /// The bytes before the rows.
    fn begin(&self, format: RowFormat) -> Result<Vec<u8>> {
        match format {
            RowFormat::Npy => {
                let shape = Shape::new(&[self.rows, self.dimension]);
                let shape = shape.ok_or_else(|| Error::unsupported("its rows have too many elements"))?;
                npy::write_header(self.dtype, &shape, ALIGNMENT as usize)
            }
            RowFormat::Fvecs => Ok(Vec::new()),
            RowFormat::Fbin => {
                let mut bytes = Vec::with_capacity(COUNTS_BYTES as usize);
                for number in [self.rows, self.dimension] {
                    // `check` refuses larger ones.
                    bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
                }
                Ok(bytes)
            }
        }
    }

    /// The file in a format. Fails with `Gone` if a file is no longer as it was.
    pub fn recipe(
        &self,
        collection: &Arc<Collection>,
        directory: &Node,
        format: RowFormat,
    ) -> Result<Recipe> {
        self.check(format)?;
        let gone = || Error::new(ErrorKind::Gone, "a file with rows was replaced");
        let begin = self.begin(format)?;
        let mut parts = Vec::with_capacity(self.members.len() + 1);
        if !begin.is_empty() {
            parts.push(Part::Literal(begin));
        }
        for member in &self.members {
            let (source, entry) = tensor(&pieces(collection, &member.tensor)?.1)?;
            if *entry.shape.dimensions() != [member.rows, self.dimension] {
                return Err(gone());
            }
            let to = match format {
                RowFormat::Npy => {
                    wrapped_dtype(source.dtype).filter(|to| *to == self.dtype).ok_or_else(gone)?
                }
                _ => Dtype::F32,
            };
            let shown = if to == source.dtype { source.shown } else { Shown::Cast(to) };
            let source = Source { shown, ..source };
            parts.push(match format {
                RowFormat::Npy | RowFormat::Fbin => Part::Source(source),
                RowFormat::Fvecs => Part::Vectors { source, rows: member.rows, dimension: self.dimension },
            });
        }
        let created_at = directory.entry.created_at;
        Ok(Recipe { collection: collection.clone(), created_at, parts, inputs: Vec::new() })
    }
}

/// Whether a file may have rows: a batch, an array, a tensor that is a file.
fn may_have_rows(node: &Node) -> bool {
    let file = node.file();
    file.is_some_and(|file| matches!(file.content, Content::Cgeb | Content::Npy | Content::Tensor))
}

/// The matrix of a file, the type of its elements as a file of NumPy has them, and its dimensions. Fails with the reason.
fn matrix(state: &State, node: &Arc<Node>) -> std::result::Result<(Arc<Node>, Dtype, [u64; 2]), String> {
    let none = || "has no array".to_owned();
    let file = node.file().ok_or_else(none)?;
    let tensor = match file.content {
        Content::Tensor => Some(node),
        _ => state.parts(file).next(),
    };
    let tensor = tensor.ok_or_else(none)?;
    let own = tensor.file().ok_or_else(none)?;
    // A batch whose vectors are no tensor may have others.
    if file.content == Content::Cgeb && own.objects.first() != file.objects.first() {
        return Err(none());
    }
    let entry = own.tensor.as_ref().ok_or_else(none)?;
    let dtype = wrapped_dtype(entry.dtype).filter(|dtype| *dtype != Dtype::F4);
    let dtype = dtype.ok_or_else(|| format!("has elements of type {}", entry.dtype))?;
    match entry.shape.dimensions() {
        [rows, dimension] if *dimension > 0 => Ok((tensor.clone(), dtype, [*rows, *dimension])),
        _ => Err(format!("has the shape {:?}, not rows of one length", entry.shape.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::Members;
    use crate::model::Dtype;

    #[test]
    fn the_files_that_are_refused_are_named() {
        let why = |dtype, dimension, rows| Members::none(dtype, dimension, rows).why_refused();
        assert_eq!(why(Dtype::F32, 4, 1 << 31), None);
        let many = why(Dtype::F32, 4, 1 << 32).unwrap();
        assert!(many.starts_with("all.fbin: 4294967296 rows"), "{many}");
        let integers = why(Dtype::I64, 4, 1 << 32).unwrap();
        assert!(integers.starts_with("all.fvecs and all.fbin: i64 elements"), "{integers}");
    }
}
