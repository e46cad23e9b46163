//! The forms, and how each shows a file.

use crate::model::{Dtype, Tier};

/// A form: the same bytes as a tree of other files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Form {
    /// Each tensor as a NumPy file.
    Npy,
    /// Each tensor, and all of them, as a safetensors file.
    Safetensors,
    /// Floats as f32.
    F32,
    /// Floats as f16.
    F16,
    /// Floats as bf16.
    Bf16,
    /// What a move to q8 would give.
    Q8,
    /// What a move to q7 would give.
    Q7,
    /// What a move to q5 would give.
    Q5,
    /// What a move to q3 would give.
    Q3,
    /// Each matrix of floats as an embedding batch, with its index.
    Cgeb,
    /// Digests.
    Sha256,
}

/// The number of the indexes of a form, of which one has any.
pub const INDEX_NUMBER: u8 = 12;

/// How a form shows files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shows {
    /// A file of its own format for each tensor, with this suffix.
    Wrapped(&'static str),
    /// All files, floats cast.
    Cast(Dtype),
    /// All files, as they would read after a move.
    Moved(Tier),
    /// One file about all of them.
    Digests,
}

impl Form {
    /// All forms, in the order of their numbers, which are parts of inode numbers.
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

    /// Its number, from 1 on.
    pub fn number(self) -> u8 {
        (1..).zip(Form::ALL).find(|(_, form)| *form == self).map_or(0, |(number, _)| number)
    }

    /// The form of a number, or of its indexes, and whether it is these.
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
        }
    }

    /// The form of a name.
    pub fn from_name(name: &[u8]) -> Option<Form> {
        Form::ALL.into_iter().find(|form| form.name().as_bytes() == name)
    }

    /// How it shows files.
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
        }
    }

    /// The file about all of the collection that stands at its top, if it has one.
    pub fn whole(self) -> Option<&'static str> {
        match self {
            Form::Safetensors => Some("_all.safetensors"),
            Form::Sha256 => Some("SHA256SUMS"),
            _ => None,
        }
    }

    /// The suffix of the second file that each file of it has, if it has one.
    pub fn index_suffix(self) -> Option<&'static str> {
        (self == Form::Cgeb).then_some(".cgei")
    }
}

#[cfg(test)]
mod tests {
    use super::{Form, INDEX_NUMBER};

    #[test]
    fn numbers_and_names_lead_back_to_their_forms() {
        for form in Form::ALL {
            assert_eq!(Form::from_number(form.number()), Some((form, false)));
            assert_eq!(Form::from_name(form.name().as_bytes()), Some(form));
        }
        assert_eq!(Form::from_number(0), None);
        assert_eq!(Form::from_number(INDEX_NUMBER), Some((Form::Cgeb, true)));
        assert_eq!(Form::from_number(13), None);
    }
}
