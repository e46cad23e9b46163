//! Credentials of registries, where docker keeps them: `config.json` in `DOCKER_CONFIG`, otherwise in `~/.docker`.
//!
//! | member | meaning |
//! |---|---|
//! | `credHelpers`: host to name | the program `docker-credential-NAME` has the credentials of this host |
//! | `credsStore`: name | the same for all other hosts |
//! | `auths`: host to `auth` (base64 of `USER:WORD`), or `username` and `password`; `identitytoken` | the credentials themselves |

use std::fmt;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderValue;
use serde_json::Value;

use crate::remote::client::credentials::Variables;
use crate::remote::client::failure::Failure;
use crate::remote::client::program::{Killed, wait_for_output};
use crate::remote::source::agent::secret;
use crate::remote::source::registry::place::DOCKER_HOST;
use crate::remote::source::web::text_of;

/// The longest file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The most bytes that a program prints.
const PRINTED_MAX: u64 = 64 << 10;
/// A program may take so long.
const PROGRAM_MAX: Duration = Duration::from_secs(30);
/// The name by which docker keeps the credentials of its own registry.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";
/// The user of a refresh token.
const TOKEN_USER: &str = "<token>";

/// Credentials of a registry.
#[derive(Clone)]
pub(super) enum Credentials {
    /// The value of `Authorization`, with the scheme `Basic`.
    Basic(HeaderValue),
    /// A refresh token.
    Refresh(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Credentials")
    }
}

/// The place of the file.
pub(super) fn path(variables: &Variables) -> Option<PathBuf> {
    let directory = variables.get("DOCKER_CONFIG").map(PathBuf::from);
    let directory = directory.or_else(|| Some(PathBuf::from(variables.get("HOME")?).join(".docker")));
    Some(directory?.join("config.json"))
}

/// The credentials of a registry; `None` where there are none. This waits for a program, if the file names one.
pub(super) fn credentials(variables: &Variables, host: &str) -> Result<Option<Credentials>, Failure> {
    let Some(path) = path(variables) else { return Ok(None) };
    let Some(text) = text_of(&path, FILE_BYTES_MAX) else { return Ok(None) };
    let wrong = |error| Failure::NoCredentials(format!("{} is no JSON: {error}", path.display()));
    let config: Value = serde_json::from_str(&text).map_err(wrong)?;
    let names = names(host);
    let of = |member: &str| names.iter().find_map(|name| config.get(member)?.get(name));
    let program = of("credHelpers").or_else(|| config.get("credsStore")).and_then(Value::as_str);
    if let Some(program) = program.filter(|program| !program.is_empty()) {
        for name in &names {
            if let Some(found) = of_program(program, name)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(of("auths").and_then(of_entry))
}

/// The names by which a file may have a registry.
fn names(host: &str) -> Vec<String> {
    let own = (host == DOCKER_HOST || host == "docker.io").then(|| DOCKER_HUB.to_owned());
    own.into_iter().chain([host.to_owned(), format!("https://{host}"), format!("http://{host}")]).collect()
}

/// The credentials of an entry of `auths`.
fn of_entry(entry: &Value) -> Option<Credentials> {
    let word = |name: &str| entry.get(name)?.as_str().filter(|word| !word.is_empty());
    if let Some(token) = word("identitytoken") {
        return Some(Credentials::Refresh(token.to_owned()));
    }
    match (word("auth"), word("username"), word("password")) {
        (Some(encoded), ..) => secret("Basic", encoded).map(Credentials::Basic),
        (None, Some(user), Some(word)) => basic(user, word),
        _ => None,
    }
}

fn basic(user: &str, word: &str) -> Option<Credentials> {
    secret("Basic", &STANDARD.encode(format!("{user}:{word}"))).map(Credentials::Basic)
}

/// The credentials that `docker-credential-NAME get` has of a registry.
fn of_program(name: &str, registry: &str) -> Result<Option<Credentials>, Failure> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let program = format!("docker-credential-{name}");
    let failed = |reason: String| {
        Failure::NoCredentials(format!("{program}, which docker's config.json names: {reason}"))
    };
    if !name.bytes().all(is_plain) {
        return Err(Failure::NoCredentials(format!("docker's config.json names no program by {name:?}")));
    }
    let mut command = Command::new(&program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read it says by its end that it fails.
        if let Err(error) = input.write_all(registry.as_bytes()) {
            log::debug!("{program}: {error}");
        }
    }
    let output = wait_for_output(&mut child, PRINTED_MAX, PROGRAM_MAX, Killed::Group);
    let Some((status, printed)) = output.map_err(|error| failed(error.to_string()))? else {
        return Err(failed(format!("it did not end within {} s", PROGRAM_MAX.as_secs())));
    };
    if !status.success() {
        // It has none of this registry.
        return Ok(None);
    }
    let found: Value =
        serde_json::from_slice(&printed).map_err(|_| failed("it prints no JSON".to_owned()))?;
    let word = |name: &str| found.get(name).and_then(Value::as_str).filter(|word| !word.is_empty());
    Ok(match (word("Username"), word("Secret")) {
        (Some(TOKEN_USER), Some(token)) => Some(Credentials::Refresh(token.to_owned())),
        (Some(user), Some(word)) => basic(user, word),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Credentials, credentials};
    use crate::remote::client::credentials::Variables;

    fn found(config: &str, host: &str) -> Result<Option<String>, String> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("config.json"), config).unwrap();
        let variable = ("DOCKER_CONFIG".to_owned(), directory.path().display().to_string());
        let found =
            credentials(&Variables([variable].into()), host).map_err(|failure| failure.to_string())?;
        Ok(found.map(|found| match found {
            Credentials::Basic(value) => value.to_str().unwrap().to_owned(),
            Credentials::Refresh(token) => format!("refresh {token}"),
        }))
    }

    #[test]
    fn entries_of_the_file_give_words_and_tokens() {
        let config = "{\"auths\": {\"ghcr.io\": {\"auth\": \"dTp3\"}, \"https://b.io\": {\"username\": \"u\", \"password\": \"w\"},\
                      \"c.io:5000\": {\"auth\": \"\", \"identitytoken\": \"t\"}, \"d.io\": {},\
                      \"https://index.docker.io/v1/\": {\"auth\": \"ZDpo\"}}}";
        for (host, wanted) in [
            ("ghcr.io", Some("Basic dTp3")),
            ("b.io", Some("Basic dTp3")),
            ("c.io:5000", Some("refresh t")),
            ("d.io", None),
            ("e.io", None),
            ("registry-1.docker.io", Some("Basic ZDpo")),
        ] {
            assert_eq!(found(config, host).unwrap().as_deref(), wanted, "{host}");
        }
        assert!(found("{", "ghcr.io").unwrap_err().contains("is no JSON"));
        assert_eq!(found("[]", "ghcr.io").unwrap(), None);
    }

    #[test]
    fn programs_are_asked_by_their_name_only() {
        let error = found("{\"credHelpers\": {\"a.io\": \"../x\"}}", "a.io").unwrap_err();
        assert!(error.contains("names no program"), "{error}");
        let error = found("{\"credsStore\": \"absent-of-tierfs\"}", "a.io").unwrap_err();
        assert!(error.contains("docker-credential-absent-of-tierfs"), "{error}");
    }
}
