//! The CSI driver: calls of a container orchestrator in, mounts for containers out. `tierfs csi` runs it.
//!
//! `server.rs` takes calls from a socket and gives their bytes to `calls.rs`, the table of calls. `messages.rs` has the
//! messages, `attributes.rs`, `secrets.rs` and `access.rs` check their parts. `identity.rs`, `node.rs` and
//! `controller.rs` answer. `daemons.rs` starts and ends processes `tierfs mount`, in this container or, by `host.rs`,
//! outside; `targets.rs` mounts their directories where containers see them. `records.rs` keeps on disk what a plugin
//! that was killed needs to go on, and `driver.rs` goes on, with its invariants at the head. `metrics.rs` joins the metrics of
//! all daemons.
//!
//! A call has the turn of its volume, then that of the daemon (`turns.rs`). Nothing else is locked while programs run.

mod access;
mod attributes;
mod calls;
mod controller;
mod daemons;
mod driver;
mod failure;
mod host;
mod identity;
mod messages;
mod metrics;
mod node;
mod programs;
mod records;
mod secrets;
mod server;
mod settings;
mod targets;
mod turns;

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::csi::settings::Settings;

use crate::control::serve_metrics_text;
use crate::csi::driver::Driver;
use crate::model::Result;

/// A plugin that has its state directory.
pub struct Plugin(Arc<Driver>);

impl Plugin {
    /// Opens the state directory, which no other plugin may use.
    pub fn open(settings: Settings) -> Result<Plugin> {
        Driver::open(settings).map(|driver| Plugin(Arc::new(driver)))
    }

    /// Serves calls, and metrics if that is set, until there are bytes to read from `stop`. Daemons and mounts stay.
    pub fn serve(self, listener: UnixListener, stop: UnixStream) -> Result<()> {
        if let Some(at) = self.0.settings.metrics {
            let driver = self.0.clone();
            serve_metrics_text(at, move || Some(metrics::of_node(&driver)))?;
        }
        let ends = Arc::new(AtomicBool::new(false));
        let (driver, is_over) = (self.0.clone(), ends.clone());
        std::thread::spawn(move || driver.watch(&is_over));
        let served = server::serve(self.0, listener, stop);
        ends.store(true, Ordering::Relaxed);
        served
    }
}
