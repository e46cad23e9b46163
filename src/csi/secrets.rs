//! Credentials of volumes: the variables of the environment that clients of remotes read.

use std::ffi::OsString;

use crate::csi::failure::{Failure, Outcome};
use crate::csi::messages::Texts;

/// Variables with credentials. Those of this process count only for volumes without secrets.
const CREDENTIALS: [&str; 15] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SKIP_SIGNATURE",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "HF_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
    "AZURE_SKIP_SIGNATURE",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
];

/// Variables that say where a service is and how to talk to it.
const PLACES: [&str; 22] = [
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_ALLOW_HTTP",
    "AWS_ALLOW_INVALID_CERTIFICATES",
    "AWS_PROXY_URL",
    "AWS_PROXY_CA_CERTIFICATE",
    "AWS_PROXY_EXCLUDES",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_REQUEST_PAYER",
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_UNSIGNED_PAYLOAD",
    "AWS_DISABLE_BULK_DELETE",
    "HF_ENDPOINT",
    "GOOGLE_BASE_URL",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ALLOW_HTTP",
];

/// Variables that lead to credentials of the node. No secret sets them: they name files and commands, which root would
/// read and run, and services that only the node may ask. They do not go beside secrets either.
const OF_THE_NODE: [&str; 21] = [
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
    "HF_TOKEN_PATH",
    "HF_HOME",
    "DOCKER_CONFIG",
    "AWS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "AZURE_FEDERATED_TOKEN_FILE",
];

/// The longest names and values of the secrets of a volume together, in bytes. A proxy's certificates are the longest.
const BYTES_MAX: usize = 64 << 10;

/// The secrets of a volume, which are never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub(in crate::csi) struct Secrets(Texts);

impl Secrets {
    /// Takes secrets of a call. Refuses unknown names; no message has a value.
    pub fn of(given: &Texts) -> Outcome<Secrets> {
        if given.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > BYTES_MAX {
            return Err(Failure::invalid(format!("the secrets have more than {BYTES_MAX} bytes")));
        }
        for (name, value) in given {
            if !CREDENTIALS.contains(&name.as_str()) && !PLACES.contains(&name.as_str()) {
                let text = format!(
                    "the secret {name:?} is not known; secrets are variables such as {}, but none that names a file, a \
                     profile or a service of credentials",
                    CREDENTIALS.join(", ")
                );
                return Err(Failure::invalid(text));
            }
            if value.chars().any(char::is_control) {
                return Err(Failure::invalid(format!("the secret {name} has control characters")));
            }
        }
        Ok(Secrets(given.clone()))
    }

    pub fn values(&self) -> &Texts {
        &self.0
    }

    /// The variables of a process that works with these secrets: those of this process, then the secrets.
    pub fn environment(&self, own: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
        let is_hidden = |name: &OsString| {
            let name = name.to_str().unwrap_or_default();
            let is_credential = CREDENTIALS.contains(&name) || OF_THE_NODE.contains(&name);
            self.0.contains_key(name) || (!self.0.is_empty() && is_credential)
        };
        let mut all: Vec<_> = own.filter(|(name, _)| !is_hidden(name)).collect();
        all.extend(self.0.iter().map(|(name, value)| (name.into(), value.into())));
        all
    }

    /// The same as a file that systemd reads, of the variables of clients alone: others are of this container. So are
    /// paths.
    pub fn environment_file(&self, own: impl Iterator<Item = (OsString, OsString)>) -> String {
        let is_known = |name: &str| CREDENTIALS.contains(&name) || PLACES.contains(&name);
        let mut lines = String::new();
        for (name, value) in self.environment(own) {
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            if is_known(name) && !value.contains('\n') {
                let mut quoted = String::new();
                for character in value.chars() {
                    if matches!(character, '"' | '\\' | '`' | '$') {
                        quoted.push('\\');
                    }
                    quoted.push(character);
                }
                lines.push_str(&format!("{name}=\"{quoted}\"\n"));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{CREDENTIALS, OF_THE_NODE, PLACES, Secrets};
    use crate::csi::failure::Code;
    use crate::csi::messages::Texts;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn own() -> impl Iterator<Item = (OsString, OsString)> {
        let own = [("PATH", "/bin"), ("AWS_SESSION_TOKEN", "mine"), ("AWS_REGION", "here")];
        own.into_iter().map(|(name, value)| (name.into(), value.into()))
    }

    #[test]
    fn an_unknown_secret_is_refused_by_name_and_its_value_is_not_told() {
        for name in ["password", "LD_PRELOAD", "AWS_CONFIG_FILE", "PATH"] {
            let failure = Secrets::of(&texts(&[(name, "hush")])).err().unwrap();
            assert_eq!(failure.code, Code::InvalidArgument);
            assert!(failure.text.contains(name) && !failure.text.contains("hush"), "{failure}");
        }
        for value in ["hush\nPATH=/tmp".to_owned(), "hush".repeat(1 << 14)] {
            let failure = Secrets::of(&texts(&[("HF_TOKEN", &value)])).err().unwrap();
            assert_eq!(failure.code, Code::InvalidArgument);
            assert!(!failure.text.contains("hush"), "{failure}");
        }
    }

    #[test]
    fn secrets_replace_all_credentials_of_the_process() {
        let none = Secrets::default().environment(own());
        assert_eq!(none.len(), 3);
        let some = Secrets::of(&texts(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_REGION", "there")])).unwrap();
        let mut found = some.environment(own());
        found.sort();
        let expected = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_REGION", "there"), ("PATH", "/bin")];
        assert_eq!(found, expected.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn a_file_for_systemd_has_the_variables_of_clients_with_their_quotes_escaped() {
        let some = Secrets::of(&texts(&[("HF_TOKEN", "a\"b\\c$d`e f")])).unwrap();
        let file = some.environment_file(own());
        assert_eq!(file, "AWS_REGION=\"here\"\nHF_TOKEN=\"a\\\"b\\\\c\\$d\\`e f\"\n");
    }

    #[test]
    fn each_variable_of_the_manual_is_in_one_of_the_lists() {
        let manual = include_str!("../../docs/REMOTE.md");
        let table = manual.split("## Variables").nth(1).unwrap().split("\n## ").next().unwrap();
        for name in table.split('`').skip(1).step_by(2).filter(|name| name.contains('_')) {
            let is_name =
                name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit());
            let is_known = [&CREDENTIALS[..], &PLACES[..], &OF_THE_NODE[..]].concat().contains(&name);
            assert!(!is_name || name.starts_with('_') || is_known, "{name}");
        }
    }
}
