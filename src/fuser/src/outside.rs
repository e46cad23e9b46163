//! Requests that arrive by another channel than the device. Not part of fuser 0.18.0.

use std::fmt::Debug;
use std::io;
use std::io::IoSlice;

use nix::unistd::Uid;

use crate::Filesystem;
use crate::SessionACL;
use crate::channel::ChannelSender;
use crate::request::RequestWithSender;

/// Sends the reply to one request that arrived by another channel.
pub trait Replier: Debug + Send {
    /// Sends a reply in parts. The first is the header.
    /// # Errors
    /// Returns an error if the channel does not take the reply.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// The place of the bytes after the header, if the channel can show it before they are known.
    fn place(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Sends a reply whose first `count` bytes after the header lie in the place already.
    /// # Errors
    /// Returns an error if the channel does not take the reply.
    fn send_placed(&mut self, header: &[u8], count: usize) -> io::Result<()>;
}

/// How requests of a session are answered.
pub(crate) struct Serving<'a, FS> {
    pub(crate) filesystem: Option<&'a FS>,
    pub(crate) sender: ChannelSender,
    pub(crate) allowed: SessionACL,
    pub(crate) session_owner: Uid,
    pub(crate) thread_name: &'a str,
}

/// Answers requests of a session that arrive by another channel.
#[derive(Debug)]
pub struct Dispatcher<FS> {
    pub(crate) filesystem: FS,
    pub(crate) sender: ChannelSender,
    pub(crate) allowed: SessionACL,
    pub(crate) session_owner: Uid,
}

impl<FS: Filesystem> Dispatcher<FS> {
    /// Calls the method of the file system for a request: header and arguments, aligned to 8 bytes. It replies
    /// by `replier`, now or later.
    /// # Errors
    /// Returns an error if the bytes are not a request. Nothing is sent then.
    pub fn dispatch(&self, request: &[u8], replier: Box<dyn Replier>) -> io::Result<()> {
        let parsed = RequestWithSender::new(self.sender.clone(), request);
        let Some(parsed) = parsed else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "invalid request"));
        };
        parsed.outside.replace(Some(replier));
        parsed.dispatch(&Serving {
            filesystem: Some(&self.filesystem),
            sender: self.sender.clone(),
            allowed: self.allowed,
            session_owner: self.session_owner,
            thread_name: "outside",
        });
        Ok(())
    }
}
