//! `tierfs csi`.

use std::fs;
use std::io::{self, ErrorKind as IoErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::mount::options::parse_address;
use crate::cli::{Outcome, VERSION};
use crate::csi::{Plugin, Settings};
use crate::model::{Error, ErrorKind, Result};

/// Serve volumes to containers: a CSI driver, which Kubernetes asks for mounts.
///
/// Each remote or store that volumes name is mounted once on a node, by a daemon that lives on when the plugin ends.
///
/// Example: tierfs csi --endpoint unix:///csi/csi.sock --node-id node-1
#[derive(clap::Args)]
pub(super) struct Args {
    /// The socket to serve on
    #[arg(long, value_name = "unix:///PATH", value_parser = parse_endpoint)]
    endpoint: PathBuf,
    /// The name of this node
    #[arg(long, value_name = "ID", value_parser = parse_node)]
    node_id: String,
    /// Directory of records and mounts
    #[arg(long, value_name = "DIR", default_value = "/var/lib/tierfs/csi")]
    state: PathBuf,
    /// Directory with the caches of remotes [default: cache, in the directory of --state]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Maximum size of each cache, as for tierfs mount
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<String>,
    /// The name of the driver in volumes and classes
    #[arg(long, value_name = "NAME", default_value = "csi.tierfs.io", value_parser = parse_name)]
    driver_name: String,
    /// Let volumes that are a part of a pod name stores, keys and file:// remotes below this directory, which pods must
    /// not be able to write to; again for others
    #[arg(long, value_name = "DIR")]
    inline_paths: Vec<PathBuf>,
    /// Run daemons as units of the host's systemd, so that they outlive the container of the plugin
    #[arg(long)]
    host_systemd: bool,
    /// Directory for the copy of this program that these units run, by the same path here and on the host [default: bin, in
    /// the directory of --state]
    #[arg(long, value_name = "DIR", requires = "host_systemd")]
    program_dir: Option<PathBuf>,
    /// Serve the metrics of all daemons, in the OpenMetrics format, at http://ADDRESS:PORT/metrics, without authentication
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// The mount namespace of the host
    #[arg(long, value_name = "FILE", default_value = "/proc/1/ns/mnt", hide = true)]
    host_namespace: PathBuf,
}

/// The longest name of a node and of a driver.
const NODE_BYTES_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 63;

fn parse_endpoint(text: &str) -> Result<PathBuf> {
    let path = text.strip_prefix("unix:").map(|path| path.strip_prefix("//").unwrap_or(path));
    let wrong = || Error::invalid(format!("invalid endpoint {text:?}; expected unix:///PATH"));
    path.map(PathBuf::from).filter(|path| path.is_absolute() && path.file_name().is_some()).ok_or_else(wrong)
}

fn parse_node(text: &str) -> Result<String> {
    if text.is_empty() || text.len() > NODE_BYTES_MAX {
        return Err(Error::invalid(format!("the name of a node has 1 to {NODE_BYTES_MAX} bytes")));
    }
    Ok(text.to_owned())
}

fn parse_name(text: &str) -> Result<String> {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_plain = bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(byte));
    if !is_plain || !is_end(bytes.first()) || !is_end(bytes.last()) || bytes.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!("invalid name {text:?}; expected one such as csi.tierfs.io")));
    }
    Ok(text.to_owned())
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|error| Error::io(path.display(), error));
        fs::create_dir_all(&self.state).map_err(|error| Error::io(self.state.display(), error))?;
        // Paths of mounts are compared with those that the kernel shows.
        let state = fs::canonicalize(&self.state).map_err(|error| Error::io(self.state.display(), error))?;
        let cache = self.cache.as_deref().map(absolute).transpose()?;
        let settings = Settings {
            name: self.driver_name,
            node: self.node_id,
            version: VERSION.to_owned(),
            cache: cache.unwrap_or_else(|| state.join("cache")),
            cache_size: self.cache_size,
            inline_paths: self.inline_paths.iter().map(|path| absolute(path)).collect::<Result<_>>()?,
            host: self.host_systemd.then_some(self.host_namespace),
            program: self.program_dir.as_deref().map(absolute).transpose()?,
            metrics: self.metrics,
            state,
        };
        let deaf = |error| Error::io("waiting for signals", error);
        let (stop, signals) = UnixStream::pair().map_err(deaf)?;
        for signal in [SIGTERM, SIGINT] {
            let signals = signals.try_clone().map_err(deaf)?;
            signal_hook::low_level::pipe::register(signal, signals).map_err(deaf)?;
        }
        let plugin = Plugin::open(settings)?;
        let listener = listen(&self.endpoint)?;
        plugin.serve(listener, stop)?;
        Ok(Outcome::Succeeded)
    }
}

/// Listens on a socket for this user alone, since calls mount. A socket that a former plugin has left is replaced.
fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |error: io::Error| Error::io(path.display(), error);
    if UnixStream::connect(path).is_ok() {
        let text = format!("another plugin serves on {}", path.display());
        return Err(Error::new(ErrorKind::Busy, text));
    }
    let is_socket = |path: &Path| {
        use std::os::unix::fs::FileTypeExt;
        fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
    };
    if is_socket(path) {
        fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
        IoErrorKind::AddrInUse => {
            Error::new(ErrorKind::Exists, format!("{} is not a socket", path.display()))
        }
        _ => failed(error),
    })?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}
