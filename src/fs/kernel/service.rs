//! One request in, its reply out.

use crate::fs::kernel::errno;

use super::reply::Reply;
use super::request::Request;
use super::sender::Route;

/// Answers requests: the file system, as the channels to the kernel see it.
pub trait Service: Send + Sync + 'static {
    /// Answers a request, now or later, by its reply.
    fn answer(&self, request: Request<'_>, reply: Reply);

    /// Whether requests for bytes of files may wait for a network.
    fn waits_for_network(&self) -> bool {
        false
    }

    /// Answers the bytes of a request. Bytes that are not a valid request get an error, if the kernel waits for a reply.
    fn receive(&self, bytes: &[u8], route: Route) {
        match Request::parse(bytes) {
            Ok(request) => {
                let reply = Reply::new(request.unique, route);
                self.answer(request, reply);
            }
            Err(malformed) => {
                log::error!("the kernel sent a request of {} bytes that cannot be parsed", bytes.len());
                if let Some(unique) = malformed.unique {
                    Reply::new(unique, route).error(errno::MALFORMED);
                }
            }
        }
    }
}
