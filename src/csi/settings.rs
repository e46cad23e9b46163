//! The settings of the driver.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The settings, from the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the driver, as a CSIDriver object has it.
    pub name: String,
    /// The name of this node.
    pub node: String,
    /// The version of the program.
    pub version: String,
    /// The directory of records and mounts.
    pub state: PathBuf,
    /// The directory with the caches of remotes.
    pub cache: PathBuf,
    /// The size of each cache, as `tierfs mount --cache-size` takes it.
    pub cache_size: Option<String>,
    /// Directories of the node that inline volumes may name.
    pub inline_paths: Vec<PathBuf>,
    /// The mount namespace of the host, if daemons are units of its systemd.
    pub host: Option<PathBuf>,
    /// The directory for the program that these units run; `None` for one in `state`.
    pub program: Option<PathBuf>,
    /// Where the metrics of all daemons are served.
    pub metrics: Option<SocketAddr>,
}
