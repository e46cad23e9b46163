//! Open files of forms, which follow the content of the files that they show.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::model::{ErrorKind, Result};
use crate::store::Node;
use crate::stream::Stream;
use crate::vfs::{FormView, Vfs};

/// An open file of a form.
pub(in crate::fs) struct FormFile {
    view: FormView,
    vfs: Arc<Vfs>,
    current: RwLock<Current>,
}

/// The current source of its bytes.
struct Current {
    /// The nodes that its bytes follow from, at that time.
    nodes: Vec<Option<Arc<Node>>>,
    /// The other files that it followed from.
    inputs: Vec<Arc<Node>>,
    /// The number of changes of the rows that it shows, for a file with all rows of a directory.
    version: Option<u64>,
    stream: Arc<Stream>,
}

impl FormFile {
    pub fn open(vfs: &Arc<Vfs>, view: FormView) -> Result<FormFile> {
        vfs.flush_for_form(&view)?;
        let nodes = vfs.nodes_of_form(&view);
        let version = vfs.rows_version(&view);
        let recipe = vfs.recipe(&view)?;
        let stream = Arc::new(vfs.open_form(&view, &recipe)?);
        recipe.count_use();
        let inputs = recipe.inputs().to_vec();
        let current = RwLock::new(Current { nodes, inputs, version, stream });
        Ok(FormFile { view, vfs: vfs.clone(), current })
    }

    /// The file that it shows.
    pub fn view(&self) -> &FormView {
        &self.view
    }

    /// Size in bytes of what was last read.
    pub fn bytes(&self) -> u64 {
        self.current.read().stream.bytes()
    }

    /// Reads from `offset` until `out` is full or the file ends. The bytes are those of the current
    /// content, because the kernel caches them for all openers.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let nodes = self.vfs.nodes_of_form(&self.view);
        let version = self.vfs.rows_version(&self.view);
        let stream = {
            let current = self.current.read();
            let is_current = nodes.iter().zip(&current.nodes).all(|pair| match pair {
                (Some(now), Some(then)) => Arc::ptr_eq(now, then),
                // The node is gone: an open file keeps its last source.
                _ => true,
            });
            let is_current =
                is_current && version == current.version && are_same(&self.view, &current.inputs);
            if is_current { Some(current.stream.clone()) } else { None }
        };
        let stream = match stream {
            Some(stream) => stream,
            None => {
                let (stream, inputs) = match self.vfs.recipe(&self.view) {
                    Ok(recipe) => {
                        let stream = Arc::new(self.vfs.open_form(&self.view, &recipe)?);
                        (stream, recipe.inputs().to_vec())
                    }
                    // Its rows lie elsewhere by now: an open file keeps those that it had.
                    Err(error) if error.kind() == ErrorKind::Gone && version.is_some() => {
                        (self.current.read().stream.clone(), Vec::new())
                    }
                    Err(error) => return Err(error),
                };
                *self.current.write() = Current { nodes, inputs, version, stream: stream.clone() };
                stream
            }
        };
        stream.read(offset, out)
    }
}

/// Whether files are as the log now records them, or gone.
fn are_same(view: &FormView, inputs: &[Arc<Node>]) -> bool {
    if inputs.is_empty() {
        return true;
    }
    let state = view.collection.state();
    inputs.iter().all(|then| state.node(then.entry.id).is_none_or(|now| Arc::ptr_eq(now, then)))
}
