//! `tierfs fsck`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::mounts::refuse_own_mount;
use crate::cli::common::open_store::open_store;
use crate::cli::common::output::{print, print_json};
use crate::cli::common::remote;
use crate::engine::{Engine, IMPORT_AGAIN};
use crate::model::{EntryId, Error, ErrorKind, ObjectId, OwnedCollectionName, Result};
use crate::store::{Access, Collection, Object, Store};
use crate::store::{Lost, Repaired};
use crate::store::{OpenObject, Verify};

/// Check every log and every stored checksum of an unmounted store.
///
/// Changes nothing without --repair. Prints the location of corruption and then exits with 3, repaired
/// or not.
///
/// Example: tierfs fsck /srv/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, or a remote
    store: PathBuf,
    /// Keep readable data, list what was lost, and make damaged collections writable again
    #[arg(long)]
    repair: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Findings {
    collections: u64,
    variants: u64,
    versions: u64,
    files: u64,
    blocks: u64,
    notes: Vec<String>,
    corrupt: Vec<String>,
    /// The highest number of any collection.
    number: u32,
    repaired: Vec<(String, Repaired)>,
    is_repair: bool,
    /// Differences that a repair has stored exactly.
    restored: Vec<String>,
    /// Problems that remain after a repair.
    left: Vec<String>,
    /// Collections whose tensors stay unchanged for the sake of others that are not there.
    parents: Vec<OwnedCollectionName>,
    /// Collections with tensors that are stored as differences to others.
    children: Vec<OwnedCollectionName>,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let store = Arc::new(self.open()?);
        let mut findings = Findings { is_repair: self.repair, ..Findings::default() };
        let mut damaged = Vec::new();
        for tenant in store.tenants()? {
            for name in store.collections(&tenant)? {
                let before = findings.corrupt.len();
                findings.look_at(&store, &tenant, &name)?;
                if findings.corrupt.len() > before {
                    damaged.push((tenant.clone(), name));
                }
            }
        }
        if self.repair {
            for (tenant, name) in damaged {
                findings.repair(&store, &tenant, &name)?;
            }
            for OwnedCollectionName { tenant, name } in std::mem::take(&mut findings.parents) {
                if let Err(error) = store.forget_missing_children(&tenant, &name) {
                    findings.left.push(error.to_string());
                }
            }
        }
        findings.chains(&store);
        let done = if findings.corrupt.is_empty() { Outcome::Succeeded } else { Outcome::Corrupt };
        if self.json { findings.json() } else { findings.text(self.repair) }?;
        Ok(done)
    }
}

impl Args {
    fn open(&self) -> Result<Store> {
        if let Some(url) = remote::url(&self.store) {
            if self.repair {
                let text = format!(
                    "{url} is a remote, whose snapshots never change; repair the store and push again"
                );
                return Err(Error::new(ErrorKind::ReadOnly, text));
            }
            return remote::open(url);
        }
        refuse_own_mount(&self.store)?;
        let access = if self.repair { Access::Write } else { Access::Read };
        let note = format!("process {}, which repairs it", std::process::id());
        let store = open_store(&self.store, access, &note)?;
        remote::fetch_clones(&store);
        Ok(store)
    }
}

impl Findings {
    fn look_at(&mut self, store: &Store, tenant: &str, name: &str) -> Result<()> {
        match store.look_at(tenant, name) {
            Ok(collection) => {
                self.collection(&collection, "")?;
                if collection.state().objects().any(|object| object.needs_parent()) {
                    self.children.push(OwnedCollectionName::new(tenant, name));
                }
                let missing = store.missing_children(&collection);
                self.notes.extend(missing.iter().map(|child| {
                    format!(
                        "{tenant}/{name}: tensors of {child}, which is missing, may be stored as differences to \
                         {tenant}/{name}, so its tensors cannot be moved or removed; restore {child}, or forget it \
                         with --repair"
                    )
                }));
                if !missing.is_empty() {
                    self.parents.push(OwnedCollectionName::new(tenant, name));
                }
                self.variants(store, &collection)?;
                return self.versions(store, &collection);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.notes.push(format!(
                    "{tenant}/{name} was never created completely; the next import creates it"
                ));
            }
            Err(error) => self.corrupt.push(error.to_string()),
        }
        Ok(())
    }

    fn repair(&mut self, store: &Store, tenant: &str, name: &str) -> Result<()> {
        let path = format!("{tenant}/{name}");
        self.number += 1;
        match store.repair(tenant, name, self.number) {
            Ok(Some(repaired)) => self.repaired.push((path, repaired)),
            Ok(None) => self.left.push(format!("{path}: there is nothing to repair")),
            Err(error) => {
                self.left.push(error.to_string());
                return Ok(());
            }
        }
        let mut after = Findings::default();
        after.look_at(store, tenant, name)?;
        self.left.append(&mut after.corrupt);
        Ok(())
    }

    /// Reads the blocks that are stored as differences to others. Their collections are opened together, after
    /// all repairs.
    fn chains(&mut self, store: &Arc<Store>) {
        let children = std::mem::take(&mut self.children);
        let engine = (!children.is_empty()).then(|| Engine::new(store.clone()));
        for OwnedCollectionName { tenant, name } in children {
            let collection = match store.collection(&tenant, &name) {
                Ok(collection) => collection,
                Err(error) => {
                    self.corrupt.push(error.to_string());
                    continue;
                }
            };
            let needing = |object: &&Arc<Object>| object.needs_parent();
            let objects: Vec<_> = collection.state().objects().filter(needing).cloned().collect();
            for object in objects {
                let Some(text) = broken_differences(&collection, &object) else { continue };
                self.corrupt.push(text);
                let Some(engine) = engine.as_ref().filter(|_| self.is_repair) else { continue };
                match engine.restore_differences(&collection, object.entry.id) {
                    Ok(0) => {}
                    Ok(count) => self.restored.push(format!(
                        "{}: the recorded digest proves {count} blocks, which are stored exactly now",
                        collection.path_of(&object)
                    )),
                    Err(error) => self.left.push(error.to_string()),
                }
                self.left.extend(broken_differences(&collection, &object));
            }
        }
    }

    /// The variants of a collection of a remote.
    fn variants(&mut self, store: &Store, collection: &Arc<Collection>) -> Result<()> {
        for name in collection.published()?.into_iter().filter(|name| !name.is_empty()) {
            match store.variant(collection, &name) {
                Ok(Some(variant)) => {
                    let mut found = Findings::default();
                    found.collection(&variant, &format!(" in {name}"))?;
                    self.blocks += found.blocks;
                    self.notes.append(&mut found.notes);
                    self.corrupt.append(&mut found.corrupt);
                    self.variants += 1;
                }
                Ok(None) => {}
                Err(error) => self.corrupt.push(format!("{} in {name}: {error}", collection.path())),
            }
        }
        Ok(())
    }

    /// The versions of a collection, which no repair changes.
    fn versions(&mut self, store: &Store, collection: &Arc<Collection>) -> Result<()> {
        if store.shows_snapshots() {
            return Ok(());
        }
        for number in store.version_numbers(collection.place())? {
            if let Err(error) = store.check_version(collection.place(), number) {
                self.corrupt.push(error.to_string());
            }
            match store.version(collection.place(), number) {
                Ok(version) => {
                    let mut found = Findings::default();
                    found.collection(&version, "")?;
                    self.blocks += found.blocks;
                    self.number = self.number.max(found.number);
                    self.notes.append(&mut found.notes);
                    self.corrupt.append(&mut found.corrupt);
                    self.versions += 1;
                }
                Err(error) => self.corrupt.push(error.to_string()),
            }
        }
        Ok(())
    }

    /// Checks a collection. `form` follows its path in findings.
    fn collection(&mut self, collection: &Arc<Collection>, form: &str) -> Result<()> {
        self.collections += 1;
        let path = format!("{}{form}", collection.path());
        self.notes.extend(collection.events().iter().map(|event| format!("{path}: {event}")));
        if let Some(damage) = collection.damage() {
            self.corrupt.push(format!("{path}: {}; the collection is read-only", damage.reason));
        }
        let (objects, owners, files) = {
            let state = collection.state();
            self.corrupt.extend(state.nodes().filter_map(|node| {
                let missing = state.missing_objects(node);
                let first = missing.first()?;
                let below = String::from_utf8_lossy(&state.path(node.entry.id)).into_owned();
                let count = missing.len();
                Some(format!("{path}/{below}: {count} of its objects are missing, {first} first"))
            }));
            self.number = self.number.max(state.number());
            let mut owners: HashMap<ObjectId, EntryId> = HashMap::new();
            let mut files = 0;
            for node in state.nodes() {
                let Some(file) = node.file() else { continue };
                files += 1;
                for object in &file.objects {
                    // The name of a tensor tells the user more than that of its container.
                    if file.container.is_some() || !owners.contains_key(object) {
                        owners.insert(*object, node.entry.id);
                    }
                }
            }
            (state.objects().cloned().collect::<Vec<_>>(), owners, files)
        };
        self.files += files;
        let copies: Vec<_> = {
            let state = collection.state();
            let copies = state.pins().filter_map(|(pin, copy)| Some((state.path(pin.node), copy?.clone())));
            copies.collect()
        };
        for (below, copy) in copies {
            if let Err(error) = collection.check_copy(&copy, &|| false) {
                let below = String::from_utf8_lossy(&below);
                let text = format!(
                    "{path}/{below}: {error}; the daemon rebuilds the copy when the store is mounted"
                );
                self.corrupt.push(text);
            }
        }
        for object in objects {
            let blocks = object.layout().blocks();
            self.blocks += u64::from(blocks);
            let found = match OpenObject::open(collection, &object, Verify::Always) {
                Ok(open) => check(&open, blocks),
                Err(error) => Checked { bad: blocks, first: Some(error), lost: 0 },
            };
            let owner = owners.get(&object.entry.id).map(|node| collection.state().path(*node));
            let owner =
                owner.map_or_else(|| "no file".into(), |path| String::from_utf8_lossy(&path).into_owned());
            if found.lost > 0 {
                self.notes.push(format!(
                    "{path}/{owner}: {} of {blocks} blocks were recorded as lost by an earlier repair",
                    found.lost
                ));
            }
            if let Some(first) = found.first {
                let bad = found.bad;
                self.corrupt.push(format!(
                    "{path}/{owner}: {bad} of {blocks} blocks cannot be read: {first}; {IMPORT_AGAIN}"
                ));
            }
        }
        Ok(())
    }

    fn text(&self, is_repair: bool) -> Result<()> {
        let mut text = String::new();
        let mut line = |what: &str, of: &str| text.push_str(&format!("{what}: {of}\n"));
        self.notes.iter().for_each(|note| line("note", note));
        self.corrupt.iter().for_each(|corrupt| line("corrupt", corrupt));
        for (path, repaired) in &self.repaired {
            line("repaired", &format!("{path}; the old log is kept as {}", repaired.kept_log));
            for lost in &repaired.lost {
                line("lost", &format!("{path}/{}: {}", lost.path, bytes_of(lost)));
            }
            for unsure in &repaired.unsure {
                line(
                    "perhaps old",
                    &format!("{path}/{unsure}: described only before the damaged part of the log"),
                );
            }
            repaired.moved.iter().for_each(|moved| line("found", moved));
        }
        self.restored.iter().for_each(|restored| line("repaired", restored));
        self.left.iter().for_each(|left| line("not repaired", left));
        let Findings { collections, variants, versions, files, blocks, .. } = self;
        let verdict = match (self.corrupt.len(), is_repair, self.left.len()) {
            (0, ..) => "ok".to_owned(),
            (count, false, _) => format!("{count} problems, not repaired"),
            (count, true, 0) => format!("{count} problems, repaired"),
            (count, true, left) => format!("{count} problems, {left} not repaired"),
        };
        let variants = if *variants > 0 { format!(" with {variants} variants") } else { String::new() };
        let versions = if *versions > 0 { format!(", {versions} versions") } else { String::new() };
        text.push_str(&format!(
            "{collections} collections{variants}{versions}, {files} files, {blocks} blocks: {verdict}\n"
        ));
        print(&text)
    }

    fn json(&self) -> Result<()> {
        let repaired: Vec<Value> =
            self.repaired.iter().map(|(path, repaired)| repaired_json(path, repaired)).collect();
        print_json(&json!({
            "collections": self.collections,
            "variants": self.variants,
            "versions": self.versions,
            "files": self.files,
            "blocks": self.blocks,
            "notes": self.notes,
            "corrupt": self.corrupt,
            "repaired": repaired,
            "restored": self.restored,
            "not_repaired": self.left,
        }))
    }
}

fn repaired_json(path: &str, repaired: &Repaired) -> Value {
    let lost = repaired.lost.iter().map(|lost| {
        let ranges: Vec<[u64; 2]> = lost.ranges.iter().map(|range| [range.start, range.end]).collect();
        json!({ "path": lost.path, "bytes": lost.bytes, "ranges": ranges, "whole": lost.is_whole() })
    });
    json!({
        "collection": path,
        "reason": repaired.reason,
        "log": repaired.kept_log,
        "lost": lost.collect::<Vec<_>>(),
        "perhaps_old": repaired.unsure,
        "found": repaired.moved,
    })
}

fn bytes_of(lost: &Lost) -> String {
    match lost.bytes {
        None => "the whole file".to_owned(),
        Some(bytes) if lost.is_whole() => format!("all of its {bytes} bytes"),
        Some(bytes) => {
            let ranges = lost.ranges.iter().map(|range| format!("{} to {}", range.start, range.end - 1));
            format!("of {bytes} bytes, {}", ranges.collect::<Vec<_>>().join(", "))
        }
    }
}

/// How many of an object's differences to a parent's blocks cannot be read, and why the first cannot.
fn broken_differences(collection: &Arc<Collection>, object: &Arc<Object>) -> Option<String> {
    let path = collection.path_of(object);
    let open = match OpenObject::open(collection, object, Verify::Always) {
        Ok(open) => open,
        Err(error) => return Some(format!("{path}: {error}")),
    };
    let (mut bad, mut first, layout) = (0, None, object.layout());
    for (piece, block) in object.pieces(0..layout.blocks(), layout) {
        let links = block.and_then(|block| object.deltas(piece.start, block.epoch));
        if !links.iter().flat_map(|links| links.iter()).any(|link| link.is_on_parent) {
            continue;
        }
        let mut bytes = vec![0; layout.len(piece.start)];
        if let Err(error) = open.read(layout.start(piece.start), &mut bytes) {
            bad += 1;
            first.get_or_insert(error);
        }
    }
    first.map(|first| format!("{path}: {bad} blocks that are stored as differences cannot be read: {first}"))
}

/// The result of checking an object's blocks.
struct Checked {
    /// How many blocks fail, and the error of the first.
    bad: u32,
    first: Option<Error>,
    /// How many blocks are recorded as lost.
    lost: u32,
}

fn check(open: &OpenObject, blocks: u32) -> Checked {
    let mut found = Checked { bad: 0, first: None, lost: 0 };
    let object = open.object();
    for (piece, block) in object.pieces(0..blocks, object.layout()) {
        if block.is_some_and(|block| !open.is_here(piece.start, &block)) {
            // Only the remote of a clone has it, or the object that an import left where it lies.
            continue;
        }
        // A piece of several blocks has no payload: checking the first block covers all of them.
        let count = piece.end - piece.start;
        match open.check(piece.start) {
            Ok(block) if block.stored.is_lost() => found.lost += count,
            Ok(_) => {}
            Err(error) => {
                found.bad += count;
                found.first.get_or_insert(error);
            }
        }
    }
    found
}
