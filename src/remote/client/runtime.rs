//! The two threads that all requests run on.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::model::{Error, Result};

const THREADS: usize = 2;

static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();

fn runtime() -> Result<&'static Runtime> {
    let made = RUNTIME.get_or_init(|| {
        // Fails if there is one already, which does as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("remote").enable_io().enable_time();
        builder.build().map_err(|error| error.to_string())
    });
    made.as_ref()
        .map_err(|error| Error::io("starting the threads of requests", std::io::Error::other(error.as_str())))
}

/// Starts the threads and chooses the code for TLS, before a client is made.
pub(in crate::remote) fn start() -> Result<()> {
    runtime().map(|_| ())
}

/// Waits until `work` is done.
pub fn wait<T>(work: impl Future<Output = T>) -> Result<T> {
    Ok(runtime()?.block_on(work))
}

/// Does `work` on the threads of requests.
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<JoinHandle<T>> {
    Ok(runtime()?.spawn(work))
}
