//! `tierfs mount --takeover`: this program goes on with a mount of another daemon, while programs use it.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;

use crate::cli::common::mounts::mount_dead_or_alive;
use crate::cli::common::remote::{self, EarlierMount};
use crate::cli::mount::keeper::Keeper;
use crate::cli::mount::{Args, Begun};
use crate::cli::{Cli, Command as Subcommand, Outcome};
use crate::format::handover::HandOver;
use crate::fs::{Asking, Bundle, Leaving, of_standard_input};
use crate::model::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::disk::files::FileDisk;

/// Takes the mount on a directory over. `like` says how this process runs; the options are those of the mount.
pub(super) fn take_over(mountpoint: &Path, like: &Args) -> Result<Outcome> {
    let shown = mountpoint.display();
    let none = || Error::new(ErrorKind::NotFound, format!("no tierfs is mounted on {shown}"));
    let mounted = mount_dead_or_alive(mountpoint)?.ok_or_else(none)?;
    let goes_on = |error: Error| {
        let text = format!("the mount on {shown} is not taken over, and its daemon goes on: {error}");
        Error::new(error.kind(), text)
    };
    let (asking, offer) = Asking::begin(mounted.connection.0).map_err(goes_on)?;
    let begun = prepared(&offer, like).and_then(|prepared| {
        asking.go_on()?;
        let bundle = Bundle::receive(asking.socket())?;
        Ok((prepared, bundle))
    });
    let (Prepared { args, kernel, remote }, bundle) = begun.map_err(|error| {
        asking.refuse(&error.to_string());
        goes_on(error)
    })?;
    let begun = Begun { bundle: Some(bundle), asking: Some(asking), remote, ..Begun::default() };
    args.serve(kernel, begun).map_err(goes_on)
}

/// A mount that this program can serve.
struct Prepared {
    args: Args,
    /// Its options for the kernel.
    kernel: Vec<String>,
    /// Its remote, as it can be read with the credentials of this process.
    remote: Option<Store>,
}

/// A mount that is offered, if this program can serve it.
fn prepared(offer: &HandOver, like: &Args) -> Result<Prepared> {
    std::env::set_current_dir(OsStr::from_bytes(&offer.directory))
        .map_err(|error| Error::io("entering the directory of the daemon", error))?;
    let arguments: Vec<OsString> = offer.arguments.iter().cloned().map(OsString::from_vec).collect();
    let words = ["tierfs".into(), "mount".into()].into_iter().chain(arguments.iter().cloned());
    let unknown = |error: clap::Error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Error::unsupported(format!("this program does not know the options of the mount: {first}"))
    };
    let Subcommand::Mount(args) = Cli::try_parse_from(words).map_err(unknown)?.command else {
        return Err(Error::unsupported("the daemon has no arguments of a mount"));
    };
    let mut args = Args { announce: like.announce, foreground: like.foreground, arguments, ..args };
    args.find_places()?;
    let kernel = args.take_options();
    let remote = match remote::url(&args.store) {
        Some(url) => {
            let said = String::from_utf8_lossy(&offer.said);
            Some(args.remote.open(url, Some(EarlierMount { said: &said, has_daemon: true }))?)
        }
        None => {
            Store::check(&FileDisk::new(&args.store))?;
            None
        }
    };
    Ok(Prepared { args, kernel, remote })
}

/// Runs this program again without threads and without a store, to wait until another one has taken the mount up.
/// Returns why that fails.
pub(super) fn leave(args: &Args, bundle: Bundle, keeper: Option<&Keeper>) -> Error {
    let passed = || -> std::io::Result<Command> {
        let (to, from) = UnixStream::pair()?;
        Bundle { keeper: keeper.map(Keeper::socket).transpose()?, ..bundle }.send(&to)?;
        rustix::stdio::dup2_stdin(&from)?;
        let mut again = Command::new(program());
        again.arg0("tierfs").args(["mount", "--given-up"]);
        if !args.foreground {
            again.arg("--announce");
        }
        again.args(&args.arguments);
        Ok(again)
    };
    let error = passed().map_or_else(|error| error, |again| run_instead(again, args.remote.follow.is_some()));
    Error::io("running this program again", error)
}

/// Replaces this program. Returns why that fails. A mount that follows a remote does not end by SIGHUP, and neither does the
/// next program, which ignores it from its begin.
fn run_instead(mut command: Command, follows: bool) -> std::io::Error {
    let mut before = None;
    if follows {
        // SAFETY: zeros are an action without flags and signals.
        let mut ignores: libc::sigaction = unsafe { std::mem::zeroed() };
        ignores.sa_sigaction = libc::SIG_IGN;
        match act_on_hangup(&ignores) {
            Ok(action) => before = Some(action),
            Err(error) => return error,
        }
    }
    let error = command.exec();
    if let Some(Err(failed)) = before.map(|before| act_on_hangup(&before)) {
        log::warn!("SIGHUP has no effect any more: {failed}");
    }
    error
}

/// Sets the action of SIGHUP. Returns the one before.
fn act_on_hangup(action: &libc::sigaction) -> std::io::Result<libc::sigaction> {
    // SAFETY: zeros are an action, which the call replaces.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the actions live longer than the call. The new one ignores the signal, or was the action before.
    match unsafe { libc::sigaction(libc::SIGHUP, action, &raw mut before) } {
        0 => Ok(before),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Waits, in a daemon that has given the mount up, until the other program has taken it up. Returns the mount if that does
/// not happen.
pub(super) fn wait_for_other() -> Result<Option<Bundle>> {
    take_name()?;
    let socket = of_standard_input().map_err(|error| Error::io("taking the mount back", error))?;
    let mut bundle = Bundle::receive(socket.as_fd())?;
    let Some(peer) = bundle.peer.take() else { return Ok(Some(bundle)) };
    let leaving = Leaving::new(peer.into());
    let sent = leaving.announce().and_then(|()| bundle.send(leaving.socket()));
    let sent = sent.map_err(|error| Error::io("giving the mount to another program", error));
    match sent.and_then(|()| leaving.wait()) {
        Ok(()) => Ok(None),
        Err(error) => {
            log::warn!("another program did not take the mount over, so this one goes on: {error}");
            Ok(Some(bundle))
        }
    }
}

/// Names this process as it would be if its program still had its path (see [`program`]).
pub(super) fn take_name() -> Result<()> {
    rustix::thread::set_name(c"tierfs").map_err(|error| Error::io("naming the process", error.into()))
}

/// This program, also after another version has taken its place.
pub(super) fn program() -> PathBuf {
    let path = std::env::current_exe().ok().filter(|path| path.exists());
    path.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}
