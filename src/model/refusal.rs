//! Refusals of requests, file by file: the causes and their texts.

use std::collections::HashSet;

use crate::model::error::{ErrorKind, beginning};
use crate::model::{Dtype, Tier};

/// Number of files that a refusal names. It counts the others.
pub const FILES_SHOWN_MAX: usize = 10;
/// Most bytes of a path that a refusal names.
const PATH_BYTES_MAX: usize = 1000;

/// A file that a request was refused for, and the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The path in the mount of the file that is the cause.
    pub path: String,
    pub cause: Cause,
}

/// The reason why a file does not admit a request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// Rounding would destroy the last exact copy, and `lossy` does not allow it.
    LastExactCopy,
    /// Its bytes would be lost permanently, and `lossy` does not allow it.
    LastBytes,
    /// Low-rank factors would replace its last exact copy, and `lossy` does not allow it.
    Factors,
    Pinned,
    /// Other tensors are stored as differences to it.
    Needed,
    /// The tensor of this path is stored as differences to it.
    NeededBy(String),
    /// The file of this path has its bytes too.
    Shared(String),
    /// Its collection is bound to the collection of this path, whose tensors must be stored in full first,
    /// with the clause that says so.
    Bound(String, String),
    /// Its element type has no tiers.
    NoTiers(Dtype),
    /// Tensors of this element type, or with so short blocks, are not packed.
    NotPacked(Dtype),
    /// It is not a tensor.
    NotTensor,
    /// It is stored in this tier, and no source is more precise.
    NoSource(Tier),
    /// Its bytes are absent, and nothing can reconstruct them.
    Absent,
    NoReconstruct,
    /// A quota of this tenant or collection would be exceeded, with the numbers.
    Quota(String, String),
    /// Another cause, with its text.
    Other(ErrorKind, String),
}

/// The files that have a cause, as a sentence names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About<'a> {
    /// The file in the request.
    Itself,
    /// One file, by its name below the directory in the request.
    Named(&'a str),
    /// A number of files.
    Many(usize),
}

/// The files that have the same cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    pub cause: Cause,
    pub count: usize,
    /// The first paths in the mount, at most [`FILES_SHOWN_MAX`].
    pub paths: Vec<String>,
}

impl Cause {
    /// The kind of the error that a program gets.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Cause::LastExactCopy | Cause::LastBytes | Cause::Factors => ErrorKind::Denied,
            Cause::NoTiers(_) | Cause::NotPacked(_) | Cause::NotTensor => ErrorKind::Denied,
            Cause::Pinned | Cause::Needed | Cause::NeededBy(_) | Cause::Shared(_) | Cause::Bound(..) => {
                ErrorKind::Busy
            }
            Cause::NoSource(_) | Cause::NoReconstruct => ErrorKind::Invalid,
            Cause::Absent => ErrorKind::Absent,
            Cause::Quota(..) => ErrorKind::Quota,
            Cause::Other(kind, _) => *kind,
        }
    }

    /// A word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Cause::LastExactCopy | Cause::LastBytes | Cause::Factors => "lossy",
            Cause::Pinned => "pinned",
            Cause::Needed | Cause::NeededBy(_) | Cause::Bound(..) => "needed",
            Cause::Shared(_) => "shared",
            Cause::NoTiers(_) => "no tiers",
            Cause::NotPacked(_) => "not packed",
            Cause::NotTensor => "not a tensor",
            Cause::NoSource(_) => "no source",
            Cause::Absent => "absent",
            Cause::NoReconstruct => "no reconstruct",
            Cause::Quota(..) => "quota",
            Cause::Other(kind, _) => kind.code(),
        }
    }

    /// A clause with the cause, without a path.
    pub fn text(&self, about: About) -> String {
        let of = |one: &str, what: &str| match about {
            About::Itself => format!("{one} its {what}"),
            About::Named(name) => format!("{one} the {what} of {name}"),
            About::Many(count) => format!("{one} the {what} of {count} tensors"),
        };
        let is = |what: &str| match about {
            About::Itself => format!("it is {what}"),
            About::Named(name) => format!("{name} is {what}"),
            About::Many(count) => format!("{count} files are {what}"),
        };
        match self {
            Cause::LastExactCopy => {
                format!("{} (lossy does not allow it)", of("rounding would destroy", "last exact copy"))
            }
            Cause::LastBytes => {
                format!("{} (lossy does not allow it)", of("discarding would destroy", "only bytes"))
            }
            Cause::Factors => {
                format!("{} (lossy does not allow it)", of("factors would replace", "last exact copy"))
            }
            Cause::Pinned => is("pinned"),
            Cause::Needed => match about {
                About::Itself => "other tensors are stored as differences to it".to_owned(),
                About::Named(name) => format!("other tensors are stored as differences to {name}"),
                About::Many(count) => format!("other tensors are stored as differences to {count} tensors"),
            },
            Cause::NeededBy(child) => match about {
                About::Itself => format!("{child} is stored as differences to it"),
                About::Named(name) => format!("{child} is stored as differences to {name}"),
                About::Many(count) => format!("{child} is stored as differences to {count} tensors"),
            },
            Cause::Shared(other) => match about {
                About::Itself => format!("{other} has its bytes too"),
                About::Named(name) => format!("{other} has the bytes of {name} too"),
                About::Many(count) => format!("{other} has the bytes of {count} files too"),
            },
            Cause::NoTiers(dtype) => {
                format!("{}; only f32, f16 and bf16 have tiers", is(&format!("of {dtype}")))
            }
            Cause::NotPacked(dtype) => format!(
                "{}; floats, i8 and u8 in blocks of 16 KiB and more can be packed",
                is(&format!("of {dtype}"))
            ),
            Cause::NotTensor => is("not a tensor"),
            Cause::NoSource(tier) => {
                format!("{}, and no more precise source remains", is(&format!("stored as {tier}")))
            }
            Cause::Absent => format!("{}, and nothing can reconstruct the bytes", is("absent")),
            Cause::NoReconstruct => match about {
                About::Itself => "nothing says how to reconstruct it (reconstruct=none)".to_owned(),
                About::Named(name) => format!("nothing says how to reconstruct {name} (reconstruct=none)"),
                About::Many(count) => {
                    format!("nothing says how to reconstruct {count} tensors (reconstruct=none)")
                }
            },
            Cause::Quota(_, text) | Cause::Bound(_, text) => text.clone(),
            Cause::Other(_, text) => match about {
                About::Itself => text.clone(),
                About::Named(name) => format!("{name}: {text}"),
                About::Many(count) => format!("{count} files: {text}"),
            },
        }
    }
}

/// Groups refusals by their cause, in the order of first occurrence. Each file counts once.
pub fn reasons(refusals: &[Refusal]) -> Vec<Reason> {
    let mut found: Vec<Reason> = Vec::new();
    let mut seen = HashSet::new();
    for Refusal { path, cause } in refusals {
        if !seen.insert((cause, path)) {
            continue;
        }
        let at = found.iter().position(|reason| reason.cause == *cause);
        let path = beginning(path, PATH_BYTES_MAX).to_owned();
        match at.and_then(|at| found.get_mut(at)) {
            Some(reason) => {
                reason.count += 1;
                if reason.paths.len() < FILES_SHOWN_MAX {
                    reason.paths.push(path);
                }
            }
            None => found.push(Reason { cause: cause.clone(), count: 1, paths: vec![path] }),
        }
    }
    found
}

impl Reason {
    /// The clause with the cause, for a user whose request was about `asked`, a path in the mount.
    pub fn text(&self, asked: &str) -> String {
        match self.paths.as_slice() {
            [path] if self.count == 1 && path == asked => self.cause.text(About::Itself),
            [path] if self.count == 1 => self.cause.text(About::Named(below(path, asked))),
            _ => self.cause.text(About::Many(self.count)),
        }
    }

    /// The names of the first files below `asked`; empty if the text names the only one.
    pub fn names<'a>(&'a self, asked: &'a str) -> impl Iterator<Item = &'a str> {
        let several = if self.count > 1 { self.paths.as_slice() } else { &[] };
        several.iter().map(move |path| below(path, asked))
    }
}

/// The part of a path below a directory, or the path itself if it lies elsewhere.
fn below<'a>(path: &'a str, directory: &str) -> &'a str {
    let rest = path.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/'));
    let beside = || {
        let (above, _) = directory.rsplit_once('/')?;
        path.strip_prefix(above)?.strip_prefix('/')
    };
    rest.or_else(beside).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::{Cause, FILES_SHOWN_MAX, Refusal, reasons};

    #[test]
    fn the_files_of_a_cause_are_counted_once_and_the_first_are_named() {
        let lossy = |path: &str| Refusal { path: path.to_owned(), cause: Cause::LastExactCopy };
        let pinned = Refusal { path: "t/c/m".to_owned(), cause: Cause::Pinned };
        let mut all: Vec<Refusal> = (0..12).map(|number| lossy(&format!("t/c/w{number}"))).collect();
        all.extend([pinned.clone(), pinned]);
        let found = reasons(&all);
        assert_eq!((found.len(), found[0].count, found[0].paths.len()), (2, 12, FILES_SHOWN_MAX));
        assert_eq!(
            found[0].text("t/c"),
            "rounding would destroy the last exact copy of 12 tensors (lossy does not allow it)"
        );
        assert_eq!(found[0].names("t/c").next(), Some("w0"));
        assert_eq!(
            (found[1].text("t/c/m"), found[1].text("t/c")),
            ("it is pinned".into(), "m is pinned".into())
        );
        assert_eq!(found[1].text("t/c/w1"), "m is pinned");
        assert_eq!(found[1].names("t/c").count(), 0);
    }
}
