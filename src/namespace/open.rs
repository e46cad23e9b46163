//! Files as streams.

use crate::model::{Error, ErrorKind, Result};
use crate::namespace::tree::{FileView, Namespace};
use crate::store::read::OpenObject;
use crate::stream::{Segment, Stream};

impl Namespace {
    /// Opens a file. What it is made of stays there while the stream lives.
    pub fn open(&self, view: &FileView) -> Result<Stream> {
        if view.node.file().is_none() {
            return Err(Error::new(ErrorKind::Invalid, format!("{} is not a file", view.path())));
        }
        let objects = view.collection.objects_of(view.node.entry.id)?;
        let segments = objects
            .iter()
            .map(|object| OpenObject::open(&view.collection, object, self.verify).map(Segment::Object))
            .collect::<Result<Vec<_>>>()?;
        Stream::new(segments)
    }
}
