//! The side file `pushed` of a collection: the random numbers of its pushes. A push that finds another number in the newest
//! snapshot would put its state over that of somebody else.
//!
//! A line has the uuid of the remote, the number of a push, and the place in the remote. A push is noted before its snapshot
//! is made, since it may be killed before it knows.

use std::io;

use crate::model::{CollectionName, StoreId};
use crate::store::disk::{Open, replace_file};
use crate::store::space::files::Files;

const NAME: &str = "pushed";
/// The file keeps the lines of the places that were pushed to last, up to so many bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The last pushes that are kept for a place: its newest snapshot may be an older one again.
const LINES_MAX: usize = 64;

/// The place of a collection in a remote.
#[derive(Clone, Copy)]
pub struct PushPlace<'a> {
    /// The uuid of the remote.
    pub remote: StoreId,
    /// The names in it.
    pub named: CollectionName<'a>,
}

impl PushPlace<'_> {
    fn line(&self, push: u128) -> String {
        format!("{} {push:032x} {}", self.remote, self.named)
    }

    /// The number in a line of this place.
    fn push_in(&self, line: &str) -> Option<u128> {
        let mut fields = line.splitn(3, ' ');
        let (remote, push, named) = (fields.next()?, fields.next()?, fields.next()?);
        let is_here = remote == self.remote.to_string() && named == self.named.to_string();
        u128::from_str_radix(push, 16).ok().filter(|_| is_here)
    }
}

/// The numbers of pushes of a collection to a place. A file that is missing has none.
pub(in crate::store) fn pushes(files: &Files, place: PushPlace<'_>) -> io::Result<Vec<u128>> {
    Ok(text(files)?.lines().filter_map(|line| place.push_in(line)).collect())
}

/// Notes a push, durably.
pub(in crate::store) fn note_push(files: &Files, place: PushPlace<'_>, push: u128) -> io::Result<()> {
    let before = text(files)?;
    let (mut own, others): (Vec<&str>, Vec<&str>) =
        before.lines().partition(|line| place.push_in(line).is_some());
    let line = place.line(push);
    own.retain(|known| *known != line);
    own.push(&line);
    let kept = own.split_off(own.len().saturating_sub(LINES_MAX));
    let mut after = String::new();
    for line in kept.into_iter().chain(others) {
        if after.len() + line.len() + 1 > FILE_BYTES_MAX as usize {
            break;
        }
        after.push_str(line);
        after.push('\n');
    }
    let path = format!("{}/{NAME}", files.path());
    replace_file(&**files.disk(), &format!("{path}.new"), &path, after.as_bytes())
}

fn text(files: &Files) -> io::Result<String> {
    let file = match files.disk().open(&format!("{}/{NAME}", files.path()), Open::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; file.len()?.min(FILE_BYTES_MAX) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
