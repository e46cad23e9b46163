//! The threads that all requests run on: a quarter of the cores, 2 to 16. Two would bound a
//! fast network.

use std::future::Future;
use std::num::NonZero;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::model::{Error, Result};

const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 16;
const CORES_A_THREAD: usize = 4;

static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();

/// The threads on a machine, or in a container, with so many cores.
fn threads(cores: usize) -> usize {
    (cores / CORES_A_THREAD).clamp(THREADS_MIN, THREADS_MAX)
}

fn runtime() -> Result<&'static Runtime> {
    let made = RUNTIME.get_or_init(|| {
        // Fails if there is one already, which does as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = Builder::new_multi_thread();
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        builder.worker_threads(threads(cores)).thread_name("remote").enable_io().enable_time();
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

#[cfg(test)]
mod tests {
    use super::threads;

    #[test]
    fn a_quarter_of_the_cores_carries_requests() {
        assert_eq!([1, 2, 8, 9, 16, 64, 400].map(threads), [2, 2, 2, 2, 4, 16, 16]);
    }
}
