//! The sources of pieces: mirrors of the remote, and the remote itself.
//!
//! A mirror has the objects of the remote under the same keys, perhaps not all of them. Only pieces are asked of
//! it, since their names tell whether they are right. Any error of a mirror leads to the next one, and at last
//! to the remote.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::Piece;
use crate::model::Result;
use crate::remote::client::failure::Failure;
use crate::remote::client::{Client, Deadlines};

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

/// A remote and its mirrors.
pub struct Mirrors {
    origin: Client,
    mirrors: Vec<Mirror>,
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
        Mirrors { origin: origin.clone(), mirrors: Vec::new() }
    }

    /// The same, with these mirrors, which are asked in this order.
    pub fn with_mirrors(self, mirrors: Vec<Client>) -> Mirrors {
        let mirror = |client| Mirror { client, is_off: AtomicBool::new(false), failed: Mutex::new(None) };
        Mirrors { mirrors: mirrors.into_iter().map(mirror).collect(), ..self }
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
    pub(in crate::remote) fn places(&self, tries: usize) -> Vec<Place<'_>> {
        let mirrors = self.mirrors.iter().filter(|mirror| mirror.is_asked()).map(Place::Mirror);
        mirrors.chain(std::iter::repeat_n(Place::Origin(&self.origin), tries)).collect()
    }
}

/// A place to ask for a piece.
#[derive(Clone, Copy)]
pub(in crate::remote) enum Place<'a> {
    Mirror(&'a Mirror),
    Origin(&'a Client),
}

impl Place<'_> {
    /// The client that reaches it.
    pub fn client(&self) -> &Client {
        match self {
            Place::Mirror(mirror) => &mirror.client,
            Place::Origin(client) => client,
        }
    }

    /// The piece had other bytes than its name says.
    pub fn was_wrong(&self, piece: &Piece) {
        let (place, key) = (self.client().place(), keys::piece(&piece.name));
        self.client().counts().failures.fetch_add(1, Ordering::Relaxed);
        match self {
            Place::Mirror(mirror) => {
                mirror.is_off.store(true, Ordering::Relaxed);
                log::warn!(
                    "{place}/{key}: its bytes do not match the digest in its name; the mirror is no longer used"
                );
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
