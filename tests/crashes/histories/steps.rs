//! The operations of a history.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{WritableMapping, container_of, npy_file, tierfs};

use super::mapping::{Held, close};
use super::model::{Node, parent, tensors};
use super::world::{World, is_death};

const FILE_BYTES_MAX: usize = 220_000;
const MAPPINGS_MAX: usize = 8;
const TIERS: [(&str, f32); 8] = [
    ("packed", 0.0),
    ("packed", 0.0),
    ("verbatim", 0.0),
    ("exact", 0.0),
    ("q8", 0.02),
    ("q7", 0.04),
    ("q5", 0.15),
    ("q3", 0.7),
];

/// How a call ended that may not be possible.
enum Outcome<T> {
    Done(T),
    /// It changed nothing.
    Refused,
    /// It met a full disk, and may have done a part.
    Full,
    /// It met the end of the daemon.
    Dead,
}

impl World {
    /// One operation on random files.
    pub fn step(&mut self) {
        match self.random.below(100) {
            0..8 => self.replace(),
            8..14 => self.write_container(),
            14..22 => self.write_part(),
            22..29 => self.write_tensor(),
            29..34 => self.write_mapped(),
            34..37 => self.truncate(),
            37..42 => self.rename(),
            42..44 => self.link(),
            44 => self.symlink(),
            45..49 => self.remove(),
            49 => self.make_directory(),
            50..55 => self.copy(),
            55..63 => self.move_tier(),
            63..66 => self.pin(),
            66..70 => self.maintain(),
            70..73 => self.import_child(),
            73..77 => self.evict(),
            77..85 => self.hold_mapping(),
            85..87 => drop(self.held.pop()),
            _ => self.look(),
        }
    }

    fn outcome<T>(&mut self, what: &str, path: &str, result: io::Result<T>) -> Outcome<T> {
        let error = match result {
            Ok(value) => return Outcome::Done(value),
            Err(error) => error,
        };
        let is_killed = self.is_killed.load(std::sync::atomic::Ordering::Acquire);
        let number = error.raw_os_error();
        if is_killed && (is_death(&error) || number == Some(libc::EIO)) {
            return Outcome::Dead;
        }
        self.note(format!("  {what} {path}: {error}"));
        match number {
            Some(libc::ENOSPC) if self.is_on_a_small_disk() => {
                self.full += 1;
                Outcome::Full
            }
            // Children need objects of this collection, after a kill also under other names than those of their parents.
            Some(libc::EBUSY)
                if path.starts_with("c1/") && self.model.files.iter().any(|file| file.is_parent) =>
            {
                Outcome::Refused
            }
            _ => {
                let why = support::try_get(&self.path(path), "why");
                let is_plain =
                    why.as_ref().is_ok_and(|why| why.contains("plain file until the disk has room"));
                if is_plain && number == Some(libc::EPERM) && self.is_on_a_small_disk() {
                    return Outcome::Refused;
                }
                self.fail(&format!("{what} {path}: {error}; why: {why:?}"))
            }
        }
    }

    fn some_directory(&mut self) -> String {
        let all = self.model.paths(|_, node| *node == Node::Directory);
        all[self.random.below(all.len())].clone()
    }

    /// A path, mostly one that is there.
    fn some_path(&mut self) -> String {
        let all = self.model.paths(|path, _| path.contains('/'));
        if !all.is_empty() && self.random.below(4) > 0 {
            return all[self.random.below(all.len())].clone();
        }
        let names = ["a", "b", "m.safetensors", "n.safetensors", "x.npy", "d", "w.bin"];
        let name = names[self.random.below(names.len())];
        format!("{}/{name}", self.some_directory())
    }

    fn some_file(&mut self) -> Option<(String, usize)> {
        let all = self.model.paths(|_, node| matches!(node, Node::File(_)));
        let path = all.get(self.random.below(all.len().max(1)))?.clone();
        let number = self.model.file(&path)?;
        Some((path, number))
    }

    fn some_container(&mut self) -> Option<(String, usize)> {
        let all =
            self.model.paths(|path, node| path.ends_with(".safetensors") && matches!(node, Node::File(_)));
        let path = all.get(self.random.below(all.len().max(1)))?.clone();
        let number = self.model.file(&path)?;
        Some((path, number))
    }

    fn touch(&mut self, paths: &[&str], changes_bytes: bool) {
        self.touched = paths.iter().map(|path| (*path).to_owned()).collect();
        self.changes_bytes = changes_bytes;
    }

    /// A file has other bytes by all of its names, and its mappings may show them.
    fn is_now(&mut self, number: usize, now: Vec<u8>) {
        for held in self.held.iter_mut().filter(|held| held.file == number && !held.is_orphan) {
            held.versions.push(now.clone());
        }
        let file = &mut self.model.files[number];
        file.others.clear();
        file.now = now;
    }

    /// Takes over the bytes that a change left that met a full disk: each is the old or the new one.
    fn is_partly(&mut self, path: &str, number: usize, before: &[u8], after: &[u8]) {
        let found = match fs::read(self.path(path)) {
            Ok(found) => found,
            Err(error) if is_death(&error) => return,
            Err(error) => self.fail(&format!("{path} after a full disk: {error}")),
        };
        let may_be = |(at, byte): (usize, &u8)| {
            before.get(at) == Some(byte) || after.get(at) == Some(byte) || *byte == 0 && at >= before.len()
        };
        if let Some(at) = found.iter().enumerate().position(|place| !may_be(place)) {
            self.fail(&format!("{path}: byte {at} is neither old nor new after a full disk"));
        }
        self.is_now(number, found);
        self.model.files[number].is_loose = true;
        self.check(path, "after a full disk");
    }

    /// Opens, writes the whole of a file, and closes it.
    fn write_whole(&mut self, path: &str, bytes: &[u8]) -> Outcome<()> {
        let at = self.path(path);
        let written = File::create(&at).and_then(|file| {
            file.write_all_at(bytes, 0)
                .and_then(|()| if bytes.len().is_multiple_of(7) { file.sync_all() } else { Ok(()) })?;
            close(file)
        });
        self.outcome("write", path, written)
    }

    fn put(&mut self, path: &str, bytes: Vec<u8>) {
        if !self.model.is_directory(parent(path)) || self.model.is_directory(path) {
            return;
        }
        // A symbolic link is written through.
        if matches!(self.model.names.get(path), Some(Node::Link(_))) {
            return;
        }
        self.note(format!("write {path}: {} bytes", bytes.len()));
        self.touch(&[path], true);
        let known = self.model.file(path);
        match (self.write_whole(path, &bytes), known) {
            (Outcome::Done(()), Some(number)) => {
                self.is_now(number, bytes);
                self.model.files[number].is_loose = false;
            }
            (Outcome::Done(()), None) => drop(self.model.add(path, bytes)),
            (Outcome::Full, Some(number)) => {
                let before = self.model.files[number].now.clone();
                self.is_partly(path, number, &before, &bytes);
            }
            (Outcome::Full, None) => {
                if self.path(path).exists() {
                    let number = self.model.add(path, Vec::new());
                    self.is_partly(path, number, &[], &bytes);
                }
            }
            (Outcome::Refused | Outcome::Dead, _) => {}
        }
    }

    fn replace(&mut self) {
        let path = self.some_path();
        let len = self.random.below(FILE_BYTES_MAX);
        let bytes = if path.ends_with(".npy") {
            npy_file(&self.random.floats(len / 4))
        } else {
            self.random.bytes(len)
        };
        self.put(&path, bytes);
    }

    fn write_container(&mut self) {
        let directory = self.some_directory();
        let name = ["m", "n", "o", "p"][self.random.below(4)];
        let shapes = [(1 + self.random.below(30_000)), self.random.below(9_000), 40];
        let names = [("w", shapes[0]), ("deep/v", shapes[1]), ("norm", shapes[2])];
        let bytes = container_of(&mut self.random, &names);
        self.put(&format!("{directory}/{name}.safetensors"), bytes);
    }

    /// Writes a range by the name of its file or of a tensor, and closes it.
    fn write_range(&mut self, path: &str, number: usize, at: &Path, place: (usize, usize), bytes: &[u8]) {
        let (begin, offset) = place;
        let before = self.model.files[number].now.clone();
        let mut after = before.clone();
        after.resize(after.len().max(begin + offset + bytes.len()), 0);
        after[begin + offset..begin + offset + bytes.len()].copy_from_slice(bytes);
        self.touch(&[path], true);
        let written = OpenOptions::new().read(true).write(true).open(at).and_then(|file| {
            let written = file.write_all_at(bytes, offset as u64);
            let closed = close(file);
            written.and(closed)
        });
        match self.outcome("write a part of", path, written) {
            Outcome::Done(()) => self.is_now(number, after),
            Outcome::Full => self.is_partly(path, number, &before, &after),
            Outcome::Refused | Outcome::Dead => {}
        }
        if self.random.below(3) == 0 && self.is_up() {
            self.check(path, "after a write");
        }
    }

    fn write_part(&mut self) {
        let Some((path, number)) = self.some_file() else { return };
        let len = self.model.files[number].now.len();
        let most = if self.random.below(4) == 0 { 60_000 } else { 600 };
        let count = 1 + self.random.below(most / 4);
        let from = self.random.below(len + 3000) / 4 * 4;
        // Mostly floats into the tensors, so that a container stays one.
        let (from, bytes) = match tensors(&self.model.files[number].now) {
            Some(tensors) if self.random.below(10) > 0 => {
                let begin = tensors.iter().map(|(_, begin, _)| *begin).min().unwrap_or(0);
                let from = begin + (from.min(len - begin) / 4 * 4);
                let count = count.min((len - from) / 4);
                (from, self.random.floats(count))
            }
            _ => (from, self.random.bytes(count)),
        };
        if bytes.is_empty() || from + bytes.len() > FILE_BYTES_MAX * 2 {
            return;
        }
        self.note(format!("write {} bytes at {from} of {path}", bytes.len()));
        let at = self.path(&path);
        self.write_range(&path, number, &at, (0, from), &bytes);
    }

    fn write_tensor(&mut self) {
        let Some((path, number)) = self.some_container() else { return };
        let now = self.model.files[number].now.clone();
        let known = tensors(&now).unwrap_or_default();
        let Some((name, begin, end)) = known.get(self.random.below(known.len().max(1))).cloned() else {
            return;
        };
        let elements = (end - begin) / 4;
        let Some(at) = self.tensor(&path, &name, &now[begin..end]).filter(|_| elements > 0) else { return };
        let from = self.random.below(elements);
        let most = if self.random.below(3) == 0 { 9000 } else { 40 };
        let count = (1 + self.random.below(most)).min(elements - from);
        let bytes = self.random.floats(count);
        self.note(format!("write {count} elements at {from} of {name} in {path}"));
        self.write_range(&path, number, &at, (begin, from * 4), &bytes);
    }

    fn write_mapped(&mut self) {
        let Some((path, number)) = self.some_file() else { return };
        let before = self.model.files[number].now.clone();
        if before.len() < 8 {
            return;
        }
        let least = tensors(&before).map_or(0, |tensors| tensors.iter().map(|it| it.1).min().unwrap_or(0));
        let from = (least + self.random.below(before.len() - least)) / 4 * 4;
        let count = (1 + self.random.below(3000)).min((before.len() - from) / 4);
        let bytes = self.random.floats(count);
        self.note(format!("store {} bytes at {from} of a mapping of {path}", bytes.len()));
        self.touch(&[&path], true);
        let opened = OpenOptions::new().read(true).write(true).open(self.path(&path));
        let Outcome::Done(file) = self.outcome("open to map", &path, opened) else { return };
        let mut after = before.clone();
        after[from..from + bytes.len()].copy_from_slice(&bytes);
        // A store to a mapping whose daemon has ended would raise a signal, so the kernel copies.
        let synced = {
            let mut mapping = WritableMapping::whole(&file, libc::MAP_SHARED);
            match write_by_the_kernel(&mut mapping, from, &bytes) {
                Ok(()) => mapping.sync(),
                Err(error) => Err(error),
            }
        };
        let closed = close(file);
        let done = match synced.and(closed) {
            // EFAULT: the page could not be read, since the daemon has ended or cannot store it.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            done => done,
        };
        match self.outcome("sync a mapping of", &path, done) {
            Outcome::Done(()) => self.is_now(number, after),
            Outcome::Full => self.is_partly(&path, number, &before, &after),
            Outcome::Refused | Outcome::Dead => {}
        }
        if self.is_up() {
            self.check(&path, "after a store");
        }
    }

    fn truncate(&mut self) {
        let Some((path, number)) = self.some_file() else { return };
        let before = self.model.files[number].now.clone();
        let to = match self.random.below(3) {
            0 => 0,
            1 => self.random.below(before.len() + 1),
            _ => self.random.below(FILE_BYTES_MAX),
        };
        self.note(format!("cut {path} from {} to {to} bytes", before.len()));
        self.touch(&[&path], true);
        let cut = OpenOptions::new().write(true).open(self.path(&path)).and_then(|file| {
            let cut = file.set_len(to as u64);
            let closed = close(file);
            cut.and(closed)
        });
        let mut after = before.clone();
        after.resize(to, 0);
        match self.outcome("cut", &path, cut) {
            Outcome::Done(()) => self.is_now(number, after),
            Outcome::Full => self.is_partly(&path, number, &before, &after),
            Outcome::Refused | Outcome::Dead => {}
        }
    }

    fn rename(&mut self) {
        let (from, to) = (self.some_path(), self.some_path());
        let Some(node) = self.model.names.get(&from).cloned() else { return };
        let fits = match (&node, self.model.names.get(&to)) {
            (_, None) => true,
            (Node::Directory, Some(Node::Directory)) => self.model.below(&to).is_empty(),
            (Node::Directory, _) | (_, Some(Node::Directory)) => false,
            _ => true,
        };
        let same_collection = from.split('/').next() == to.split('/').next();
        let is_same_file = self.model.file(&from).is_some() && self.model.file(&from) == self.model.file(&to);
        if !fits || !same_collection || from == to || is_same_file || to.starts_with(&format!("{from}/")) {
            return;
        }
        if !self.model.is_directory(parent(&to)) {
            return;
        }
        self.note(format!("rename {from} to {to}"));
        self.touch(&[&from, &to], false);
        let busy = if self.model.has_parent_below(&from) { from.clone() } else { to.clone() };
        let renamed = fs::rename(self.path(&from), self.path(&to));
        if let Outcome::Done(()) = self.outcome("rename", &busy, renamed) {
            self.model.rename(&from, &to);
        }
    }

    fn link(&mut self) {
        let Some((from, number)) = self.some_file() else { return };
        let to = self.some_path();
        let same_collection = from.split('/').next() == to.split('/').next();
        if self.model.names.contains_key(&to) || !self.model.is_directory(parent(&to)) || !same_collection {
            return;
        }
        self.note(format!("link {from} as {to}"));
        self.touch(&[&to], false);
        let linked = fs::hard_link(self.path(&from), self.path(&to));
        if let Outcome::Done(()) = self.outcome("link", &from, linked) {
            self.model.names.insert(to, Node::File(number));
        }
    }

    fn symlink(&mut self) {
        let path = format!("{}/l{}", self.some_directory(), self.random.below(3));
        if self.model.names.contains_key(&path) {
            return;
        }
        self.touch(&[&path], false);
        let made = std::os::unix::fs::symlink("m.safetensors", self.path(&path));
        if let Outcome::Done(()) = self.outcome("symlink", &path, made) {
            self.model.names.insert(path, Node::Link("m.safetensors".to_owned()));
        }
    }

    fn remove(&mut self) {
        let path = self.some_path();
        let removed = match self.model.names.get(&path) {
            None => return,
            Some(Node::Directory) if !self.model.below(&path).is_empty() => return,
            Some(Node::Directory) => {
                self.touch(&[&path], false);
                fs::remove_dir(self.path(&path))
            }
            Some(_) => {
                self.touch(&[&path], false);
                fs::remove_file(self.path(&path))
            }
        };
        self.note(format!("remove {path}"));
        if let Outcome::Done(()) = self.outcome("remove", &path, removed) {
            self.model.names.remove(&path);
        }
    }

    fn make_directory(&mut self) {
        let path = format!("{}/d{}", self.some_directory(), self.random.below(3));
        if self.model.names.contains_key(&path) || path.matches('/').count() > 3 {
            return;
        }
        self.note(format!("make the directory {path}"));
        self.touch(&[&path], false);
        let made = fs::create_dir(self.path(&path));
        if let Outcome::Done(()) = self.outcome("mkdir", &path, made) {
            self.model.names.insert(path, Node::Directory);
        }
    }

    /// A copy, whose data file the store shares if it can.
    fn copy(&mut self) {
        let Some((path, number)) = self.some_file() else { return };
        let bytes = self.model.files[number].now.clone();
        let extension = path.rsplit('/').next().and_then(|name| name.split_once('.')).map_or("", |it| it.1);
        let to = format!("{}/copy{}.{extension}", self.some_directory(), self.random.below(3));
        self.put(&to, bytes);
    }

    fn move_tier(&mut self) {
        let Some((path, number)) = self.some_container() else { return };
        let may_round = path.starts_with("c1/");
        let (tier, bound) = TIERS[self.random.below(if may_round { TIERS.len() } else { 3 })];
        let before = self.model.files[number].now.clone();
        let Some(parts) = tensors(&before) else { return };
        self.note(format!("{path} to {tier}"));
        self.touch(&[&path], bound > 0.0);
        let moved = support::set(&self.path(&path), "tier", &format!("{tier}:all"));
        // Pinned files and parents are EBUSY; a container that became a plain file has no tier.
        let is_refused = matches!(moved, Err(rustix::io::Errno::BUSY | rustix::io::Errno::INVAL));
        if is_refused || matches!(moved, Err(rustix::io::Errno::NOTSUP)) {
            return self.check(&path, "after a refused move");
        }
        match self.outcome("move", &path, moved.map_err(io::Error::from)) {
            Outcome::Dead => return,
            Outcome::Done(()) | Outcome::Refused | Outcome::Full => {}
        }
        let found = match fs::read(self.path(&path)) {
            Ok(found) => found,
            Err(error) if is_death(&error) => return,
            Err(error) => self.fail(&format!("{path} after a move to {tier}: {error}")),
        };
        for (name, begin, end) in parts {
            if let Some(at) = far_from(&before[begin..end], &found[begin..end], bound) {
                self.fail(&format!("{path} in {tier}: element {at} of {name} is not near what it was"));
            }
        }
        self.is_now(number, found);
        self.check(&path, "after a move");
    }

    fn pin(&mut self) {
        let Some((path, _)) = self.some_file() else { return };
        let value = if self.random.below(2) == 0 { "1" } else { "0" };
        self.note(format!("pin={value} of {path}"));
        self.touch(&[&path], false);
        match support::set(&self.path(&path), "pin", value) {
            Err(rustix::io::Errno::BUSY | rustix::io::Errno::INVAL) => {}
            pinned => drop(self.outcome("pin", &path, pinned.map_err(io::Error::from))),
        }
    }

    fn maintain(&mut self) {
        let (control, text) = [("compact", "start"), ("scrub", "start"), ("sync", "1")][self.random.below(3)];
        self.note(control.to_owned());
        let control = self.mounted.as_ref().unwrap().path(".ctl").join(control);
        let written =
            OpenOptions::new().write(true).open(control).and_then(|file| file.write_at(text.as_bytes(), 0));
        match written {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            written => drop(self.outcome("maintain", "c1", written)),
        }
    }

    /// Imports a copy of a container of `c1` with a few changes, which is stored as exact differences.
    fn import_child(&mut self) {
        let all = self.model.paths(|path, node| {
            path.ends_with(".safetensors") && parent(path) == "c1" && matches!(node, Node::File(_))
        });
        let Some(path) = all.get(self.random.below(all.len().max(1))).cloned() else { return };
        let number = self.model.file(&path).unwrap();
        let mut bytes = self.model.files[number].now.clone();
        let Some(parts) = tensors(&bytes) else { return };
        let child = path.replacen("c1/", "c2/", 1);
        if !matches!(self.model.names.get(&child), None | Some(Node::File(_))) {
            return;
        }
        for (_, begin, end) in parts {
            for at in (begin..end).step_by(4004) {
                bytes[at] ^= 1;
            }
        }
        self.note(format!("import {child} as a child"));
        self.model.files[number].is_parent = true;
        self.touch(&[&child, &path], true);
        let source = self.place.write(&format!("source/{}", &child[3..]), &bytes);
        let mut command = tierfs();
        command.arg("import").arg(self.place.store()).arg("t/c2").arg(&source);
        let done = support::answer(command.args(["--parent", "t/c1", "--reconstruct", "delta"]));
        if done.code == Some(0) {
            self.model.add(&child, bytes);
            return self.check(&child, "after its import");
        }
        if self.is_killed.load(std::sync::atomic::Ordering::Acquire) {
            return;
        }
        self.note(format!("  {}", done.err));
        let is_full = done.err.contains("No space left") && self.is_on_a_small_disk();
        let is_busy = self.model.file(&child).is_some_and(|number| self.model.files[number].is_parent);
        if !is_full && !is_busy {
            self.fail(&format!("importing {child}: {}", done.err));
        }
        // Its bytes may be there, and not stored as differences.
        if is_full && std::fs::read(self.path(&child)).is_ok_and(|found| found == bytes) {
            self.model.add(&child, bytes);
        }
        self.check(&child, "after an import that failed");
    }

    fn evict(&mut self) {
        let clones = self.model.paths(|path, _| path.starts_with('k') && !path.contains('/'));
        let (path, what) = match clones.get(self.random.below(clones.len() + 3)) {
            Some(clone) => (clone.clone(), "1"),
            None => {
                let Some((path, _)) = self.some_file() else { return };
                let what = if path.starts_with("c2/") && self.random.below(2) == 0 { "1" } else { "cache" };
                (path, what)
            }
        };
        self.note(format!("evict={what} of {path}"));
        self.touch(&[&path], false);
        match support::set(&self.path(&path), "evict", what) {
            Err(rustix::io::Errno::BUSY | rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            Err(rustix::io::Errno::NOTSUP) => {}
            evicted => drop(self.outcome("evict", &path, evicted.map_err(io::Error::from))),
        }
    }

    fn hold_mapping(&mut self) {
        let Some((path, number)) = self.some_file() else { return };
        let now = self.model.files[number].now.clone();
        if now.is_empty() || !self.is_up() {
            return;
        }
        if self.held.len() == MAPPINGS_MAX {
            self.held.remove(0);
        }
        let flags = if self.random.below(2) == 0 { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        self.note(format!("map {path}"));
        match File::open(self.path(&path)) {
            Ok(_) => {}
            Err(error) => {
                self.outcome::<()>("open", &path, Err(error));
                return;
            }
        }
        if let Ok(held) = std::panic::catch_unwind(|| Held::of(&self.path(&path), flags, number, &now)) {
            self.held.push(held);
        }
    }

    fn look(&mut self) {
        if !self.is_up() {
            return;
        }
        let path = self.some_path();
        let known = self.model.names.get(&path).cloned();
        let Some(Node::File(number)) = known else { return };
        let opened = fs::read(self.path(&path));
        if let Outcome::Done(found) = self.outcome("read", &path, opened)
            && found != self.model.files[number].now
        {
            self.check(&path, "when it is read");
            self.fail(&format!("{path} reads otherwise, and then right"));
        }
    }

    /// Whether no kill is on its way, so that every request must succeed.
    fn is_up(&self) -> bool {
        !self.has_killer
    }
}

/// Stores bytes into a mapping by the kernel, which answers EFAULT where a store would raise SIGBUS.
fn write_by_the_kernel(mapping: &mut WritableMapping, at: usize, bytes: &[u8]) -> io::Result<()> {
    let place = mapping.bytes()[at..at + bytes.len()].as_mut_ptr();
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: place.cast(), iov_len: bytes.len() };
    // SAFETY: the local range is `bytes` and only read; the remote one lies in the mapping.
    let copied = unsafe { libc::process_vm_writev(std::process::id() as i32, &local, 1, &remote, 1, 0) };
    match support::checked(copied as i64)? {
        count if count == bytes.len() as i64 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// The first element of f32 values that is farther from the old one than `bound` times the largest value of its group.
fn far_from(old: &[u8], new: &[u8], bound: f32) -> Option<usize> {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    if bound == 0.0 {
        return old.iter().zip(new).position(|(one, other)| one != other).map(|at| at / 4);
    }
    let (old, new) = (floats(old), floats(new));
    for (group, (old, new)) in old.chunks(64).zip(new.chunks(64)).enumerate() {
        let largest = old.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        // Bytes that are not ordinary numbers were written there.
        if largest.is_nan() || largest >= 4.0 {
            continue;
        }
        let is_near = |(old, new): (&f32, &f32)| (old - new).abs() <= bound * largest + 1e-30;
        let far = old.iter().zip(new).position(|pair| !is_near(pair));
        if let Some(at) = far {
            return Some(group * 64 + at);
        }
    }
    None
}
