//! The directory of a run, and the sizes of its files.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use tierfs::model::Dtype;

use crate::Result;
use crate::values::Source;

/// How large things are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// 1 GiB a file, as the targets say.
    Full,
    /// Small sizes, to check that it runs.
    Quick,
}

/// This machine lacks something that a row needs.
#[derive(Debug)]
pub struct Missing(pub String);

impl std::fmt::Display for Missing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The directory of a run; dropping it removes all but the results.
pub struct Place {
    /// The directory, absolute.
    pub root: PathBuf,
    /// The program that is measured.
    pub tierfs: PathBuf,
    size: Size,
    made: Cell<u64>,
    family: RefCell<HashMap<String, Rc<dyn Any>>>,
    sources: RefCell<HashMap<&'static str, Rc<Source>>>,
}

impl Place {
    /// Clears and creates the directory.
    pub fn new(root: &Path, size: Size) -> Result<Place> {
        let tierfs = fs::canonicalize("target/release/tierfs");
        let tierfs =
            tierfs.map_err(|error| format!("target/release/tierfs (cargo build --release): {error}"))?;
        fs::create_dir_all(root)?;
        let root = fs::canonicalize(root)?;
        let work = root.join("work");
        remove_tree(&work)?;
        fs::create_dir(&work)?;
        let made = Cell::new(0);
        Ok(Place { root, tierfs, size, made, family: RefCell::default(), sources: RefCell::default() })
    }

    /// Whether sizes are small.
    pub fn is_quick(&self) -> bool {
        self.size == Size::Quick
    }

    /// Bytes of a file: 1 GiB, or a sixteenth.
    pub fn bytes(&self) -> u64 {
        self.scaled(1 << 30)
    }

    /// A number, divided by 16 in a quick run.
    pub fn scaled(&self, full: u64) -> u64 {
        if self.is_quick() { full / 16 } else { full }
    }

    /// A path that does not exist yet.
    pub fn new_path(&self, name: &str) -> PathBuf {
        let number = self.made.replace(self.made.get() + 1);
        self.root.join("work").join(format!("{number}-{name}"))
    }

    /// A directory that is empty.
    pub fn new_directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.new_path(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Runs the program that is measured.
    pub fn run(&self, arguments: &[&str]) -> Result<()> {
        run(Command::new(&self.tierfs).args(arguments))
    }

    /// Data that rows of a family share, made once.
    pub fn shared<T: 'static>(&self, name: &str, make: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        let found = self.family.borrow().get(name).cloned();
        if let Some(found) = found.and_then(|found| found.downcast::<T>().ok()) {
            return Ok(found);
        }
        let made = Rc::new(make()?);
        self.family.borrow_mut().insert(name.to_owned(), made.clone());
        Ok(made)
    }

    /// Drops the data that the last family shared.
    pub fn clear(&self) {
        self.family.borrow_mut().clear();
    }

    /// A file of one tensor of 1 GiB; kept for the whole run.
    pub fn source(&self, dtype: Dtype) -> Result<Rc<Source>> {
        let name = if dtype == Dtype::Bf16 { "bf16" } else { "f32" };
        let found = self.sources.borrow().get(name).cloned();
        if let Some(found) = found {
            return Ok(found);
        }
        let path = self.root.join("work").join(format!("{name}.safetensors"));
        let made = Rc::new(Source::make(&path, dtype, 1, self.bytes())?);
        self.sources.borrow_mut().insert(name, made.clone());
        Ok(made)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clear();
        if let Err(error) = remove_tree(&self.root.join("work")) {
            eprintln!("{} is left: {error}", self.root.display());
        }
    }
}

/// Removes a directory, unless something is mounted in it: nothing is removed through a mount.
fn remove_tree(path: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let under = format!("{}/", path.display());
    if let Some(mount) =
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).find(|at| at.starts_with(&under))
    {
        return Err(format!("{mount} is still mounted; unmount it").into());
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// A path that is removed with the value.
pub struct Removed(pub PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let removed = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
        removed.unwrap_or_default();
    }
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => missing(&format!("{name} is not installed")),
        _ => format!("{name}: {error}").into(),
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// The error of something that is not there.
pub fn missing(what: &str) -> Box<dyn std::error::Error + Send + Sync> {
    Box::new(Missing(what.to_owned()))
}
