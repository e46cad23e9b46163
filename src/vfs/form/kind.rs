//! The forms and how each shows a file.

use crate::model::{Dtype, Tier};
use crate::vfs::form::merged::Merge;

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
    /// With the adapter of another directory added; without one, the directory of these forms.
    Merged(Merge),
}

/// The number of forms with an adapter. In their inode numbers the number of the pair takes the place of the collection's.
pub const MERGED_NUMBER: u8 = 15;
/// The name of the directory of forms with an adapter.
pub const MERGED_NAME: &str = "merged";

/// The number of the index files of `Cgeb`, the only form that has them.
pub const INDEX_NUMBER: u8 = 12;

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
}

impl Form {
    /// All forms of a collection alone, in the order of their numbers, which are part of inode numbers.
    pub const ALL: [Form; 11] = [
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
    ];

    /// The form's number, from 1.
    pub fn number(self) -> u8 {
        if matches!(self, Form::Merged(_)) {
            return MERGED_NUMBER;
        }
        (1..).zip(Form::ALL).find(|(_, form)| *form == self).map_or(0, |(number, _)| number)
    }

    /// The form with a number, and whether the number stands for its index files.
    pub fn from_number(number: u8) -> Option<(Form, bool)> {
        if number == INDEX_NUMBER {
            return Some((Form::Cgeb, true));
        }
        Form::ALL.get(usize::from(number).checked_sub(1)?).map(|form| (*form, false))
    }

    /// The name of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Form::Npy => "npy",
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
            Form::Merged(_) => MERGED_NAME,
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
            Form::Merged(_) => Shows::Merged,
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

#[cfg(test)]
mod tests {
    use super::{Form, INDEX_NUMBER};

    #[test]
    fn numbers_and_names_map_back_to_their_forms() {
        for form in Form::ALL {
            assert_eq!(Form::from_number(form.number()), Some((form, false)));
            assert_eq!(Form::from_name(form.name().as_bytes()), Some(form));
        }
        assert_eq!(Form::from_number(0), None);
        assert_eq!(Form::from_number(INDEX_NUMBER), Some((Form::Cgeb, true)));
        assert_eq!(Form::from_number(13), None);
    }
}
