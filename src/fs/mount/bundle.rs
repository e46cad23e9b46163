//! The descriptors of a mount, and their way from process to process: with a message over a Unix socket.
//!
//! A bundle is a header, [`HEADER_BYTES`], with the first descriptors, then a byte with each further lot of descriptors. The
//! header: `tierfsFD`, the version of the hand-over u32, the number of descriptors of the device u32, that of files without
//! a name u32, and a bit for each of the others u32. The descriptors come in the order of the fields of [`Bundle`]. The
//! state itself lies in a file in memory, since a socket between two ends of one process holds little.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::MemfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::format::cursor::{Reader, Writer};
use crate::format::handover::{HandOver, VERSION, check_version};
use crate::fs::kernel::device::fail_reads_and_writes;
use crate::fs::state::number_records::NumberRecords;
use crate::model::{Error, Result};

const MAGIC: &[u8; 8] = b"tierfsFD";
/// Bytes of the header.
const HEADER_BYTES: usize = 24;
/// Descriptors of one message at most. The kernel takes 253.
const LOT: usize = 250;
/// Descriptors of a bundle at most.
const DESCRIPTORS_MAX: u32 = 100_000;
/// Bytes of the state at most.
const STATE_BYTES_MAX: u64 = 1 << 30;

/// A mount without its daemon.
#[derive(Debug)]
pub struct Bundle {
    /// The state that the daemon handed over; `None` after it has died.
    pub state: Option<HandOver>,
    /// The records of the open files.
    pub open_files: OwnedFd,
    /// The numbers of the collections of a remote.
    pub numbers: Option<OwnedFd>,
    /// The locked file of the store, if it has one.
    pub lock: Option<OwnedFd>,
    /// The socket of the process that keeps the descriptors, if there is one.
    pub keeper: Option<OwnedFd>,
    /// The socket of the program that takes over.
    pub peer: Option<OwnedFd>,
    /// Descriptors of the device, one at least.
    pub devices: Vec<OwnedFd>,
    /// The bytes of the files without a name.
    pub unnamed: Vec<OwnedFd>,
}

impl Bundle {
    /// Sends it.
    /// # Errors
    /// Returns an error if it is not taken.
    pub fn send(&self, to: impl AsFd) -> io::Result<()> {
        let state = self.state.as_ref().map(|state| file_with(&state.encode())).transpose()?;
        let state = state.map(OwnedFd::from);
        let single = [&state, &self.lock, &self.keeper, &self.peer, &self.numbers];
        let bits = single.iter().enumerate().map(|(place, one)| u32::from(one.is_some()) << place).sum();
        let mut header = Writer::with_capacity(HEADER_BYTES);
        header
            .bytes(MAGIC)
            .u32(VERSION)
            .u32(self.devices.len() as u32)
            .u32(self.unnamed.len() as u32)
            .u32(bits);
        let all = state.iter().chain([&self.open_files]).chain(&self.lock).chain(&self.keeper);
        let all: Vec<BorrowedFd> = all
            .chain(&self.peer)
            .chain(&self.numbers)
            .chain(&self.devices)
            .chain(&self.unnamed)
            .map(OwnedFd::as_fd)
            .collect();
        let mut bytes = header.as_slice();
        for lot in all.chunks(LOT) {
            send_with(to.as_fd(), bytes, lot)?;
            bytes = &[0];
        }
        Ok(())
    }

    /// Receives a bundle.
    /// # Errors
    /// `Unsupported` if the sender has another version, `Corrupt` if it sent something else.
    pub fn receive(from: impl AsFd) -> Result<Bundle> {
        let failed = |error| Error::io("receiving a mount", error);
        let mut header = [0; HEADER_BYTES];
        let mut all = receive_with(from.as_fd(), &mut header).map_err(failed)?;
        let mut read = Reader::new(&header);
        if read.array()? != *MAGIC {
            return Err(Error::corrupt("not the descriptors of a mount"));
        }
        check_version(read.u32()?)?;
        let (devices, unnamed, bits) = (read.u32()?, read.u32()?, read.u32()?);
        let expected = u64::from(devices) + u64::from(unnamed) + 1 + u64::from(bits.count_ones());
        if devices == 0 || bits >> 5 != 0 || expected > u64::from(DESCRIPTORS_MAX) {
            return Err(Error::corrupt("a mount without a device"));
        }
        while (all.len() as u64) < expected {
            let more = receive_with(from.as_fd(), &mut [0]).map_err(failed)?;
            if more.is_empty() {
                return Err(Error::corrupt("a mount with too few descriptors"));
            }
            all.extend(more);
        }
        let mut all = all.into_iter();
        let missing = || Error::corrupt("a mount with too few descriptors");
        let mut single =
            |place: u32| (bits >> place & 1 != 0).then(|| all.next().ok_or_else(missing)).transpose();
        let state = single(0)?.map(state_in).transpose()?;
        let open_files = all.next().ok_or_else(missing)?;
        let mut single =
            |place: u32| (bits >> place & 1 != 0).then(|| all.next().ok_or_else(missing)).transpose();
        let (lock, keeper, peer, numbers) = (single(1)?, single(2)?, single(3)?, single(4)?);
        let devices = all.by_ref().take(devices as usize).collect();
        Ok(Bundle { state, open_files, numbers, lock, keeper, peer, devices, unnamed: all.collect() })
    }

    /// The text about its remote; `None` of a store.
    /// # Errors
    /// Returns an error if another version has written it.
    pub fn said(&self) -> Result<Option<String>> {
        self.numbers.as_ref().map(NumberRecords::said).transpose()
    }

    /// Answers the reads and writes that the daemon, which is dying, had not answered: they fail. The kernel may wait for a
    /// page of one before it lets a thread of that daemon end.
    pub fn fail_stuck(&self) {
        // Each descriptor gets the requests of all.
        if let Some(Err(error)) = self.devices.first().map(fail_reads_and_writes) {
            log::debug!("failing requests of a daemon that is dying: {error}");
        }
    }
}

/// The state in a file.
fn state_in(file: OwnedFd) -> Result<HandOver> {
    let failed = |error| Error::io("reading the state of a mount", error);
    let mut file = File::from(file);
    file.rewind().map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(STATE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    HandOver::decode(&bytes)
}

/// A file in memory with these bytes.
pub(super) fn file_with(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("tierfs-state", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Sends bytes with descriptors.
/// # Errors
/// Returns an error if they are not taken.
pub fn send_with(to: BorrowedFd, bytes: &[u8], descriptors: &[BorrowedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LOT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let sent = sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives as many bytes, and the descriptors with them.
/// # Errors
/// `UnexpectedEof` if the other end has closed.
pub fn receive_with(from: BorrowedFd, bytes: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let (mut received, mut descriptors) = (0, Vec::new());
    while received < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LOT))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let rest = bytes.get_mut(received..).unwrap_or_default();
        let message = recvmsg(from, &mut [IoSliceMut::new(rest)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let message = match message {
            Err(rustix::io::Errno::INTR) => continue,
            message => message?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        if message.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received += message.bytes;
    }
    Ok(descriptors)
}

/// The socket that a process got as its standard input.
/// # Errors
/// Returns an error if it has none.
pub fn of_standard_input() -> io::Result<UnixStream> {
    Ok(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::{Bundle, file_with, send_with};
    use crate::format::handover::HandOver;
    use std::os::fd::AsFd;

    fn file(text: &str) -> OwnedFd {
        file_with(text.as_bytes()).unwrap().into()
    }

    fn text(file: &OwnedFd) -> String {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 8];
        let len = std::fs::File::from(file.try_clone().unwrap()).read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn a_bundle_arrives_with_each_descriptor_in_its_place() {
        let (to, from) = UnixStream::pair().unwrap();
        let state = HandOver { stale: vec![7; 100_000], ..HandOver::default() };
        let bundle = Bundle {
            state: Some(state.clone()),
            open_files: file("open"),
            numbers: Some(file("numbers")),
            lock: None,
            keeper: Some(file("keeper")),
            peer: None,
            devices: (0..300).map(|number| file(&number.to_string())).collect(),
            unnamed: vec![file("a"), file("b")],
        };
        bundle.send(&to).unwrap();
        let found = Bundle::receive(&from).unwrap();
        assert_eq!((found.state, text(&found.open_files).as_str()), (Some(state), "open"));
        assert!(found.lock.is_none() && found.peer.is_none());
        assert_eq!(text(&found.keeper.unwrap()), "keeper");
        assert_eq!(text(&found.numbers.unwrap()), "numbers");
        let devices: Vec<String> = found.devices.iter().map(text).collect();
        assert_eq!(devices, (0..300).map(|number| number.to_string()).collect::<Vec<_>>());
        assert_eq!(found.unnamed.iter().map(text).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn bytes_of_a_stranger_are_an_error() {
        for bytes in [
            [0; 24].as_slice(),
            b"tierfsFD\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            b"tierfsFD\x02\0\0\0\xff\0\0\0\0\0\0\0\0\0\0\0",
            b"x",
        ] {
            let (mut to, from) = UnixStream::pair().unwrap();
            to.write_all(bytes).unwrap();
            drop(to);
            Bundle::receive(&from).unwrap_err();
        }
        let (to, from) = UnixStream::pair().unwrap();
        let one = file("x");
        send_with(to.as_fd(), b"tierfsFD\x02\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0", &[one.as_fd()]).unwrap();
        drop(to);
        Bundle::receive(&from).unwrap_err();
    }
}
