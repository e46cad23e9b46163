//! The command line. Each subcommand has a file of its own, with `Args` and `run`.
//!
//! To add a subcommand: its file, a module, a variant of `Command` and an arm below. Help, manual page and completion
//! follow from the definitions of the arguments; a new kind of argument gets a completer in `completions.rs`. Examples
//! stand in the help, answers to mistakes in `tests/program/mistakes.txt`.
//!
//! To add a mount option: `Args`, `MountOption`, the table `OPTIONS` and `take_options` in `mount.rs`; `Options` and
//! its table in `fs/mount/mod.rs`.
//!
//! `helper.rs` is the name `mount.tierfs`. `shared/` has what several subcommands need: the forms of a place (`places.rs`),
//! a store, a remote or a path of a mount as one tree (`tree.rs`), URLs of remotes, mounts (`mounts.rs`; `connection.rs` without asking their daemon),
//! jobs, output, writing without following links (`folder.rs`). `top/` and `report/` have a `feed.rs`, which reads
//! control files and attributes, and pure code that makes a picture of it.

// Text reaches the user through `common/output.rs`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
#[cfg(feature = "remote")]
mod cache;
mod cancel;
mod cgeb;
#[cfg(feature = "remote")]
mod clone;
mod common;
mod compact;
mod completions;
#[cfg(feature = "csi")]
mod csi;
mod diff;
mod doctor;
mod du;
mod events;
mod evict;
mod export;
mod fsck;
#[cfg(feature = "remote")]
mod gc;
mod get;
mod gpu_read;
mod helper;
mod import;
#[cfg(feature = "remote")]
mod index;
mod init;
mod jobs;
mod join;
mod log;
mod ls;
mod man;
mod mount;
mod mv;
mod pack;
mod pin;
mod prefetch;
#[cfg(feature = "remote")]
mod push;
mod report;
mod rm;
mod scrub;
mod set;
mod stat;
mod status;
#[cfg(feature = "remote")]
mod tag;
mod tier;
mod top;
mod umount;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use serde_json::json;

use crate::cli::common::interrupt::Interrupt;
use crate::model::{ErrorKind, Result};

/// The version. `scripts/dist.sh` gives one with the commit.
const VERSION: &str = match option_env!("TIERFS_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// A file system that shows tensors as files and stores them in precision tiers.
#[derive(Parser)]
#[command(name = "tierfs", version = VERSION, about, max_term_width = 100, arg_required_else_help = true, after_help = exit_statuses())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(init::Args),
    Import(import::Args),
    Export(export::Args),
    Mount(mount::Args),
    #[cfg(feature = "remote")]
    Push(push::Args),
    #[cfg(feature = "remote")]
    Index(index::Args),
    #[cfg(feature = "remote")]
    Clone(clone::Clone),
    #[cfg(feature = "remote")]
    Pull(clone::Pull),
    Log(log::Args),
    #[cfg(feature = "remote")]
    Tag(tag::Args),
    #[cfg(feature = "remote")]
    Gc(gc::Args),
    #[cfg(feature = "remote")]
    Cache(cache::Args),
    Prefetch(prefetch::Args),
    Umount(umount::Args),
    #[cfg(feature = "csi")]
    Csi(csi::Args),
    Ls(ls::Args),
    Stat(stat::Args),
    Du(du::Args),
    Diff(diff::Args),
    Join(join::Args),
    Mv(mv::Args),
    Rm(rm::Args),
    Tier(tier::Args),
    Pack(pack::Pack),
    Unpack(pack::Unpack),
    Pin(pin::Pin),
    Unpin(pin::Unpin),
    Evict(evict::Args),
    Set(set::Args),
    Get(get::Args),
    Status(status::Args),
    Top(top::Args),
    Report(report::Args),
    Jobs(jobs::Args),
    Cancel(cancel::Args),
    Verify(verify::Args),
    Scrub(scrub::Args),
    Compact(compact::Args),
    Fsck(fsck::Args),
    Events(events::Args),
    GpuRead(gpu_read::Args),
    Cgeb(cgeb::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    Completions(completions::Completions),
    Man(man::Manual),
}

/// The outcome of a command that did not return an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Succeeded,
    /// The command failed in part and has printed what failed.
    Failed,
    /// The command found corruption and has printed where.
    Corrupt,
    /// The arguments do not fit together, and the command has printed how.
    Misused,
}

/// The outcome of a command with wrong arguments, after telling the user so.
fn misused(text: &str) -> Result<Outcome> {
    common::output::complain(&format!("tierfs: {text}"));
    Ok(Outcome::Misused)
}

/// Exit statuses, the same for all commands. clap exits with 2 on a usage error.
const FAILED: u8 = 1;
const MISUSED: u8 = 2;
const CORRUPT: u8 = 3;
/// 128 and the number of SIGINT, as shells count.
const INTERRUPTED: u8 = 130;

/// The meaning of each exit status, for help and manual.
const EXIT_STATUSES: [(u8, &str); 5] = [
    (0, "Success."),
    (FAILED, "Something was refused or failed, or was done in part; standard error says what."),
    (2, "The arguments are wrong, and nothing was done."),
    (CORRUPT, "Stored bytes are corrupt, healed or not."),
    (INTERRUPTED, "Ctrl-C or SIGTERM ended the work; the output reports the finished part."),
];

fn exit_statuses() -> String {
    let lines = EXIT_STATUSES.iter().map(|(status, meaning)| format!("\n  {status:<3}  {meaning}"));
    std::iter::once("Exit status:".to_owned()).chain(lines).collect()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    completions::answer();
    common::log::begin();
    if helper::is_called(std::env::args_os().next().as_deref()) {
        return match helper::Helper::try_parse() {
            Ok(helper) => exit_code(helper.run()),
            Err(error) => not_parsed(&error),
        };
    }
    let words = common::places::by_store(std::env::args_os().collect(), &Cli::command());
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error),
    };
    let done = match cli.command {
        Command::Init(args) => args.run(),
        Command::Import(args) => args.run(),
        Command::Export(args) => args.run(),
        Command::Mount(args) => args.run(),
        #[cfg(feature = "remote")]
        Command::Push(args) => args.run(),
        #[cfg(feature = "remote")]
        Command::Index(args) => args.run(),
        #[cfg(feature = "remote")]
        Command::Clone(args) => args.run(),
        #[cfg(feature = "remote")]
        Command::Pull(args) => args.run(),
        Command::Log(args) => args.run(),
        #[cfg(feature = "remote")]
        Command::Tag(args) => args.run(),
        #[cfg(feature = "remote")]
        Command::Gc(args) => args.run(),
        #[cfg(feature = "remote")]
        Command::Cache(args) => args.run(),
        Command::Prefetch(args) => args.run(),
        Command::Umount(args) => args.run(),
        #[cfg(feature = "csi")]
        Command::Csi(args) => args.run(),
        Command::Ls(args) => args.run(),
        Command::Stat(args) => args.run(),
        Command::Du(args) => args.run(),
        Command::Diff(args) => args.run(),
        Command::Join(args) => args.run(),
        Command::Mv(args) => args.run(),
        Command::Rm(args) => args.run(),
        Command::Tier(args) => args.run(),
        Command::Pack(args) => args.run(),
        Command::Unpack(args) => args.run(),
        Command::Pin(args) => args.run(),
        Command::Unpin(args) => args.run(),
        Command::Evict(args) => args.run(),
        Command::Set(args) => args.run(),
        Command::Get(args) => args.run(),
        Command::Status(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Report(args) => args.run(),
        Command::Jobs(args) => args.run(),
        Command::Cancel(args) => args.run(),
        Command::Verify(args) => args.run(),
        Command::Scrub(args) => args.run(),
        Command::Compact(args) => args.run(),
        Command::Fsck(args) => args.run(),
        Command::Events(args) => args.run(),
        Command::GpuRead(args) => args.run(),
        Command::Cgeb(args) => args.run(),
        Command::Doctor(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::Completions(args) => args.run(),
        Command::Man(args) => args.run(),
    };
    exit_code(done)
}

/// Prints the help that was asked for, or what is wrong with the arguments. These may be names of files.
fn not_parsed(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        common::output::complain(&error.render().to_string());
        return ExitCode::from(MISUSED);
    }
    // A closed pipe is not an error.
    error.print().unwrap_or_default();
    ExitCode::SUCCESS
}

fn exit_code(done: Result<Outcome>) -> ExitCode {
    match done {
        Ok(Outcome::Succeeded) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) if Interrupt::was_pressed() => ExitCode::from(INTERRUPTED),
        Ok(Outcome::Failed) => ExitCode::from(FAILED),
        Ok(Outcome::Corrupt) => ExitCode::from(CORRUPT),
        Ok(Outcome::Misused) => ExitCode::from(MISUSED),
        Err(error) => {
            let error = common::mounts::explained(error);
            // clap has checked that the command has the option.
            let as_json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
            let told = as_json.then(|| {
                let value = json!({ "error": { "code": error.kind().code(), "text": error.to_string() } });
                common::output::print_json(&value)
            });
            if !matches!(told, Some(Ok(()))) {
                common::output::complain(&format!("tierfs: {error}"));
            }
            ExitCode::from(match error.kind() {
                ErrorKind::Corrupt => CORRUPT,
                ErrorKind::Interrupted if Interrupt::was_pressed() => INTERRUPTED,
                _ => FAILED,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use clap::Parser;
    use clap::error::ErrorKind;

    use super::Cli;

    /// The Markdown files of the repository's documents.
    fn documents() -> Vec<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let in_folder = |folder: &str| {
            let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect::<Vec<_>>()
        };
        [vec![root.join("README.md")], in_folder("docs"), in_folder("docs/manual")].concat()
    }

    /// The commands of a page: in backquotes, and lines of code.
    fn commands(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut is_code = false;
        for line in text.lines() {
            if line.starts_with("```") {
                is_code = !is_code;
                continue;
            }
            let parts: Vec<&str> =
                if is_code { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
            for part in parts.iter().flat_map(|part| part.split(['|', ';', '#', '>', '\u{b7}'])) {
                for part in part.split("&&") {
                    let part = part.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
                    if part.starts_with("tierfs ") {
                        found.push(part.trim_end_matches('\\').to_owned());
                    }
                }
            }
        }
        found
    }

    /// The words of a command, without quotes and ellipses.
    fn words(command: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for letter in command.chars() {
            match (quote, letter) {
                (None, '"' | '\'') => quote = Some(letter),
                (Some(open), _) if letter == open => quote = None,
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().unwrap().push(letter),
            }
        }
        words.retain(|word| !word.is_empty() && !["...", "\u{2026}", "&"].contains(&word.as_str()));
        words
    }

    #[test]
    fn commands_in_the_documents_have_the_subcommands_and_options_of_the_program() {
        let (mut count, mut wrong) = (0, Vec::new());
        for path in documents() {
            for command in commands(&fs::read_to_string(&path).unwrap()) {
                count += 1;
                // A placeholder, and the first line of a file.
                if command.starts_with("tierfs COMMAND") || command == "tierfs garbage 1" {
                    continue;
                }
                let Err(error) = Cli::try_parse_from(words(&command)) else { continue };
                // Pages write names in capitals for values, and may leave out what does not matter there.
                let is_wrong = matches!(
                    error.kind(),
                    ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict
                );
                if is_wrong {
                    wrong.push(format!("{}: {command}: {error}", path.display()));
                }
            }
        }
        assert!(count > 150, "{count} commands are too few to be all");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
