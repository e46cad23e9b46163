//! Batches that the independent writer has made.

use std::fs;
use std::path::{Path, PathBuf};

use support::{Place, python};

/// A batch, its index, and its parts as they were before they became records.
pub struct Batch {
    pub data: Vec<u8>,
    pub index: Vec<u8>,
    pub vectors: Vec<u8>,
    pub weights: Vec<u8>,
    pub selected: Vec<u8>,
    pub path: PathBuf,
}

impl Batch {
    /// Records of a kind that `tests/python/batches.py` knows: how many, their dimension, experts and top k.
    pub fn made(
        place: &Place,
        name: &str,
        kind: &str,
        [count, dimension, experts, top_k]: [usize; 4],
    ) -> Batch {
        let stem = place.path(name).to_str().unwrap().to_owned();
        let sizes = [count, dimension, experts, top_k].map(|size| size.to_string());
        let [count, dimension, experts, top_k] = &sizes;
        python("batches.py", ["make", &stem, kind, count, dimension, experts, top_k]);
        let read = |suffix: &str| fs::read(format!("{stem}{suffix}")).unwrap();
        Batch {
            data: read(".cgeb"),
            index: read(".cgei"),
            vectors: read(".x"),
            weights: read(".w"),
            selected: read(".s"),
            path: PathBuf::from(format!("{stem}.cgeb")),
        }
    }

    pub fn index_path(&self) -> PathBuf {
        self.path.with_extension("cgei")
    }
}

/// Verifies every hash of a batch and its index; returns the number of records, and the number of hashes that cover a
/// payload.
pub fn checked(batch: &Path, index: &Path) -> (usize, usize) {
    let told = python("batches.py", ["check".as_ref(), batch.as_os_str(), index.as_os_str()]);
    let mut numbers = told.split_whitespace().map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
