//! The side file `pushed` of a collection: the random numbers of its pushes. A push that finds another number in the newest
//! snapshot would put its state over that of somebody else.
//!
//! A line has the uuid of the remote, the number of a push, the number of its snapshot, the BLAKE3 of the state as in
//! `version.toml`, and the place in the remote. A push is noted before its snapshot is made, since it may be killed before it
//! knows; then the number of the snapshot is 0.

use std::io;

use crate::format::snapshot::keys::digest;
use crate::model::{CollectionName, StoreId, hex};
use crate::store::disk::{Disk, Open, replace_file};

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
    fn line(&self, push: &NotedPush) -> String {
        let NotedPush { push, snapshot, state } = push;
        format!("{} {push:032x} {snapshot} {} {}", self.remote, hex(state), self.named)
    }

    /// The number in a line of this place.
    fn push_in(&self, line: &str) -> Option<u128> {
        let found = parse(line)?;
        let is_here = found.remote == self.remote.to_string() && found.named == self.named.to_string();
        is_here.then_some(found.push.push)
    }
}

/// A push of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotedPush {
    /// The random number of the push.
    pub push: u128,
    /// The number of the snapshot; 0 if the push did not see that it was made.
    pub snapshot: u64,
    /// BLAKE3 of the canonical log for this store.
    pub state: [u8; 32],
}

/// A line of the file.
pub(in crate::store) struct Line<'a> {
    /// The uuid of the remote.
    pub remote: &'a str,
    pub push: NotedPush,
    /// The place in the remote.
    pub named: &'a str,
}

/// Reads a line; `None` if it is none of the file.
pub(in crate::store) fn parse(line: &str) -> Option<Line<'_>> {
    let mut fields = line.splitn(5, ' ');
    let (remote, push) = (fields.next()?, u128::from_str_radix(fields.next()?, 16).ok()?);
    let (snapshot, state) = (fields.next()?.parse().ok()?, digest(fields.next()?)?);
    Some(Line { remote, push: NotedPush { push, snapshot, state }, named: fields.next()? })
}

/// The numbers of pushes of the collection with this path to a place. A file that is missing has none.
pub(in crate::store) fn pushes(disk: &dyn Disk, path: &str, place: PushPlace<'_>) -> io::Result<Vec<u128>> {
    let text = push_text(disk, path)?;
    Ok(text.lines().filter_map(|line| place.push_in(line)).collect())
}

/// Notes a push, durably, in place of what was noted of it before.
pub(in crate::store) fn note_push(
    disk: &dyn Disk,
    path: &str,
    place: PushPlace<'_>,
    push: &NotedPush,
) -> io::Result<()> {
    let before = push_text(disk, path)?;
    let (mut own, others): (Vec<&str>, Vec<&str>) =
        before.lines().partition(|line| place.push_in(line).is_some());
    let line = place.line(push);
    own.retain(|known| place.push_in(known) != Some(push.push));
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
    let path = format!("{path}/{NAME}");
    replace_file(disk, &format!("{path}.new"), &path, after.as_bytes())
}

/// The text of the file of a collection with this path. One that is missing is empty.
pub(in crate::store) fn push_text(disk: &dyn Disk, path: &str) -> io::Result<String> {
    let file = match disk.open(&format!("{path}/{NAME}"), Open::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; file.len()?.min(FILE_BYTES_MAX) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
