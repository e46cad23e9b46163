//! Exports spans of traces to a collector of OpenTelemetry: OTLP, as protobuf over HTTP.
//!
//! The environment variables of OpenTelemetry apply to everything but the endpoint that a caller names. Spans
//! wait in a bounded queue, from which a thread of the SDK sends them; while the queue is full, further spans
//! are dropped. So a collector that does not answer costs memory of that queue only, and delays no request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Level;
use tracing::subscriber::set_global_default;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::runtime;
use crate::trace;

/// Longest time of a request to the collector.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the last spans when the exporter is dropped.
const LAST_WAIT: Duration = Duration::from_secs(2);
/// The most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The path of spans at a collector.
const PATH: &str = "v1/traces";

/// Exports spans until it is dropped, which sends the last ones.
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Begins to export all spans of this process to the collector at `url`, or without one to the endpoint
    /// that the environment names. `attributes` describe the process.
    pub fn begin(url: Option<&str>, attributes: &[(&'static str, String)]) -> Result<Exporter> {
        let failed = |error: &dyn std::fmt::Display| {
            let place = url.unwrap_or("the endpoint of the environment");
            Error::invalid(format!("exporting traces to {place}: {error}"))
        };
        // Of the threads of requests, where TLS is set up.
        let client = runtime::wait(async {
            let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).timeout(REQUEST_TIMEOUT);
            client.build()
        })?;
        let sender =
            Sender { client: client.map_err(|error| failed(&error))?, is_failing: AtomicBool::new(false) };
        let mut exporter = SpanExporter::builder().with_http().with_http_client(sender);
        if let Some(url) = url {
            exporter = exporter.with_endpoint(endpoint(url));
        }
        let attributes = attributes.iter().map(|(key, value)| KeyValue::new(*key, value.clone()));
        let resource = Resource::builder().with_service_name("tierfs").with_attributes(attributes).build();
        let exporter = exporter.build().map_err(|error| failed(&error))?;
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("tierfs"));
        let layer = layer.with_location(false).with_target(false).with_tracked_inactivity(false);
        // Other crates make spans too.
        let layer = layer.with_filter(Targets::new().with_target(trace::TARGET, Level::INFO));
        set_global_default(tracing_subscriber::registry().with(layer)).map_err(|error| failed(&error))?;
        trace::begin();
        Ok(Exporter(provider))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST_WAIT) {
            log::warn!("the last spans were not exported: {error}");
        }
    }
}

/// The endpoint for spans at a collector, or a URL with a path as it is.
fn endpoint(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    match rest.split_once('/') {
        Some((_, path)) if !path.is_empty() => url.to_owned(),
        _ => format!("{scheme}://{}/{PATH}", rest.trim_end_matches('/')),
    }
}

/// Sends requests on the threads of the remote's requests.
#[derive(Debug)]
struct Sender {
    client: reqwest::Client,
    is_failing: AtomicBool,
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        let sent = match runtime::spawn(send(self.client.clone(), request)) {
            Ok(sending) => sending.await.map_err(HttpError::from).and_then(|sent| sent),
            Err(error) => Err(error.into()),
        };
        let failure = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        // One message for each outage.
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(failure) if !was_failing => log::warn!("spans are not exported: {failure}"),
            None if was_failing => log::warn!("spans are exported again"),
            _ => {}
        }
        sent
    }
}

async fn send(
    client: reqwest::Client,
    request: Request<Bytes>,
) -> std::result::Result<Response<Bytes>, HttpError> {
    let mut answer = client.execute(reqwest::Request::try_from(request)?).await?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_BYTES_MAX {
            return Err(Error::new(ErrorKind::Unsupported, "the collector's answer is too long").into());
        }
    }
    let mut response = Response::builder().status(answer.status());
    if let Some(headers) = response.headers_mut() {
        headers.clone_from(answer.headers());
    }
    Ok(response.body(body.into())?)
}

#[cfg(test)]
mod tests {
    use super::endpoint;

    #[test]
    fn a_url_without_a_path_gets_that_of_spans() {
        for (url, wanted) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector/", "https://collector/v1/traces"),
            ("http://collector:4318/v1/traces", "http://collector:4318/v1/traces"),
            ("https://host/otlp/x", "https://host/otlp/x"),
        ] {
            assert_eq!(endpoint(url), wanted);
        }
    }
}
