//! An imitation of the hub: repositories with branches and commits, private and gated ones, files on another host.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use super::{Reply, Request, Server};

pub const TOKEN: &str = "hf_secret_of_the_reader";
/// Files of at least so many bytes lie on the other host.
const LARGE: usize = 1000;

type Files = BTreeMap<String, Vec<u8>>;

/// A repository.
#[derive(Clone, Default)]
pub struct Repository {
    /// The commits that branches, tags and pull requests stand for.
    pub revisions: BTreeMap<String, String>,
    pub commits: BTreeMap<String, Files>,
    pub is_private: bool,
    pub is_gated: bool,
}

/// The content and the faults, which a test changes while the hub runs.
#[derive(Clone, Default)]
pub struct State {
    pub repositories: BTreeMap<String, Repository>,
    /// Answers that are given first, by the beginning of the path.
    pub faults: Vec<(String, Reply)>,
    /// Files on a page of a list.
    pub page: usize,
    /// Addresses on the other host are refused.
    pub has_expired: bool,
}

pub struct Hub {
    server: Server,
    /// The host of large files.
    files: Server,
    pub state: Arc<Mutex<State>>,
}

/// The name of a commit or of the content of a small file.
pub fn oid(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..40].to_owned()
}

pub fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Hub {
    pub fn start() -> Hub {
        let state = Arc::new(Mutex::new(State { page: 2, ..State::default() }));
        let (of_files, of_hub) = (state.clone(), state.clone());
        let files = Server::start(move |request| {
            let state = of_files.lock();
            if state.has_expired || request.parameter("signature").is_none() {
                return Reply::new(403, "<Error><Code>AccessDenied</Code></Error>");
            }
            let wanted = request.path.trim_start_matches('/');
            let all = state.repositories.values().flat_map(|repository| repository.commits.values());
            let found = all.flat_map(BTreeMap::values).find(|bytes| sha256(bytes) == wanted);
            found.map_or_else(|| Reply::new(404, ""), |bytes| Reply::bytes(request, bytes))
        });
        let other = files.port();
        let server = Server::start(move |request| answer(&of_hub.lock(), request, other));
        Hub { server, files, state }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port())
    }

    /// Makes a commit, to which a branch of a repository moves. Returns its name.
    pub fn commit(&self, id: &str, branch: &str, files: &[(&str, &[u8])]) -> String {
        let files: Files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec())).collect();
        let commit = oid(format!("{id} {branch} {files:?}").as_bytes());
        let mut state = self.state.lock();
        let repository = state.repositories.entry(id.to_owned()).or_default();
        repository.commits.insert(commit.clone(), files);
        repository.revisions.insert(branch.to_owned(), commit.clone());
        commit
    }

    pub fn fail(&self, path: &str, reply: Reply) {
        self.state.lock().faults.insert(0, (path.to_owned(), reply));
    }

    /// The requests that the hub has got.
    pub fn requests(&self) -> Vec<Request> {
        self.server.requests()
    }

    /// Those that the host of large files has got.
    pub fn requests_of_files(&self) -> Vec<Request> {
        self.files.requests()
    }
}

fn refused(status: u16, code: &str, text: &str) -> Reply {
    Reply::new(status, json!({ "error": text }).to_string())
        .with("X-Error-Code", code)
        .with("X-Error-Message", text)
}

fn answer(state: &State, request: &Request, files: u16) -> Reply {
    if let Some((_, reply)) = state.faults.iter().find(|(path, _)| request.path.starts_with(path)) {
        return reply.clone();
    }
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let (id, rest) = match &parts[..] {
        ["api", "models", owner, name, rest @ ..] => (format!("{owner}/{name}"), rest),
        ["api", "datasets", owner, name, rest @ ..] => (format!("datasets/{owner}/{name}"), rest),
        ["datasets", owner, name, rest @ ..] => (format!("datasets/{owner}/{name}"), rest),
        [owner, name, rest @ ..] => (format!("{owner}/{name}"), rest),
        _ => return refused(404, "", "Not Found"),
    };
    let has_token = request.header("authorization") == format!("Bearer {TOKEN}");
    if !has_token && !request.header("authorization").is_empty() {
        return refused(401, "", "Invalid credentials in Authorization header");
    }
    let found = state.repositories.get(&id);
    let Some(repository) = found.filter(|repository| has_token || !repository.is_private) else {
        // The hub does not say to strangers which names exist.
        return if has_token {
            refused(404, "RepoNotFound", "Repository not found")
        } else {
            refused(401, "RepoNotFound", "Invalid username or password.")
        };
    };
    if repository.is_gated && !has_token {
        return refused(
            if request.path.contains("/resolve/") { 403 } else { 401 },
            "GatedRepo",
            "Access is restricted",
        );
    }
    let files_of = |revision: &str| {
        let revision = revision.replace("%2F", "/");
        let commit = repository.revisions.get(&revision).unwrap_or(&revision);
        repository.commits.get_key_value(commit)
    };
    let no_revision = || refused(404, "RevisionNotFound", "Invalid rev id");
    match rest {
        [] | ["revision", ..] => {
            let revision = if rest.is_empty() { "main".to_owned() } else { rest[1..].join("/") };
            let Some((commit, all)) = files_of(&revision) else { return no_revision() };
            let siblings: Vec<_> = all.keys().map(|path| json!({ "rfilename": path })).collect();
            Reply::json(&json!({
                "_id": "1", "id": id, "modelId": id, "sha": commit, "lastModified": "2026-11-23T01:02:03.000Z",
                "private": repository.is_private, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0,
            }))
        }
        ["tree", revision, below @ ..] => {
            let Some((_, all)) = files_of(revision) else { return no_revision() };
            tree(state, request, all, &below.join("/"))
        }
        ["resolve", revision, path @ ..] => {
            let Some((commit, all)) = files_of(revision) else { return no_revision() };
            let Some(bytes) = all.get(&path.join("/")) else {
                return refused(404, "EntryNotFound", "Entry not found");
            };
            if bytes.len() < LARGE {
                return Reply::bytes(request, bytes)
                    .with("ETag", format!("\"{}\"", oid(bytes)))
                    .with("X-Repo-Commit", commit);
            }
            let digest = sha256(bytes);
            Reply::to(format!("http://127.0.0.1:{files}/{digest}?signature=of-the-hub"))
                .with("X-Repo-Commit", commit)
                .with("X-Linked-Size", bytes.len().to_string())
                .with("X-Linked-ETag", format!("\"{digest}\""))
        }
        _ => refused(404, "", "Not Found"),
    }
}

/// A page of the files and directories of a directory.
fn tree(state: &State, request: &Request, all: &Files, below: &str) -> Reply {
    let is_recursive = matches!(request.parameter("recursive").as_deref(), Some("true" | "True" | "1"));
    let mut entries = BTreeMap::new();
    for (path, bytes) in all {
        let rest = if below.is_empty() {
            Some(&**path)
        } else {
            path.strip_prefix(below).and_then(|rest| rest.strip_prefix('/'))
        };
        let Some(rest) = rest else { continue };
        let above = path.len() - rest.len();
        for (at, _) in rest.match_indices('/').take(if is_recursive { usize::MAX } else { 1 }) {
            let directory = &path[..above + at];
            let entry =
                json!({"type": "directory", "oid": oid(directory.as_bytes()), "size": 0, "path": directory});
            entries.insert(directory.to_owned(), entry);
        }
        if is_recursive || !rest.contains('/') {
            let mut entry = json!({"type": "file", "oid": oid(bytes), "size": bytes.len(), "path": path});
            if bytes.len() >= LARGE {
                entry["lfs"] = json!({"oid": sha256(bytes), "size": bytes.len(), "pointerSize": 130});
            }
            entries.insert(path.clone(), entry);
        }
    }
    if entries.is_empty() && !below.is_empty() {
        return refused(404, "EntryNotFound", "Entry not found");
    }
    let first: usize = request.parameter("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let page: Vec<_> = entries.into_values().skip(first).take(state.page + 1).collect();
    let reply = Reply::json(&page[..page.len().min(state.page)].into());
    if page.len() <= state.page {
        return reply;
    }
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let query = query.split("&cursor=").next().unwrap_or_default();
    let next = format!("http://{}{path}?{query}&cursor={}", request.header("host"), first + state.page);
    reply.with("Link", format!("<{next}>; rel=\"next\""))
}
