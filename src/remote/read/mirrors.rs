//! The sources of pieces: mirrors of the remote, the remote itself, and for pieces that are ranges of other objects, these.
//!
//! A mirror has the objects of the remote under the same keys, perhaps not all of them. Only pieces are asked of
//! it, since their names tell whether they are right. Any error of a mirror leads to the next one, and at last
//! to the remote.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::Piece;
use crate::model::Result;
use crate::remote::client::failure::Failure;
use crate::remote::client::window::Class;
use crate::remote::client::{Client, Deadlines, Wanted};
use crate::remote::read::counts::Counted;
use crate::remote::read::references::Referred;

/// A mirror that fails is not asked for this long.
const AVOIDED: Duration = Duration::from_secs(10);

/// A mirror is near: one that is slow is not worth waiting for.
const DEADLINES: Deadlines = Deadlines {
    stall: Duration::from_secs(1),
    silence: Duration::from_secs(2),
    upload: Duration::from_secs(2),
    total: Duration::from_secs(2),
    pause: Duration::from_millis(50),
    pause_max: Duration::from_millis(500),
};

/// A remote and its mirrors. Clones share them.
#[derive(Clone)]
pub struct Mirrors {
    origin: Client,
    mirrors: Arc<Vec<Mirror>>,
    /// Pieces that lie elsewhere.
    referred: Option<Arc<Referred>>,
    /// Of the collection that pieces are fetched for.
    counted: Arc<Counted>,
}

/// A mirror of the remote.
pub(in crate::remote) struct Mirror {
    client: Client,
    /// It had a piece with other bytes than its name says, and is asked for no more.
    is_off: AtomicBool,
    /// When it failed last.
    failed: Mutex<Option<Instant>>,
}

impl Mirror {
    fn is_asked(&self) -> bool {
        !self.is_off.load(Ordering::Relaxed)
            && self.failed.lock().is_none_or(|failed| failed.elapsed() >= AVOIDED)
    }
}

impl Mirrors {
    /// A remote without mirrors.
    pub fn of(origin: &Client) -> Mirrors {
        Mirrors { origin: origin.clone(), mirrors: Arc::default(), referred: None, counted: Arc::default() }
    }

    /// The same, with these mirrors, which are asked in this order.
    pub fn with_mirrors(self, mirrors: Vec<Client>) -> Mirrors {
        let mirror = |client| Mirror { client, is_off: AtomicBool::new(false), failed: Mutex::new(None) };
        Mirrors { mirrors: Arc::new(mirrors.into_iter().map(mirror).collect()), ..self }
    }

    /// The same for the collection of a snapshot, perhaps with pieces that lie elsewhere.
    pub(in crate::remote) fn of_snapshot(
        &self,
        referred: Option<Referred>,
        counted: Arc<Counted>,
    ) -> Mirrors {
        Mirrors { referred: referred.map(Arc::new), counted, ..self.clone() }
    }

    /// The counts of the collection that pieces are fetched for.
    pub fn counted(&self) -> &Counted {
        &self.counted
    }

    /// A piece that came from a place has other bytes than its name says.
    pub(in crate::remote) fn was_wrong(&self, place: Place<'_>, piece: &Piece) {
        place.was_wrong(piece);
        self.counted.failed(&Failure::WrongBytes);
    }

    /// [`Client::fetch`] at one of its places, counted.
    pub(in crate::remote) async fn fetch(
        &self,
        place: Place<'_>,
        key: &str,
        wanted: Wanted,
        class: Class,
        mut sink: impl FnMut(Bytes) -> io::Result<()> + Send,
    ) -> std::result::Result<(), Failure> {
        self.counted.was_asked();
        let counting = |chunk: Bytes| {
            self.counted.came(chunk.len());
            sink(chunk)
        };
        let done = place.client().fetch(key, wanted, class, counting).await;
        done.inspect_err(|failure| {
            // A mirror need not have all pieces.
            if !matches!((place, failure), (Place::Mirror(_), Failure::NotFound)) {
                self.counted.failed(failure);
            }
        })
    }

    /// Where a piece lies, if that is elsewhere.
    pub(in crate::remote) fn referred(&self, piece: &Piece) -> Option<&Referred> {
        self.referred.as_deref().filter(|referred| referred.has(piece))
    }

    /// The place to ask for the first bytes of a piece. A mirror might have others.
    pub(in crate::remote) fn first_place(&self, piece: &Piece) -> Place<'_> {
        self.referred(piece).map_or(Place::Origin(&self.origin), Place::Elsewhere)
    }

    /// Whether nobody knows the bytes of a piece but the object that it is a range of.
    pub(in crate::remote) fn is_unread(&self, piece: &Piece) -> bool {
        self.referred(piece).is_some_and(|referred| !referred.are_read())
    }

    /// The client of a mirror at a URL.
    pub fn open_mirror(url: &str) -> Result<Client> {
        Client::open_within(url, DEADLINES)
    }

    /// The remote.
    pub fn origin(&self) -> &Client {
        &self.origin
    }

    /// The clients of the remote and of its mirrors.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        std::iter::once(&self.origin).chain(self.mirrors.iter().map(|mirror| &mirror.client))
    }

    /// The places to ask for a piece, one after the other. The remote is asked `tries` times, since bytes may
    /// be damaged on their way.
    pub(in crate::remote) fn places(&self, piece: &Piece, tries: usize) -> Vec<Place<'_>> {
        if let Some(referred) = self.referred(piece) {
            return vec![Place::Elsewhere(referred); tries];
        }
        let mirrors = self.mirrors.iter().filter(|mirror| mirror.is_asked()).map(Place::Mirror);
        mirrors.chain(std::iter::repeat_n(Place::Origin(&self.origin), tries)).collect()
    }
}

/// A place to ask for a piece.
#[derive(Clone, Copy)]
pub(in crate::remote) enum Place<'a> {
    Mirror(&'a Mirror),
    Origin(&'a Client),
    Elsewhere(&'a Referred),
}

impl Place<'_> {
    /// The client that reaches it.
    pub fn client(&self) -> &Client {
        match self {
            Place::Mirror(mirror) => &mirror.client,
            Place::Origin(client) => client,
            Place::Elsewhere(referred) => referred.client(),
        }
    }

    /// The key of a piece there, and the whole of it.
    pub fn asked(&self, piece: &Piece) -> (String, Wanted) {
        let (key, range) = self.asked_part(piece, 0..u64::from(piece.stored));
        let is_object = !matches!(self, Place::Elsewhere(_));
        (key, if is_object { Wanted::whole(u64::from(piece.stored)) } else { range })
    }

    /// The same of a range of a piece.
    pub fn asked_part(&self, piece: &Piece, range: Range<u64>) -> (String, Wanted) {
        let elsewhere = match self {
            Place::Elsewhere(referred) => referred.asked(piece, range.clone()),
            Place::Mirror(_) | Place::Origin(_) => None,
        };
        elsewhere.unwrap_or_else(|| (keys::piece(&piece.name), Wanted::range(range)))
    }

    /// Whether bytes with this digest are those of a piece.
    pub fn is_right(&self, piece: &Piece, digest: &[u8; 32]) -> bool {
        let is_unread = matches!(self, Place::Elsewhere(referred) if !referred.are_read());
        is_unread || *digest == piece.name.digest
    }

    fn was_wrong(&self, piece: &Piece) {
        let (key, _) = self.asked(piece);
        let place = self.client().place();
        self.client().counts().failures.fetch_add(1, Ordering::Relaxed);
        match self {
            Place::Mirror(mirror) => {
                mirror.is_off.store(true, Ordering::Relaxed);
                log::warn!(
                    "{place}/{key}: its bytes do not match the digest in its name; the mirror is no longer used"
                );
            }
            Place::Elsewhere(_) => {
                log::warn!("{place}/{key}: its bytes are not those that the snapshot names")
            }
            Place::Origin(_) => log::warn!("{place}/{key}: its bytes do not match the digest in its name"),
        }
    }

    /// Whether another place is to be asked after this failure. A failure of the disk here ends it, as does one of
    /// the remote.
    pub fn leads_on(&self, failure: &Failure) -> bool {
        let Place::Mirror(mirror) = self else { return false };
        match failure {
            Failure::Local(_) => return false,
            // It does not have this piece, but may have others.
            Failure::NotFound => {}
            failure => {
                log::warn!("{}: {failure}; this mirror is not used for a while", mirror.client.place());
                *mirror.failed.lock() = Some(Instant::now());
            }
        }
        true
    }
}
