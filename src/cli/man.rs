//! `tierfs man`: the manual pages, made from the definitions of the arguments and the tables of the program.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::common::log;
use crate::cli::common::output::print;
use crate::cli::{Cli, EXIT_STATUSES, Outcome};
use crate::codec::payload_len;
use crate::control::{
    ATTRIBUTES, Attribute, COLLECTION_FILES, Cost, File, MOUNT_FILES, PREFIX, TENANT_FILES,
};
use crate::model::{Error, Result, Tier};
use crate::vfs::form::Form;

/// Write the manual pages, or print tierfs(1).
///
/// The pages of commands go into man1 below the directory, tierfs-control(7) and tierfs-tiers(7) into man7.
///
/// Example: tierfs man /usr/share/man
#[derive(clap::Args)]
pub(super) struct Manual {
    /// The directory of the manual; without it, tierfs(1) is printed
    directory: Option<PathBuf>,
}

/// The environment variables that tierfs reads.
const ENVIRONMENT: [(&str, &str); 7] = [
    (
        log::LEVEL_VARIABLE,
        "which messages are logged: error, warn (the default), info, debug or trace, for all or for a module",
    ),
    (log::SOCKET_VARIABLE, "the socket of the system log, /dev/log by default"),
    ("XDG_STATE_HOME, HOME", "where a daemon logs on a machine without a system log"),
    ("PATH", "where fusermount3 is found, which mounts for users without CAP_SYS_ADMIN"),
    (
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT",
        "with the feature traces, the URL of a collector that mounts export traces to; --traces overrides it",
    ),
    (
        "AWS_ACCESS_KEY_ID, HF_TOKEN and others",
        "credentials, addresses and proxies of remotes and of files at URLs; docs/REMOTE.md lists them",
    ),
    (super::completions::VARIABLE, "set by the completion scripts of shells"),
];

/// The files that tierfs reads and writes outside its stores and mounts, and the settings of a store.
const FILES: [(&str, &str); 7] = [
    ("STORE/tierfs.toml", "settings of a store"),
    ("/etc/tierfs/NAME.conf", "settings of the service tierfs@NAME"),
    ("/etc/fstab", "mounts of the type tierfs, by the helper /sbin/mount.tierfs"),
    ("/dev/log", "the system log, where daemons log unless --log names a file"),
    ("$XDG_STATE_HOME/tierfs/log, ~/.local/state/tierfs/log", "the log of daemons where /dev/log is missing"),
    (
        "$XDG_CACHE_HOME/tierfs, ~/.cache/tierfs",
        "the cache of mounted remotes, unless --cache names a directory",
    ),
    ("/dev/fuse", "the device of FUSE"),
];

/// The directories that open by name but are not listed.
pub(super) const HIDDEN_DIRECTORIES: [(&str, &str); 3] = [
    (".ctl", "control files, in the mount, in each tenant and in each collection"),
    (".as", "other forms of the same bytes, in each collection"),
    (
        ".tensors",
        "the tensors of the containers of a directory, in each collection and each directory below it",
    ),
];

const ALIASES: [&str; 4] = ["hot", "warm", "warm5", "cold"];

impl Manual {
    pub fn run(self) -> Result<Outcome> {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        match &self.directory {
            None => print(&String::from_utf8_lossy(&program_page(&command)?))?,
            Some(directory) => {
                let (commands, overviews) = (directory.join("man1"), directory.join("man7"));
                for section in [&commands, &overviews] {
                    fs::create_dir_all(section).map_err(|error| Error::io(section.display(), error))?;
                }
                write(&commands.join("tierfs.1"), &program_page(&command)?)?;
                for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
                    write_pages(below.clone(), &commands)?;
                }
                write(&overviews.join("tierfs-control.7"), control_page().render().as_bytes())?;
                write(&overviews.join("tierfs-tiers.7"), tiers_page().render().as_bytes())?;
            }
        }
        Ok(Outcome::Succeeded)
    }
}

fn write(path: &Path, page: &[u8]) -> Result<()> {
    fs::write(path, page).map_err(|error| Error::io(format!("writing {}", path.display()), error))
}

/// Writes the page of a command and those of its subcommands, named like `tierfs-import.1`.
fn write_pages(command: clap::Command, directory: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), directory)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(failed)?;
    let mut end = Roff::new();
    end.control("SH", ["EXIT STATUS"]).text([roman("As described in tierfs(1).")]);
    see_also(&mut end, &["tierfs(1)", "tierfs-control(7)", "tierfs-tiers(7)"]);
    page.extend_from_slice(end.render().as_bytes());
    write(&directory.join(format!("{name}.1")), &page)
}

fn program_page(command: &clap::Command) -> Result<Vec<u8>> {
    let (man, mut page) = (Man::new(command.clone()), Vec::new());
    man.render_title(&mut page).map_err(failed)?;
    man.render_name_section(&mut page).map_err(failed)?;
    man.render_synopsis_section(&mut page).map_err(failed)?;
    man.render_description_section(&mut page).map_err(failed)?;
    man.render_options_section(&mut page).map_err(failed)?;
    man.render_subcommands_section(&mut page).map_err(failed)?;
    let mut end = Roff::new();
    end.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in EXIT_STATUSES {
        entry(&mut end, &status.to_string(), meaning);
    }
    table(&mut end, "ENVIRONMENT", &ENVIRONMENT);
    table(&mut end, "FILES", &FILES);
    hidden_directories(&mut end);
    see_also(&mut end, &["tierfs-control(7)", "tierfs-tiers(7)", "mount(8)", "getfattr(1)", "setfattr(1)"]);
    page.extend_from_slice(end.render().as_bytes());
    Ok(page)
}

fn failed(error: std::io::Error) -> Error {
    Error::io("formatting a manual page", error)
}

fn control_page() -> Roff {
    let mut page = begin("tierfs-control", "attributes and control files of a tierfs mount");
    page.control("SH", ["DESCRIPTION"]);
    paragraph(
        &mut page,
        "Every file and directory of a collection has extended attributes, which getfattr(1) shows and \
         setfattr(1) sets. The directories .ctl hold text files: reading one shows a state, and one write is \
         one command.",
    );
    page.control("SH", ["ATTRIBUTES"]);
    for attribute in ATTRIBUTES {
        entry(&mut page, &format!("{PREFIX}{}", attribute.name), &attribute_text(attribute));
    }
    page.control("SH", ["CONTROL FILES"]);
    let per_file = |name: &str| format!("{name}/FILE");
    for (heading, files) in [
        ("Of the mount: /.ctl", MOUNT_FILES),
        ("Of a tenant: /TENANT/.ctl", TENANT_FILES),
        ("Of a collection: /TENANT/COLLECTION/.ctl", COLLECTION_FILES),
    ] {
        page.control("SS", [heading]);
        for file in files {
            let name = if file.is_tree() { per_file(file.name) } else { file.name.to_owned() };
            entry(&mut page, &name, &file_text(file));
        }
    }
    hidden_directories(&mut page);
    page.control("SH", ["OTHER FORMS"]);
    let forms = Form::ALL.map(Form::name).join(", ");
    paragraph(
        &mut page,
        &format!("The directory .as of a collection has a directory for each form: {forms}."),
    );
    table(&mut page, "FILES", &FILES[..1]);
    see_also(&mut page, &["tierfs(1)", "tierfs-stat(1)", "tierfs-tiers(7)", "getfattr(1)", "setfattr(1)"]);
    page
}

fn attribute_text(attribute: &Attribute) -> String {
    let set = if attribute.set.is_some() { "Can be set." } else { "Read-only." };
    let listed = if attribute.is_listed { " Listed, so copies keep it." } else { "" };
    let cost = if attribute.cost == Cost::WholeFile { " Reading it may read the whole file." } else { "" };
    format!("{} {set}{listed}{cost}", sentence(attribute.help))
}

fn file_text(file: &File) -> String {
    let modes = match (file.shows(), file.acts()) {
        (true, true) => "Read and write.",
        (true, false) => "Read-only.",
        (false, _) => "Write-only.",
    };
    let private = if file.is_private { " For the owner of the mount only." } else { "" };
    format!("{} {modes}{private}", sentence(file.help))
}

fn tiers_page() -> Roff {
    let mut page = begin("tierfs-tiers", "the precision in which tierfs stores tensors");
    page.control("SH", ["DESCRIPTION"]);
    paragraph(
        &mut page,
        "A tier is the precision in which the blocks of a tensor are stored. Programs read floats of the \
         tensor's own type in every tier. Quantized tiers store groups of 64 elements with their scales; the \
         bits below include these. Quantization cannot be undone: the last exact copy of a block is given up \
         only where user.tierfs.lossy is allow.",
    );
    page.control("SH", ["TIERS"]);
    for tier in Tier::ALL {
        entry(&mut page, tier.name(), &tier_text(tier));
    }
    page.control("SH", ["MOVING"]);
    paragraph(
        &mut page,
        "tierfs-tier(1) and the attribute user.tierfs.tier move a tensor, a container or a directory while \
         programs read. Of a container or directory they move the tensors that quantizers of models usually \
         touch; with :all after the tier, every float tensor. tierfs-import(1) takes --tier. The directory .as \
         of a collection shows how it would read in a tier, without changing it.",
    );
    table(
        &mut page,
        "FILES",
        &[
            (
                "tier0.dat, tier1.dat, tier2.dat, tier3.dat",
                "payloads by tier, in the directory of a collection",
            ),
            ("STORE/tierfs.toml", "when tensors move between tiers by themselves (user.tierfs.policy)"),
        ],
    );
    see_also(
        &mut page,
        &["tierfs(1)", "tierfs-tier(1)", "tierfs-pack(1)", "tierfs-import(1)", "tierfs-control(7)"],
    );
    page
}

fn tier_text(tier: Tier) -> String {
    const ELEMENTS: usize = 4096;
    let what = match (tier, payload_len(tier, ELEMENTS)) {
        (Tier::Exact, _) => {
            "The bytes as they were imported or written. tierfs-pack(1) stores them packed: the \
                             same bytes in less space, which the daemon unpacks."
                .to_owned()
        }
        (Tier::Absent, _) | (_, None) => {
            "Not stored; reads reconstruct it where user.tierfs.reconstruct says how.".to_owned()
        }
        (_, Some(bytes)) => {
            let bits = bytes as f64 * 8.0 / ELEMENTS as f64;
            let codes = tier.code_bits().unwrap_or_default();
            format!("{bits} bits an element: codes of {codes} bits, and scales.")
        }
    };
    let alias = ALIASES.into_iter().find(|alias| Tier::from_name(alias) == Some(tier));
    alias.map_or(what.clone(), |alias| format!("{what} Also called {alias}."))
}

fn begin(name: &str, about: &str) -> Roff {
    let mut page = Roff::new();
    let source = format!("tierfs {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", [name, "7", "", &source, ""]);
    page.control("SH", ["NAME"]).text([roman(format!("{name} - {about}"))]);
    page
}

fn paragraph(page: &mut Roff, text: &str) {
    page.text([roman(text)]);
}

fn entry(page: &mut Roff, name: &str, text: &str) {
    page.control("TP", []).text([bold(name)]).text([roman(text)]);
}

fn table(page: &mut Roff, heading: &str, rows: &[(&str, &str)]) {
    page.control("SH", [heading]);
    for (name, text) in rows {
        entry(page, name, &sentence(text));
    }
}

fn hidden_directories(page: &mut Roff) {
    page.control("SH", ["HIDDEN DIRECTORIES"]);
    paragraph(page, "These directories of a mount are not listed and open by name.");
    for (name, text) in HIDDEN_DIRECTORIES {
        entry(page, name, &sentence(text));
    }
}

fn see_also(page: &mut Roff, pages: &[&str]) {
    page.control("SH", ["SEE ALSO"]).text([roman(pages.join(", "))]);
}

/// A text of a table, with a full stop.
fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}
