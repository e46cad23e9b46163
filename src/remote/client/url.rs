//! URLs of remotes.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::Certificate;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::credentials::{self, Variables, profile};
use crate::remote::client::directory::Directory;
use crate::remote::client::http_status::Observed;
use crate::remote::client::{Client, Deadlines, runtime};

/// Whether `text` names a remote, and not a path.
pub fn is_remote(text: &str) -> bool {
    let mut schemes = SCHEMES.iter().chain(&READ_ONLY);
    schemes.any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://")))
}

const SCHEMES: [&str; 4] = ["s3", "file", "gs", "az"];
/// Schemes of what is only read (`source/`).
const READ_ONLY: [&str; 7] = ["https", "http", "https+whole", "http+whole", "hf", "oci", "oci+http"];
/// Variables with the endpoint of S3, the ones that count first.
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_ENDPOINT_URL"];
/// Variables with the region of S3.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
/// Variables with the account of Azure.
const AZURE: [&str; 4] =
    ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR"];
/// Longer than any piece takes on a usable link; the requests have deadlines of their own.
const CLIENT: [(ClientConfigKey, &str); 3] = [
    (ClientConfigKey::Timeout, "120 s"),
    (ClientConfigKey::ReadTimeout, "20 s"),
    (ClientConfigKey::ConnectTimeout, "5 s"),
];

/// The client repeats requests itself, so that it sees what the server answers.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

impl Client {
    /// The remote at `url`: `s3://BUCKET/PREFIX` or `file:///DIRECTORY`, and `gs://`, `az://` where the
    /// program has these features.
    pub fn open(url: &str) -> Result<Client> {
        Client::open_within(url, Deadlines::default())
    }

    /// Opens a remote as [`Client::open`] does, with these deadlines.
    pub fn open_within(url: &str, deadlines: Deadlines) -> Result<Client> {
        Client::opened(url, deadlines, false)
    }

    /// Opens what was a remote before: its directory may be away.
    pub fn reopen(url: &str) -> Result<Client> {
        Client::reopen_within(url, Deadlines::default())
    }

    /// Opens it as [`Client::reopen`] does, with these deadlines.
    pub fn reopen_within(url: &str, deadlines: Deadlines) -> Result<Client> {
        Client::opened(url, deadlines, true)
    }

    fn opened(url: &str, deadlines: Deadlines, was_remote: bool) -> Result<Client> {
        runtime::start()?;
        let root = match place(url)? {
            Place::Bucket(objects, prefix) => return Ok(Client::over(objects, &prefix, url, deadlines)),
            Place::Directory(root) => root,
        };
        if !was_remote && !root.is_dir() {
            return Err(Error::new(ErrorKind::NotFound, format!("{url}: there is no such directory")));
        }
        let directory = Directory::open(root, was_remote);
        Ok(Client::made(Arc::new(directory.clone()), "", url, deadlines, Some(directory)))
    }
}

/// The place of objects.
enum Place {
    /// A directory here, which may be missing.
    Directory(PathBuf),
    /// A bucket, and the prefix in it.
    Bucket(Arc<dyn ObjectStore>, String),
}

/// The place at a URL.
fn place(url: &str) -> Result<Place> {
    let wrong = || {
        let text =
            format!("{url:?} is not the URL of a remote; write s3://BUCKET/PREFIX or file:///DIRECTORY");
        Error::invalid(text)
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    if READ_ONLY.contains(&scheme) {
        let text = format!(
            "{url} is only read, by mount, ls, stat, du and export; write to a bucket or a directory"
        );
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    if scheme == "file" {
        return if rest.starts_with('/') { Ok(Place::Directory(rest.into())) } else { Err(wrong()) };
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        // Neither the key nor its secret may end up in a message.
        return Err(Error::invalid(
            "credentials are not allowed in a URL; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        ));
    }
    // The name becomes a part of the name of a host.
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_$".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(is_of_name) {
        return Err(wrong());
    }
    #[cfg(any(feature = "gcp", feature = "azure"))]
    let failed = |error: object_store::Error| Error::invalid(format!("{url}: {error}"));
    let objects: Arc<dyn ObjectStore> = match scheme {
        "s3" => s3(bucket).map_err(|error| error.at(url))?,
        #[cfg(feature = "gcp")]
        "gs" => {
            use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
            let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            for (key, value) in CLIENT {
                builder = builder.with_config(GoogleConfigKey::Client(key), value);
            }
            Arc::new(
                builder
                    .with_retry(no_retries())
                    .with_http_connector(Observed::default())
                    .build()
                    .map_err(failed)?,
            )
        }
        #[cfg(feature = "azure")]
        "az" => {
            use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            for (key, value) in CLIENT {
                builder = builder.with_config(AzureConfigKey::Client(key), value);
            }
            Arc::new(
                builder
                    .with_retry(no_retries())
                    .with_http_connector(Observed::default())
                    .build()
                    .map_err(failed)?,
            )
        }
        #[cfg(not(all(feature = "gcp", feature = "azure")))]
        "gs" | "az" => {
            let feature = if scheme == "gs" { "gcp" } else { "azure" };
            return Err(Error::new(
                ErrorKind::NotSupported,
                format!("this program was built without the feature {feature}, which {scheme}:// needs"),
            ));
        }
        _ => return Err(wrong()),
    };
    Ok(Place::Bucket(objects, prefix.trim_end_matches('/').to_owned()))
}

/// The client of a bucket of S3, by the variables of the environment and the profile of `~/.aws`.
fn s3(bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    let variables = Variables::of_process();
    let profile = profile(&variables)?;
    let mut builder = AmazonS3Builder::new();
    for (name, value) in &variables.0 {
        let key = name.starts_with("AWS_").then(|| name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>());
        if let Some(Ok(key)) = key {
            builder = builder.with_config(key, value);
        }
    }
    // The variables may have a bucket too. Only the URL says which one is meant.
    builder = builder.with_bucket_name(bucket);
    for (key, value) in CLIENT {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    let region = variables.first(&REGIONS).or_else(|| profile.get("region"));
    let region = region.unwrap_or("us-east-1");
    builder = builder.with_region(region);
    if let Some(endpoint) = variables.first(&ENDPOINTS).or_else(|| profile.get("endpoint_url")) {
        let is_virtual = variables.is_on("AWS_VIRTUAL_HOSTED_STYLE_REQUEST");
        let endpoint = checked(endpoint, variables.is_on("AWS_ALLOW_HTTP"))?;
        let endpoint = if is_virtual { with_bucket(&endpoint, bucket) } else { endpoint };
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let bundle = variables.get("AWS_CA_BUNDLE").or_else(|| profile.get("ca_bundle"));
    let connector = Observed { authorities: bundle.map(authorities).transpose()?.unwrap_or_default() };
    if let Some(provider) = credentials::provider(&variables, &profile, region, &connector)? {
        builder = builder.with_credentials(provider);
    }
    let objects = builder.with_retry(no_retries()).with_http_connector(connector).build();
    Ok(Arc::new(objects.map_err(|error| Error::invalid(error.to_string()))?))
}

/// The server that the environment gives for the scheme of a URL; empty for the usual one.
pub(in crate::remote) fn server_of(url: &str) -> String {
    let variables = Variables::of_process();
    let found = match url.split_once("://") {
        Some(("s3", _)) => variables.first(&ENDPOINTS).map(str::to_owned).or_else(|| {
            let profile = profile(&variables).ok()?;
            profile.get("endpoint_url").map(str::to_owned)
        }),
        Some(("hf", _)) => variables.get("HF_ENDPOINT").map(str::to_owned),
        _ => None,
    };
    found.unwrap_or_default()
}

/// Distinguishes the remotes that have the same URL: the server, the region and the account that the environment and the
/// profile give, and no secret. Credentials that last for hours do not count.
pub(in crate::remote) fn identity_of(url: &str) -> String {
    let variables = Variables::of_process();
    let profile = profile(&variables).unwrap_or_default();
    let account: Vec<Option<&str>> = match url.split_once("://") {
        Some(("s3", _)) => {
            let is_lasting = variables.get("AWS_SESSION_TOKEN").is_none();
            let key = variables.get("AWS_ACCESS_KEY_ID").filter(|_| is_lasting);
            let is_lasting = profile.get("aws_session_token").is_none();
            let region = variables.first(&REGIONS).or_else(|| profile.get("region"));
            let of_profile = profile.get("aws_access_key_id").filter(|_| is_lasting);
            vec![region, key, variables.get("AWS_PROFILE"), of_profile, variables.get("AWS_ROLE_ARN")]
        }
        Some(("gs", _)) => vec![variables.get("GOOGLE_BASE_URL")],
        Some(("az", _)) => AZURE.iter().map(|name| variables.get(name)).collect(),
        _ => Vec::new(),
    };
    let server = server_of(url);
    let parts =
        [Some(server.trim_end_matches('/')), Some(url.trim_end_matches('/'))].into_iter().chain(account);
    parts.map(|part| part.unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// An endpoint that requests can be sent to.
fn checked(endpoint: &str, allows_http: bool) -> Result<String> {
    let endpoint = endpoint.trim_end_matches('/');
    match endpoint.split_once("://") {
        Some(("https", _)) => {}
        Some(("http", _)) if allows_http => {}
        Some(("http", _)) => {
            let text = format!(
                "the endpoint {endpoint} is plain HTTP, where others can read along: use https://, or set AWS_ALLOW_HTTP=true"
            );
            return Err(Error::invalid(text));
        }
        _ => {
            let text =
                format!("the endpoint {endpoint:?} must begin with https:// or http://; check AWS_ENDPOINT");
            return Err(Error::invalid(text));
        }
    }
    Ok(endpoint.to_owned())
}

/// The endpoint of a bucket that is a part of the host's name.
fn with_bucket(endpoint: &str, bucket: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) if !host.starts_with(&format!("{bucket}.")) => {
            format!("{scheme}://{bucket}.{host}")
        }
        _ => endpoint.to_owned(),
    }
}

/// The certificates in a file.
fn authorities(path: &str) -> Result<Vec<Certificate>> {
    let wrong = |reason: String| Error::invalid(format!("the file {path} of AWS_CA_BUNDLE: {reason}"));
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let found = Certificate::from_pem_bundle(&bytes).map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() { Err(wrong("it has no certificate".to_owned())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::{checked, with_bucket};

    #[test]
    fn an_endpoint_has_a_scheme_and_plain_http_must_be_allowed() {
        assert_eq!(checked("https://s3.local/", false).unwrap(), "https://s3.local");
        assert_eq!(checked("http://s3.local", true).unwrap(), "http://s3.local");
        assert!(checked("http://s3.local", false).unwrap_err().to_string().contains("AWS_ALLOW_HTTP=true"));
        assert!(
            checked("localhost:9000", true).unwrap_err().to_string().contains("must begin with https://")
        );
    }

    #[test]
    fn a_bucket_becomes_a_part_of_the_host_once() {
        assert_eq!(with_bucket("http://s3.local:9000", "models"), "http://models.s3.local:9000");
        assert_eq!(with_bucket("https://models.s3.local", "models"), "https://models.s3.local");
    }
}
