//! Shows safetensors files with their floats cast to another type.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::safetensors::{
    Entry, Header, Other, Role, entry, header_len, parse, write_entries,
};
use crate::format::log::catalog::TensorEntry;
use crate::model::{Dtype, Error, Result};
use crate::store::Collection;
use crate::store::Node;
use crate::stream::is_castable;
use crate::vfs::form::pieces::{ALIGNMENT, Piece};
use crate::vfs::form::recipe::{Part, Shown};
use crate::vfs::form::weights::Model;

/// The parts of a file with its floats cast, its weights decoded, and a new header. Codes that are not decoded, their scales,
/// and tensors that this program does not support are as in the file.
pub(super) fn cast(
    collection: &Arc<Collection>,
    container: &Node,
    pieces: &[Piece],
    to: Dtype,
) -> Result<Vec<Part>> {
    let model = Model::of(collection, container);
    let header = header(collection, pieces)?;
    let (empty, others): (Vec<&Other>, Vec<&Other>) =
        header.others.iter().partition(|other| other.begin == other.end);
    let mut others: HashMap<u64, &Other> = others.into_iter().map(|other| (other.begin, other)).collect();
    let mut found = Vec::new();
    let mut at = 0;
    for piece in pieces {
        let (begin, bytes) = (at, piece.bytes());
        at += bytes;
        if let Some((_, tensor)) = &piece.tensor {
            match model.role(&tensor.name) {
                Role::Hidden => {}
                Role::Weight(weight) => found.push((Named::Weight, Part::Weight(model.shown(*weight, to)?))),
                role => {
                    let is_cast =
                        is_castable(tensor.dtype) && role == Role::Plain && !piece.is_part_of_weight;
                    let (dtype, shown) =
                        if is_cast { (to, Shown::Cast(to)) } else { (tensor.dtype, Shown::Plain) };
                    let part = Part::Source(piece.source(tensor, shown)?);
                    found.push((Named::Tensor(tensor, dtype), part));
                }
            }
        } else if let Some(other) = others.remove(&begin).filter(|other| other.end == at) {
            found.push((Named::Other(other), piece.plain()));
        }
    }
    check_all_found(&others)?;
    let entries = found.iter().map(|(named, part)| match (named, part) {
        (Named::Tensor(tensor, dtype), _) => entry(&tensor.name, *dtype, &tensor.shape),
        (Named::Other(other), _) => Ok(unchanged(other)),
        (Named::Weight, Part::Weight(shown)) => entry(&shown.weight.name, to, &shown.weight.shape),
        (Named::Weight, _) => Err(Error::invalid("a weight without its tensors")),
    });
    let mut entries: Vec<Entry<'_>> = entries.collect::<Result<_>>()?;
    entries.extend(empty.into_iter().map(unchanged));
    let head = write_entries(&entries, &header.metadata, ALIGNMENT)?;
    Ok([Part::Literal(head)].into_iter().chain(found.into_iter().map(|(_, part)| part)).collect())
}

/// Fails if a tensor of the header is left, at the offset of which no object begins.
pub(super) fn check_all_found(left: &HashMap<u64, &Other>) -> Result<()> {
    let Some(other) = left.values().min_by_key(|other| other.begin) else { return Ok(()) };
    let text =
        format!("tensor {:?} of a safetensors file has no object in the store; run tierfs fsck", other.name);
    Err(Error::corrupt(text))
}

/// The tensor that a part shows.
enum Named<'a> {
    Tensor(&'a TensorEntry, Dtype),
    Other(&'a Other),
    Weight,
}

pub(super) fn unchanged(other: &Other) -> Entry<'_> {
    let Other { name, type_name, dimensions, begin, end, .. } = other;
    Entry { name, type_name, dimensions, bytes: end - begin }
}

/// The header of a file.
pub(super) fn header(collection: &Arc<Collection>, pieces: &[Piece]) -> Result<Header> {
    let stream = Piece::stream_of(collection, pieces.iter())?;
    let mut first = [0; 8];
    stream.read_exact(0, &mut first)?;
    let mut json = vec![0; header_len(first, stream.bytes())? as usize];
    stream.read_exact(8, &mut json)?;
    parse(&json, stream.bytes(), &mut Budget::default())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{check_all_found, parse};
    use crate::format::budget::Budget;
    use crate::model::ErrorKind;

    #[test]
    fn a_tensor_of_the_header_that_no_object_begins_is_told() {
        let json = br#"{"odd":{"dtype":"X9","shape":[4],"data_offsets":[8,12]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let header = parse(json, 8 + json.len() as u64 + 12, &mut Budget::default()).unwrap();
        let mut left: HashMap<_, _> = header.others.iter().map(|other| (other.begin, other)).collect();
        let error = check_all_found(&left).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("\"odd\""), "{error}");
        left.clear();
        check_all_found(&left).unwrap();
    }
}
