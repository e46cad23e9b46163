//! `tierfs verify`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::common::mounts::mount_of;
use crate::cli::common::output::{complain, print, print_json};
use crate::cli::common::places::{files_below, in_mount};
#[cfg(feature = "remote")]
use crate::cli::common::remote::url;
use crate::cli::{Outcome, misused};
use crate::model::{Error, ErrorKind, Result};

/// Verify the stored checksums of files on a mount, or the signatures of the snapshots of a remote.
///
/// Prints the corrupt byte ranges of each file, and goes on with the others. Exits with 3 if corruption or a forged signature
/// was found. Of a remote, prints who signed each snapshot, and with --trust exits with 1 if the newest snapshot of a collection
/// is not signed by one of the keys.
///
/// Example: tierfs verify /mnt/acme/llama
///
/// Example: tierfs verify s3://models/prefix --trust release.pem
#[derive(clap::Args)]
pub(super) struct Args {
    /// Files or directories on a mount, or a store and names in it, or a remote
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// A public ed25519 key in PEM, perhaps with @UUID of the only remote that it is for; again for further keys
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "KEYFILE")]
    trust: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        #[cfg(feature = "remote")]
        match (self.paths.as_slice(), self.paths.iter().find_map(|path| url(path))) {
            ([_], Some(remote)) => return self.verify_signatures(remote),
            (_, Some(_)) => return misused("a remote is verified alone, without other paths"),
            (_, None) if !self.trust.is_empty() => {
                return misused("--trust is an option of a remote, such as s3://BUCKET/PREFIX");
            }
            (_, None) => {}
        }
        let mut done = Outcome::Succeeded;
        let mut rows = Vec::new();
        for path in &in_mount(&self.paths)? {
            let checks: Box<dyn Iterator<Item = (PathBuf, Result<String>)>> = match files_below(path) {
                Ok(files) => Box::new(files.into_iter().map(|(file, _)| {
                    let checked = verify(&file);
                    (file, checked)
                })),
                Err(error) => Box::new(std::iter::once((path.clone(), Err(error)))),
            };
            for (file, checked) in checks {
                let shown = file.display().to_string();
                let text = match checked {
                    Ok(text) => text,
                    Err(error) => {
                        let is_corrupt = error.kind() == ErrorKind::Io;
                        done = if is_corrupt || done == Outcome::Corrupt {
                            Outcome::Corrupt
                        } else {
                            Outcome::Failed
                        };
                        if self.json {
                            rows.push(row(&shown, false, &error.to_string()));
                        } else {
                            complain(&format!("tierfs: {error}"));
                        }
                        continue;
                    }
                };
                let is_well = text.lines().last() == Some("ok");
                if !is_well {
                    done = Outcome::Corrupt;
                }
                if self.json {
                    rows.push(row(&shown, is_well, &text));
                } else {
                    print(&text.lines().map(|line| format!("{shown}: {line}\n")).collect::<String>())?;
                }
            }
        }
        if self.json {
            print_json(&serde_json::Value::Array(rows))?;
        }
        Ok(done)
    }
}

#[cfg(feature = "remote")]
impl Args {
    /// Prints who signed each snapshot of a remote.
    fn verify_signatures(&self, url: &str) -> Result<Outcome> {
        use crate::remote::client::Client;
        use crate::remote::place::remote::Remote;
        use crate::remote::place::signatures::{SignedBy, Trust};

        let remote = Remote::open(Client::open(url)?)?;
        let trust = Trust::read(&self.trust, &remote)?;
        let (mut rows, mut done) = (Vec::new(), Outcome::Succeeded);
        let mut text = format!("remote {}\n", remote.id());
        for tenant in remote.tenants()? {
            for name in remote.collections(&tenant)? {
                for (place, number) in remote.numbers(&tenant, &name)?.into_iter().rev().enumerate() {
                    // It may be collected meanwhile.
                    let Some(found) = remote.manifest(&tenant, &name, number)? else { continue };
                    let by = trust.signer_of(&found.bytes);
                    let is_trusted = matches!(by, SignedBy::Trusted(_));
                    done = match by {
                        SignedBy::Forged => Outcome::Corrupt,
                        _ if place == 0
                            && !is_trusted
                            && !self.trust.is_empty()
                            && done == Outcome::Succeeded =>
                        {
                            Outcome::Failed
                        }
                        _ => done,
                    };
                    let collection = format!("{tenant}/{name}");
                    text.push_str(&format!("{collection} snapshot {number}: {}\n", by.text()));
                    let blake3 = crate::model::hex(&found.digest);
                    rows.push(serde_json::json!({
                        "remote": remote.id().to_string(), "collection": collection, "snapshot": number, "blake3": blake3, "trusted": is_trusted,
                        "text": by.text(),
                    }));
                }
            }
        }
        if self.json { print_json(&serde_json::Value::Array(rows)) } else { print(&text) }?;
        Ok(done)
    }
}

fn row(path: &str, is_well: bool, text: &str) -> serde_json::Value {
    let ranges: Vec<[u64; 2]> = text.lines().filter_map(range_of).collect();
    serde_json::json!({ "path": path, "ok": is_well, "corrupt": ranges, "text": text })
}

/// The first and the last byte that a line of a corrupt block names.
fn range_of(line: &str) -> Option<[u64; 2]> {
    let (first, rest) = line.strip_prefix("bytes ")?.split_once(" to ")?;
    Some([first.parse().ok()?, rest.split_once(": ")?.0.parse().ok()?])
}

/// The daemon's report on a file.
fn verify(path: &Path) -> Result<String> {
    let failed = |error| Error::io(path.display(), error);
    let mounted = mount_of(path)?.ok_or_else(|| {
        let text = format!("no tierfs mount contains {}; use tierfs scrub to check a store", path.display());
        Error::invalid(text)
    })?;
    let real = fs::canonicalize(path).map_err(failed)?;
    let below = real.strip_prefix(&mounted.mountpoint).unwrap_or(&real);
    let mut parts = below.components();
    let (tenant, collection) = (parts.next(), parts.next());
    let (Some(tenant), Some(collection)) = (tenant, collection) else {
        return Err(Error::invalid(format!("{} is not a file of a collection", path.display())));
    };
    let controls = mounted.mountpoint.join(tenant).join(collection).join(".ctl/verify");
    fs::read_to_string(controls.join(parts.as_path())).map_err(failed)
}
