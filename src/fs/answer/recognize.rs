//! Requests that may recognize a file, which run on the threads for that (`fs/state/recognition.rs`).

use std::sync::Arc;

use crate::fs::answer::dispatcher::{Dispatcher, Durable};
use crate::fs::kernel::Reply;
use crate::fs::state::failure::guarded;
use crate::fs::state::in_progress;
use crate::ingest::{has_models, may_be_recognized};
use crate::vfs::open::OpenFile;
use crate::vfs::{ChildName, Ino};

impl Dispatcher {
    /// Flushes a file as [`flush`](Dispatcher::flush) does, where it may be recognized on a thread for that.
    pub fn flush_recognizing(
        &self,
        open_file: Arc<OpenFile>,
        durable: Durable,
        doing: &'static str,
        reply: Reply,
    ) {
        let is_recognized = open_file.is_unclosed() && open_file.may_be_recognized();
        let tenant = is_recognized.then(|| open_file.collection().tenant().to_owned());
        self.recognizing(tenant, doing, move |dispatcher| {
            if doing == "release" {
                dispatcher.flush_released(&open_file, reply);
                dispatcher.vfs.keep_unflushed(&open_file);
            } else {
                dispatcher.flush(&open_file, durable, doing, reply);
            }
        });
    }

    /// Runs a request that may recognize a file of this tenant, if there is one, on a thread for that.
    pub fn recognizing(
        &self,
        tenant: Option<String>,
        doing: &'static str,
        request: impl FnOnce(&Dispatcher) + Send + 'static,
    ) {
        let Some(tenant) = tenant else { return request(self) };
        let dispatcher = self.clone();
        let job = move || {
            let dispatcher = &dispatcher;
            guarded(&dispatcher.mounted, doing, || request(dispatcher));
        };
        self.recognition.run(&tenant, Box::new(in_progress::carried(job)));
    }

    /// The tenant of a file, if a change of its attributes may recognize it.
    pub fn recognized_by_change(&self, ino: Ino, bytes: Option<u64>) -> Option<String> {
        let open_file = match bytes {
            Some(_) => self.vfs.open(&self.view(ino).ok()?).ok()?,
            // Writes are flushed before other attributes are set.
            None => self.vfs.open_file(ino.own()).filter(|open_file| open_file.is_changed())?,
        };
        open_file.may_be_recognized().then(|| open_file.collection().tenant().to_owned())
    }

    /// The tenant of a directory, if a rename in it may recognize a file or make it arrive.
    pub fn recognized_by_rename(&self, from: ChildName<'_>, to: ChildName<'_>) -> Option<String> {
        let arrives = || {
            let collection = self.vfs.arrives_by_rename(from, to);
            collection.map(|collection| collection.tenant().to_owned())
        };
        let by_names = || self.recognized_by_names(from.parent, &[from.name, to.name]);
        if self.vfs.renames_ordinary(from, to) { arrives() } else { by_names().or_else(arrives) }
    }

    /// The tenant of a directory, if a change of these names in it may recognize a file.
    pub fn recognized_by_names(&self, parent: Ino, names: &[&[u8]]) -> Option<String> {
        let view = self.view(parent).ok()?;
        let is_recognized =
            names.iter().any(|name| may_be_recognized(name)) || has_models(&view.collection.state());
        is_recognized.then(|| view.collection.tenant().to_owned())
    }
}
