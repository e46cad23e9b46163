//! Options of `-o`, in the syntax of mount(8), and the values of flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::common::remote::{parse_period, parse_tier};
use crate::cli::common::traces::{COLLECTOR_EXAMPLE, parse_collector};
use crate::fs::{Budget, TransportChoice};
use crate::model::{Error, Result};
use crate::store::Verify;
use crate::vfs::ListMode;

pub(super) fn parse_verify(text: &str) -> Result<Verify> {
    match text {
        "first" => Ok(Verify::First),
        "always" => Ok(Verify::Always),
        _ => Err(Error::invalid(format!("invalid value {text:?}; expected first or always"))),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Off,
}

pub(super) fn parse_switch(text: &str) -> Result<Switch> {
    match text {
        "on" => Ok(Switch::On),
        "off" => Ok(Switch::Off),
        _ => Err(Error::invalid(format!("invalid value {text:?}; expected on or off"))),
    }
}

/// Whether the kernel opens files.
pub(super) fn parse_opens(text: &str) -> Result<bool> {
    match text {
        "daemon" => Ok(false),
        "kernel" => Ok(true),
        _ => Err(Error::invalid(format!("invalid value {text:?}; expected daemon or kernel"))),
    }
}

pub(super) fn parse_list_mode(text: &str) -> Result<ListMode> {
    ListMode::from_name(text)
        .ok_or_else(|| Error::invalid(format!("invalid value {text:?}; expected files or both")))
}

pub(in crate::cli) fn parse_address(text: &str) -> Result<SocketAddr> {
    let wrong = || {
        let text =
            format!("invalid value {text:?}; expected an address and a port, such as {ADDRESS_EXAMPLE}");
        Error::invalid(text)
    };
    text.parse().ok().filter(|address: &SocketAddr| address.port() != 0).ok_or_else(wrong)
}

pub(super) fn parse_umask(text: &str) -> Result<u32> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777 && !text.starts_with('+'));
    bits.ok_or_else(|| {
        Error::invalid(format!("invalid value {text:?} of umask; expected 000 to 777, in octal"))
    })
}

fn parse_number(name: &str, text: &str) -> Result<u32> {
    let wrong = || Error::invalid(format!("invalid value {text:?} of {name}; expected a number"));
    text.parse().map_err(|_| wrong())
}

const ADDRESS_EXAMPLE: &str = "127.0.0.1:9469";

/// A mount option in the syntax of mount(8).
#[derive(Clone)]
pub(super) enum MountOption {
    Metrics(SocketAddr),
    Traces(String),
    List(ListMode),
    Verify(Verify),
    Passthrough(Switch),
    Opens(bool),
    KeepNames(Switch),
    DecodedCache(Budget),
    Transport(TransportChoice),
    Threads(u16),
    Uid(u32),
    Gid(u32),
    Umask(u32),
    At(String),
    Trust(PathBuf),
    Tier(String),
    Cache(PathBuf),
    CacheSize(String),
    Mirror(String),
    Timeout(u32),
    Follow(Duration),
    ReadOnly,
    AllowOther,
    ZeroFill,
    Nonempty,
    /// An option that is passed to the kernel.
    Kernel(String),
    /// An option that is accepted and ignored.
    Ignored,
}

/// The options of `-o` that tierfs acts on, and their values.
pub(in crate::cli) const OPTIONS: [(&str, &str); 29] = [
    ("ro", ""),
    ("allow_other", ""),
    ("nonempty", ""),
    ("threads", "1...256"),
    ("uid", "0...4294967295"),
    ("gid", "0...4294967295"),
    ("umask", "000...777"),
    ("at", "TENANT/COLLECTION=N"),
    ("trust", "KEYFILE"),
    ("tier", "q8|q7|q5|q3x|q3"),
    ("cache", "DIR"),
    ("cache_size", "200G"),
    ("mirror", "URL"),
    ("timeout", "1...3600"),
    ("follow", "60"),
    ("verify", "first|always"),
    ("passthrough", "on|off"),
    ("opens", "daemon|kernel"),
    ("keep_names", "on|off"),
    ("decoded_cache", "4G|10%|off"),
    ("transport", "auto|uring|classic"),
    ("list", "files|both"),
    ("metrics", ADDRESS_EXAMPLE),
    ("traces", COLLECTOR_EXAMPLE),
    ("zero_fill", ""),
    ("max_read", "4096...1048576"),
    ("nosuid", ""),
    ("nodev", ""),
    ("noexec", ""),
];

pub(super) fn parse_option(text: &str) -> Result<MountOption> {
    let option = match text.split_once('=') {
        Some(("list", value)) => MountOption::List(parse_list_mode(value)?),
        Some(("verify", value)) => MountOption::Verify(parse_verify(value)?),
        Some(("passthrough", value)) => MountOption::Passthrough(parse_switch(value)?),
        Some(("opens", value)) => MountOption::Opens(parse_opens(value)?),
        Some(("keep_names", value)) => MountOption::KeepNames(parse_switch(value)?),
        Some(("metrics", value)) => MountOption::Metrics(parse_address(value)?),
        Some(("traces", value)) => MountOption::Traces(parse_collector(value)?),
        Some(("decoded_cache", value)) => MountOption::DecodedCache(value.parse()?),
        Some(("transport", value)) => MountOption::Transport(value.parse()?),
        Some(("uid", value)) => MountOption::Uid(parse_number("uid", value)?),
        Some(("gid", value)) => MountOption::Gid(parse_number("gid", value)?),
        Some(("umask", value)) => MountOption::Umask(parse_umask(value)?),
        Some(("at", value)) => MountOption::At(value.to_owned()),
        Some(("trust", value)) => MountOption::Trust(value.into()),
        Some(("tier", value)) => MountOption::Tier(parse_tier(value)?),
        Some(("cache", value)) => MountOption::Cache(value.into()),
        Some(("cache_size", value)) => MountOption::CacheSize(value.to_owned()),
        Some(("max_read", value)) => MountOption::Kernel(format!("max_read={}", parse_max_read(value)?)),
        Some(("follow", value)) => MountOption::Follow(parse_period(value)?),
        Some(("mirror", value)) => MountOption::Mirror(value.to_owned()),
        Some(("timeout", value)) => {
            let seconds = value.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
            let wrong = || Error::invalid(format!("invalid value {value:?} of timeout; expected 1 to 3600"));
            MountOption::Timeout(seconds.ok_or_else(wrong)?)
        }
        Some(("threads", value)) => {
            let threads = value.parse().ok().filter(|threads| (1..=256).contains(threads));
            let wrong = || Error::invalid(format!("invalid value {value:?} of threads; expected 1 to 256"));
            MountOption::Threads(threads.ok_or_else(wrong)?)
        }
        None if text == "ro" => MountOption::ReadOnly,
        None if text == "allow_other" => MountOption::AllowOther,
        None if text == "nonempty" => MountOption::Nonempty,
        None if matches!(text, "zero_fill" | "zero-fill") => MountOption::ZeroFill,
        None if matches!(text, "nosuid" | "nodev" | "noexec") => MountOption::Kernel(text.to_owned()),
        None if IGNORED_OPTIONS.contains(&text) => MountOption::Ignored,
        _ if IGNORED_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) => MountOption::Ignored,
        _ => return Err(unknown_option(text)),
    };
    Ok(option)
}

/// The longest request of a read, in bytes.
fn parse_max_read(value: &str) -> Result<u32> {
    let bytes = value.parse().ok().filter(|bytes| (4096..=1 << 20).contains(bytes));
    let wrong = || Error::invalid(format!("invalid value {value:?} of max_read; expected 4096 to 1048576"));
    bytes.ok_or_else(wrong)
}

/// The error for an unknown option: it names the nearest option, if one is near, and all of them.
fn unknown_option(text: &str) -> Error {
    let name = text.split('=').next().unwrap_or_default();
    let near = |known: &str| strsim::jaro_winkler(&name.replace('-', "_"), known);
    let known = OPTIONS.iter().map(|(known, _)| *known).chain(IGNORED_OPTIONS);
    let nearest = known.max_by(|one, other| near(one).total_cmp(&near(other)));
    let nearest = nearest.filter(|nearest| near(nearest) > NEAR);
    let hint = nearest.map_or(String::new(), |nearest| format!("; did you mean {nearest}"));
    let shown = OPTIONS.map(|(name, value)| match value {
        "" => name.to_owned(),
        value => format!("{name}={value}"),
    });
    Error::invalid(format!(
        "unknown mount option {text:?}{hint}; valid options: {}, and those of fstab(5)",
        shown.join(", ")
    ))
}

/// Least similarity, from 0 to 1, of names that may have been mistaken for each other.
const NEAR: f64 = 0.8;

/// Options that fstab(5) and mount(8) handle themselves, and options that describe the default.
const IGNORED_OPTIONS: [&str; 22] = [
    "_netdev",
    "async",
    "auto",
    "defaults",
    "dev",
    "diratime",
    "exec",
    "group",
    "noatime",
    "noauto",
    "nodiratime",
    "nofail",
    "nogroup",
    "noowner",
    "norelatime",
    "nouser",
    "nousers",
    "owner",
    "relatime",
    "rw",
    "user",
    "users",
];
const IGNORED_PREFIXES: [&str; 3] = ["x-", "X-", "comment="];

/// Whether `text` is a valid mount option.
pub(in crate::cli) fn is_option(text: &str) -> bool {
    parse_option(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{IGNORED_OPTIONS, OPTIONS, parse_option};

    #[test]
    fn every_option_that_a_message_names_is_taken() {
        for (name, values) in OPTIONS {
            for value in values.split(['|']) {
                let value = value.split("...").next().unwrap();
                let text = if value.is_empty() { name.to_owned() } else { format!("{name}={value}") };
                assert!(parse_option(&text).is_ok(), "{text}");
            }
        }
        assert!(IGNORED_OPTIONS.iter().all(|option| parse_option(option).is_ok()));
    }

    #[test]
    fn a_misspelt_option_is_refused_with_the_nearest_one_and_all_names() {
        for (text, nearest) in [
            ("allow_othr", "allow_other"),
            ("allow-other", "allow_other"),
            ("keepnames=on", "keep_names"),
            ("non_empty", "nonempty"),
            ("passthru=off", "passthrough"),
            ("no_auto", "noauto"),
        ] {
            let error = parse_option(text).err().unwrap().to_string();
            assert!(error.contains(&format!("did you mean {nearest};")), "{error}");
            assert!(OPTIONS.iter().all(|(name, _)| error.contains(name)), "{error}");
        }
        let error = parse_option("colour=blue").err().unwrap().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }
}
