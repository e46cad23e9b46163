//! URLs of remotes where commands take stores.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;

use crate::model::{Error, ErrorKind, MoveTo, OwnedCollectionName, Result};
use crate::store::{Look, Store};
#[cfg(feature = "remote")]
use crate::{
    cli::common::process::own_owner,
    ingest::describe,
    model::{CollectionName, Owner},
    store::{Describe, Elsewhere},
};

#[cfg(feature = "remote")]
use crate::remote::client::url::is_remote;

/// The most collections that an error lists.
const LISTED_MAX: usize = 16;

/// A mount that follows looks for snapshots of some collections this often, whatever the remote says of its last push.
const LOOKED_EVERY: Duration = Duration::from_secs(10);

/// A mounted source is listed again this often, if nothing else is said.
const SOURCE_LOOKED_EVERY: Duration = Duration::from_secs(60);

/// A mounted source is listed no more often than this.
const SOURCE_PAUSE: Duration = Duration::from_millis(200);

/// The URL, if a remote is named where a store may be.
pub(in crate::cli) fn url(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| is_remote(text))
}

/// Fails with `Invalid` for the URL of a remote where a store is needed.
pub(in crate::cli) fn refuse_as_store(path: &Path) -> Result<()> {
    let Some(url) = url(path) else { return Ok(()) };
    Err(Error::invalid(format!(
        "{url} is a URL, and a store is a directory of this machine; to publish a collection of a store there: \
         tierfs push STORE TENANT/COLLECTION {url}"
    )))
}

/// The error for a collection that a remote does not have. It lists some of those that are `there`.
pub(in crate::cli) fn no_collection(url: &str, wanted: &str, there: &[String]) -> Error {
    let listed = there.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let known = match there.len() {
        0 => "it has none".to_owned(),
        count if count > LISTED_MAX => format!("it has {listed} and {} more", count - LISTED_MAX),
        _ => format!("it has {listed}"),
    };
    Error::new(ErrorKind::NotFound, format!("{url} has no collection {wanted}; {known}"))
}

/// The error for a collection without a snapshot in a remote.
#[cfg(feature = "remote")]
pub(in crate::cli) fn no_snapshot(
    remote: &crate::remote::place::remote::Remote,
    wanted: &str,
) -> Result<Error> {
    let mut there = Vec::new();
    for tenant in remote.tenants()? {
        there.extend(remote.collections(&tenant)?.into_iter().map(|name| format!("{tenant}/{name}")));
    }
    Ok(no_collection(remote.place(), wanted, &there))
}

/// Opens a remote to be read, without a cache.
pub(in crate::cli) fn open(url: &str) -> Result<Store> {
    opened(url, None, None)
}

/// The name of a variant.
pub(in crate::cli) fn parse_tier(text: &str) -> Result<String> {
    MoveTo::parse_variant(text).map(MoveTo::variant_name)
}

/// Lets the clones of a store, and its files at URLs, fetch their bytes, with the credentials of the environment.
#[cfg(feature = "remote")]
pub(in crate::cli) fn fetch_clones(store: &Store) {
    use crate::remote::client::Deadlines;
    use crate::remote::read::far_objects::FarOptions;

    fetch_with(store, FarOptions { cache: None, deadlines: Deadlines::default() });
}

#[cfg(feature = "remote")]
fn fetch_with(store: &Store, far: crate::remote::read::far_objects::FarOptions) {
    use crate::remote::clone::ClonePieces;
    use crate::store::EventKind;

    let events = store.events().clone();
    let tell = move |path: &str, text: &str| {
        log::warn!("{path}: {text}");
        events.tell(EventKind::Remote, path, "", text);
    };
    store.set_piece_source(Arc::new(ClonePieces::new(tell, far)));
}

/// This program cannot fetch.
#[cfg(not(feature = "remote"))]
pub(in crate::cli) fn fetch_clones(_store: &Store) {}

/// The period of `--follow`: seconds, perhaps with decimals.
pub(in crate::cli) fn parse_period(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    let wrong = || Error::invalid(format!("invalid period {text:?}; expected 0.1 to 86400 seconds"));
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

/// In place of the directory of a cache.
#[cfg(feature = "remote")]
const NO_CACHE: &str = "none";
/// A mount whose cache knows the remote begins without it after this time.
#[cfg(feature = "remote")]
const AWAY_AFTER: Duration = Duration::from_secs(10);

/// The mount of a remote that another process has made, and that this one goes on with.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "this program opens no remotes"))]
pub(in crate::cli) struct EarlierMount<'a> {
    /// The text that it has left about the remote.
    pub said: &'a str,
    /// Whether it has a daemon, which can go on. Otherwise this one goes on also if the remote is away or refuses.
    pub has_daemon: bool,
}

/// The progress of a mount that follows a remote.
struct Followed {
    /// The last push that was looked at.
    last_push: Option<Vec<u8>>,
    /// When snapshots were looked for.
    looked: Instant,
    /// Whether the last look has failed.
    has_failed: bool,
}

impl Followed {
    /// Shows newer snapshots. A look at the last push, one small request for all collections, says whether there can be
    /// any; a push that was killed may not have noted itself, so a few collections are asked for now and then, and
    /// always where the remote does not say its last push.
    fn look(&mut self, store: &Store, is_asked: bool) -> Result<()> {
        let last_push = store.last_push();
        let is_new = last_push.is_some() && last_push != self.last_push;
        let is_late = last_push.is_none() || self.looked.elapsed() >= LOOKED_EVERY;
        let looks = match is_asked {
            true => [Some(Look::All), None],
            // Where others push all the time, the lists do not say what a killed push has left.
            false => [is_new.then_some(Look::Listed), is_late.then_some(Look::Few)],
        };
        let mut failed = Ok(());
        for look in looks.into_iter().flatten() {
            if let Some(error) = store.refresh(look)?.failed {
                failed = failed.and(Err(error));
            }
        }
        failed?;
        self.last_push = last_push;
        if is_asked || is_late {
            self.looked = Instant::now();
        }
        Ok(())
    }
}

/// How a snapshot is published.
#[cfg(feature = "remote")]
#[derive(clap::Args)]
pub(in crate::cli) struct PublishArgs {
    /// Create the remote if it does not exist
    #[arg(long)]
    pub create: bool,
    /// A message for those who list snapshots
    #[arg(long, default_value = "")]
    pub message: String,
    /// Give the snapshot this tag, which keeps it from being collected
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Publish without conditional PUT, where the object storage lacks it. Nobody else may push meanwhile
    #[arg(long)]
    pub single_writer: bool,
}

/// The signer of a snapshot.
#[cfg(feature = "remote")]
#[derive(clap::Args)]
pub(in crate::cli) struct SignArgs {
    /// Sign the snapshot with this key: a private ed25519 key in PEM
    #[arg(long, value_name = "KEY", conflicts_with = "sign_with")]
    pub sign: Option<PathBuf>,
    /// Sign by a command, which reads a message and prints its ed25519 signature, raw or in base64, within 5 minutes
    #[arg(long, value_name = "COMMAND", requires = "sign_key")]
    pub sign_with: Option<String>,
    /// The public key of --sign-with, in PEM; each signature is verified by it
    #[arg(long, value_name = "KEY", requires = "sign_with")]
    sign_key: Option<PathBuf>,
}

#[cfg(feature = "remote")]
impl SignArgs {
    /// The signer; `None` for no signature.
    pub fn signer(&self) -> Result<Option<crate::remote::place::signatures::Signer>> {
        use crate::remote::place::signatures::Signer;

        match (&self.sign, self.sign_with.as_deref().zip(self.sign_key.as_deref())) {
            (Some(path), _) => Signer::read(path).map(Some),
            (None, Some((command, key))) => Signer::by_command(command, key).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// Options of a mounted remote.
#[derive(clap::Args)]
pub(in crate::cli) struct RemoteArgs {
    /// Show this snapshot of a collection of a remote: its number, a tag, or the BLAKE3 that tierfs log shows
    #[arg(long, value_name = "TENANT/COLLECTION=N")]
    pub at: Vec<String>,
    /// Show only snapshots of a remote that this key has signed: a public ed25519 key in PEM, perhaps with @UUID of the only
    /// remote that it is for; again for further keys
    #[arg(long, value_name = "KEYFILE")]
    pub trust: Vec<PathBuf>,
    /// Show collections of a remote in this tier, if tierfs push --variants has published that
    #[arg(long, value_name = "TIER", value_parser = parse_tier)]
    pub tier: Option<String>,
    /// Directory that keeps what was read from a remote, or from URLs where imports left files, or none: then memory has the
    /// last 128 MiB [default: below ~/.cache/tierfs]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Maximum size of the cache, for example 200G, or 80% of its file system
    #[arg(long, value_name = "SIZE")]
    pub cache_size: Option<String>,
    /// Ask this mirror of a remote for pieces first; again for further mirrors
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<String>,
    /// Fail a read after this time without a byte from the remote [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: Option<u32>,
    /// Look for newer snapshots of a remote at this interval, and at once on SIGHUP, and show them; for example 0.5
    #[arg(long, value_name = "SECONDS", value_parser = parse_period)]
    pub follow: Option<Duration>,
    /// Of a mounted source: has it listed again at once
    #[arg(skip)]
    look: OnceLock<UnixStream>,
}

impl RemoteArgs {
    /// Whether an option is given that a store does not have.
    pub fn are_given(&self) -> bool {
        !self.at.is_empty()
            || self.tier.is_some()
            || !self.mirror.is_empty()
            || !self.trust.is_empty()
            || self.follow.is_some()
    }

    /// Whether no cache is wanted.
    #[cfg(feature = "remote")]
    fn is_uncached(&self) -> bool {
        self.cache.as_deref() == Some(Path::new(NO_CACHE))
    }

    /// Shows newer snapshots at the interval of `--follow`, and after SIGHUP, until the process ends.
    pub fn follow(&self, store: &Arc<Store>) -> Result<()> {
        let look = self.look.get();
        let Some(period) = self.follow.or(look.map(|_| SOURCE_LOOKED_EVERY)) else { return Ok(()) };
        let failed = |error| Error::io("waiting for SIGHUP", error);
        let signals = match look {
            Some(look) => look.try_clone().map_err(failed)?,
            None => {
                let (signals, sender) = UnixStream::pair().map_err(failed)?;
                signal_hook::low_level::pipe::register(SIGHUP, sender).map_err(failed)?;
                signals
            }
        };
        signals.set_read_timeout(Some(period)).map_err(failed)?;
        let (store, is_source) = (Arc::downgrade(store), look.is_some());
        std::thread::spawn(move || {
            let mut followed = Followed { last_push: None, looked: Instant::now(), has_failed: false };
            loop {
                let is_asked = matches!((&signals).read(&mut [0; 64]), Ok(1..));
                let Some(store) = store.upgrade() else { return };
                if is_source {
                    // A server whose listings name other versions than it has would be listed all the time.
                    std::thread::sleep(SOURCE_PAUSE.saturating_sub(followed.looked.elapsed()));
                }
                // A source has no list that says what is new.
                match followed.look(&store, is_asked || is_source) {
                    Ok(()) => followed.has_failed = false,
                    // Each period fails while the remote is away.
                    Err(error) if followed.has_failed => log::debug!("{error}"),
                    Err(error) => {
                        log::warn!("{error}");
                        followed.has_failed = true;
                    }
                }
            }
        });
        Ok(())
    }

    /// Refuses options of snapshots for a source.
    #[cfg(feature = "remote")]
    fn refuse_for_source(&self, url: &str) -> Result<()> {
        if self.at.is_empty() && self.tier.is_none() && self.trust.is_empty() && self.mirror.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{url} has no snapshots, which --at, --trust, --tier and --mirror are for; tierfs index publishes one"
        )))
    }

    /// A function that has the source that is being opened listed again.
    #[cfg(feature = "remote")]
    fn look_again(&self) -> Result<impl Fn() + Send + Sync + 'static> {
        let failed = |error| Error::io("waiting for SIGHUP", error);
        let (signals, sender) = UnixStream::pair().map_err(failed)?;
        // Many reads may find the same, and none of them waits.
        sender.set_nonblocking(true).map_err(failed)?;
        if self.follow.is_some() {
            let sender = sender.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(SIGHUP, sender).map_err(failed)?;
        }
        self.look.get_or_init(|| signals);
        Ok(move || drop(std::io::Write::write(&mut &sender, &[0])))
    }

    /// Lets a store that is mounted fetch bytes that lie elsewhere; those at URLs go through a cache.
    #[cfg(feature = "remote")]
    pub fn fetch(&self, store: &Store) -> Result<()> {
        use crate::remote::client::Deadlines;
        use crate::remote::read::far_objects::FarOptions;

        let size = self.cache_size.as_deref().map(cache_size).transpose()?.unwrap_or_default();
        let directory = match &self.cache {
            _ if self.is_uncached() => None,
            Some(directory) => Some(directory.clone()),
            None => cache_directory().ok(),
        };
        let mut deadlines = Deadlines::default();
        if let Some(seconds) = self.timeout {
            deadlines.total = Duration::from_secs(u64::from(seconds));
        }
        fetch_with(store, FarOptions { cache: directory.map(|directory| (directory, size)), deadlines });
        Ok(())
    }

    /// This program cannot fetch.
    #[cfg(not(feature = "remote"))]
    pub fn fetch(&self, _store: &Store) -> Result<()> {
        Ok(())
    }

    /// Opens a remote to be mounted. `earlier` is the mount to go on with.
    pub fn open(&self, url: &str, earlier: Option<EarlierMount<'_>>) -> Result<Store> {
        opened(url, Some(self), earlier)
    }
}

#[cfg(feature = "remote")]
fn opened(url: &str, mounted: Option<&RemoteArgs>, earlier: Option<EarlierMount<'_>>) -> Result<Store> {
    use std::collections::HashMap;

    use crate::remote::client::Deadlines;
    use crate::remote::index::collections::{self, Listed, Shape};
    use crate::remote::place::listing::Listing;
    use crate::remote::place::remote::Remote;
    use crate::remote::place::signatures::Trust;
    use crate::remote::read::cache::Cache;
    use crate::remote::read::files::Source;
    use crate::remote::read::mirrors::Mirrors;
    use crate::remote::read::published_collections::Published;
    use crate::remote::source;
    use crate::store::{EventKind, Events, SnapshotDisk};

    let mut deadlines = Deadlines::default();
    if let Some(seconds) = mounted.and_then(|options| options.timeout) {
        deadlines.total = Duration::from_secs(u64::from(seconds));
    }
    let known = mounted.and_then(|options| known_by(options, url));
    let shape = earlier.and_then(|earlier| Shape::parse(earlier.said));
    // Programs wait for a mount that has no daemon.
    let alone = earlier.filter(|earlier| !earlier.has_daemon);
    // A mount with a warm cache does not wait long for a remote that is away.
    let patience = Deadlines { total: deadlines.total.min(AWAY_AFTER), ..deadlines };
    let is_brief = known.is_some() || alone.is_some();
    let source = match known.is_some() || (alone.is_some() && shape.is_none()) {
        true => source::reopen_within(url, patience)?,
        false => source::open_within(url, if is_brief { patience } else { deadlines })?,
    };
    let reached = source.may_be_remote().then(|| Remote::open_and_list(source.client().clone()));
    let is_another = || Error::unsupported(format!("{url} is another remote by now"));
    // One in its place is not that of the mount, as for a daemon that has not died.
    let reached = reached.map(|reached| {
        reached.and_then(|reached| match alone.is_some_and(|earlier| earlier.said != reached.0.said()) {
            true => Err(is_another()),
            false => Ok(reached),
        })
    });
    let open = |directory: &Path| {
        let size = mounted.and_then(|options| options.cache_size.as_deref()).map(cache_size).transpose()?;
        Cache::open(directory, size.unwrap_or_default())
    };
    let opened_cache = || {
        let opened = match mounted {
            Some(options) if !options.is_uncached() => {
                let directory = options.cache.clone().map_or_else(cache_directory, Ok);
                directory.and_then(|directory| open(&directory)).map(Some)
            }
            _ => Ok(None),
        };
        match opened {
            Err(error) if alone.is_some() => {
                log::warn!("{error}; the mount goes on without a cache");
                Ok(None)
            }
            opened => opened,
        }
    };
    let remote = match (reached, &known) {
        (Some(Ok((remote, listing))), _) => {
            let remote = if is_brief { remote.within(deadlines) } else { remote };
            Some((remote, listing, opened_cache()?, false))
        }
        (Some(Err(error)), Some(directory)) if error.kind() == ErrorKind::Io && alone.is_none() => {
            let cache = open(directory)?;
            let Some(known) = cache.known(url) else { return Err(error) };
            log::warn!("{error}; the mount shows what the cache {} has", directory.display());
            let listing = Listing::of_known(known.newest());
            let remote = Remote::known(source.client().clone(), &known.said)?.within(deadlines);
            Some((remote, Some(listing), Some(cache), true))
        }
        (Some(Err(error)), _)
            if let Some(earlier) = alone
                && shape.is_none() =>
        {
            log::warn!("{error}; the mount goes on");
            let cache = opened_cache()?;
            let known = cache.as_ref().and_then(|cache| cache.known(url));
            let known = known.filter(|known| known.said == earlier.said);
            let listing = known.map(|known| Listing::of_known(known.newest()));
            let remote = Remote::known(source.client().clone(), earlier.said)?.within(deadlines);
            Some((remote, listing, cache, error.kind() == ErrorKind::Io))
        }
        (Some(Err(error)), _) if error.kind() != ErrorKind::NotFound && alone.is_none() => return Err(error),
        (Some(Err(_)) | None, _) => None,
    };
    // The store that has the events is opened last.
    let events: Arc<OnceLock<Arc<Events>>> = Arc::default();
    let told = events.clone();
    let tell = Box::new(move |path: &str, text: &str| match told.get() {
        Some(events) => {
            log::warn!("{}{text}", if path.is_empty() { String::new() } else { format!("{path}: ") });
            events.tell(EventKind::Remote, path, "", text);
        }
        // The command's own error says what failed.
        None => log::debug!("{path}: {text}"),
    });
    let disk = match remote {
        Some((remote, listing, cache, is_away)) => {
            let at = mounted.map_or(&[][..], |options| &options.at);
            let wanted = at.iter().map(|text| wanted(text)).collect::<Result<HashMap<_, _>>>()?;
            let tier = mounted.and_then(|options| options.tier.clone());
            let mirrors = mounted.map_or(&[][..], |options| &options.mirror).iter();
            let mirrors = mirrors.map(|url| Mirrors::open_mirror(url)).collect::<Result<Vec<_>>>()?;
            let trust = match Trust::wanted(mounted.map_or(&[][..], |options| &options.trust), &remote) {
                Err(error) if alone.is_some() => {
                    log::warn!("{error}; no snapshot is trusted, and the mount goes on");
                    Some(Trust::default())
                }
                trust => trust?,
            };
            let reader = Source::new(remote, cache, tell).with_mirrors(mirrors).trusting(trust);
            let reader = if is_away { reader.while_away() } else { reader };
            let reader = if mounted.is_some() { reader.reading_ahead() } else { reader };
            let published = Published::new(reader, wanted).in_tier(tier).with_listing(listing);
            if alone.is_none() {
                published.check_wanted()?;
            }
            SnapshotDisk::new(Arc::new(published))
        }
        None => {
            let shape = match (collections::shape_of(&*source), shape) {
                (Ok(_), Some(shape)) => shape,
                (Err(error), Some(shape)) if alone.is_some() => {
                    log::warn!("{error}; the mount goes on");
                    shape
                }
                (found, _) => found?,
            };
            let source = if is_brief { source::open_within(url, deadlines)? } else { source };
            if let Some(options) = mounted {
                options.refuse_for_source(url)?;
            }
            let reader = collections::reader(&*source, opened_cache()?, tell);
            let reader = match mounted {
                Some(options) => reader.reading_ahead().calling(options.look_again()?),
                None => reader,
            };
            let owner = own_owner();
            SnapshotDisk::new(Arc::new(Listed::new(source, reader, shape, describes(owner), owner)))
        }
    };
    let store = Arc::new(disk).open_store()?;
    let is_other = |earlier: EarlierMount<'_>| store.said().as_deref() != Some(earlier.said);
    if earlier.is_some_and(|earlier| earlier.has_daemon && is_other(earlier)) {
        return Err(is_another());
    }
    if mounted.is_some() {
        events.get_or_init(|| store.events().clone());
    }
    Ok(store)
}

/// The directory of the cache of a mount, if it knows the remote at this URL.
#[cfg(feature = "remote")]
fn known_by(options: &RemoteArgs, url: &str) -> Option<PathBuf> {
    use crate::remote::read::cache::Cache;

    if options.is_uncached() {
        return None;
    }
    let directory = options.cache.clone().or_else(|| cache_directory().ok())?;
    Cache::knows(&directory, url).then_some(directory)
}

/// Makes logs of files that lie elsewhere, and belong to `owner` here.
#[cfg(feature = "remote")]
pub(in crate::cli) fn describes(owner: Owner) -> Box<Describe> {
    Box::new(move |place: CollectionName<'_>, id, files: &[Elsewhere], reads| {
        describe(place, id, owner, files, reads)
    })
}

/// The directory of the cache of this user, of all remotes.
#[cfg(feature = "remote")]
pub(in crate::cli) fn cache_directory() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let found = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let found = found.filter(|found| found.is_absolute());
    Ok(found
        .ok_or_else(|| {
            Error::invalid("HOME is not set, so the cache has no default directory; name one with --cache")
        })?
        .join("tierfs"))
}

#[cfg(feature = "remote")]
pub(in crate::cli) fn cache_size(text: &str) -> Result<crate::remote::read::cache::Size> {
    use crate::remote::read::cache::Size;

    let wrong = || {
        Error::invalid(format!(
            "invalid cache size {text:?}; write for example 200G, or 80% for a part of the disk"
        ))
    };
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.parse().ok().filter(|percent| (1..=95).contains(percent));
        return percent.map(Size::Percent).ok_or_else(wrong);
    }
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("") => 1,
        Some("K") => 1 << 10,
        Some("M") => 1 << 20,
        Some("G") => 1 << 30,
        Some("T") => 1_u64 << 40,
        _ => return Err(wrong()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).map(Size::Bytes).ok_or_else(wrong)
}

/// A collection and the snapshot of it that is wanted.
#[cfg(feature = "remote")]
fn wanted(text: &str) -> Result<(OwnedCollectionName, crate::remote::place::at::At)> {
    use crate::remote::place::at::At;

    // Names of collections may have equals signs too.
    let parts = text.rsplit_once('=').and_then(|(place, at)| Some((place.split_once('/')?, at)));
    let Some(((tenant, collection), at)) = parts.filter(|(_, at)| !at.is_empty()) else {
        return Err(Error::invalid(format!(
            "{text:?} is not of the form TENANT/COLLECTION=N, where N is the number, the tag or the BLAKE3 of a snapshot"
        )));
    };
    Ok((OwnedCollectionName::new(tenant, collection), At::parse(at)))
}

#[cfg(not(feature = "remote"))]
fn is_remote(_text: &str) -> bool {
    false
}

#[cfg(not(feature = "remote"))]
fn opened(url: &str, _mounted: Option<&RemoteArgs>, _earlier: Option<EarlierMount<'_>>) -> Result<Store> {
    let text = format!("{url}: this program was built without remotes");
    Err(Error::new(ErrorKind::NotSupported, text))
}
