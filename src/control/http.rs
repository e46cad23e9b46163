//! Metrics over HTTP, for `tierfs mount --metrics`.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use oxhttp::Server;
use oxhttp::model::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use oxhttp::model::{Body, HeaderValue, Method, Request, Response, StatusCode};

use crate::control::context::Mounted;
use crate::control::metrics;
use crate::model::{Error, Result};

/// Time for one read or write of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that are served at the same time; others wait.
const CONNECTIONS_MAX: usize = 8;
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Answers `GET /metrics` at an address with all metrics of the mount, until the process ends. Everybody who
/// can connect may ask. Fails if the address cannot be listened to.
pub fn serve_metrics(mounted: &Arc<Mounted>, at: SocketAddr) -> Result<()> {
    let mounted = Arc::downgrade(mounted);
    let server = Server::new(move |request| answer(&mounted, request));
    let server = server.bind(at).with_global_timeout(PATIENCE);
    let started = server.with_max_concurrent_connections(CONNECTIONS_MAX).spawn();
    // Its threads end with the process.
    started.map(drop).map_err(|error| Error::io(format!("serving metrics at {at}"), error))
}

fn answer(mounted: &Weak<Mounted>, request: &Request<Body>) -> Response<Body> {
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n".to_owned());
    }
    if request.method() != Method::GET {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    let Some(mounted) = mounted.upgrade() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "the mount has ended\n".to_owned());
    };
    match metrics::text(&mounted, mounted.vfs.owner().0) {
        Ok(metrics) if wants_classic(request) => {
            typed(StatusCode::OK, metrics::CLASSIC_MEDIA_TYPE, metrics::classic(&metrics))
        }
        Ok(metrics) => typed(StatusCode::OK, metrics::MEDIA_TYPE, metrics),
        Err(error) => {
            log::error!("metrics: {error}");
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
        }
    }
}

/// Whether a program asks for plain text and does not know OpenMetrics.
fn wants_classic(request: &Request<Body>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<String> = accepted.map(str::to_ascii_lowercase).collect();
    let names = |media_type: &str| accepted.iter().any(|value| value.contains(media_type));
    names("text/plain") && !names("application/openmetrics-text")
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    typed(status, PLAIN_TEXT, text)
}

fn typed(status: StatusCode, media_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
