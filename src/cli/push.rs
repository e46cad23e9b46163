//! `tierfs push`.

use std::path::PathBuf;
use std::sync::Arc;

use indicatif::ProgressBar;
use serde_json::Value;

use crate::cli::Outcome;
use crate::cli::clone::absolute;
use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::jobs::{self, new_bar};
use crate::cli::common::mounts::{self, Mounted};
use crate::cli::common::open_store::open_store;
use crate::cli::common::output::{print, print_json};
use crate::cli::common::process::own_owner;
use crate::cli::common::refusal::{self, Refusal, Typed};
use crate::cli::common::remote::{self, PublishArgs, SignArgs};
use crate::control::PUSH;
use crate::engine::variant;
use crate::model::{Error, ErrorKind, OwnedCollectionName, Progress, Result};
use crate::remote::client::Client;
use crate::remote::place::at::At;
use crate::remote::place::remote::Remote;
use crate::remote::place::signatures::Signer;
use crate::remote::place::tags::{Move, set_tag};
use crate::remote::push::history::{How, Writers, revert};
use crate::remote::push::parameters::{Caption, DIFFERENCE_PERCENT, DifferenceLimits, JOBS, Keyframes, May};
use crate::remote::push::request::{Makers, PushRequest, parse_place, parse_two_places, parse_variants};
use crate::store::{Access, Store};

/// Publish a collection in an object storage, where other machines can mount it.
///
/// A push sends the pieces that the remote lacks and then creates a snapshot, all of it or nothing. Of tensors that
/// changed a little since an earlier snapshot it sends the differences. To
/// resume an interrupted push, repeat it: it finds the pieces that were sent. The daemon pushes from a mounted
/// store. Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
/// AWS_ENDPOINT), for a mounted store from that of its daemon.
///
/// Example: tierfs push /srv/tensors acme/llama s3://models/prefix --create
///
/// Example: tierfs push s3://models/prefix acme/llama --revert 3
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, or a path in a mount, which names both; with --revert, the remote
    store: PathBuf,
    /// TENANT/COLLECTION; with =TENANT/COLLECTION its names in the remote
    collection: String,
    /// The remote: s3://BUCKET/PREFIX or file:///DIRECTORY
    #[arg(required_unless_present = "revert")]
    remote: Option<String>,
    /// Publish an older snapshot of the remote again, under the next number: its number, a tag or its BLAKE3
    #[arg(
        long, value_name = "N|TAG|BLAKE3",
        conflicts_with_all = ["remote", "create", "variants", "force", "dedup_with"]
    )]
    revert: Option<String>,
    #[command(flatten)]
    publish: PublishArgs,
    /// Also publish the collection in these tiers, for mounts with --tier: q8, q7, q5, q3x or q3. The push encodes float
    /// matrices; with :all, as in q5:all, every float tensor. Without this option, a push keeps the tiers of the newest
    /// snapshot; none drops them
    #[arg(long, value_name = "TIER,...", value_delimiter = ',')]
    variants: Option<Vec<String>>,
    /// Put this state over a snapshot that this collection has not pushed, or from which a published collection has differences
    #[arg(long)]
    force: bool,
    /// Refer to equal pieces of this collection of the remote instead of sending them
    #[arg(long, value_name = "TENANT/COLLECTION")]
    dedup_with: Vec<String>,
    /// Send a piece whole if its keyframe, the last version that was sent whole, is more than this number of pushes old; 0
    /// sends all pieces whole
    #[arg(long, value_name = "PUSHES", default_value_t = DifferenceLimits::default().pushes_max)]
    keyframe_after: u64,
    /// Send a piece whole if its difference from the keyframe has more bytes than this share of the piece
    #[arg(long, value_name = "PERCENT", default_value_t = DifferenceLimits::default().percent_max, value_parser = clap::value_parser!(u8).range(i64::from(*DIFFERENCE_PERCENT.start())..=i64::from(*DIFFERENCE_PERCENT.end())))]
    difference_max: u8,
    /// Keep the pieces that are sent whole in this directory, so that later pushes need not read keyframes from the remote
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Pieces sent at the same time; each takes up to 32 MiB of memory
    #[arg(long, value_name = "N", default_value_t = JOBS as u16, value_parser = clap::value_parser!(u16).range(1..=128))]
    jobs: u16,
    #[command(flatten)]
    signs: SignArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Shows progress, and cancels the push when the user presses Ctrl-C.
struct Shown {
    interrupt: Interrupt,
    bar: ProgressBar,
}

impl Progress for Shown {
    fn expect(&self, bytes: u64) {
        self.bar.set_length(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.is_pressed()
    }
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        if let Some(at) = &self.revert {
            return self.revert_to(&At::parse(at));
        }
        if let Some(url) = remote::url(&self.store) {
            let text = format!("the store comes first: tierfs push STORE TENANT/COLLECTION {url}");
            return Err(Error::invalid(text));
        }
        let (local, named) = parse_two_places(&self.collection)?;
        let request = PushRequest {
            named,
            message: self.publish.message,
            tag: self.publish.tag,
            dedup_with: self.dedup_with.iter().map(|text| parse_place(text)).collect::<Result<_>>()?,
            variants: self.variants.as_deref().map(parse_variants).transpose()?,
            keyframes: Keyframes {
                limits: DifferenceLimits {
                    pushes_max: self.keyframe_after,
                    percent_max: self.difference_max,
                },
                cache: self
                    .cache
                    .map(std::path::absolute)
                    .transpose()
                    .map_err(|error| Error::io("--cache", error))?,
            },
            may: May {
                create: self.publish.create,
                single_writer: self.publish.single_writer,
                force: self.force,
            },
            sign: self
                .signs
                .sign
                .as_ref()
                .map(std::path::absolute)
                .transpose()
                .map_err(|error| Error::io("--sign", error))?,
            jobs: usize::from(self.jobs),
            ..PushRequest::new(local, self.remote.as_deref().unwrap_or_default())
        };
        // A URL with credentials in it goes no further.
        Client::open(&request.url)?;
        mounts::refuse_own_mount(&self.store)?;
        let note = format!("process {}, which pushes from it", std::process::id());
        let (text, value) = match open_store(&self.store, Access::Write, &note) {
            Ok(store) => {
                remote::fetch_clones(&store);
                push_from(&store, &request, self.signs.signer()?)?
            }
            Err(error) if error.kind() == ErrorKind::Busy => match mounts::mount_for(&self.store)? {
                Some(_) if self.signs.sign_with.is_some() => {
                    let text = "the daemon of the mounted store would run the command of --sign-with; unmount the store, or use --sign";
                    return Err(Error::invalid(text));
                }
                Some(mounted) => push_through_daemon(&mounted, request, &error)?,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        };
        if self.json { print_json(&value) } else { print(&format!("{text}\n")) }?;
        Ok(Outcome::Succeeded)
    }
}

impl Args {
    /// Publishes an older snapshot again.
    fn revert_to(&self, at: &At) -> Result<Outcome> {
        let url = remote::url(&self.store).ok_or_else(|| {
            let text = format!(
                "{} is not the URL of a remote; write tierfs push URL TENANT/COLLECTION --revert N",
                self.store.display()
            );
            Error::invalid(text)
        })?;
        let place = parse_place(&self.collection)?;
        let place = place.borrowed();
        let client = Client::open(url)?;
        let (client, writers) = match self.publish.single_writer {
            true => (client.for_single_writer(), Writers::One),
            false => (client, Writers::Many),
        };
        let published = Remote::open(client)?;
        let signer = self.signs.signer()?;
        let caption = Caption { message: self.publish.message.clone(), tag: self.publish.tag.clone() };
        let how = How { writers, signer: signer.as_ref() };
        let pushed = revert(&published, place, at, &caption, how)?;
        if let Some(tag) = &self.publish.tag {
            set_tag(&published, place, tag, pushed.number, Move::Refused)?;
        }
        if self.json {
            print_json(&pushed.to_json(place))
        } else {
            print(&format!("{}\n", pushed.text(place)))
        }?;
        Ok(Outcome::Succeeded)
    }
}

/// Pushes from a store that this process has opened.
fn push_from(store: &Store, request: &PushRequest, signer: Option<Signer>) -> Result<(String, Value)> {
    let owner = own_owner();
    let shown = Shown { interrupt: Interrupt::listen()?, bar: new_bar() };
    let makers = Makers { variant, signer: signer.map(Arc::new) };
    let pushed = request.run_by(store, owner, makers, &shown);
    shown.bar.finish_and_clear();
    let pushed = pushed?;
    Ok((pushed.text(request.named.borrowed()), pushed.to_json(request.named.borrowed())))
}

/// Has the daemon of a mount push, and waits. `busy` is the error for a mount that is read-only.
fn push_through_daemon(mounted: &Mounted, request: PushRequest, busy: &Error) -> Result<(String, Value)> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let label = format!("{}-{}", std::process::id(), since.map_or(0, |since| since.as_nanos()));
    let named = format!("{PUSH}:{label}");
    let request = PushRequest { label: Some(label), url: absolute(&request.url), ..request };
    let path = mounted.mountpoint.join(".ctl").join(PUSH);
    let before = refusal::last_number(&path);
    let interrupt = Interrupt::listen()?;
    if let Err(error) = std::fs::write(&path, request.to_json()) {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        if errno == rustix::io::Errno::ROFS {
            return Err(Error::new(ErrorKind::Busy, busy.to_string()));
        }
        let refusal = Refusal::of(mounted, &Typed { words: "push", path: &path }, before, errno);
        let OwnedCollectionName { tenant, name } = &request.collection;
        return Err(Error::invalid(format!("{tenant}/{name}: refused: {}", refusal.clause())));
    }
    let gone = || {
        Error::new(
            ErrorKind::NotFound,
            "the mount no longer lists the job of the push; .ctl/events of the mount says how it ended",
        )
    };
    let job = jobs::wait(mounted, &interrupt, &new_bar(), |job| job.request == named)?.ok_or_else(gone)?;
    match job.state.as_str() {
        "done" => Ok((job.text.clone(), job.value.get("result").cloned().unwrap_or_default())),
        "cancelled" => Err(Error::new(ErrorKind::Interrupted, job.ended_text())),
        _ => {
            Err(Error::new(ErrorKind::Io, format!("{}; the credentials are those of the daemon", job.error)))
        }
    }
}
