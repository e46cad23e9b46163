//! `tierfs fsck`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::cli::Done;
use crate::cli::output::{print, print_json};
use crate::model::{EntryId, Error, ErrorKind, ObjectId, Result};
use crate::store::disk::files::FileDisk;
use crate::store::read::{OpenObject, Verify};
use crate::store::{Access, Collection, Store};

/// Check a store that is not mounted: every log, every stored checksum. Nothing is changed.
///
/// Exits with 3 where corruption was found, and says where.
///
/// Example: tierfs fsck /srv/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store
    store: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Findings {
    collections: u64,
    files: u64,
    blocks: u64,
    notes: Vec<String>,
    corrupt: Vec<String>,
}

impl Args {
    pub fn run(self) -> Result<Done> {
        let disk = Arc::new(FileDisk::new(&self.store));
        let store = Store::open(disk, Access::Read, "")?;
        let mut findings = Findings::default();
        for tenant in store.tenants()? {
            for name in store.collections(&tenant)? {
                match store.collection(&tenant, &name) {
                    Ok(collection) => findings.collection(&collection)?,
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        findings
                            .notes
                            .push(format!("{tenant}/{name} was never finished; the next import makes it"));
                    }
                    Err(error) => findings.corrupt.push(error.to_string()),
                }
            }
        }
        let done = if findings.corrupt.is_empty() { Done::Well } else { Done::Corrupt };
        if self.json { findings.json() } else { findings.text() }?;
        Ok(done)
    }
}

impl Findings {
    fn collection(&mut self, collection: &Arc<Collection>) -> Result<()> {
        self.collections += 1;
        let path = collection.path();
        self.notes.extend(collection.events().iter().map(|event| format!("{path}: {event}")));
        if let Some(damage) = collection.damage() {
            self.corrupt.push(format!("{path}: {}; the collection is read-only", damage.reason));
        }
        let (objects, owners, files) = {
            let state = collection.state();
            let mut owners: HashMap<ObjectId, EntryId> = HashMap::new();
            let mut files = 0;
            for node in state.nodes() {
                let Some(file) = node.file() else { continue };
                files += 1;
                for object in &file.objects {
                    // A tensor's own name says more than its container's.
                    if file.container.is_some() || !owners.contains_key(object) {
                        owners.insert(*object, node.entry.id);
                    }
                }
            }
            (state.objects().cloned().collect::<Vec<_>>(), owners, files)
        };
        self.files += files;
        for object in objects {
            let blocks = object.cut().blocks();
            self.blocks += u64::from(blocks);
            let bad = match OpenObject::open(collection, &object, Verify::Always) {
                Ok(open) => check(&open, blocks),
                Err(error) => Some((blocks, error)),
            };
            if let Some((count, first)) = bad {
                let owner = owners.get(&object.entry.id).map(|node| collection.state().path(*node));
                let owner = owner
                    .map_or_else(|| "no file".into(), |path| String::from_utf8_lossy(&path).into_owned());
                self.corrupt
                    .push(format!("{path}/{owner}: {count} of {blocks} blocks cannot be read: {first}"));
            }
        }
        Ok(())
    }

    fn text(&self) -> Result<()> {
        let mut text = String::new();
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        for corrupt in &self.corrupt {
            text.push_str(&format!("corrupt: {corrupt}\n"));
        }
        let Findings { collections, files, blocks, .. } = self;
        let verdict = match self.corrupt.len() {
            0 => "ok".to_owned(),
            count => format!("{count} problems"),
        };
        text.push_str(&format!("{collections} collections, {files} files, {blocks} blocks: {verdict}\n"));
        print(&text)
    }

    fn json(&self) -> Result<()> {
        print_json(&serde_json::json!({
            "collections": self.collections,
            "files": self.files,
            "blocks": self.blocks,
            "notes": self.notes,
            "corrupt": self.corrupt,
        }))
    }
}

/// How many blocks fail, and how the first does.
fn check(open: &OpenObject, blocks: u32) -> Option<(u32, Error)> {
    let mut bad: Option<(u32, Error)> = None;
    for index in 0..blocks {
        if let Err(error) = open.check(index) {
            bad = Some(match bad.take() {
                Some((count, first)) => (count + 1, first),
                None => (1, error),
            });
        }
    }
    bad
}
