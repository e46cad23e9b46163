//! The file system without a kernel: requests in, replies out, as bytes. For tests and fuzzers.

use std::sync::Arc;

use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::{Route, Sender, Service};
use crate::fs::mount::{Options, Parts};
use crate::fs::state::handles::Handles;
use crate::model::Result;
use crate::store::Store;

/// A store that is served, but not mounted. No cache of a kernel is invalidated, so no reply waits for that; passthrough is
/// off, and jobs stay queued.
pub struct Offline {
    dispatcher: Arc<Dispatcher>,
}

impl Offline {
    /// Serves a store with these options.
    /// # Errors
    /// Returns an error if the options cannot be used.
    pub fn new(store: Arc<Store>, options: &Options) -> Result<Offline> {
        // Without the other end, the queue of invalidations is closed.
        let Parts { dispatcher, forgetting: _ } =
            Parts::new(store, String::new(), options, 1, Handles::default())?;
        Ok(Offline { dispatcher })
    }

    /// Answers the bytes of a request, now or later on another thread.
    pub fn receive(&self, request: &[u8], sender: impl Sender + 'static) {
        self.dispatcher.receive(request, Route::Other(Box::new(sender)));
    }
}
