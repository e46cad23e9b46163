//! `/.tags`: a directory for each tag, with a link to each file or directory that has it, in any collection.
//!
//! A user sees those that he could list: every directory above them is his to list and enter, or everybody's. Root and
//! the user of the mount see all. Nothing is stored but the tags: each listing and each lookup asks the collections, and
//! opens those that are closed. The kernel keeps none of the names, since users see different ones.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::{Error, ErrorKind, Result};
use crate::store::{Collection, Node, ROOT};
use crate::vfs::tree::attr::{Attr, Kind};
use crate::vfs::tree::ino::Ino;
use crate::vfs::tree::list::Listed;
use crate::vfs::tree::location::{Located, no_name};
use crate::vfs::tree::tag_places::{TagKey, TagPlace, Tagged, TagsView, Viewer, tag_number};
use crate::vfs::tree::vfs::Vfs;

/// Mode bits that let the owner of a directory list and enter it.
const OWNER_LISTS: u32 = 0o500;
/// Mode bits that let any other user do so, whatever the user's groups.
const OTHERS_LIST: u32 = 0o055;
const ROOT_USER: u32 = 0;
/// Offsets 1 and 2 of a listing are `.` and `..`.
const FIRST_OFFSET: u64 = 2;
/// Directories above a node that are looked at: a damaged catalog could have a cycle of them.
const DEPTH_MAX: usize = 10_000;

impl Vfs {
    /// The place with a number below the directory of tags. `None` for a link to a node that lost its tag.
    pub(super) fn tags_at(&self, number: u64) -> Option<TagsView> {
        if number == 0 {
            return Some(TagsView::top());
        }
        let TagKey { tag, link } = self.tag_numbers().key(number)?;
        let of = match link {
            None => TagPlace::Tag(tag),
            Some(key) => {
                let collection = self.numbered(key.collection).ok()??;
                let node = collection.state().shown(key.node)?;
                let file = Tagged { collection, node };
                let is_there = file.has_tag(&tag) && file.link_name() == key.name;
                is_there.then_some(TagPlace::Link(tag, file))?
            }
        };
        Some(TagsView { number, of })
    }

    pub(super) fn above_tags(&self, view: &TagsView) -> Located {
        match &view.of {
            TagPlace::Top => Located::Root,
            TagPlace::Tag(_) => Located::Tags(TagsView::top()),
            TagPlace::Link(tag, _) => Located::Tags(self.tag(tag.clone())),
        }
    }

    fn tag(&self, tag: Arc<str>) -> TagsView {
        let number = self.tag_numbers().number(&TagKey { tag: tag.clone(), link: None });
        TagsView { number, of: TagPlace::Tag(tag) }
    }

    fn tag_link(&self, tag: &Arc<str>, file: Tagged) -> TagsView {
        let key = TagKey { tag: tag.clone(), link: Some(file.link_key()) };
        TagsView { number: self.tag_numbers().number(&key), of: TagPlace::Link(tag.clone(), file) }
    }

    pub(super) fn tags_attr(&self, ino: Ino, view: &TagsView) -> Attr {
        let directory = Attr::directory(ino, 0o555, self.mounted.at, self.mounted.by);
        let Some(target) = view.target() else { return directory };
        Attr { kind: Kind::Symlink, mode: 0o777, links: 1, ..directory.of_bytes(target.len() as u64) }
    }

    /// Looks up a name in the directory of tags or in a tag.
    pub(super) fn tags_named(&self, view: &TagsView, name: &[u8], viewer: Viewer) -> Result<TagsView> {
        let text = std::str::from_utf8(name).map_err(|_| no_name(name))?;
        match &view.of {
            TagPlace::Top => {
                let is_there = self.each_tagged(viewer, &mut |found| found.has_tag(text))?;
                if is_there { Ok(self.tag(text.into())) } else { Err(no_name(name)) }
            }
            TagPlace::Tag(tag) => {
                if let Some(found) = self.tag_link_known(tag, text, viewer) {
                    return Ok(found);
                }
                let mut named = None;
                self.each_tagged(viewer, &mut |found| {
                    let is_it = found.has_tag(tag) && found.link_name() == text;
                    if is_it {
                        named = Some(found);
                    }
                    is_it
                })?;
                named.map(|found| self.tag_link(tag, found)).ok_or_else(|| no_name(name))
            }
            TagPlace::Link(..) => Err(Error::new(ErrorKind::NotDirectory, "not a directory")),
        }
    }

    /// A link that was listed before, if it is still there.
    fn tag_link_known(&self, tag: &Arc<str>, name: &str, viewer: Viewer) -> Option<TagsView> {
        let (collection, node) = self.tag_numbers().named(tag, name)?;
        let collection = self.numbered(collection).ok()??;
        let node = collection.state().shown(node)?;
        let file = Tagged { collection, node };
        let is_there = file.has_tag(tag) && file.link_name() == name && self.may_see(&file, viewer);
        is_there.then(|| self.tag_link(tag, file))
    }

    /// [`lookup`](Self::lookup) for a user in the directory of tags or in a tag; `None` elsewhere.
    pub fn look_up_tag(&self, user: u32, parent: Ino, name: &[u8]) -> Option<Result<(Ino, Located)>> {
        let view = self.tags_at(tag_number(parent)?)?;
        Some(self.tags_named(&view, name, Viewer::User(user)).and_then(|found| {
            let located = Located::Tags(found);
            Ok((self.ino(&located)?, located))
        }))
    }

    /// [`list`](Self::list) for a user, of the directory of tags or of a tag; `None` elsewhere.
    pub fn list_tags(
        &self,
        user: u32,
        ino: Ino,
        offset: u64,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Option<Result<()>> {
        let view = self.tags_at(tag_number(ino)?)?;
        let located = Located::Tags(view.clone());
        Some(self.list_dots(ino, &located, offset, take).and_then(|goes_on| {
            if goes_on { self.list_tagged(&view, Viewer::User(user), offset, take) } else { Ok(()) }
        }))
    }

    /// Lists the directory of tags or a tag after `offset`, without `.` and `..`.
    pub(super) fn list_tagged(
        &self,
        view: &TagsView,
        viewer: Viewer,
        offset: u64,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let mut found: HashMap<u64, (String, TagsView)> = HashMap::new();
        self.each_tagged(viewer, &mut |file| {
            match &view.of {
                TagPlace::Top => {
                    let tags: Vec<Arc<str>> =
                        file.collection.state().tags_of(file.node.entry.id).map(Arc::from).collect();
                    for tag in tags {
                        let below = self.tag(tag.clone());
                        found.insert(below.number, (tag.to_string(), below));
                    }
                }
                TagPlace::Tag(tag) if file.has_tag(tag) => {
                    let name = self.tag_numbers().note_link(tag, &file);
                    let below = self.tag_link(tag, file);
                    found.insert(below.number, (name, below));
                }
                _ => {}
            }
            false
        })?;
        let mut sorted: Vec<(u64, (String, TagsView))> = found.into_iter().collect();
        sorted.sort_unstable_by_key(|(number, _)| *number);
        for (number, (name, below)) in sorted {
            let place = number + FIRST_OFFSET;
            let located = Located::Tags(below);
            let attr = self.attr(self.ino(&located)?, &located);
            if place > offset && !take(Listed { offset: place, name: name.into_bytes(), attr }) {
                break;
            }
        }
        Ok(())
    }

    /// Calls `visit` with each node that has tags and that the viewer may see, until it returns `true`. Returns whether it
    /// did. A collection that cannot be opened is left out.
    fn each_tagged(&self, viewer: Viewer, visit: &mut dyn FnMut(Tagged) -> bool) -> Result<bool> {
        for tenant in self.store().tenants()? {
            let Ok(names) = self.store().collections(&tenant) else { continue };
            for (name, found) in self.store().each(names, |name| self.collection_named(&tenant, name)) {
                let collection = match found {
                    Ok(collection) => collection,
                    Err(error) => {
                        log::debug!("{tenant}/{name} is left out of the tags: {error}");
                        continue;
                    }
                };
                let nodes: Vec<Arc<Node>> = {
                    let state = collection.state();
                    state.tagged().into_iter().filter_map(|node| state.shown(node)).collect()
                };
                for node in nodes {
                    let file = Tagged { collection: collection.clone(), node };
                    if self.may_see(&file, viewer) && visit(file) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn may_see(&self, file: &Tagged, viewer: Viewer) -> bool {
        let user = match viewer {
            Viewer::All => return true,
            Viewer::User(user) if user == ROOT_USER || user == self.mounted.by.uid => return true,
            Viewer::User(user) => user,
        };
        let lists = |owner: u32, mode: u32| {
            let bits = if owner == user { OWNER_LISTS } else { OTHERS_LIST };
            mode & bits == bits
        };
        let Tagged { collection, node } = file;
        let tenant = self.store().tenant(collection.tenant()).entry();
        lists(self.tenant_owner(collection.tenant()).uid, tenant.mode)
            && directories_above(collection, node, &lists)
    }
}

/// Whether the user lists every directory above a node in its collection.
fn directories_above(collection: &Collection, node: &Node, lists: &dyn Fn(u32, u32) -> bool) -> bool {
    let state = collection.state();
    let container = node.file().and_then(|file| file.container);
    let mut at = container.unwrap_or(node.entry.id);
    let mut is_first = true;
    for _ in 0..DEPTH_MAX {
        let Some(found) = state.node(at) else { return false };
        if !is_first && !lists(found.entry.uid, found.entry.mode) {
            return false;
        }
        if at == ROOT {
            return true;
        }
        is_first = false;
        let Some(above) = state.above(at) else { return false };
        at = above;
    }
    false
}
