//! The target of messages: standard error or, once a daemon has detached, a file or the system log.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use log::{Level, Log, Metadata, Record};

use crate::cli::common::output::printable;
use crate::model::{Error, Result};

/// The socket of the system log: journald, rsyslog and the other syslog daemons listen there.
const SOCKET: &str = "/dev/log";
/// The environment variable that names another socket.
pub(in crate::cli) const SOCKET_VARIABLE: &str = "TIERFS_SYSLOG";
/// The environment variable that selects which messages are logged.
pub(in crate::cli) const LEVEL_VARIABLE: &str = "TIERFS_LOG";
/// The default filter of messages.
const LEVEL: &str = "warn,fuser=error,rustls_platform_verifier=off";

/// The facility `daemon` of syslog(3), shifted to its place in a priority.
const DAEMON: u8 = 3 << 3;

/// The system log, once a daemon logs to it.
static SYSTEM_LOG: OnceLock<SystemLog> = OnceLock::new();

/// Begins to log to standard error.
pub(in crate::cli) fn begin() {
    let environment = env_logger::Env::new().filter_or(LEVEL_VARIABLE, LEVEL);
    let terminal = env_logger::Builder::from_env(environment).format_target(false).build();
    let level = terminal.filter();
    if log::set_boxed_logger(Box::new(Logger { terminal })).is_ok() {
        log::set_max_level(level);
    }
}

struct Logger {
    terminal: env_logger::Logger,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        self.terminal.enabled(metadata)
    }

    fn log(&self, record: &Record) {
        match SYSTEM_LOG.get() {
            // The builder borrows the text.
            None => self.terminal.log(
                &Record::builder()
                    .metadata(record.metadata().clone())
                    .args(format_args!("{}", printable(&record.args().to_string())))
                    .module_path(record.module_path())
                    .build(),
            ),
            Some(system_log) if self.terminal.matches(record) => system_log.send(record),
            Some(_) => {}
        }
    }

    fn flush(&self) {}
}

/// The system log. A message that it does not take at once is dropped: a daemon that waited for the system
/// log could make the system log wait for the daemon.
struct SystemLog {
    socket: UnixDatagram,
    path: PathBuf,
}

impl SystemLog {
    fn connect(path: &Path) -> io::Result<SystemLog> {
        UnixDatagram::unbound()?.connect(path)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(SystemLog { socket, path: path.to_owned() })
    }

    fn send(&self, record: &Record) {
        // The path is resolved each time, so a restarted system log is found again.
        let line = line(record.level(), std::process::id(), &printable(&record.args().to_string()));
        self.socket.send_to(line.as_bytes(), &self.path).unwrap_or_default();
    }
}

/// A message in the format of RFC 3164. The system log adds the time.
fn line(level: Level, process: u32, text: &str) -> String {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    format!("<{}>tierfs[{process}]: {text}", DAEMON | severity)
}

/// Where a daemon logs.
pub(in crate::cli) enum Destination {
    /// The journal or syslog.
    SystemLog { path: PathBuf },
    /// The file that an option names.
    File(File),
    /// The file of a user on a machine without a system log, and whether it is new.
    StateFile {
        file: File,
        path: PathBuf,
        /// Whether no daemon has logged to it yet.
        is_new: bool,
    },
    /// Nowhere: there is no system log, and the file cannot be written.
    Nowhere(Error),
}

impl Destination {
    /// The destination of a daemon, with or without `--log`. Fails if that file cannot be opened.
    pub fn of_daemon(file: Option<&Path>) -> Result<Destination> {
        if let Some(path) = file {
            let opened =
                append(path).map_err(|error| Error::io(format!("opening {}", path.display()), error));
            return opened.map(Destination::File);
        }
        let path = socket();
        if SystemLog::connect(&path).is_ok() {
            return Ok(Destination::SystemLog { path });
        }
        Ok(state_file().unwrap_or_else(Destination::Nowhere))
    }

    /// The file that replaces standard error.
    pub fn file(&self) -> Option<&File> {
        match self {
            Destination::File(file) | Destination::StateFile { file, .. } => Some(file),
            Destination::SystemLog { .. } | Destination::Nowhere(_) => None,
        }
    }

    /// A line for the user, if the destination is not the expected one. A file is named when it is
    /// created.
    pub fn note(&self) -> Option<String> {
        match self {
            Destination::StateFile { path, is_new: true, .. } => Some(format!(
                "this machine has no system log ({}); daemons log to {} (--log FILE names another file)",
                socket().display(),
                path.display()
            )),
            Destination::Nowhere(error) => Some(format!(
                "this machine has no system log ({}), and the daemon's messages are dropped ({error}); --log \
                 FILE keeps them",
                socket().display()
            )),
            _ => None,
        }
    }

    /// Makes the messages of this process go there.
    pub fn begin(self) {
        let Destination::SystemLog { path } = self else { return };
        if let Ok(system_log) = SystemLog::connect(&path)
            && SYSTEM_LOG.set(system_log).is_ok()
        {
            std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
        }
    }
}

/// The destination of daemons without `--log`, and whether it is the system log.
pub(in crate::cli) fn expected() -> (String, bool) {
    let socket = socket();
    if SystemLog::connect(&socket).is_ok() {
        return (format!("daemons log to the system log ({})", socket.display()), true);
    }
    let file = state_path().map_or("nowhere".to_owned(), |path| path.display().to_string());
    (format!("no system log ({}); daemons log to {file}", socket.display()), false)
}

fn socket() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).unwrap_or(SOCKET.into()).into()
}

/// `tierfs/log` in the directory for the state of a user's programs.
pub(in crate::cli) fn state_path() -> Option<PathBuf> {
    let directory = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = directory("XDG_STATE_HOME").or_else(|| Some(directory("HOME")?.join(".local/state")));
    state.map(|state| state.join("tierfs/log"))
}

fn state_file() -> Result<Destination, Error> {
    let path = state_path().ok_or_else(|| Error::invalid("HOME is not set"))?;
    let failed = |error| Error::io(format!("opening {}", path.display()), error);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let is_new = !path.exists();
    let file = append(&path).map_err(failed)?;
    Ok(Destination::StateFile { file, path, is_new })
}

fn append(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use log::Level;

    use super::line;

    #[test]
    fn a_message_has_the_priority_of_its_level_in_the_facility_of_daemons() {
        assert_eq!(line(Level::Error, 7, "x: y"), "<27>tierfs[7]: x: y");
        assert_eq!(line(Level::Warn, 7, ""), "<28>tierfs[7]: ");
        assert_eq!(line(Level::Info, 7, "é"), "<30>tierfs[7]: é");
        assert_eq!(line(Level::Trace, 7, "a"), "<31>tierfs[7]: a");
    }
}
