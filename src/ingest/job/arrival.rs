//! The settings of a directory for what arrives in it.
//!
//! They apply when a program closes a file that is new there, or renames it into place: `arrive` chooses the tier of its
//! tensors, `dtype` and `row` make a tensor of a file that no format describes, `head_dim` and `block_bytes` cut the
//! blocks. `tail` and `back` keep the last rows of a tensor exact and move those further back (`engine/tails.rs`), in
//! place of `arrive`. Files with hidden and temporary names wait for their last name.

use std::sync::Arc;

use crate::format::log::catalog::{Content, FileEntry};
use crate::ingest::job::import_file::has_codes;
use crate::ingest::job::mounted_file::may_be_recognized;
use crate::ingest::recognize::archives::COMMON_SUFFIX;
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::parts::{PartTensor, Recognized, WholeTensor};
use crate::model::{
    Aim, Back, Dtype, Encoder, EntryId, Error, KeptBy, Loss, MoveTo, NameIn, Result, Shape, Tail, Tier,
    packs, packs_blocks_of,
};
use crate::store::{
    ARRIVE, BACK, BLOCK_BYTES, Collection, DTYPE, ENCODER, HEAD_DIM, LOSSY, PACK, ROW, State, TAIL,
};

/// The value of `dtype`, `row`, `head_dim`, `block_bytes`, `tail` and `back` that ends what a directory above says.
const NONE: &str = "none";

/// Endings of names that programs give to files which they are still writing.
const TEMPORARY: [&[u8]; 11] = [
    b"~",
    b".tmp",
    b".temp",
    b".part",
    b".partial",
    b".incomplete",
    b".crdownload",
    b".download",
    b".lock",
    b".swp",
    b".aria2",
];
/// How files arrive at a place.
#[derive(Default)]
pub struct Arrival {
    /// The tier of float tensors; exact if `None`.
    to: Option<MoveTo>,
    /// How far precision may be lost there.
    loss: Loss,
    /// Whether tensors that stay exact are packed.
    packs: bool,
    /// Whether `arrive` says so, rather than `pack`.
    is_packed_by_arrive: bool,
    /// The element type of files that no format describes.
    dtype: Option<Dtype>,
    /// Their shape without its first dimension.
    row: Option<Shape>,
    blocking: Blocking,
    encoder: Encoder,
    tail: Option<Tail>,
}

/// A tensor whose tier is asked for.
pub struct Arriving<'a> {
    pub dtype: Dtype,
    pub shape: &'a Shape,
    pub name: &'a str,
    /// Whether its file has codes.
    pub has_codes: bool,
    /// Whether its elements are those of other tensors, or have a checksum beside them.
    pub is_bound: bool,
    /// Length of its blocks.
    pub block_bytes: u32,
}

impl Arrival {
    /// How files arrive where nothing but `pack` is set.
    pub fn by_default(collection: &Collection, node: EntryId, place: EntryId) -> Arrival {
        let state = collection.state();
        let own = state.setting(node, PACK).is_some();
        Arrival { packs: collection.packs(&state, if own { node } else { place }), ..Arrival::default() }
    }

    /// How a file arrives at a name. Settings of its own count first.
    pub fn at(collection: &Collection, node: EntryId, to: NameIn<'_>) -> Arrival {
        let plain = Arrival::by_default(collection, node, to.directory);
        let state = collection.state();
        if !state.has_settings_of_arrivals() || is_temporary(to.name) || state.is_pinned_with_container(node)
        {
            return plain;
        }
        let value = |key| state.setting(node, key).or_else(|| state.inherited(to.directory, key));
        let arrive = value(ARRIVE).and_then(|text| parse_tier(text).ok());
        let is_packed_by_arrive = arrive.is_some_and(|to| to.aim == Aim::Pack);
        let number = |key| value(key).and_then(|text| text.parse::<u64>().ok());
        let by_position = number(HEAD_DIM).and_then(|elements| Blocking::head_dim(elements).ok());
        let back = value(BACK).and_then(|text| Back::parse(text).ok());
        let tail = number(TAIL).filter(|rows| *rows > 0).zip(back).map(|(rows, back)| Tail { rows, back });
        let by_bytes = || number(BLOCK_BYTES).and_then(|bytes| Blocking::bytes(bytes).ok());
        Arrival {
            to: arrive.filter(|to| !to.aim.tier().is_exact()),
            loss: Loss::parse(value(LOSSY).unwrap_or_default()),
            packs: plain.packs || is_packed_by_arrive,
            is_packed_by_arrive,
            dtype: value(DTYPE).and_then(Dtype::from_name),
            row: value(ROW).and_then(|text| parse_row(text).ok()),
            blocking: by_position.or_else(by_bytes).unwrap_or_default(),
            encoder: value(ENCODER).and_then(Encoder::from_name).unwrap_or_default(),
            tail,
        }
    }

    /// How a file arrives at its first name.
    pub fn of(collection: &Collection, node: EntryId) -> Arrival {
        let first = collection.state().links(node).first().cloned();
        match first {
            Some((directory, name)) => Arrival::at(collection, node, NameIn { directory, name: &name }),
            None => Arrival::default(),
        }
    }

    /// Whether nothing but `pack` says how it arrives.
    pub fn is_plain(&self) -> bool {
        self.to.is_none()
            && !self.is_packed_by_arrive
            && self.dtype.is_none()
            && self.tail.is_none()
            && self.blocking == Blocking::default()
    }

    pub fn blocking(&self) -> Blocking {
        self.blocking
    }

    pub fn encoder(&self) -> Encoder {
        self.encoder
    }

    /// The tail of the tensors of the file.
    pub fn into_tail(self) -> Option<Tail> {
        self.tail
    }

    /// The tier of a tensor. `None` if it stays exact and verbatim.
    pub fn tier_of(&self, collection: &Collection, tensor: &Arriving<'_>) -> Option<Tier> {
        let Arriving { dtype, block_bytes, .. } = *tensor;
        let rounded = self.wanted(collection, tensor).filter(|tier| self.loss.allows(*tier));
        rounded
            .or_else(|| (self.packs && packs(dtype) && packs_blocks_of(block_bytes)).then_some(Tier::Packed))
    }

    /// The tier with rounded values that `arrive` names for a tensor, whatever `lossy` says.
    fn wanted(&self, collection: &Collection, tensor: &Arriving<'_>) -> Option<Tier> {
        let to = self.to.filter(|_| self.follows_tail(collection, tensor).is_none())?;
        self.is_taken(collection, tensor, to).then_some(to.aim.tier())
    }

    fn is_taken(&self, collection: &Collection, tensor: &Arriving<'_>, to: MoveTo) -> bool {
        let keeps = || -> Option<KeptBy> { collection.kept_by(tensor.name, tensor.has_codes) };
        !tensor.is_bound && to.takes(tensor.dtype, tensor.shape, keeps)
    }

    /// The tail of a tensor whose rows go to tiers by it, so that `arrive` does not concern it.
    fn follows_tail(&self, collection: &Collection, tensor: &Arriving<'_>) -> Option<&Tail> {
        self.tail.as_ref().filter(|tail| self.is_taken(collection, tensor, tail.back.takes()))
    }

    /// The first tier of the rows behind the tail of a tensor that `lossy` forbids.
    fn refused_behind_tail(&self, collection: &Collection, tensor: &Arriving<'_>) -> Option<Tier> {
        let tail = self.follows_tail(collection, tensor)?;
        tail.back.behind(tail.rows).map(|step| step.tier).find(|tier| !self.loss.allows(*tier))
    }

    /// Why tensors of the file stay exact, if `lossy` forbids the tier that `arrive` names for any.
    fn refusal(&self, collection: &Collection, recognized: &Recognized) -> Option<String> {
        let beside = Beside::of(recognized);
        let tensors = recognized.parts.iter().filter_map(|part| part.tensor.as_ref());
        let mut behind = tensors
            .clone()
            .filter_map(|it| self.refused_behind_tail(collection, &beside.arriving(it, self.blocking)?));
        if let Some(tier) = behind.next() {
            return Some(format!(
                "rows are kept above {tier}: back={tier} needs lossy=allow or lossy=allow:{tier}"
            ));
        }
        let mut wanted =
            tensors.filter_map(|it| self.wanted(collection, &beside.arriving(it, self.blocking)?));
        let tier = wanted.find(|tier| !self.loss.allows(*tier))?;
        Some(format!("kept exact: arrive={tier} needs lossy=allow or lossy=allow:{tier}"))
    }

    /// The tier of a tensor of a file. `None` if it stays exact and verbatim.
    pub(in crate::ingest) fn tier_in(
        &self,
        collection: &Collection,
        beside: Beside,
        tensor: &PartTensor,
    ) -> Option<Tier> {
        self.tier_of(collection, &beside.arriving(tensor, self.blocking)?)
    }

    /// Whether any tensor of a file goes to another tier than exact and verbatim.
    pub fn moves_any(&self, collection: &Collection, recognized: &Recognized) -> bool {
        let beside = Beside::of(recognized);
        let mut tensors = recognized.parts.iter().filter_map(|part| part.tensor.as_ref());
        tensors.any(|tensor| self.tier_in(collection, beside, tensor).is_some())
    }

    /// The file as one tensor, where the settings, or its entry in the log, say that it is one. Fails with `Invalid` for
    /// bytes that are not whole rows.
    fn shaped(
        &self,
        recognized: &Recognized,
        name: &[u8],
        file: Option<&FileEntry>,
    ) -> Result<Option<Recognized>> {
        let is_named = may_be_indexed(name) || recognized.shards.is_some();
        if recognized.content != Content::Plain || recognized.bytes == 0 || is_named {
            return Ok(None);
        }
        let known = || {
            let tensor = file.filter(|file| file.content == Content::Tensor)?.tensor.as_ref()?;
            Some(WholeTensor { dtype: tensor.dtype, shape: Some(tensor.shape.clone()) })
        };
        let whole = match self.dtype {
            Some(dtype) => WholeTensor { dtype, shape: self.rows(dtype, recognized.bytes)? },
            None => match known() {
                Some(whole) => whole,
                None => return Ok(None),
            },
        };
        recognized.clone().into_tensor(name, &whole).map(Some)
    }

    /// The shape of a file of whole rows. `None` without a row.
    fn rows(&self, dtype: Dtype, bytes: u64) -> Result<Option<Shape>> {
        let Some(row) = &self.row else { return Ok(None) };
        let row_bytes = dtype.bytes_of(row.elements()).filter(|bytes| *bytes > 0);
        let Some(row_bytes) = row_bytes else {
            return Err(Error::invalid(format!("a row of {row} is not whole blocks of {dtype}")));
        };
        let whole = || {
            let count = bytes.is_multiple_of(row_bytes).then_some(bytes / row_bytes)?;
            let mut sizes = vec![count];
            sizes.extend_from_slice(row.dimensions());
            Shape::new(&sizes)
        };
        whole().map(Some).ok_or_else(|| {
            Error::invalid(format!(
                "its {bytes} bytes are not whole rows of {row} {dtype}, {row_bytes} bytes each"
            ))
        })
    }

    /// Whether the blocks of a file are longer or shorter than the settings say.
    pub fn cuts_otherwise(&self, state: &State, file: &FileEntry, recognized: &Recognized) -> bool {
        let lengths =
            file.objects.iter().filter_map(|id| state.object(*id)).map(|object| object.entry.block_bytes);
        let wanted = recognized.parts.iter().map(|part| {
            let dtype = part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype);
            self.blocking.block_bytes(dtype, part.end - part.begin)
        });
        self.blocking != Blocking::default() && !lengths.eq(wanted)
    }
}

/// The index of a batch is read as it is.
fn may_be_indexed(name: &[u8]) -> bool {
    name.ends_with(b".cgei")
}

/// Whether a name is hidden, or one of a file that a program is still writing: with a usual ending, or with anything
/// after the suffix of a container.
pub fn is_temporary(name: &[u8]) -> bool {
    let has_ending = TEMPORARY.iter().any(|ending| name.ends_with(ending));
    let mut stem = name;
    let mut is_extended = false;
    while let Some(at) = stem.iter().rposition(|byte| *byte == b'.').filter(|_| !may_be_recognized(name)) {
        stem = stem.get(..at).unwrap_or_default();
        is_extended |= may_be_recognized(stem) && !stem.ends_with(COMMON_SUFFIX);
    }
    name.starts_with(b".") || has_ending || is_extended
}

/// Parses a value of `arrive`: exact, packed, or a tier with rounded values, perhaps with `:all`.
fn parse_tier(text: &str) -> Result<MoveTo> {
    let to = MoveTo::parse(text)?;
    match to.aim {
        Aim::Pack | Aim::Tier(Tier::Exact) if !to.all => Ok(to),
        Aim::Tier(tier) if !tier.is_exact() => Ok(to),
        _ => Err(Error::invalid(format!("{text} is not a tier for arriving files"))),
    }
}

/// Parses a value of `row`: sizes such as 8x128, none of them 0.
fn parse_row(text: &str) -> Result<Shape> {
    let row = Shape::parse(text).filter(|row| row.elements() > 0 && !row.dimensions().is_empty());
    let with_first = |row: &Shape| {
        let sizes: Vec<u64> = std::iter::once(1).chain(row.dimensions().iter().copied()).collect();
        Shape::new(&sizes).is_some()
    };
    row.filter(with_first)
        .ok_or_else(|| Error::invalid(format!("{text:?} is not a row; write sizes such as 8x128")))
}

/// Parses a setting of directories for the blocks of what arrives.
fn parse_blocking(key: &str, text: &str) -> Result<Blocking> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|_| is_plain);
    let number =
        number.ok_or_else(|| Error::invalid(format!("{key} is a whole number or {NONE}, not {text:?}")))?;
    if key == HEAD_DIM { Blocking::head_dim(number) } else { Blocking::bytes(number) }
}

/// Checks a value of a setting for what arrives. Returns it as the log has it.
pub fn checked_value(key: &str, text: &str) -> Result<String> {
    let invalid = |valid: &str| Error::invalid(format!("invalid value {text:?} of {key}; expected {valid}"));
    if key == ARRIVE {
        let valid = "exact, packed, or a tier such as q8, which may be followed by :all";
        return parse_tier(text).map(|to| to.variant_name()).map_err(|_| invalid(valid));
    }
    if text == NONE {
        return Ok(NONE.to_owned());
    }
    match key {
        DTYPE => {
            let dtype = Dtype::from_name(text);
            let dtype = dtype.ok_or_else(|| invalid("a type such as f32, bf16 or i8, or none"))?;
            Ok(dtype.name().to_owned())
        }
        ROW => {
            let valid = "the sizes of all dimensions but the first, such as 8x128, or none";
            parse_row(text).map(|row| row.to_string()).map_err(|_| invalid(valid))
        }
        HEAD_DIM | BLOCK_BYTES => parse_blocking(key, text).map(|_| text.to_owned()),
        BACK => Back::parse(text).map(|back| back.to_string()),
        TAIL => {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            // Without a tail the last blocks would go before they are whole, and what is appended to them would stay.
            let rows = text.parse::<u64>().ok().filter(|rows| is_plain && *rows > 0);
            rows.map(|rows| rows.to_string()).ok_or_else(|| {
                invalid("a number of rows from 1 on, or none; arrive=TIER keeps no rows exact")
            })
        }
        _ => Err(Error::invalid(format!("{key} is not a setting for arriving files"))),
    }
}

/// Properties of a file that concern all its tensors.
#[derive(Clone, Copy, Default)]
pub(in crate::ingest) struct Beside {
    has_codes: bool,
    has_checksums: bool,
}

impl Beside {
    pub fn of(recognized: &Recognized) -> Beside {
        Beside { has_codes: has_codes(recognized), has_checksums: recognized.content.has_checksums() }
    }

    /// A tensor of the file, unless it has no bytes of its own.
    fn arriving(self, tensor: &PartTensor, blocking: Blocking) -> Option<Arriving<'_>> {
        let PartTensor { name, dtype, shape, view, .. } = tensor;
        let bytes = dtype.bytes_of(shape.elements()).filter(|_| view.is_none())?;
        let block_bytes = blocking.block_bytes(*dtype, bytes);
        let Beside { has_codes, has_checksums: is_bound } = self;
        Some(Arriving { dtype: *dtype, shape, name, has_codes, is_bound, block_bytes })
    }
}

/// A recognized file, and the reason that its `why` gives, or an empty one.
pub struct Shaped {
    pub recognized: Recognized,
    pub why: String,
}

impl Arrival {
    /// Applies the settings to a file of this name. `why` is what its recognition says.
    pub fn apply(
        &self,
        collection: &Arc<Collection>,
        Shaped { recognized, why }: Shaped,
        name: &[u8],
        file: Option<&FileEntry>,
    ) -> Shaped {
        if self.is_plain() {
            return Shaped { recognized, why };
        }
        let (recognized, fault) = match self.shaped(&recognized, name, file) {
            Ok(shaped) => (shaped.unwrap_or(recognized), None),
            Err(error) => (recognized, Some(format!("kept as a plain file: {error}"))),
        };
        let fault = fault.or_else(|| self.refusal(collection, &recognized));
        let why = match fault {
            Some(fault) if why.is_empty() => fault,
            Some(fault) => format!("{why}; {fault}"),
            None => why,
        };
        Shaped { recognized, why }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_temporary, parse_blocking, parse_row, parse_tier};

    #[test]
    fn names_of_files_that_are_being_written_are_known() {
        let temporary =
            [".x", "x.tmp", "x.part", "x~", "x.safetensors.AbC12", "x.npy.1.2", ".x.npy.a", "x.gguf.aria2"];
        for name in temporary {
            assert!(is_temporary(name.as_bytes()), "{name}");
        }
        for name in
            ["x", "x.bin", "x.safetensors", "x.y.safetensors", "partial", "tmp", "a.tmp.bin", "kv.bin.01"]
        {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for text in ["exact", "packed", "q8", "warm5", "q3:all"] {
            assert!(parse_tier(text).is_ok(), "{text}");
        }
        for text in ["", "absent", "verbatim", "q8:again", "exact:all", "packed:all", "q4"] {
            assert!(parse_tier(text).is_err(), "{text}");
        }
        for text in ["128", "8x128", "1x2x3x4x5x6x7"] {
            assert!(parse_row(text).is_ok(), "{text}");
        }
        for text in ["", "0", "8x0", "x", "1x2x3x4x5x6x7x8"] {
            assert!(parse_row(text).is_err(), "{text}");
        }
        assert!(parse_blocking("head_dim", "128").is_ok() && parse_blocking("head_dim", "4097").is_err());
        assert!(
            parse_blocking("block_bytes", "+4096").is_err() && parse_blocking("block_bytes", "4096").is_ok()
        );
    }
}
