//! A daemon gives a mount up, and the next one takes it up.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::format::handover::{HandOver, OpenRecord, ReadBy, ShownText, UnnamedFile, WrittenFile};
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::OpenFlags;
use crate::fs::kernel::device::Devices;
use crate::fs::kernel::session::{Agreed, Session};
use crate::fs::mount::Mount;
use crate::fs::mount::bundle::{Bundle, file_with};
use crate::fs::mount::handover::{self, Askers, Listening, refuse};
use crate::fs::mount::waker::Waker;
use crate::fs::state::earlier::{Before, Earlier};
use crate::fs::state::handles::{Handle, Handles};
use crate::fs::state::in_progress;
use crate::fs::state::number_records::NumberRecords;
use crate::fs::state::open_records::Records;
use crate::model::{Error, ErrorKind, Result};
use crate::store::{SaveUsage, Store};
use crate::vfs::open::OpenFile;
use crate::vfs::{Ino, Invalidation};

/// How long requests that have begun may take before a mount is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long they may take in one try. Requests wait in the kernel meanwhile.
const TRY: Duration = Duration::from_millis(500);
/// Between two tries requests are answered for so long.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// Bytes of files without a name that are handed over at most. They lie in memory.
const UNNAMED_BYTES_MAX: u64 = 1 << 30;
const PIECE_BYTES: usize = 1 << 20;
const GIVEN_ONCE: &str = "the kernel gives each request only once; it is before Linux 6.9";

/// The rest of a mount that an earlier daemon had.
pub(super) struct Left {
    stale: Vec<u64>,
    unnamed: Vec<(UnnamedFile, OwnedFd)>,
}

/// The numbers of the collections of a remote, which this daemon goes on with. `None` of a store.
pub(super) fn numbers(store: &Store, bundle: Option<&mut Bundle>) -> Result<Option<Arc<NumberRecords>>> {
    let Some(said) = store.said() else { return Ok(None) };
    let (records, before) = match bundle.and_then(|bundle| bundle.numbers.take()) {
        Some(left) => NumberRecords::taken_over(left)?,
        None => (NumberRecords::new(said).map_err(failed)?, Vec::new()),
    };
    let records = Arc::new(records);
    let noted = records.clone();
    store.go_on_with_numbers(before, Box::new(move |numbered| noted.note(numbered)));
    Ok(Some(records))
}

/// The parts of a mount that an earlier daemon had.
pub(super) fn taken_up(bundle: Bundle, mountpoint: &Path) -> Result<(Session, Devices, Handles, Left)> {
    let Bundle { state, open_files, devices, unnamed, .. } = bundle;
    let (records, head) = Records::taken_over(open_files)?;
    let first = devices.first().ok_or_else(|| Error::corrupt("a mount without a device"))?;
    let first = first.try_clone().map_err(|error| Error::io("taking a mount up", error))?;
    let agreed = Agreed::of_bits(head.agreed);
    let session = Session::taken_over(first, agreed, mountpoint, head.connection);
    let before = if state.is_some() { Before::HandedOver } else { Before::Died };
    let HandOver { stale, texts, written, unnamed: files, may_have_done, .. } = state.unwrap_or_default();
    let texts: HashMap<u64, Vec<u8>> = texts.into_iter().map(|shown| (shown.handle, shown.text)).collect();
    let earlier = Earlier::new(before, texts, written);
    let earlier = if may_have_done { earlier.with_done() } else { earlier };
    let handles = Handles::taken_over(records, earlier)?;
    let unnamed = files.into_iter().zip(unnamed).collect();
    Ok((session, Devices::taken_over(devices), handles, Left { stale, unnamed }))
}

/// Listens for programs that take the mount of a store over.
pub(super) fn listen(
    store: &Arc<Store>,
    session: &Session,
    offer: &HandOver,
    askers: &Askers,
    waker: &Arc<Waker>,
) -> io::Result<Listening> {
    if session.agreed.rings {
        return Err(io::Error::other("requests arrive over io_uring"));
    }
    if !session.agreed.resends {
        return Err(io::Error::other(GIVEN_ONCE));
    }
    if session.connection == 0 {
        return Err(io::Error::other("the mount is not in the table of mounts"));
    }
    let store = Arc::downgrade(store);
    // A remote that is away can be read by its cache alone.
    let prepare = move || store.upgrade().iter().for_each(|store| store.save_cache());
    handover::listen(session.connection, offer.clone(), askers.clone(), waker.clone(), prepare)
}

impl Dispatcher {
    /// Goes on with the mount of an earlier daemon, before the first request is answered.
    pub(super) fn go_on_with(&self, left: Left) -> Result<()> {
        self.vfs.takes_over();
        self.passthrough.take_up();
        let mut stale: Vec<Ino> = left.stale.into_iter().map(Ino).collect();
        let unnamed: Vec<Ino> = left.unnamed.iter().map(|(file, _)| Ino(file.inode)).collect();
        for (file, bytes) in left.unnamed {
            self.vfs.take_up_unnamed(&file, |place, out| {
                let file = File::from(bytes.try_clone().map_err(failed)?);
                file.read_at(out, place).map_err(failed)
            })?;
        }
        for record in self.handles.left() {
            let ino = Ino(record.inode).own();
            let writes = !OpenFlags(record.flags).reads_only();
            // The program may have opened it by its plain name.
            ino.plain().into_iter().for_each(|plain| self.vfs.note_plain_open(plain));
            match record.read_by {
                ReadBy::Kernel(file) => {
                    self.passthrough.take_over(record.handle, ino, file);
                    continue;
                }
                _ if writes && self.handles.earlier().before() == Before::HandedOver => {
                    self.passthrough.opened_to_write(record.handle, ino);
                    // A program that opens or copies the file depends on whether others write to it.
                    if let Err(error) = self.reopen(&record) {
                        log::warn!("inode {:#x} is not opened again: {error}", record.inode);
                    }
                }
                _ => {}
            }
            if self.handles.earlier().before() == Before::Died {
                // Of writes that are lost, the kernel may have pages by each name of their bytes.
                let others = if writes { self.vfs.sharing(ino) } else { Vec::new() };
                stale.extend([ino].into_iter().chain(ino.plain()).chain(others));
            }
        }
        stale.sort_unstable();
        stale.dedup();
        self.invalidator.invalidate_meanwhile(&self.vfs, Invalidation { nodes: stale });
        let dispatcher = self.clone();
        let thread = std::thread::Builder::new().name("open-again".to_owned());
        thread
            .spawn(move || {
                dispatcher.reopen_all();
                // The kernel may have forgotten them by a request that the daemon before had read. Those that programs have
                // open stay all the same.
                unnamed.iter().for_each(|ino| dispatcher.vfs.forget_inode(*ino, 0));
            })
            .map_err(failed)?;
        Ok(())
    }
}

impl Mount {
    /// The descriptors that outlive this daemon if another process keeps them.
    /// # Errors
    /// Returns an error if the next daemon would not get requests that this one has read.
    pub fn kept(&self) -> io::Result<Bundle> {
        if !self.session.agreed.resends {
            return Err(io::Error::other(GIVEN_ONCE));
        }
        Ok(Bundle {
            state: None,
            open_files: self.dispatcher.handles.records().duplicate()?,
            numbers: self.numbers.as_ref().map(|numbers| numbers.duplicate()).transpose()?,
            lock: None,
            keeper: None,
            peer: None,
            devices: self.threads.devices().duplicates()?,
            unnamed: Vec::new(),
        })
    }

    /// Gives the mount up for a program that can take it, unless something stands in the way. `leave` replaces this program,
    /// or returns why it cannot. If this returns, this daemon goes on.
    pub(super) fn give_up(&self, asker: &UnixStream, leave: impl Fn(Bundle) -> Error) {
        let Dispatcher { mounted, invalidator, vfs, passthrough, .. } = &*self.dispatcher;
        let error = match self.for_other(asker) {
            Err(error) => error,
            Ok(bundle) => {
                let stale = bundle.state.iter().flat_map(|state| &state.stale).map(|ino| Ino(*ino)).collect();
                let error = leave(bundle);
                passthrough.take_up();
                invalidator.invalidate_meanwhile(vfs, Invalidation { nodes: stale });
                error
            }
        };
        self.threads.go_on();
        mounted.jobs.go_on();
        log::warn!("the mount is not handed over: {error}");
        refuse(asker, &error.to_string());
    }

    /// The mount, for a program that takes it over. Then no request is in progress, and no thread changes the store.
    fn for_other(&self, asker: &UnixStream) -> Result<Bundle> {
        let Dispatcher { mounted, invalidator, vfs, .. } = &*self.dispatcher;
        self.refuse_for_jobs()?;
        if !mounted.jobs.pause(PATIENCE) {
            return Err(Error::new(ErrorKind::Busy, "a job of the mount itself does not end; try again"));
        }
        // While requests are answered, so that less is left to do when they wait.
        vfs.sync(&mut |forget| invalidator.forget(forget, || ()))?;
        self.rest()?;
        // Those of a daemon before this one, which it has not reached yet. Of a remote, which may not answer, the next daemon
        // finds them again.
        if !vfs.store().shows_snapshots() {
            self.dispatcher.reopen_all();
        }
        // A request may have made one meanwhile.
        self.refuse_for_jobs()?;
        let peer = asker.try_clone().map_err(failed)?;
        Ok(Bundle { peer: Some(peer.into()), ..self.recorded()? })
    }

    fn refuse_for_jobs(&self) -> Result<()> {
        let job = self.dispatcher.mounted.jobs.unfinished();
        job.map_or(Ok(()), |job| {
            let text = format!("a job would be lost: {job}; wait for its end, or cancel it (tierfs cancel)");
            Err(Error::new(ErrorKind::Busy, text))
        })
    }

    /// Lets the threads rest at a moment when no request is in progress. An invalidation may wait for a request that was not
    /// read yet, so requests are answered between the tries.
    fn rest(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !((self.threads.rest(TRY) || self.can_be_left())
            && self.dispatcher.invalidator.is_done_within(TRY))
        {
            self.threads.go_on();
            if Instant::now() >= until {
                let text = format!("requests in progress did not end within {} s", PATIENCE.as_secs());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        Ok(())
    }

    /// Whether the requests in progress can be left to the next daemon, which the kernel gives them again. They wait for a
    /// remote, perhaps for long.
    fn can_be_left(&self) -> bool {
        let unanswered = self.threads.unanswered();
        self.vfs().store().shows_snapshots()
            && in_progress::all_that_look().is_some_and(|looks| looks >= unanswered)
    }

    /// Records all writes, and returns what the next daemon needs. The threads rest.
    fn recorded(&self) -> Result<Bundle> {
        let Dispatcher { mounted, invalidator, vfs, handles, passthrough, .. } = &*self.dispatcher;
        let records = handles.records().all()?.into_iter();
        let records = records.filter_map(|(handle, record)| Some((handle, record?))).collect();
        let mut stale = Vec::new();
        let synced = vfs.sync(&mut |forget| stale.extend(forget.nodes));
        stale.extend(vfs.take_pending_invalidations().nodes);
        // Of a remote there is nothing to record, and a request that was left may hold the list of its collections.
        let open = match vfs.store().shows_snapshots() {
            true => Vec::new(),
            false => vfs.store().open_collections(),
        };
        let unrecorded = open.iter().flat_map(|open| open.all_unrecorded()).next();
        let full = |(path, why): (String, String)| {
            Err(Error::new(ErrorKind::Full, format!("{path} is not recorded yet: {why}")))
        };
        let bundle =
            synced.and_then(|()| unrecorded.map_or(Ok(()), full)).and_then(|()| self.kept().map_err(failed));
        let bundle = bundle.and_then(|bundle| {
            let (unnamed, files) = self.unnamed(&records)?;
            let state = HandOver {
                stale: stale.iter().map(|ino| ino.0).collect(),
                texts: self.texts(),
                written: self.written(),
                unnamed,
                may_have_done: handles.earlier().may_have_done(),
                ..self.offer.clone()
            };
            let lock = vfs.store().lock().downcast_ref::<File>().map(File::try_clone).transpose();
            let lock = lock.map_err(failed)?.map(OwnedFd::from);
            Ok(Bundle { state: Some(state), lock, unnamed: files, ..bundle })
        });
        if bundle.is_err() {
            invalidator.invalidate_meanwhile(vfs, Invalidation { nodes: stale });
            return bundle;
        }
        open.iter().for_each(|open| open.save_usage(SaveUsage::Now));
        vfs.store().save_cache();
        passthrough.forget_redirects();
        // They ask the next daemon.
        mounted.jobs.tell_all();
        bundle
    }

    /// The texts of open control files, also of those that this daemon has not opened again.
    fn texts(&self) -> Vec<ShownText> {
        let handles = &self.dispatcher.handles;
        let left = handles.left().into_iter().filter_map(|record| {
            let text = handles.earlier().text_left(record.handle)?;
            Some(ShownText { handle: record.handle, text })
        });
        let mut texts: Vec<ShownText> = left.collect();
        texts.extend(handles.all().into_iter().filter_map(|(handle, open)| match &*open {
            Handle::Control(_, text, _) => Some(ShownText { handle, text: text.shown()? }),
            _ => None,
        }));
        texts
    }

    /// The files that programs write.
    fn written(&self) -> Vec<WrittenFile> {
        let mut written = BTreeMap::new();
        for (_, open) in self.dispatcher.handles.all() {
            if let Handle::File(file, _, Some(_)) = &*open
                && let Some(ino) = self.vfs().ino_of(file)
            {
                let (from, is_new, is_unclosed) = file.arrival();
                written.insert(ino, WrittenFile { inode: ino.0, from, is_new, is_unclosed });
            }
        }
        written.into_values().collect()
    }

    /// The files without a name that programs have open, and their bytes. Those that the kernel reads go on without them:
    /// they are left out if they are too large, and the next daemon then knows nothing of them.
    fn unnamed(&self, records: &HashMap<u64, OpenRecord>) -> Result<(Vec<UnnamedFile>, Vec<OwnedFd>)> {
        let (mut ours, mut others) = (BTreeMap::new(), BTreeMap::new());
        for (handle, open) in self.dispatcher.handles.all() {
            if let Handle::File(file, ..) = &*open
                && let Some(record) = records.get(&handle)
                && file.collection().state().node(file.node()).is_none()
                && let Some(ino) = self.vfs().ino_of(file)
            {
                let is_ours = record.read_by == ReadBy::Daemon;
                let of = if is_ours { &mut ours } else { &mut others };
                of.insert(ino, file.clone());
            }
        }
        let mut bytes: u64 = ours.values().map(|file| file.bytes()).sum();
        if bytes > UNNAMED_BYTES_MAX {
            let text = format!(
                "files without a name with {bytes} bytes are open, and would be lost; close them first"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let mut files = (Vec::new(), Vec::new());
        let mut add = |ino: Ino, file: &OpenFile| -> Result<()> {
            let copy = copied(file)?;
            files.0.push(self.vfs().unnamed(ino, file)?);
            files.1.push(copy.into());
            Ok(())
        };
        for (ino, file) in others.iter().filter(|(ino, _)| !ours.contains_key(ino)) {
            let with_it = bytes.saturating_add(file.bytes());
            if with_it <= UNNAMED_BYTES_MAX {
                bytes = with_it;
                if let Err(error) = add(*ino, file) {
                    log::warn!("inode {:#x} is not handed over: {error}", ino.0);
                }
            }
        }
        ours.iter().try_for_each(|(ino, file)| add(*ino, file))?;
        Ok(files)
    }
}

/// The bytes of an open file.
fn copied(file: &OpenFile) -> Result<File> {
    let mut copy = file_with(&[]).map_err(failed)?;
    let (mut at, mut piece) = (0, vec![0; PIECE_BYTES]);
    loop {
        let count = file.read(at, &mut piece)?;
        if count == 0 {
            return Ok(copy);
        }
        copy.write_all(piece.get(..count).unwrap_or_default()).map_err(failed)?;
        at += count as u64;
    }
}

fn failed(error: io::Error) -> Error {
    Error::io("handing a mount over", error)
}
