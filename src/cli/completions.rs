//! `tierfs completions`: scripts with which the shell asks this program, which knows tiers, settings and the names in
//! a store.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::CompletionCandidate;
use clap_complete::engine::{ArgValueCompleter, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};

use crate::cli::common::mounts;
use crate::cli::common::output::print;
use crate::cli::common::tree::Tree;
use crate::cli::{Cli, Outcome, mount};
use crate::control::ATTRIBUTES;
use crate::engine::Setting;
use crate::model::{Dtype, Error, Result, Tier};
use crate::store::Store;
use crate::store::disk::files::FileDisk;

/// Print the completion script of a shell.
///
/// The script asks tierfs for tiers, settings, and the tenants, collections and files of the store that the
/// line names.
///
/// Example: tierfs completions bash > /usr/share/bash-completion/completions/tierfs
#[derive(clap::Args)]
pub(super) struct Completions {
    /// The shell: bash, zsh, fish, elvish or powershell
    #[arg(value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
    shell: String,
}

/// The environment variable by which a completion script asks.
pub(super) const VARIABLE: &str = "TIERFS_COMPLETE";

type Complete = fn(&OsStr) -> Vec<CompletionCandidate>;

/// How values of arguments are completed, by the identifiers of arguments. Paths complete by their type.
const COMPLETERS: [(&str, Complete); 7] = [
    ("tier", tiers),
    ("collection", names_in_store),
    ("below", names_in_store),
    ("parent", names_in_store),
    ("options", mount_options),
    ("words", settings_and_paths),
    ("reconstruct", reconstruct),
];

impl Completions {
    pub fn run(self) -> Result<Outcome> {
        let mut script = Vec::new();
        let shell = Shells::builtins();
        let shell =
            shell.completer(&self.shell).ok_or_else(|| Error::invalid(format!("no shell {}", self.shell)))?;
        let written = shell.write_registration(VARIABLE, "tierfs", "tierfs", "tierfs", &mut script);
        written.map_err(|error| Error::io("writing the completion script", error))?;
        print(&String::from_utf8_lossy(&script))?;
        Ok(Outcome::Succeeded)
    }
}

/// Answers a completion script and ends the process, if one asks.
pub(super) fn answer() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// The command line with its completers.
fn command() -> clap::Command {
    Cli::command().mut_subcommands(with_completers)
}

fn with_completers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let completer = COMPLETERS.iter().find(|(id, _)| argument.get_id().as_str() == *id);
        match completer {
            Some((_, complete)) => argument.add(ArgValueCompleter::new(*complete)),
            None => argument,
        }
    });
    command.mut_subcommands(with_completers)
}

/// The entries of `values` that begin with `current`.
fn beginning_with(current: &OsStr, values: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let found = values.into_iter().filter(|value| value.starts_with(&*current));
    found.map(CompletionCandidate::new).filter(is_plain).collect()
}

/// Whether a shell can print it.
fn is_plain(candidate: &CompletionCandidate) -> bool {
    !candidate.get_value().to_string_lossy().contains(char::is_control)
}

/// The tiers that a tensor can be moved to, then those of every float tensor.
fn tier_names() -> impl Iterator<Item = String> {
    let names = Tier::ALL.into_iter().filter(|tier| *tier != Tier::Absent).map(Tier::name);
    names.clone().map(str::to_owned).chain(names.map(|name| format!("{name}:all")))
}

fn tiers(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, tier_names())
}

fn reconstruct(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, RECONSTRUCT.map(str::to_owned))
}

const RECONSTRUCT: [&str; 5] = ["none", "delta", "factor", "origin", "remote"];

fn mount_options(current: &OsStr) -> Vec<CompletionCandidate> {
    let options = mount::options::OPTIONS.into_iter().flat_map(|(name, values)| {
        let values: Vec<String> = match values {
            "" => vec![name.to_owned()],
            values if values.contains('|') => {
                values.split('|').map(|value| format!("{name}={value}")).collect()
            }
            _ => vec![format!("{name}=")],
        };
        values
    });
    beginning_with(current, options)
}

/// `KEY=`, and its values after it.
fn settings_and_paths(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = settings(current);
    found.extend(PathCompleter::any().complete(current).into_iter().filter(is_plain));
    found
}

fn settings(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let Some((key, _)) = text.split_once('=') else {
        let keys = ATTRIBUTES.iter().filter(|attribute| attribute.set.is_some());
        return beginning_with(current, keys.map(|attribute| format!("{}=", attribute.name)));
    };
    let values: Vec<String> = match (key, Setting::from_name(key)) {
        (_, Some(setting)) => setting.values.iter().map(|value| (*value).to_owned()).collect(),
        ("tier" | "arrive", None) => tier_names().collect(),
        ("dtype", None) => Dtype::ALL.iter().map(|dtype| dtype.name().to_owned()).collect(),
        ("head_dim" | "block_bytes", None) => vec!["none".to_owned()],
        ("reconstruct", None) => RECONSTRUCT.map(str::to_owned).into(),
        ("pin", None) => vec!["0".to_owned(), "1".to_owned()],
        ("evict", None) => ["1", "cache", "discard"].map(str::to_owned).into(),
        _ => Vec::new(),
    };
    beginning_with(current, values.into_iter().map(|value| format!("{key}={value}")))
}

/// Tenants, collections and files of the store that the line names: one component more than the argument
/// has.
fn names_in_store(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let below = current.rsplit_once('/').map_or("", |(below, _)| below);
    let Some(store) = words().into_iter().find(|word| is_store(Path::new(word))) else { return Vec::new() };
    let tree = Tree::open(Path::new(&store), Some(below));
    let Ok(rows) = tree.and_then(|tree| tree.rows()) else { return Vec::new() };
    let found = rows.into_iter().filter_map(|row| {
        let name = row.name.into_string().ok()?;
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        // The argument is never a tenant alone; a collection or a directory may be complete.
        let is_tenant = row.is_directory && below.is_empty();
        Some(if is_tenant { format!("{path}/") } else { path })
    });
    beginning_with(OsStr::new(&*current), found)
}

/// The words of the line that the shell completes, after the names of program and command.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|argument| argument != "--").skip(3).collect()
}

fn is_store(path: &Path) -> bool {
    Store::exists(&FileDisk::new(path))
        || mounts::mount_of(path)
            .is_ok_and(|mounted| mounted.is_some_and(|mounted| mounted.mountpoint == path))
}

#[cfg(test)]
mod tests {
    use crate::model::LOSSES;
    use std::ffi::OsStr;

    use super::{COMPLETERS, command, settings, tiers};

    fn arguments(command: &clap::Command, found: &mut Vec<String>) {
        found.extend(command.get_arguments().map(|argument| argument.get_id().to_string()));
        command.get_subcommands().for_each(|below| arguments(below, found));
    }

    #[test]
    fn every_completer_has_an_argument() {
        let mut found = Vec::new();
        arguments(&command(), &mut found);
        for (id, _) in &COMPLETERS {
            assert!(found.iter().any(|known| known == id), "{id} in {found:?}");
        }
    }

    #[test]
    fn tiers_and_settings_complete_by_their_beginnings() {
        let names = |found: Vec<clap_complete::CompletionCandidate>| {
            found.iter().map(|one| one.get_value().to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(tiers(OsStr::new("q8"))), ["q8", "q8:all"]);
        assert_eq!(names(settings(OsStr::new("los"))), ["lossy="]);
        assert_eq!(names(settings(OsStr::new("lossy="))), LOSSES.map(|value| format!("lossy={value}")));
        assert!(names(settings(OsStr::new("blake"))).is_empty());
    }
}
