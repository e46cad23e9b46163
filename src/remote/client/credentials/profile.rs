//! Profiles of `~/.aws/credentials` and `~/.aws/config`, as the tools of AWS read them.

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use object_store::aws::AwsCredential;

use crate::model::{Error, Result};
use crate::remote::client::credentials::services::{WebIdentity, of_json};
use crate::remote::client::credentials::{Failed, Fetched, Variables};
use crate::remote::client::program::{Killed, wait_for_output};

/// A program that prints credentials may take so long.
const PROGRAM_MAX: Duration = Duration::from_secs(30);
/// The most bytes that it prints.
const PRINTED_MAX: u64 = 64 << 10;
/// The longest file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The settings of a profile that stand for requests which tierfs does not make.
const BY_PROGRAM: [&str; 5] =
    ["sso_session", "sso_start_url", "source_profile", "credential_source", "login_session"];

/// The settings of a profile, those of the file of credentials before those of the other.
#[derive(Clone, Default)]
pub(in crate::remote::client) struct Profile {
    pub name: String,
    settings: HashMap<String, String>,
}

/// Where a profile has its credentials.
pub(super) enum Source {
    Nothing,
    Keys(AwsCredential),
    Program(String),
    WebIdentity(WebIdentity),
}

impl Profile {
    /// The profile that `AWS_PROFILE` names, otherwise `default`. `Invalid` if the named one does not exist.
    pub fn read(variables: &Variables) -> Result<Profile> {
        let named = variables.get("AWS_PROFILE");
        let name = named.unwrap_or("default");
        let home = |file: &str| variables.get("HOME").map(|home| Path::new(home).join(".aws").join(file));
        let place =
            |variable: &str, file: &str| variables.get(variable).map(PathBuf::from).or_else(|| home(file));
        let credentials = place("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = place("AWS_CONFIG_FILE", "config");
        let in_config = if name == "default" { None } else { Some(format!("profile {name}")) };
        let mut found = false;
        let mut settings = HashMap::new();
        for (path, section) in [(&config, in_config.as_deref().unwrap_or(name)), (&credentials, name)] {
            let text = match path.as_deref().map(text_of).transpose() {
                Ok(text) => text.flatten(),
                Err(error) if named.is_some() => return Err(error),
                // The file of somebody else, for whom this process does not speak.
                Err(error) => {
                    log::debug!("{error}");
                    None
                }
            };
            let Some(text) = text else { continue };
            if let Some(of_file) = section_of(&text, section) {
                found = true;
                settings.extend(of_file);
            }
        }
        if named.is_some() && !found {
            let shown = |path: &Option<PathBuf>| {
                path.as_ref().map_or("no file".to_owned(), |path| path.display().to_string())
            };
            let text = format!(
                "AWS_PROFILE is {name:?}, and neither {} nor {} has this profile",
                shown(&credentials),
                shown(&config)
            );
            return Err(Error::invalid(text));
        }
        Ok(Profile { name: name.to_owned(), settings })
    }

    /// A setting.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Where its credentials are. `Invalid` if only the program `aws` can get them.
    pub(super) fn source(&self, variables: &Variables, region: &str) -> Result<Source> {
        if let Some(key) = self.get("aws_access_key_id") {
            let secret = self.get("aws_secret_access_key").ok_or_else(|| {
                Error::invalid(format!("the profile {:?} has no aws_secret_access_key", self.name))
            })?;
            let (key_id, secret_key) = (key.to_owned(), secret.to_owned());
            let token = self.get("aws_session_token").map(str::to_owned);
            return Ok(Source::Keys(AwsCredential { key_id, secret_key, token }));
        }
        if let Some(command) = self.get("credential_process") {
            return Ok(Source::Program(command.to_owned()));
        }
        if let (Some(file), Some(role)) = (self.get("web_identity_token_file"), self.get("role_arn")) {
            return Ok(Source::WebIdentity(WebIdentity::new(variables, region, file, role)));
        }
        match BY_PROGRAM.iter().find(|setting| self.get(setting).is_some()) {
            None => Ok(Source::Nothing),
            Some(setting) => Err(Error::invalid(format!(
                "the profile {0:?} has {setting}, which needs the program aws: give a profile of its own the line \
                 credential_process = aws configure export-credentials --profile {0} --format process, and name \
                 that one in AWS_PROFILE",
                self.name
            ))),
        }
    }
}

/// The credentials that the profile has now: somebody may have replaced them.
pub(super) fn fetch(variables: &Variables) -> std::result::Result<Fetched, Failed> {
    let text = |error: Error| error.to_string();
    match Profile::read(variables).and_then(|profile| profile.source(variables, "")).map_err(text)? {
        Source::Keys(credential) => Ok(Fetched { credential, lasts: None }),
        Source::Program(command) => of_program(&command),
        Source::WebIdentity(_) | Source::Nothing => Err("it has no keys any more".into()),
    }
}

/// The credentials that a command of a shell prints. Its errors may hold secrets, so nobody sees them.
fn of_program(command: &str) -> std::result::Result<Fetched, Failed> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = shell.process_group(0).spawn().map_err(|error| format!("credential_process: {error}"))?;
    let Some((status, printed)) = wait_for_output(&mut child, PRINTED_MAX, PROGRAM_MAX, Killed::Group)?
    else {
        // The arguments may be secret.
        let program = command.split_whitespace().next().unwrap_or_default();
        let seconds = PROGRAM_MAX.as_secs();
        return Err(format!("{program:?} of credential_process did not end within {seconds} s").into());
    };
    if !status.success() {
        return Err(format!("credential_process failed ({status}); run it by hand to see why").into());
    }
    of_json(&printed).map_err(|error| format!("credential_process: {error}").into())
}

/// The text of a file; `None` if it does not exist.
fn text_of(path: &Path) -> Result<Option<String>> {
    let failed = |error| Error::io(path.display(), error);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// The settings in a section; `None` if there is none of this name. Indented lines belong to a setting that tierfs does not
/// know.
fn section_of(text: &str, name: &str) -> Option<HashMap<String, String>> {
    let (mut found, mut is_in) = (None, false);
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(title) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let words: Vec<&str> =
                title.0.split_whitespace().map(|word| word.trim_matches(['"', '\''])).collect();
            is_in = words.join(" ") == name;
            if is_in {
                found.get_or_insert_with(HashMap::new);
            }
            continue;
        }
        if line.starts_with([' ', '\t']) {
            continue;
        }
        if let (Some((key, value)), Some(settings)) =
            (trimmed.split_once('='), found.as_mut().filter(|_| is_in))
        {
            // A comment may follow a space.
            let value = value.split_once(" #").map_or(value, |(value, _)| value);
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Profile, Source, fetch, section_of};
    use crate::remote::client::credentials::Variables;

    const CONFIG: &str = "\
# A comment
[default]
region = eu-central-1
s3 =
    max_concurrent_requests = 20
    region = indented

[profile  \"dev\" ] ; another
REGION=us-west-2 # the west
credential_process = printf '{\"Version\":1,\"AccessKeyId\":\"K\",\"SecretAccessKey\":\"S=\",\"SessionToken\":\"T\",\"Expiration\":\"2999-01-01T00:00:00Z\"}'
[profile fails]
credential_process = exit 3
[profile sso]
sso_session = corp
[sso-session corp]
region = elsewhere
";
    const CREDENTIALS: &str =
        "[default]\naws_access_key_id=KEY\naws_secret_access_key = a=b\n[half]\naws_access_key_id=X\n";

    fn variables(profile: Option<&str>, folder: &tempfile::TempDir) -> Variables {
        let aws = folder.path().join(".aws");
        std::fs::create_dir_all(&aws).unwrap();
        std::fs::write(aws.join("config"), CONFIG).unwrap();
        std::fs::write(aws.join("credentials"), CREDENTIALS).unwrap();
        let home = ("HOME".to_owned(), folder.path().display().to_string());
        let named = profile.map(|name| ("AWS_PROFILE".to_owned(), name.to_owned()));
        Variables(std::iter::once(home).chain(named).collect::<BTreeMap<_, _>>())
    }

    #[test]
    fn both_files_make_a_profile_and_the_environment_chooses_it() {
        let folder = tempfile::tempdir().unwrap();
        let default = Profile::read(&variables(None, &folder)).unwrap();
        assert_eq!(default.get("region"), Some("eu-central-1"));
        assert_eq!(fetch(&variables(None, &folder)).unwrap().credential.secret_key, "a=b");
        let of_dev = variables(Some("dev"), &folder);
        assert_eq!(Profile::read(&of_dev).unwrap().get("region"), Some("us-west-2"));
        let fetched = fetch(&of_dev).unwrap();
        assert_eq!(
            (fetched.credential.key_id.as_str(), fetched.credential.token.as_deref()),
            ("K", Some("T"))
        );
        assert!(fetched.lasts.unwrap().as_secs() > 1 << 30);
        // Keys that were replaced are seen at the next look.
        std::fs::write(folder.path().join(".aws/credentials"), CREDENTIALS.replace("a=b", "new")).unwrap();
        let without = Variables([("HOME".to_owned(), folder.path().display().to_string())].into());
        assert_eq!(fetch(&without).unwrap().credential.secret_key, "new");
    }

    #[test]
    fn profiles_that_cannot_be_used_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let error = |name| {
            let variables = variables(Some(name), &folder);
            match Profile::read(&variables).and_then(|profile| profile.source(&variables, "")) {
                Err(error) => error.to_string(),
                Ok(Source::Program(_)) => fetch(&variables).err().unwrap().to_string(),
                Ok(_) => panic!("{name} can be used"),
            }
        };
        assert!(
            error("none").contains("neither") && error("none").contains(".aws/config"),
            "{}",
            error("none")
        );
        assert!(error("sso").contains("aws configure export-credentials --profile sso"), "{}", error("sso"));
        assert!(error("half").contains("aws_secret_access_key"), "{}", error("half"));
        assert!(error("fails").contains("credential_process failed"), "{}", error("fails"));
        assert!(section_of("no section\nkey = value\n", "default").is_none());
    }
}
