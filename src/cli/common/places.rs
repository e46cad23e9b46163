//! The forms of a place: a path in a mount, or a store, or a remote, and a name in it.
//!
//! A command is written for one of the forms, and takes the other too: [`by_store`] gives `STORE TENANT/COLLECTION` to
//! commands that take these words, [`in_mount`] paths in a mount to others. A path below the directory of a store stands for
//! the store and a name in it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::path::{Component, Path, PathBuf};

use clap::ArgAction;

use crate::cli::common::mounts::{mount_of, mountpoints_of, resolved};
use crate::cli::common::remote;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::disk::files::{FileDisk, visit_files};

/// Commands whose first words are STORE and a name in it.
const BY_STORE: [&str; 7] = ["events", "export", "import", "log", "mv", "push", "rm"];
/// Those of them that take a name deeper than that of a collection.
const OF_FILES: [&str; 2] = ["events", "export"];
/// Those of them that do not take a mount point as the store.
const OF_STORES_ALONE: [&str; 3] = ["events", "import", "push"];

/// Names in the path of a collection.
const COLLECTION_DEPTH: usize = 2;

/// A path in a mount or below the directory of a store.
struct NamedPlace {
    /// The mount point, or the directory of the store.
    root: PathBuf,
    store: PathBuf,
    /// The names below it, which may be none of a mount.
    below: PathBuf,
}

fn split(path: &OsStr) -> Option<NamedPlace> {
    let path = Path::new(path);
    let Some(mounted) = mount_of(path).ok()? else {
        let (store, below) = below_store(path)?;
        return Some(NamedPlace { root: store.clone(), store, below });
    };
    let real = resolved(path).ok()?;
    let below = real.strip_prefix(&mounted.mountpoint).ok()?.to_owned();
    Some(NamedPlace { root: mounted.mountpoint, store: mounted.store, below })
}

/// The store that a path lies in, and the names below its directory. `None` for the store itself.
pub(in crate::cli) fn below_store(path: &Path) -> Option<(PathBuf, PathBuf)> {
    if remote::url(path).is_some() || Store::exists(&FileDisk::new(path)) {
        return None;
    }
    let real = resolved(path).ok()?;
    let store = real.ancestors().skip(1).find(|above| Store::exists(&FileDisk::new(above)))?;
    let below = real.strip_prefix(store).ok()?;
    let is_below = below.components().all(|part| matches!(part, Component::Normal(_)));
    is_below.then(|| (store.to_owned(), below.to_owned()))
}

/// The words of the command line, with STORE and a name in place of a path in a mount.
pub(in crate::cli) fn by_store(words: Vec<OsString>, cli: &clap::Command) -> Vec<OsString> {
    let is_named = |word: &&OsString| word.to_str().is_some_and(|word| BY_STORE.contains(&word));
    let Some(name) = words.get(1).filter(is_named).and_then(|word| word.to_str()) else { return words };
    let Some(command) = cli.find_subcommand(name) else { return words };
    let at = positionals(&words, command);
    // These act on an entry, which a link elsewhere is not.
    let is_link = |at: &usize| words.get(*at).is_some_and(|word| Path::new(word).is_symlink());
    if matches!(name, "rm" | "mv") && at.iter().any(is_link) {
        return words;
    }
    let Some((first, of)) = at.first().and_then(|at| Some((*at, split(words.get(*at)?)?))) else {
        return words;
    };
    let NamedPlace { root, store, below } = &of;
    // A place for a store would lie deeper.
    if below.components().count() > COLLECTION_DEPTH && !OF_FILES.contains(&name) {
        return words;
    }
    let is_second_of_mv = |at: &usize| name == "mv" && at_of(&positionals(&words, command), 1) == Some(*at);
    let is_root = below.as_os_str().is_empty();
    // The mount of a remote has no store; the command refuses its mount point.
    let is_of_store = OF_STORES_ALONE.contains(&name) && remote::url(store).is_none();
    let store = if is_of_store { store } else { root };
    let mut named = Vec::with_capacity(words.len() + 1);
    for (at, word) in words.iter().enumerate() {
        if at == first {
            named.push(store.clone().into_os_string());
            named.extend((!is_root).then(|| below.clone().into_os_string()));
            continue;
        }
        let target = (!is_root && is_second_of_mv(&at)).then(|| split(word)).flatten();
        named.push(match target {
            Some(target) if target.root == *root => target.below.into_os_string(),
            _ => word.clone(),
        });
    }
    named
}

fn at_of(places: &[usize], number: usize) -> Option<usize> {
    places.get(number).copied()
}

/// The places of the words of a subcommand that belong to no option.
fn positionals(words: &[OsString], command: &clap::Command) -> Vec<usize> {
    let takes_value = |word: &str| {
        let mut options = command.get_arguments();
        let option = match word.strip_prefix("--") {
            Some(long) => options.find(|option| option.get_long() == Some(long)),
            None => options.find(|option| option.get_short() == word.chars().nth(1)),
        };
        option.is_some_and(|option| matches!(option.get_action(), ArgAction::Set | ArgAction::Append))
    };
    let (mut found, mut is_value, mut are_all) = (Vec::new(), false, false);
    for (at, word) in words.iter().enumerate().skip(2) {
        let text = word.to_str().unwrap_or_default();
        if std::mem::take(&mut is_value) {
            continue;
        }
        if !are_all && text == "--" {
            are_all = true;
        } else if !are_all && text.len() > 1 && text.starts_with('-') {
            is_value = takes_value(text);
        } else {
            found.push(at);
        }
    }
    found
}

/// Paths in a mount: the words themselves; or names in the store that the first word is, where that is mounted, or in the
/// mount point that the first word is; or paths below the directory of a mounted store.
///
/// # Errors
///
/// `Invalid` for a store that is not mounted.
pub(in crate::cli) fn in_mount(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let Some((first, names)) = paths.split_first() else { return Ok(Vec::new()) };
    let below = |mountpoint: &Path| -> Vec<PathBuf> {
        names.iter().map(|name| mountpoint.join(name.strip_prefix("/").unwrap_or(name))).collect()
    };
    // A mount whose daemon has ended is refused by its name.
    if !matches!(mount_of(first), Ok(None)) {
        let are_names = !names.is_empty() && names.iter().all(|name| !name.exists());
        let named = below(first);
        let is_meant = are_names && named.iter().all(|path| path.exists());
        return Ok(if is_meant { named } else { paths.to_vec() });
    }
    if !Store::exists(&FileDisk::new(first)) {
        return paths.iter().map(|path| one_in_mount(path)).collect();
    }
    let mountpoint = mountpoint_of(first)?;
    Ok(if names.is_empty() { vec![mountpoint] } else { below(&mountpoint) })
}

/// A path in a mount: the path itself, unless it lies below the directory of a mounted store.
///
/// # Errors
///
/// `Invalid` for one below a store that is not mounted.
pub(in crate::cli) fn one_in_mount(path: &Path) -> Result<PathBuf> {
    let below = if matches!(mount_of(path), Ok(None)) { below_store(path) } else { None };
    match below {
        Some((store, below)) => Ok(mountpoint_of(&store)?.join(below)),
        None => Ok(path.to_owned()),
    }
}

/// A path in a mount, as [`in_mount`] takes one.
///
/// # Errors
///
/// `Invalid` for a store that is not mounted.
pub(in crate::cli) fn mount_or_below(path: &Path) -> Result<PathBuf> {
    Ok(in_mount(&[path.to_owned()])?.pop().unwrap_or_default())
}

fn mountpoint_of(store: &Path) -> Result<PathBuf> {
    mountpoints_of(store).into_iter().next().ok_or_else(|| {
        let store = store.display();
        let text = format!("the store {store} is not mounted; to mount it: tierfs mount {store} MOUNTPOINT");
        Error::invalid(text)
    })
}

/// `path` itself if it is a file, else the files below the directory, sorted. Follows `path` if it is a symbolic link, but no
/// link below it.
///
/// # Errors
///
/// Fails with `Invalid` if the path is not on a tierfs mount, and with `NotFound` if no file lies there.
pub(in crate::cli) fn files_below(path: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
    let shown = path.display();
    let failed = |error| Error::io(path.display(), error);
    // A mount whose daemon has ended is refused by its name.
    mount_of(path)?;
    let is_link = fs::symlink_metadata(path).map_err(failed)?.is_symlink();
    let path = if is_link { fs::canonicalize(path).map_err(failed)? } else { path.to_owned() };
    if mount_of(&path)?.is_none() {
        return Err(Error::invalid(format!(
            "{shown} is not on a tierfs mount; tierfs status lists the mounts"
        )));
    }
    let (mut found, mut links) = (Vec::new(), 0);
    visit_files(&path, &mut |path, metadata| {
        if metadata.is_symlink() {
            links += 1;
        } else {
            found.push((path.to_owned(), metadata.clone()));
        }
    })?;
    if found.is_empty() {
        let links = match links {
            0 => String::new(),
            links => format!("; its symbolic links ({links}) are not followed, so name their targets"),
        };
        return Err(Error::new(ErrorKind::NotFound, format!("there is no file in {shown}{links}")));
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::positionals;
    use crate::cli::Cli;

    #[test]
    fn values_of_options_are_no_places() {
        let cli = Cli::command();
        let of = |text: &str| {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            let name = words.get(1).and_then(|word| word.to_str()).unwrap_or_default().to_owned();
            let found = positionals(&words, cli.find_subcommand(&name).unwrap());
            found.iter().map(|at| words[*at].to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of("tierfs import --tier q8 -n st --tag=a t/c x -- -y"), ["st", "t/c", "x", "-y"]);
        assert_eq!(of("tierfs mv --json a b c"), ["a", "b", "c"]);
        assert_eq!(of("tierfs rm m/t/c"), ["m/t/c"]);
    }
}
