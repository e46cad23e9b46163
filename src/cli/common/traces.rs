//! Traces of a mount: `tierfs mount --traces`.

use std::path::Path;

use crate::model::{Error, Result};
#[cfg(feature = "traces")]
use crate::remote::traces::Exporter;

/// The environment variables with the collector's endpoint, in the order in which OpenTelemetry reads them.
#[cfg(feature = "traces")]
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

pub(in crate::cli) const COLLECTOR_EXAMPLE: &str = "http://127.0.0.1:4318";

/// The URL of a collector.
pub(in crate::cli) fn parse_collector(text: &str) -> Result<String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match host.map(|rest| rest.split('/').next().unwrap_or_default()) {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        _ => {
            let text = format!("invalid value {text:?}; expected a URL, such as {COLLECTOR_EXAMPLE}");
            Err(Error::invalid(text))
        }
    }
}

/// Begins to export the spans of a mount, if a URL or the environment names a collector. The exporter ends when
/// it is dropped, or by [`end`].
#[cfg(feature = "traces")]
pub(in crate::cli) fn begin(url: Option<&str>, store: &Path, mountpoint: &Path) -> Result<Option<Exporter>> {
    let is_named = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if url.is_none() && !ENDPOINTS.iter().any(is_named) {
        return Ok(None);
    }
    let attributes = [
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("tierfs.store", store.display().to_string()),
        ("tierfs.mountpoint", mountpoint.display().to_string()),
    ];
    Exporter::begin(url, &attributes).map(Some)
}

/// Sends the last spans, before the process exits without dropping anything.
#[cfg(feature = "traces")]
pub(in crate::cli) fn end(exporter: Option<Exporter>) {
    drop(exporter);
}

/// Refuses a URL: this program has no traces.
#[cfg(not(feature = "traces"))]
pub(in crate::cli) fn begin(url: Option<&str>, _store: &Path, _mountpoint: &Path) -> Result<Option<()>> {
    match url {
        Some(_) => Err(Error::new(
            crate::model::ErrorKind::NotSupported,
            "this program was built without the feature traces, which --traces needs; to build it: cargo build \
             --release --features traces",
        )),
        None => Ok(None),
    }
}

/// Does nothing: this program has no traces.
#[cfg(not(feature = "traces"))]
pub(in crate::cli) fn end(_exporter: Option<()>) {}
