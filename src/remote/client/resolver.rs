//! Addresses of host names. A name that nobody knows is an error at once; a name server that is away is waited for.

use std::hash::{BuildHasher, RandomState};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::client::{DnsFuture, DnsResolver};

use crate::remote::client::failure::Failure;

/// getaddrinfo(3) says so while no name server answers. The standard library passes on the text only, not the number.
const TEMPORARY: &str = "Temporary failure";

/// Asks the system.
#[derive(Debug, Default)]
pub(in crate::remote) struct Resolver {
    /// Whether a name was found: then one that is not found may come back.
    has_found: Arc<AtomicBool>,
}

impl DnsResolver for Resolver {
    fn resolve(&self, host: &str) -> DnsFuture {
        let (host, has_found) = (host.to_owned(), self.has_found.clone());
        Box::pin(async move {
            let name = host.clone();
            let asked = move || (name.as_str(), 0).to_socket_addrs();
            match tokio::task::spawn_blocking(asked).await? {
                Ok(found) => {
                    has_found.store(true, Ordering::Relaxed);
                    let mut found: Vec<_> = found.map(|address| address.ip()).collect();
                    // Clients spread over the addresses of a server.
                    let random = RandomState::new().hash_one(()) as usize;
                    let first = random.checked_rem(found.len()).unwrap_or(0);
                    found.rotate_left(first);
                    Ok(found)
                }
                Err(error) if has_found.load(Ordering::Relaxed) || error.to_string().contains(TEMPORARY) => {
                    Err(error.into())
                }
                Err(error) => {
                    let text = format!(
                        "{host:?} has no address ({error}); check the URL, or AWS_ENDPOINT and AWS_REGION"
                    );
                    Err(Failure::Refused(text).into())
                }
            }
        })
    }
}
