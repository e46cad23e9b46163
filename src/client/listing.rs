//! The tensors of a container, or of all containers in a directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::attributes::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Tensor;

/// The directory of tensors beside the containers.
const TENSORS: &str = ".tensors";
/// A tensor's name has at most so many parts, below the name of a container.
const PARTS_MAX: usize = 65;

/// Returns the tensors of a container, or of the containers in a directory, on a mount, by their names as paths below
/// `.tensors`. Of several containers with a tensor of one name, the others have it by `CONTAINER/NAME`.
///
/// # Errors
/// [`ErrorKind::NotFound`]; [`ErrorKind::NotATensor`] for a file that is not a container on a mount.
///
/// ```no_run
/// for (name, tensor) in tierfs_client::tensors("/mnt/acme/llama/model.safetensors")? {
///     println!("{name}: {} {:?}", tensor.dtype(), tensor.shape());
/// }
/// # Ok::<(), tierfs_client::Error>(())
/// ```
pub fn tensors(path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    let failed = |error| Place::of(path).failed(error);
    // The tensors are beside the file that a link leads to.
    let real = path.canonicalize().map_err(failed)?;
    let below = if real.is_dir() {
        real.join(TENSORS)
    } else {
        let (Some(directory), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(Error::new(ErrorKind::NotATensor, path, "a root is not a container"));
        };
        directory.join(TENSORS).join(name)
    };
    if !below.is_dir() {
        return Err(Error::new(ErrorKind::NotATensor, path, "not a container on a mount of tierfs"));
    }
    let mut found = BTreeMap::new();
    let mut waiting = vec![Folder { path: below, name: String::new(), depth: 0 }];
    while let Some(folder) = waiting.pop() {
        let failed = |error| Place::of(&folder.path).failed(error);
        for entry in fs::read_dir(&folder.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let own = entry.file_name().into_string();
            let own = own.map_err(|_| Error::new(ErrorKind::Invalid, &path, "the name is not UTF-8"))?;
            let name = if folder.name.is_empty() { own } else { format!("{}/{own}", folder.name) };
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() && folder.depth < PARTS_MAX {
                waiting.push(Folder { path, name, depth: folder.depth + 1 });
            } else if kind.is_file() {
                found.insert(name, Tensor::open(path)?);
            }
        }
    }
    Ok(found)
}

/// A directory of tensors.
struct Folder {
    path: PathBuf,
    /// The part of their names that leads to it.
    name: String,
    depth: usize,
}
