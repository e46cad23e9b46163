//! Credentials of S3, where the tools of AWS look for them, in this order: `AWS_ACCESS_KEY_ID`, the profile of
//! `AWS_PROFILE`, a web identity, the profile `default`, the container's endpoint, the metadata service of the instance.
//!
//! The crate `aws-config` would add the crates of an SDK (its own HTTP client, STS and SSO) to the build. The two files need a
//! reader of one page, and `credential_process` reaches the rest: SSO, roles and MFA by the program `aws`.

mod profile;
mod services;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AwsCredential, AwsCredentialProvider};

use crate::model::{Error, Result};
use crate::remote::client::credentials::profile::{Profile, Source as InProfile};
use crate::remote::client::credentials::services::{Clients, Container, Instance, WebIdentity};
use crate::remote::client::failure::{Failure, is_passing};
use crate::remote::client::http_status::Observed;

/// Credentials are renewed this long before they end.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);
/// Credentials without an end are read again after this time: somebody may have replaced them.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// After this time a renewal that has failed is tried again, while the credentials are valid.
const RENEWED_AGAIN: Duration = Duration::from_secs(10);
/// Requests that wait for credentials while they are looked for get the same error.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// The variables of AWS, Azure and Google, of the hub and of docker, and `HOME`, where they are set and not empty, by name.
#[derive(Clone, Default)]
pub(in crate::remote) struct Variables(pub BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some of the values are secret.
        out.debug_set().entries(self.0.keys()).finish()
    }
}

impl Variables {
    /// Those of this process.
    pub fn of_process() -> Variables {
        let all = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let others = ["HOME", "XDG_CACHE_HOME", "DOCKER_CONFIG"];
        let prefixes = ["AWS_", "AZURE_", "GOOGLE_", "HF_"];
        let is_wanted =
            |name: &str| others.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix));
        Variables(all.filter(|(name, value)| is_wanted(name) && !value.is_empty()).collect())
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value of the first of these that is set.
    pub fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes" | "y")
        })
    }
}

/// The settings of the profile that applies; empty where there is none. `Invalid` if `AWS_PROFILE` names a profile that does
/// not exist.
pub(super) fn profile(variables: &Variables) -> Result<Profile> {
    Profile::read(variables)
}

/// A source of credentials.
#[derive(Debug)]
enum Source {
    Profile(Variables),
    WebIdentity(WebIdentity),
    Container(Container),
    Instance(Instance),
}

/// Credentials as they were fetched.
struct Fetched {
    credential: AwsCredential,
    /// How long they are valid, if they have an end.
    lasts: Option<Duration>,
}

/// A failed look for credentials.
type Failed = Box<dyn std::error::Error + Send + Sync>;

#[derive(Default)]
struct Kept {
    credential: Option<Arc<AwsCredential>>,
    /// When to ask again.
    renew: Option<Instant>,
    /// When the credential is no longer valid.
    end: Option<Instant>,
    failed: Option<(Instant, Failure)>,
}

impl Kept {
    /// The credential, until it is to be renewed, or the error of a look that has just ended.
    fn answer(&self, now: Instant) -> Option<std::result::Result<Arc<AwsCredential>, Failure>> {
        let is_new = self.renew.is_none_or(|renew| now < renew);
        if let Some(credential) = self.credential.as_ref().filter(|_| is_new) {
            return Some(Ok(credential.clone()));
        }
        let failed = self.failed.as_ref().filter(|(when, _)| when.elapsed() < FAILED_FOR);
        failed.map(|(_, error)| Err(error.clone()))
    }
}

/// Finds credentials, keeps them, and renews them before they end. A look goes on when the request that wanted it is given up,
/// since a program may take longer than a request.
struct Credentials(Arc<Looks>);

struct Looks {
    source: Source,
    clients: Clients,
    /// The places without credentials.
    looked: String,
    kept: parking_lot::Mutex<Kept>,
    /// Held by the one look at a time.
    looking: Arc<tokio::sync::Mutex<()>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never what it keeps.
        write!(out, "{:?}", self.0.source)
    }
}

/// The provider of credentials; `None` where `object_store` finds keys in the environment, or needs none. `Invalid` for a
/// profile that needs the program `aws`.
pub(super) fn provider(
    variables: &Variables,
    profile: &Profile,
    region: &str,
    connector: &Observed,
) -> Result<Option<AwsCredentialProvider>> {
    if variables.is_on("AWS_SKIP_SIGNATURE")
        || variables.first(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]).is_some()
    {
        return Ok(None);
    }
    let mut looked = vec!["AWS_ACCESS_KEY_ID is not set".to_owned()];
    let source = chosen(variables, profile, region, &mut looked)?;
    let clients = Clients::new(connector, variables).map_err(|error| Error::invalid(error.to_string()))?;
    let looked = looked.join(", ");
    let (kept, looking) = (parking_lot::Mutex::default(), Arc::default());
    Ok(Some(Arc::new(Credentials(Arc::new(Looks { source, clients, looked, kept, looking })))))
}

/// The first source that is set up. Adds the places without one to `looked`.
fn chosen(
    variables: &Variables,
    profile: &Profile,
    region: &str,
    looked: &mut Vec<String>,
) -> Result<Source> {
    let in_profile = profile.source(variables, region);
    let is_named = variables.get("AWS_PROFILE").is_some();
    let of_profile = |found| match found {
        InProfile::WebIdentity(identity) => Source::WebIdentity(identity),
        _ => Source::Profile(variables.clone()),
    };
    let in_profile = match in_profile {
        Ok(InProfile::Nothing) => {
            looked.push(format!("the profile {:?} of ~/.aws has no keys", profile.name));
            None
        }
        Ok(found) if is_named => return Ok(of_profile(found)),
        Ok(found) => Some(of_profile(found)),
        Err(error) if is_named => return Err(error),
        Err(error) => {
            looked.push(error.to_string());
            None
        }
    };
    if let Some(identity) = WebIdentity::of(variables, region) {
        return Ok(Source::WebIdentity(identity));
    }
    looked.push("AWS_WEB_IDENTITY_TOKEN_FILE is not set".to_owned());
    if let Some(found) = in_profile {
        return Ok(found);
    }
    if let Some(container) = Container::of(variables) {
        return Ok(Source::Container(container));
    }
    looked.push("AWS_CONTAINER_CREDENTIALS_FULL_URI is not set".to_owned());
    Ok(Source::Instance(Instance::of(variables)))
}

impl Source {
    async fn fetch(&self, clients: &Clients) -> std::result::Result<Fetched, Failed> {
        match self {
            Source::Profile(variables) => {
                let variables = variables.clone();
                tokio::task::spawn_blocking(move || profile::fetch(&variables)).await?
            }
            Source::WebIdentity(identity) => identity.fetch(&clients.secure).await,
            Source::Container(container) => container.fetch(&clients.local).await,
            Source::Instance(instance) => instance.fetch(&clients.local).await,
        }
    }

    /// The source, for messages.
    fn name(&self) -> String {
        match self {
            Source::Profile(_) => "the profile".to_owned(),
            Source::WebIdentity(identity) => format!("the web identity, by {},", identity.endpoint),
            Source::Container(container) => format!("the container's endpoint {}", container.uri),
            Source::Instance(instance) => format!("the metadata service {}", instance.endpoint),
        }
    }
}

impl Looks {
    /// The error of a look without a valid credential. Only a service that has failed for the moment is asked again.
    fn failure(&self, error: &(dyn std::error::Error + 'static), has_ended: bool) -> Failure {
        let (text, source) = (services::innermost(error), self.source.name());
        if is_passing(error) {
            return Failure::Transient(format!("{source} gives no credentials now: {text}"));
        }
        if has_ended {
            return Failure::NoCredentials(format!(
                "the credentials have ended, and {source} gives no others: {text}"
            ));
        }
        Failure::NoCredentials(format!(
            "no credentials were found: {}, and {source} gives none ({text}); set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for a public bucket",
            self.looked
        ))
    }

    /// Looks for credentials and keeps them, or the error.
    async fn look(&self) -> std::result::Result<Arc<AwsCredential>, Failure> {
        let fetched = self.source.fetch(&self.clients).await;
        let (now, mut kept) = (Instant::now(), self.kept.lock());
        match fetched {
            Ok(Fetched { credential, lasts }) => {
                let credential = Arc::new(credential);
                let renew =
                    lasts.map_or(READ_AGAIN, |lasts| lasts.saturating_sub(RENEWED_BEFORE).max(lasts / 2));
                *kept = Kept {
                    credential: Some(credential.clone()),
                    renew: now.checked_add(renew),
                    end: lasts.and_then(|lasts| now.checked_add(lasts)),
                    failed: None,
                };
                Ok(credential)
            }
            Err(error) => {
                let is_valid = kept.end.is_none_or(|end| now < end);
                if let Some(credential) = kept.credential.clone().filter(|_| is_valid) {
                    log::warn!("the credentials could not be renewed: {}", services::innermost(&*error));
                    kept.renew = now.checked_add(RENEWED_AGAIN);
                    return Ok(credential);
                }
                let failure = self.failure(&*error, kept.credential.is_some());
                kept.failed = Some((now, failure.clone()));
                Err(failure)
            }
        }
    }
}

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let failed = |error| object_store::Error::Generic { store: "S3", source: Box::new(error) };
        let (looks, now) = (self.0.clone(), Instant::now());
        let (answer, valid) = {
            let kept = looks.kept.lock();
            let lasts = kept.end.is_some_and(|end| now < end);
            (kept.answer(now), kept.credential.clone().filter(|_| lasts))
        };
        if let Some(answer) = answer {
            return answer.map_err(failed);
        }
        if let Some(credential) = valid {
            // It is renewed meanwhile.
            if let Ok(held) = looks.looking.clone().try_lock_owned() {
                tokio::spawn(async move {
                    drop(looks.look().await);
                    drop(held);
                });
            }
            return Ok(credential);
        }
        let look = tokio::spawn(async move {
            let _one = looks.looking.lock().await;
            let answer = looks.kept.lock().answer(Instant::now());
            match answer {
                Some(answer) => answer,
                None => looks.look().await,
            }
        });
        look.await?.map_err(failed)
    }
}
