//! Credentials that a service gives: the endpoint of a container, the metadata service of an instance, and the token
//! service for a web identity.

use std::time::{Duration, SystemTime};

use object_store::aws::AwsCredential;
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::{ClientConfigKey, ClientOptions};
use serde_json::Value;

use crate::remote::client::credentials::{Failed, Fetched, Variables};
use crate::remote::client::http_status::Observed;

/// The metadata service, and the service of containers, on their machine.
const INSTANCE: &str = "http://169.254.169.254";
const CONTAINER: &str = "http://169.254.170.2";
const ROLES: &str = "latest/meta-data/iam/security-credentials";
/// A service on this machine, or beside it, answers sooner; on other machines nobody does.
const LOCAL_CONNECT: Duration = Duration::from_secs(1);
const LOCAL_ANSWER: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(2);

/// The variables of the proxy.
const PROXY: [(&str, ClientConfigKey); 3] = [
    ("AWS_PROXY_URL", ClientConfigKey::ProxyUrl),
    ("AWS_PROXY_CA_CERTIFICATE", ClientConfigKey::ProxyCaCertificate),
    ("AWS_PROXY_EXCLUDES", ClientConfigKey::ProxyExcludes),
];

/// The clients for the services.
pub(super) struct Clients {
    /// For services beside this machine, without TLS.
    pub local: HttpClient,
    /// For the token service.
    pub secure: HttpClient,
}

impl Clients {
    pub fn new(connector: &Observed, variables: &Variables) -> object_store::Result<Clients> {
        let local = ClientOptions::new().with_allow_http(true);
        let local = local.with_connect_timeout(LOCAL_CONNECT).with_timeout(LOCAL_ANSWER);
        let mut secure = ClientOptions::new().with_connect_timeout(CONNECT).with_timeout(ANSWER);
        // The service is behind the proxy of the bucket, if there is one; services beside this machine are not.
        for (name, key) in PROXY {
            if let Some(value) = variables.get(name) {
                secure = secure.with_config(key, value);
            }
        }
        Ok(Clients { local: connector.connect(&local)?, secure: connector.connect(&secure)? })
    }
}

/// The endpoint of a container: ECS, or EKS Pod Identity.
#[derive(Debug)]
pub(super) struct Container {
    pub uri: String,
    token: Option<Token>,
}

#[derive(Debug)]
enum Token {
    InFile(String),
    Given(Secret),
}

/// A text that is not shown.
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret")
    }
}

impl Container {
    pub fn of(variables: &Variables) -> Option<Container> {
        let relative = variables.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        let relative = relative.map(|path| format!("{CONTAINER}{path}"));
        let full = || variables.get("AWS_CONTAINER_CREDENTIALS_FULL_URI").map(str::to_owned);
        let in_file = variables.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(str::to_owned);
        let given = variables.get("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(str::to_owned);
        let token = in_file.map(Token::InFile).or_else(|| given.map(|token| Token::Given(Secret(token))));
        Some(Container { uri: relative.or_else(full)?, token })
    }

    pub async fn fetch(&self, client: &HttpClient) -> Result<Fetched, Failed> {
        let token = match &self.token {
            None => None,
            Some(Token::Given(Secret(token))) => Some(token.trim().to_owned()),
            Some(Token::InFile(path)) => Some(token_in(path).await?),
        };
        let headers = token.iter().map(|token| ("authorization", token.as_str()));
        of_json(&sent(client, Method::Get, &self.uri, headers).await?)
    }
}

/// The metadata service of an instance.
#[derive(Debug)]
pub(super) struct Instance {
    pub endpoint: String,
    /// Whether the first version of the service will do, which needs no token.
    falls_back: bool,
}

impl Instance {
    pub fn of(variables: &Variables) -> Instance {
        let endpoint = variables.get("AWS_METADATA_ENDPOINT").unwrap_or(INSTANCE);
        let falls_back = variables.is_on("AWS_IMDSV1_FALLBACK");
        Instance { endpoint: endpoint.trim_end_matches('/').to_owned(), falls_back }
    }

    pub async fn fetch(&self, client: &HttpClient) -> Result<Fetched, Failed> {
        let at = |path: &str| format!("{}/{path}", self.endpoint);
        let lifetime = [("x-aws-ec2-metadata-token-ttl-seconds", "600")];
        let token = match sent(client, Method::Put, &at("latest/api/token"), lifetime.into_iter()).await {
            Ok(token) => Some(String::from_utf8_lossy(&token).trim().to_owned()),
            Err(_) if self.falls_back => None,
            Err(error) => return Err(error),
        };
        let headers = || token.iter().map(|token| ("x-aws-ec2-metadata-token", token.as_str()));
        let roles = sent(client, Method::Get, &at(&format!("{ROLES}/")), headers()).await?;
        let roles = String::from_utf8_lossy(&roles);
        let role = roles.lines().next().map(str::trim).filter(|role| !role.is_empty());
        let role = role.ok_or("the instance has no role")?;
        of_json(&sent(client, Method::Get, &at(&format!("{ROLES}/{role}")), headers()).await?)
    }
}

/// A role that is assumed with the token of a web identity: IRSA.
#[derive(Debug)]
pub(super) struct WebIdentity {
    pub endpoint: String,
    role: String,
    session: String,
    token_file: String,
}

impl WebIdentity {
    /// The one that the environment names.
    pub fn of(variables: &Variables, region: &str) -> Option<WebIdentity> {
        let token_file = variables.get("AWS_WEB_IDENTITY_TOKEN_FILE")?;
        Some(WebIdentity::new(variables, region, token_file, variables.get("AWS_ROLE_ARN")?))
    }

    pub fn new(variables: &Variables, region: &str, token_file: &str, role: &str) -> WebIdentity {
        let endpoint = variables.get("AWS_ENDPOINT_URL_STS").map(str::to_owned);
        WebIdentity {
            endpoint: endpoint.unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com")),
            role: role.to_owned(),
            session: variables.get("AWS_ROLE_SESSION_NAME").unwrap_or("tierfs").to_owned(),
            token_file: token_file.to_owned(),
        }
    }

    pub async fn fetch(&self, client: &HttpClient) -> Result<Fetched, Failed> {
        let token = token_in(&self.token_file).await?;
        let parameters = [
            ("Action", "AssumeRoleWithWebIdentity"),
            ("DurationSeconds", "3600"),
            ("RoleArn", &self.role),
            ("RoleSessionName", &self.session),
            ("Version", "2011-06-15"),
            ("WebIdentityToken", &token),
        ];
        let parameters = parameters.map(|(name, value)| format!("{name}={}", percent_encoded(value)));
        let uri = format!("{}/?{}", self.endpoint.trim_end_matches('/'), parameters.join("&"));
        let answer = sent(client, Method::Post, &uri, std::iter::empty()).await?;
        let answer = String::from_utf8_lossy(&answer);
        let element = |name: &str| {
            let (_, rest) = answer.split_once(&format!("<{name}>"))?;
            rest.split_once('<').map(|(text, _)| text.trim())
        };
        fetched(
            element("AccessKeyId"),
            element("SecretAccessKey"),
            element("SessionToken"),
            element("Expiration"),
        )
    }
}

/// The token in a file, which often ends with a newline.
async fn token_in(path: &str) -> Result<String, Failed> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || match std::fs::read_to_string(&path) {
        Ok(token) => Ok(token.trim().to_owned()),
        Err(error) => Err(format!("the token file {path}: {error}")),
    });
    Ok(read.await??)
}

#[derive(Clone, Copy)]
enum Method {
    Get,
    Put,
    Post,
}

/// The body of the answer to a request.
async fn sent<'a>(
    client: &HttpClient,
    method: Method,
    uri: &str,
    headers: impl Iterator<Item = (&'static str, &'a str)>,
) -> Result<Vec<u8>, Failed> {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() = uri.parse().map_err(|_| "the URI is not valid")?;
    *request.method_mut() = match method {
        Method::Get => "GET",
        Method::Put => "PUT",
        Method::Post => "POST",
    }
    .parse()?;
    for (name, value) in headers {
        let value =
            value.parse().map_err(|_| format!("the header {name} cannot have the token that was given"))?;
        request.headers_mut().insert(name, value);
    }
    let answer = client.execute(request).await?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("it answered {}", status.as_u16()).into());
    }
    Ok(answer.into_body().bytes().await?.to_vec())
}

/// Credentials as containers, instances and programs print them.
pub(super) fn of_json(bytes: &[u8]) -> Result<Fetched, Failed> {
    let value: Value = serde_json::from_slice(bytes).map_err(|_| "it gives no JSON")?;
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let token = text("SessionToken").or_else(|| text("Token"));
    fetched(text("AccessKeyId"), text("SecretAccessKey"), token, text("Expiration"))
}

fn fetched(
    key: Option<&str>,
    secret: Option<&str>,
    token: Option<&str>,
    expiration: Option<&str>,
) -> Result<Fetched, Failed> {
    let (Some(key), Some(secret)) = (key, secret) else {
        return Err("the answer has no AccessKeyId and SecretAccessKey".into());
    };
    let lasts = expiration.map(|end| -> Result<Duration, Failed> {
        let end = SystemTime::from(chrono::DateTime::parse_from_rfc3339(end)?);
        Ok(end.duration_since(SystemTime::now()).unwrap_or_default())
    });
    let (key_id, secret_key) = (key.to_owned(), secret.to_owned());
    let credential = AwsCredential { key_id, secret_key, token: token.map(str::to_owned) };
    Ok(Fetched { credential, lasts: lasts.transpose()? })
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// The text of the first cause. Outer ones quote requests.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
