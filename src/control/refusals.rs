//! The last refusals of requests: the reasons behind the error numbers that programs get.
//!
//! A refusal belongs to the inode that the request was about and to the user who made it, because it may
//! name files that other users cannot list. It is kept in memory.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::model::{Cause, Error, Reason, beginning, reasons};
use crate::vfs::Ino;

/// Number of refusals to keep. The oldest go first.
const REFUSALS_MAX: usize = 1000;
/// Number of reasons to keep of a refusal. It counts the files of the others.
const REASONS_MAX: usize = 10;
/// Most bytes of a request's text.
const REQUEST_BYTES_MAX: usize = 200;

/// The last refusals of a mount.
#[derive(Default)]
pub struct Refusals {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    kept: VecDeque<(Asker, Refused)>,
}

#[derive(Clone)]
struct Refused {
    /// Identifies refusals, so that programs can recognize a new one.
    number: u64,
    request: String,
    /// The path in the mount of the request.
    path: String,
    reasons: Vec<Reason>,
    /// Files with further reasons.
    others: usize,
}

/// The inode and the user of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// The inode.
    pub ino: Ino,
    /// The user.
    pub user: u32,
}

impl Refusals {
    /// Keeps the reasons of a refusal in place of the one before.
    pub fn note(&self, asker: Asker, path: &str, request: &str, error: &Error) {
        let mut all = match error.refusals() {
            [] => vec![Reason {
                cause: Cause::Other(error.kind(), without_path(error, path)),
                count: 1,
                paths: vec![path.to_owned()],
            }],
            refusals => {
                let mut refusals = refusals.to_vec();
                // A quota refuses the request as a whole.
                refusals
                    .iter_mut()
                    .filter(|one| one.path.is_empty())
                    .for_each(|one| one.path = path.to_owned());
                reasons(&refusals)
            }
        };
        let others = all.split_off(all.len().min(REASONS_MAX)).iter().map(|reason| reason.count).sum();
        let request = beginning(request.trim(), REQUEST_BYTES_MAX).to_owned();
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        inner.kept.retain(|kept| kept.0 != asker);
        inner
            .kept
            .push_back((asker, Refused { number, request, path: path.to_owned(), reasons: all, others }));
        if inner.kept.len() > REFUSALS_MAX {
            inner.kept.pop_front();
        }
    }

    /// Forgets the refusal of an earlier request, because a request was accepted.
    pub fn clear(&self, asker: Asker) {
        self.inner.lock().kept.retain(|kept| kept.0 != asker);
    }

    fn find(&self, asker: Asker) -> Option<Refused> {
        let inner = self.inner.lock();
        inner.kept.iter().find(|kept| kept.0 == asker).map(|kept| kept.1.clone())
    }

    /// The last refusal as a sentence.
    pub fn text(&self, asker: Asker) -> Option<String> {
        let found = self.find(asker)?;
        let clauses: Vec<String> = found.clauses().collect();
        Some(format!("{} refused: {}", found.request, clauses.join("; ")))
    }

    /// The last refusal as JSON.
    pub fn json(&self, asker: Asker) -> Option<String> {
        self.find(asker).map(|found| found.to_json().to_string())
    }
}

impl Refused {
    fn clauses(&self) -> impl Iterator<Item = String> {
        let all = self.reasons.iter().map(|reason| {
            let names: Vec<&str> = reason.names(&self.path).collect();
            let more = reason.count.saturating_sub(names.len());
            let names = match (names.is_empty(), more) {
                (true, _) => String::new(),
                (false, 0) => format!(": {}", names.join(", ")),
                (false, more) => format!(": {}, and {more} more", names.join(", ")),
            };
            let advice = advice(&reason.cause).map_or(String::new(), |advice| format!("; {advice}"));
            format!("{}{names}{advice}", reason.text(&self.path))
        });
        all.chain((self.others > 0).then(|| format!("{} more files for other reasons", self.others)))
    }

    fn to_json(&self) -> Value {
        let reasons = self.reasons.iter().map(|reason| {
            json!({
                "code": reason.cause.code(),
                "of": if let Cause::Quota(of, _) | Cause::Bound(of, _) | Cause::NeededBy(of) = &reason.cause { Some(of) } else { None },
                "text": reason.text(&self.path),
                "count": reason.count,
                "files": reason.paths,
            })
        });
        json!({
            "number": self.number,
            "request": self.request,
            "path": self.path,
            "reasons": reasons.collect::<Vec<_>>(),
            "others": self.others,
        })
    }
}

/// The attribute to set so that the request is accepted.
fn advice(cause: &Cause) -> Option<&'static str> {
    match cause {
        Cause::LastExactCopy | Cause::LastBytes | Cause::Factors => {
            Some("to allow it, set user.tierfs.lossy to allow")
        }
        Cause::Pinned => Some("to unpin, set user.tierfs.pin to 0"),
        Cause::NotTensor => {
            Some("if it is an array without a header, set user.tierfs.dtype and user.tierfs.shape")
        }
        Cause::NoReconstruct => Some("set user.tierfs.reconstruct first, or evict with discard"),
        Cause::Needed => Some("move those to a tier first, or remove them"),
        Cause::Shared(_) => Some("remove one of the two, or copy it"),
        Cause::NeededBy(_) => Some("move that to a tier first, or remove it"),
        Cause::NoSource(_) => Some("import the exact file again, or write it again"),
        Cause::Bound(..) => Some("to store them in full, set user.tierfs.tier of that collection to exact"),
        Cause::Quota(..) => Some("remove files, or raise the quota"),
        Cause::NoTiers(_) | Cause::NotPacked(_) | Cause::Absent | Cause::Other(..) => None,
    }
}

/// The text of an error without the path of the request.
fn without_path(error: &Error, path: &str) -> String {
    let text = error.to_string();
    match text.strip_prefix(path).and_then(|rest| rest.strip_prefix(": ")) {
        Some(rest) if !path.is_empty() => rest.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{Asker, REFUSALS_MAX, Refusals};
    use crate::model::{Cause, Error, Refusal};
    use crate::vfs::Ino;

    fn refused(count: usize) -> Error {
        let refusal = |number| Refusal { path: format!("t/c/w{number}"), cause: Cause::LastExactCopy };
        Error::refused((0..count).map(refusal).collect())
    }

    #[test]
    fn a_refusal_is_told_to_the_user_who_asked_until_a_request_is_accepted() {
        let refusals = Refusals::default();
        let asker = Asker { ino: Ino(7), user: 1000 };
        refusals.note(asker, "t/c", "tier=q5", &refused(12));
        let text = refusals.text(asker).unwrap();
        assert!(
            text.starts_with("tier=q5 refused: rounding would destroy the last exact copy of 12 tensors")
        );
        assert!(text.ends_with("w9, and 2 more; to allow it, set user.tierfs.lossy to allow"), "{text}");
        assert!(
            refusals.text(Asker { user: 0, ..asker }).is_none()
                && refusals.text(Asker { ino: Ino(8), ..asker }).is_none()
        );
        refusals.note(asker, "t/c/w", "tier=q9", &Error::invalid("t/c/w: no such tier"));
        assert_eq!(refusals.text(asker).unwrap(), "tier=q9 refused: no such tier");
        refusals.clear(asker);
        assert!(refusals.json(asker).is_none());
    }

    #[test]
    fn the_oldest_refusals_go_first() {
        let refusals = Refusals::default();
        let asker = |number| Asker { ino: Ino(number), user: 0 };
        for number in 0..=REFUSALS_MAX as u64 {
            refusals.note(asker(number), "t/c/w", "tier=q5", &refused(1));
        }
        assert!(refusals.text(asker(0)).is_none() && refusals.text(asker(1)).is_some());
    }
}
