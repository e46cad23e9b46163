//! URLs of remotes.

use std::path::Path;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::http_status::Observed;

/// Whether `text` names a remote, and not a path.
pub fn is_remote(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://")))
}

const SCHEMES: [&str; 4] = ["s3", "file", "gs", "az"];
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

/// The bucket of a URL, and the prefix in it.
pub(super) fn open(url: &str) -> Result<(Arc<dyn ObjectStore>, String)> {
    let wrong = || {
        let text =
            format!("{url:?} is not the URL of a remote; write s3://BUCKET/PREFIX or file:///DIRECTORY");
        Error::invalid(text)
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    if scheme == "file" {
        let failed = |error: object_store::Error| Error::new(ErrorKind::NotFound, format!("{url}: {error}"));
        if !rest.starts_with('/') {
            return Err(wrong());
        }
        if !Path::new(rest).is_dir() {
            return Err(Error::new(ErrorKind::NotFound, format!("{url}: there is no such directory")));
        }
        let directory = LocalFileSystem::new_with_prefix(Path::new(rest)).map_err(failed)?;
        return Ok((Arc::new(directory.with_fsync(true)), String::new()));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        // Neither the key nor its secret may end up in a message.
        return Err(Error::invalid(
            "credentials are not allowed in a URL; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        ));
    }
    if bucket.is_empty() {
        return Err(wrong());
    }
    let failed = |error: object_store::Error| Error::invalid(format!("{url}: {error}"));
    let objects: Arc<dyn ObjectStore> = match scheme {
        "s3" => {
            let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            for (key, value) in CLIENT {
                builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
            }
            Arc::new(builder.with_retry(no_retries()).with_http_connector(Observed).build().map_err(failed)?)
        }
        #[cfg(feature = "gcp")]
        "gs" => {
            use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
            let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            for (key, value) in CLIENT {
                builder = builder.with_config(GoogleConfigKey::Client(key), value);
            }
            Arc::new(builder.with_retry(no_retries()).with_http_connector(Observed).build().map_err(failed)?)
        }
        #[cfg(feature = "azure")]
        "az" => {
            use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            for (key, value) in CLIENT {
                builder = builder.with_config(AzureConfigKey::Client(key), value);
            }
            Arc::new(builder.with_retry(no_retries()).with_http_connector(Observed).build().map_err(failed)?)
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
    Ok((objects, prefix.trim_end_matches('/').to_owned()))
}
