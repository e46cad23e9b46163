//! Turns the refusals of a daemon into text: the path, the reason, and the command to type.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::mounts::Mounted;
use crate::cli::common::output::{complain, print_json};
use crate::control::PREFIX;
use crate::model::{Cause, Error, FILES_SHOWN_MAX, Result};
use crate::store::TENSORS_NAME;

/// Largest size of the attribute with a refusal.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// A request that was refused.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Refusal {
    reasons: Vec<Reason>,
    /// Number of files with further reasons.
    others: u64,
}

#[derive(Clone, Debug)]
struct Reason {
    code: String,
    text: String,
    /// The command or action that helps.
    advice: Option<String>,
    count: u64,
    /// The first files, as the user would name them.
    files: Vec<String>,
}

/// The command of a request, as the user would type it again.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Typed<'a> {
    /// The words before the path: `tier q5`.
    pub words: &'a str,
    pub path: &'a Path,
}

/// Counts refusals, so that a new one can be distinguished from an old one. 0 without any.
pub(in crate::cli) fn last_number(path: &Path) -> u64 {
    read(path).and_then(|value| value.get("number")?.as_u64()).unwrap_or(0)
}

fn read(path: &Path) -> Option<Value> {
    let mut text = vec![0; REFUSAL_BYTES_MAX];
    let len = rustix::fs::getxattr(path, format!("{PREFIX}refusal"), &mut text[..]).ok()?;
    serde_json::from_slice(text.get(..len)?).ok()
}

impl Refusal {
    /// A refusal with one reason.
    pub fn new(code: &str, text: impl Into<String>, advice: Option<String>) -> Refusal {
        let reason = Reason { code: code.to_owned(), text: text.into(), advice, count: 1, files: Vec::new() };
        Refusal { reasons: vec![reason], others: 0 }
    }

    /// The reasons that the daemon keeps for the request that was just refused. `before` is the number
    /// of the last refusal before it. If the kernel or the system refused, the error number is the
    /// reason.
    pub fn of(mounted: &Mounted, typed: &Typed, before: u64, errno: Errno) -> Refusal {
        let found = read(typed.path).filter(|value| {
            value.get("number").and_then(Value::as_u64).is_some_and(|number| number > before)
        });
        found.and_then(|value| Refusal::told(mounted, typed, &value)).unwrap_or_else(|| by_number(errno))
    }

    /// The reasons that the daemon keeps, if there are any newer than `before`.
    pub fn newer(mounted: &Mounted, typed: &Typed, before: u64) -> Option<Refusal> {
        let value = read(typed.path)?;
        let is_new = value.get("number").and_then(Value::as_u64).is_some_and(|number| number > before);
        if is_new { Refusal::told(mounted, typed, &value) } else { None }
    }

    fn told(mounted: &Mounted, typed: &Typed, value: &Value) -> Option<Refusal> {
        let asked = value.get("path")?.as_str()?;
        let named = |path: &str| name_of(mounted, typed, asked, path);
        let mut reasons = Vec::new();
        for reason in value.get("reasons")?.as_array()? {
            let text = |key: &str| reason.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let count = reason.get("count").and_then(Value::as_u64).unwrap_or(1);
            let files: Vec<String> = reason
                .get("files")
                .and_then(Value::as_array)
                .map_or(Vec::new(), |files| files.iter().filter_map(Value::as_str).map(named).collect());
            let code = text("code");
            let cause = if count == 1 { files.first() } else { None };
            let advice = advice(&code, typed, cause.map(String::as_str), mounted, &text("of"));
            reasons.push(Reason { text: text("text"), advice, count, files, code });
        }
        let others = value.get("others").and_then(Value::as_u64).unwrap_or(0);
        Some(Refusal { reasons, others })
    }

    /// The lines that people read: the path once, each reason, and the first files that caused it.
    pub fn lines(&self, path: &Path) -> String {
        let path = path.display().to_string();
        let mut text = format!("{path}: refused:");
        let is_one = self.reasons.len() == 1 && self.others == 0;
        for reason in &self.reasons {
            let advice = reason.advice.as_ref().map_or(String::new(), |advice| format!("; {advice}"));
            let (start, indent) = if is_one { (" ", "  ") } else { ("\n  ", "    ") };
            text.push_str(&format!("{start}{}{advice}", reason.text));
            if reason.count > 1 {
                for file in reason.files.iter().take(FILES_SHOWN_MAX) {
                    // The tensors of a container lie beside it.
                    let places = [Some(path.as_str()), path.rsplit_once('/').map(|(above, _)| above)];
                    let mut below = places.into_iter().flatten();
                    let below = below.find_map(|place| file.strip_prefix(place)?.strip_prefix('/'));
                    text.push_str(&format!("\n{indent}{}", below.unwrap_or(file)));
                }
                let more = reason.count.saturating_sub(reason.files.len() as u64);
                if more > 0 {
                    text.push_str(&format!("\n{indent}and {more} more"));
                }
            }
        }
        if self.others > 0 {
            text.push_str(&format!("\n  {} more files for other reasons", self.others));
        }
        text.push('\n');
        text
    }

    /// Prints the refusal of a command about one path.
    pub fn report(&self, path: &Path, as_json: bool) -> Result<Outcome> {
        if as_json {
            let path = path.display().to_string();
            print_json(&json!({ "path": path, "state": "refused", "reasons": self.to_json() }))?;
        } else {
            complain(&self.lines(path));
        }
        Ok(Outcome::Failed)
    }

    /// The reasons as JSON.
    pub fn to_json(&self) -> Value {
        let reasons = self.reasons.iter().map(|reason| {
            json!({
                "code": reason.code,
                "text": reason.text,
                "advice": reason.advice,
                "count": reason.count,
                "files": reason.files,
            })
        });
        reasons.collect::<Vec<_>>().into()
    }

    /// The first reason and its advice, as one clause.
    pub fn clause(&self) -> String {
        let clauses = self.reasons.iter().map(|reason| match &reason.advice {
            Some(advice) => format!("{}; {advice}", reason.text),
            None => reason.text.clone(),
        });
        clauses.collect::<Vec<_>>().join("; ")
    }
}

/// A path in the mount as the user would name it.
fn name_of(mounted: &Mounted, typed: &Typed, asked: &str, path: &str) -> String {
    let below = path.strip_prefix(asked);
    match below {
        Some("") => typed.path.display().to_string(),
        Some(rest) if rest.starts_with('/') => {
            typed.path.join(rest.trim_start_matches('/')).display().to_string()
        }
        _ => {
            // Relative to the user's own path, if that lies in the same directory.
            let above =
                asked.rsplit_once('/').and_then(|(above, _)| path.strip_prefix(above)?.strip_prefix('/'));
            // A tensor may have been typed by its path below `.tensors`.
            let is_plain = |parent: &&Path| parent.iter().all(|name| name != TENSORS_NAME);
            let beside = typed.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let beside = beside.filter(is_plain);
            let place: PathBuf = match (above, beside) {
                (Some(rest), Some(parent)) => parent.join(rest),
                _ => mounted.mountpoint.join(path),
            };
            place.display().to_string()
        }
    }
}

/// The command or the action after which a refused request would be accepted.
fn advice(code: &str, typed: &Typed, cause: Option<&str>, mounted: &Mounted, of: &str) -> Option<String> {
    let (words, path) = (typed.words, typed.path.display());
    let file = cause.map_or_else(|| path.to_string(), str::to_owned);
    Some(match code {
        "lossy" => format!("to allow it: tierfs {words} --lossy {path}"),
        "pinned" => format!("to unpin: tierfs unpin {file}"),
        "needed" if !of.is_empty() => {
            format!("to store them in full: tierfs tier exact {}", mounted.mountpoint.join(of).display())
        }
        "shared" => "remove one of the two, or copy it".to_owned(),
        "needed" => "move those to a tier first, or remove them".to_owned(),
        "not a tensor" => format!(
            "if it is an array without a header, name its type: tierfs set dtype=f32 shape=ROWSxCOLUMNS {file}"
        ),
        "no reconstruct" => format!(
            "to say how: tierfs set reconstruct=delta {path} (or origin, or factor); \
             to give the bytes up: tierfs evict --discard --lossy {path}"
        ),
        "no source" => "import the exact file again, or write it again".to_owned(),
        "quota" => {
            let quota = mounted.mountpoint.join(of).join(".ctl/quota");
            format!(
                "remove files, or raise the quota: echo bytes=SIZE stored=SIZE files=N > {}",
                quota.display()
            )
        }
        "no space" => "remove files, or make room on the disk of the store".to_owned(),
        "read-only" => format!("to mount it for writing: {}", mount_again(mounted)),
        _ => return None,
    })
}

/// Adds the commands to an error of a store that is not mounted, if a mount is needed for them.
pub(in crate::cli) fn with_mount(error: Error, store: &Path) -> Error {
    let bound = error.refusals().iter().find_map(|refusal| match &refusal.cause {
        Cause::Bound(of, _) => Some(of),
        _ => None,
    });
    let Some(of) = bound else { return error };
    let store = store.display();
    let text = format!(
        "{error}; to store them in full: tierfs mount {store} MOUNTPOINT && tierfs tier exact MOUNTPOINT/{of}"
    );
    Error::new(error.kind(), text)
}

/// The commands that mount a store anew.
pub(in crate::cli) fn mount_again(mounted: &Mounted) -> String {
    let (store, point) = (mounted.store.display(), mounted.mountpoint.display());
    format!("tierfs umount {point} && tierfs mount {store} {point}")
}

/// A refusal of the kernel or the system.
fn by_number(errno: Errno) -> Refusal {
    let (code, text) = match errno {
        Errno::ROFS => ("read-only", "the store is mounted read-only; mount it without --read-only"),
        Errno::ACCESS => ("permission", "permission denied"),
        Errno::PERM => ("permission", "operation not permitted"),
        Errno::NOENT => ("not found", "there is no such file or directory"),
        Errno::NOTCONN => ("daemon", "the daemon of the mount has ended; tierfs status says how to recover"),
        Errno::NODATA | Errno::OPNOTSUPP => {
            ("denied", "only files and directories of a collection have attributes")
        }
        _ if is_taken(errno) => ("exists", "the name is taken"),
        _ => {
            let text = crate::model::plain(&errno.into());
            return Refusal::new("system", text, None);
        }
    };
    Refusal::new(code, text, None)
}

fn is_taken(errno: Errno) -> bool {
    use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
    matches!(std::io::Error::from(errno).kind(), AlreadyExists | DirectoryNotEmpty)
}

/// A refusal of the command line itself.
impl From<&Error> for Refusal {
    fn from(error: &Error) -> Refusal {
        Refusal::new(error.kind().code(), error.to_string(), None)
    }
}
