//! A disk in memory that fails at a chosen call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tierfs::store::disk::forward::{ForwardDisk, ForwardFile};
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, Open};

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The chosen call fails; later ones work.
    Once(io::ErrorKind),
    /// The chosen call and all later ones fail: the machine is off. Half of a write succeeds.
    FromThenOn,
}

/// Counts the calls that change something; call number `at`, from 0, fails.
#[derive(Clone)]
pub struct FailingDisk {
    inner: MemoryDisk,
    plan: Arc<Plan>,
}

struct Plan {
    calls: AtomicU64,
    at: u64,
    failure: Failure,
}

struct FailingFile {
    inner: Arc<dyn File>,
    plan: Arc<Plan>,
}

impl FailingDisk {
    pub fn new(inner: &MemoryDisk, at: u64, failure: Failure) -> FailingDisk {
        FailingDisk { inner: inner.clone(), plan: Arc::new(Plan { calls: AtomicU64::new(0), at, failure }) }
    }

    /// Whether the failing call was reached.
    pub fn has_failed(&self) -> bool {
        self.plan.calls.load(Ordering::SeqCst) > self.plan.at
    }
}

impl Plan {
    fn count(&self) -> io::Result<()> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        match self.failure {
            Failure::Once(kind) if call == self.at => Err(kind.into()),
            Failure::FromThenOn if call >= self.at => Err(io::Error::other("the machine is gone")),
            _ => Ok(()),
        }
    }
}

impl ForwardFile for FailingFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(error) = self.plan.count() {
            let at = self.plan.calls.load(Ordering::SeqCst) - 1;
            if at == self.plan.at {
                self.inner.write_at(&bytes[..bytes.len() / 2], offset)?;
            }
            return Err(error);
        }
        self.inner.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.plan.count()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.plan.count()?;
        self.inner.sync_data()
    }
}

impl ForwardDisk for FailingDisk {
    fn inner(&self) -> &dyn Disk {
        &self.inner
    }

    fn place(&self) -> String {
        "a failing disk".to_owned()
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        if how == Open::Create {
            self.plan.count()?;
        }
        let inner = self.inner.open(path, how)?;
        Ok(Arc::new(FailingFile { inner, plan: self.plan.clone() }))
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        self.plan.count()?;
        self.inner.create_directory(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.plan.count()?;
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.plan.count()?;
        self.inner.remove_file(path)
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.plan.count()?;
        self.inner.remove_directory(path)
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.plan.count()?;
        self.inner.sync_directory(path)
    }
}
