//! The forms and how each shows a file.

use crate::format::files::hub::ElementType;
use crate::format::files::tensor_parallel::Rank;
use crate::model::{Dtype, Tier};
use crate::vfs::form::adapters::AdapterFiles;

/// A form: the same tensors as a tree of other files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Form {
    /// Each tensor as a NumPy file.
    Npy,
    /// Each tensor, and all of them, as a safetensors file.
    Safetensors,
    F32,
    F16,
    Bf16,
    /// Contents after a move to q8.
    Q8,
    /// Contents after a move to q7.
    Q7,
    /// Contents after a move to q5.
    Q5,
    /// Contents after a move to q3.
    Q3,
    /// Each matrix of floats as an embedding batch, with its index.
    Cgeb,
    Sha256,
    /// Each model of the hub as a GGUF file, in bf16 or f16.
    Gguf,
    /// Each model of the hub as a GGUF file, its matrices in Q8_0.
    GgufQ8,
    /// Each model of the hub as a GGUF file, its matrices in Q4_0.
    GgufQ4,
    /// A directory for each rank of tensor parallelism.
    Ranks,
    /// The model of one rank.
    Rank(Rank),
    /// Each tensor of experts as a directory of them.
    Experts,
    /// One expert of a tensor.
    Expert(u32),
    /// A directory for each adapter.
    Merges,
    /// With the adapter of another directory added.
    Merged(AdapterFiles),
    /// All rows of a directory, in its directory in `Npy`.
    Rows(RowsOf),
}

/// The name of the directory of forms with an adapter.
pub const MERGED_NAME: &str = "merged";

/// The number of the index files of `Cgeb`, the only form that has them.
pub const INDEX_NUMBER: u8 = 12;
/// The highest number of a form.
const LAST_NUMBER: u8 = 11;

/// A file that shows all rows of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum RowFormat {
    Npy,
    Fvecs,
    Fbin,
}

/// The rows of the files of a directory in an order, which the mount numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RowsOf {
    pub format: RowFormat,
    /// The number of the order in this mount.
    pub order: u64,
}

/// How a form shows files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shows {
    /// A file of its own format for each tensor, with this suffix.
    Wrapped(&'static str),
    /// All files, with floats cast to this type.
    Cast(Dtype),
    /// All files, with the contents that they would have after a move to this tier.
    Moved(Tier),
    /// One file that lists all digests.
    Digests,
    /// All files, with an adapter added to their tensors.
    Merged,
    /// One GGUF file for each directory that holds a model, with elements of this type.
    Model(ElementType),
    /// All files, with the part of each tensor that a rank has.
    Split(Rank),
    /// A directory for each value of a parameter of a form.
    Values,
    /// A part of each tensor.
    Part,
    /// One file of the arrays of a directory.
    Rows,
}

impl Form {
    /// The forms that `.as` lists. Those with a number come first, in the order of their numbers.
    pub const ALL: [Form; 17] = [
        Form::Npy,
        Form::Safetensors,
        Form::F32,
        Form::F16,
        Form::Bf16,
        Form::Q8,
        Form::Q7,
        Form::Q5,
        Form::Q3,
        Form::Cgeb,
        Form::Sha256,
        Form::Gguf,
        Form::GgufQ8,
        Form::GgufQ4,
        Form::Ranks,
        Form::Experts,
        Form::Merges,
    ];

    /// The form's number in inode numbers and pins, from 1. `None` for a form that each mount numbers itself.
    pub fn number(self) -> Option<u8> {
        (1..=LAST_NUMBER).zip(Form::ALL).find(|(_, form)| *form == self).map(|(number, _)| number)
    }

    /// The form with a number, and whether the number stands for its index files.
    pub fn from_number(number: u8) -> Option<(Form, bool)> {
        if number == INDEX_NUMBER {
            return Some((Form::Cgeb, true));
        }
        let form = Form::ALL.get(usize::from(number).checked_sub(1)?)?;
        (number <= LAST_NUMBER).then_some((*form, false))
    }

    /// The name of its directory in `.as`, or of the directory above its own.
    pub fn name(self) -> &'static str {
        match self {
            Form::Npy | Form::Rows(_) => "npy",
            Form::Safetensors => "safetensors",
            Form::F32 => "f32",
            Form::F16 => "f16",
            Form::Bf16 => "bf16",
            Form::Q8 => "q8",
            Form::Q7 => "q7",
            Form::Q5 => "q5",
            Form::Q3 => "q3",
            Form::Cgeb => "cgeb",
            Form::Sha256 => "sha256",
            Form::Gguf => "gguf",
            Form::GgufQ8 => "gguf-q8_0",
            Form::GgufQ4 => "gguf-q4_0",
            Form::Ranks | Form::Rank(_) => "tp",
            Form::Experts | Form::Expert(_) => "experts",
            Form::Merges | Form::Merged(_) => MERGED_NAME,
        }
    }

    /// The value of its parameter, if it has one: the name of its directory or file, but the numbers of an adapter.
    pub fn value(self) -> Option<String> {
        match self {
            Form::Rank(rank) => Some(rank.to_string()),
            Form::Expert(index) => Some(index.to_string()),
            Form::Merged(files) => Some(files.to_string()),
            Form::Rows(rows) => Some(rows.format.name().to_owned()),
            _ => None,
        }
    }

    /// A text that identifies it among all forms: the path of its directory below `.as`, if it has one. Not of an adapter,
    /// which has another name there.
    pub fn path(self) -> String {
        match self.value() {
            Some(value) => format!("{}/{value}", self.name()),
            None => self.name().to_owned(),
        }
    }

    /// The form with a name.
    pub fn from_name(name: &[u8]) -> Option<Form> {
        Form::ALL.into_iter().find(|form| form.name().as_bytes() == name)
    }

    /// How the form shows files.
    pub fn shows(self) -> Shows {
        match self {
            Form::Npy => Shows::Wrapped(".npy"),
            Form::Safetensors => Shows::Wrapped(".safetensors"),
            Form::F32 => Shows::Cast(Dtype::F32),
            Form::F16 => Shows::Cast(Dtype::F16),
            Form::Bf16 => Shows::Cast(Dtype::Bf16),
            Form::Q8 => Shows::Moved(Tier::Q8),
            Form::Q7 => Shows::Moved(Tier::Q7),
            Form::Q5 => Shows::Moved(Tier::Q5),
            Form::Q3 => Shows::Moved(Tier::Q3),
            Form::Cgeb => Shows::Wrapped(".cgeb"),
            Form::Sha256 => Shows::Digests,
            Form::Gguf => Shows::Model(ElementType::Automatic),
            Form::GgufQ8 => Shows::Model(ElementType::Q8_0),
            Form::GgufQ4 => Shows::Model(ElementType::Q4_0),
            Form::Ranks | Form::Experts | Form::Merges => Shows::Values,
            Form::Rank(rank) => Shows::Split(rank),
            Form::Expert(_) => Shows::Part,
            Form::Merged(_) => Shows::Merged,
            Form::Rows(_) => Shows::Rows,
        }
    }

    /// The name of the file in the root that covers the whole collection, if the form has one.
    pub fn whole(self) -> Option<&'static str> {
        match self {
            Form::Safetensors => Some("_all.safetensors"),
            Form::Sha256 => Some("SHA256SUMS"),
            _ => None,
        }
    }

    /// The suffix of the index file that accompanies each file, if the form has them.
    pub fn index_suffix(self) -> Option<&'static str> {
        (self == Form::Cgeb).then_some(".cgei")
    }
}

impl RowFormat {
    /// All formats.
    pub const ALL: [RowFormat; 3] = [RowFormat::Npy, RowFormat::Fvecs, RowFormat::Fbin];

    /// The name of the file.
    pub fn name(self) -> &'static str {
        match self {
            RowFormat::Npy => "all.npy",
            RowFormat::Fvecs => "all.fvecs",
            RowFormat::Fbin => "all.fbin",
        }
    }

    /// The file with a name.
    pub fn named(name: &[u8]) -> Option<RowFormat> {
        RowFormat::ALL.into_iter().find(|format| format.name().as_bytes() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::{Form, INDEX_NUMBER};

    #[test]
    fn numbers_and_names_map_back_to_their_forms() {
        for form in Form::ALL {
            if let Some(number) = form.number() {
                assert_eq!(Form::from_number(number), Some((form, false)));
            }
            assert_eq!(Form::from_name(form.name().as_bytes()), Some(form));
        }
        assert_eq!(Form::from_number(0), None);
        assert_eq!(Form::from_number(INDEX_NUMBER), Some((Form::Cgeb, true)));
        assert_eq!(
            (Form::Sha256.number(), Form::Gguf.number(), Form::Ranks.number()),
            (Some(11), None, None)
        );
        assert_eq!((Form::from_number(13), Form::Expert(7).number()), (None, None));
        assert_eq!((Form::Expert(7).path(), Form::Npy.path()), ("experts/7".to_owned(), "npy".to_owned()));
    }
}
