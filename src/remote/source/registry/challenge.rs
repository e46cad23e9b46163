//! Access to a registry: the challenge of an answer 401, and the token that is asked for with it.
//!
//! A challenge is a header `WWW-Authenticate: Bearer realm="URL",service="NAME",scope="repository:NAME:pull"`, or `Basic`. The
//! URL answers `GET URL?service=NAME&scope=SCOPE` with JSON: `token` or `access_token`, and `expires_in`, seconds. A refresh
//! token is sent by POST. The interface is that of the distribution project.

use std::time::{Duration, Instant};

use reqwest::Url;
use reqwest::header::HeaderValue;
use serde_json::Value;

use crate::remote::client::failure::Failure;
use crate::remote::source::agent::{Agent, Ask, secret};
use crate::remote::source::registry::docker::Credentials;
use crate::remote::source::web;

/// Tokens without a time hold so long, by the definition.
const LASTS: u64 = 60;
/// Tokens are renewed this long before they end.
const RENEWED_BEFORE: u64 = 10;
/// The most seconds that a token is kept.
const LASTS_MAX: u64 = 24 * 3600;

/// The access that a registry wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// A token and its end.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub secret: HeaderValue,
    pub ends: Instant,
}

impl Challenge {
    /// The challenge of a header.
    pub fn parse(header: &str) -> Option<Challenge> {
        let (scheme, mut rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        while let Some((name, behind)) = rest.split_once('=') {
            let (value, behind) = match behind.strip_prefix('"') {
                // Values of registries have no escapes; a scope has commas.
                Some(quoted) => quoted.split_once('"')?,
                None => behind.split_at(behind.find(',').unwrap_or(behind.len())),
            };
            match name.trim_matches([' ', ',']) {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                "scope" => scope = Some(value.to_owned()),
                _ => {}
            }
            rest = behind;
        }
        Some(Challenge::Bearer { realm: realm?, service, scope })
    }

    /// Access by this challenge. `None` if it wants credentials and there are none.
    pub async fn answer(
        &self,
        agent: &Agent,
        registry: &Url,
        scope: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Option<Token>, Failure> {
        let Challenge::Bearer { realm, service, scope: wanted } = self else {
            let ends = Instant::now() + Duration::from_secs(LASTS_MAX);
            return Ok(match credentials {
                Some(Credentials::Basic(secret)) => Some(Token { secret: secret.clone(), ends }),
                _ => None,
            });
        };
        let wrong =
            |reason: &str| Failure::Refused(format!("the registry sends to {realm:?} for a token, {reason}"));
        let mut url = registry.join(realm).map_err(|_| wrong("which is no address"))?;
        // A registry by plain HTTP may have its tokens there too.
        if url.scheme() != "https" && url.scheme() != registry.scheme() {
            return Err(wrong("which is not HTTPS"));
        }
        let scope = wanted.as_deref().unwrap_or(scope);
        let service = service.as_deref().map(|service| ("service", service));
        let pairs = service.into_iter().chain([("scope", scope)]);
        let ask = match credentials {
            Some(Credentials::Refresh(refresh)) => {
                let more =
                    [("grant_type", "refresh_token"), ("client_id", "tierfs"), ("refresh_token", refresh)];
                let mut form = url.clone();
                form.query_pairs_mut().clear().extend_pairs(pairs.chain(more));
                Ask::post(url, form.query().unwrap_or_default().to_owned())
            }
            Some(Credentials::Basic(secret)) => {
                url.query_pairs_mut().extend_pairs(pairs);
                Ask::get(url).with_secret(Some(secret.clone()))
            }
            None => {
                url.query_pairs_mut().extend_pairs(pairs);
                Ask::get(url)
            }
        };
        let advice =
            || "the credentials of docker's config.json are refused: run docker login again".to_owned();
        let page = web::page(agent, ask, |answer| match answer.status.as_u16() {
            401 | 403 if credentials.is_none() => Failure::NotFound,
            _ => answer.failure(advice),
        });
        let found = match page.await {
            Ok(page) => page.json()?,
            // It gives no token to strangers.
            Err(Failure::NotFound) if credentials.is_none() => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let token = ["token", "access_token"].iter().find_map(|name| found.get(name)?.as_str());
        let secret =
            token.and_then(|token| secret("Bearer", token)).ok_or_else(|| wrong("which gives none"))?;
        let lasts = found.get("expires_in").and_then(Value::as_u64).unwrap_or(LASTS).min(LASTS_MAX);
        let ends = Instant::now() + Duration::from_secs(lasts.saturating_sub(RENEWED_BEFORE).max(1));
        Ok(Some(Token { secret, ends }))
    }
}

#[cfg(test)]
mod tests {
    use super::Challenge;

    #[test]
    fn a_challenge_names_the_place_of_tokens_and_the_scope() {
        let parsed = Challenge::parse(
            "Bearer realm=\"https://auth.io/token\",service=\"reg.io\", scope=\"repository:a/b:pull,push\",error=\"x\"",
        );
        let wanted = Challenge::Bearer {
            realm: "https://auth.io/token".to_owned(),
            service: Some("reg.io".to_owned()),
            scope: Some("repository:a/b:pull,push".to_owned()),
        };
        assert_eq!(parsed, Some(wanted));
        assert_eq!(Challenge::parse("basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Basic"), Some(Challenge::Basic));
        let plain = Challenge::Bearer { realm: "/token".to_owned(), service: None, scope: None };
        assert_eq!(Challenge::parse("bearer realm=/token,x=y"), Some(plain));
        for wrong in ["", "Digest realm=\"x\"", "Bearer service=\"x\"", "Bearer realm=\"x", "Bearer"] {
            assert_eq!(Challenge::parse(wrong), None, "{wrong}");
        }
    }
}
