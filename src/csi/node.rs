//! The Node service: volumes of this node are staged and published here.
//!
//! A stage finds or starts the daemon of the volume's source, and mounts the collection on the staging path. A publish
//! mounts it on the path of a pod, from the daemon's mount. An inline volume has no stage: its publish does both.

use std::time::{Duration, Instant};

use crate::csi::access::Access;
use crate::csi::attributes::Attributes;
use crate::csi::daemons::Daemon;
use crate::csi::driver::Driver;
use crate::csi::failure::{Code, Failure, Outcome};
use crate::csi::messages::{
    Capabilities, Empty, NodeInfo, PlaceRequest, PublishRequest, StageRequest, Texts, VolumeStats,
    VolumeUsage,
};
use crate::csi::records::{Placed, VolumeRecord};
use crate::csi::secrets::Secrets;
use crate::csi::targets::Target;

const STAGE_UNSTAGE_VOLUME: i32 = 1;
const GET_VOLUME_STATS: i32 = 2;
const SINGLE_NODE_MULTI_WRITER: i32 = 5;

/// As CSI limits it.
const ID_BYTES_MAX: usize = 128;

const BYTES: i32 = 1;
const INODES: i32 = 2;
/// A daemon that has not answered statfs(2) for this time is not waited for.
const STATS: Duration = Duration::from_secs(5);

pub(in crate::csi) fn info(driver: &Driver) -> NodeInfo {
    NodeInfo { node_id: driver.settings.node.clone() }
}

pub(in crate::csi) fn capabilities() -> Capabilities {
    Capabilities::of(&[STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, SINGLE_NODE_MULTI_WRITER])
}

/// The identity of a volume in a call.
pub(in crate::csi) fn volume_id(id: &str) -> Outcome<&str> {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(Failure::invalid(format!("volume_id is missing, or over {ID_BYTES_MAX} bytes")));
    }
    Ok(id)
}

/// Refuses a call with other attributes than those that the volume has here.
fn refuse_others(record: &VolumeRecord, given: &Texts) -> Outcome<()> {
    if record.attributes == *given {
        return Ok(());
    }
    Err(Failure::exists(format!("the volume {:?} is here with other attributes", record.id)))
}

pub(in crate::csi) fn stage(driver: &Driver, request: &StageRequest, until: Instant) -> Outcome<Empty> {
    let id = volume_id(&request.volume_id)?;
    let target = Target::of("staging_target_path", &request.staging_target_path)?;
    let access = Access::of(request.volume_capability.as_ref(), false)?;
    let attributes = Attributes::of(&request.volume_context)?;
    if attributes.is_inline {
        return Err(Failure::invalid("an inline volume is published without a stage"));
    }
    access.check_source(attributes.source.is_remote)?;
    let secrets = Secrets::of(&request.secrets)?;
    let placed = Placed { target, access };
    let _turn = driver.turn(id)?;
    let Some(record) = driver.records.volume(id)? else {
        return begin(driver, id, attributes, secrets, Some(placed), Vec::new(), until);
    };
    refuse_others(&record, &attributes.texts)?;
    match &record.staged {
        Some(staged) if staged.target != placed.target => {
            let text = format!("the volume {id:?} is staged at {}", staged.target.text());
            Err(Failure::new(Code::FailedPrecondition, text))
        }
        Some(staged) if *staged != placed => {
            Err(Failure::exists(format!("the volume {id:?} is staged with another volume_capability")))
        }
        // The daemon that the volume has goes on, also if the secrets are new.
        Some(_) => add(driver, &record, &placed, until),
        None => Err(Failure::exists(format!("the volume {id:?} is an inline volume"))),
    }
}

pub(in crate::csi) fn publish(driver: &Driver, request: &PublishRequest, until: Instant) -> Outcome<Empty> {
    let id = volume_id(&request.volume_id)?;
    let target = Target::of("target_path", &request.target_path)?;
    let access = Access::of(request.volume_capability.as_ref(), request.readonly)?;
    let secrets = Secrets::of(&request.secrets)?;
    let is_inline = Attributes::are_inline(&request.volume_context);
    if !is_inline && request.staging_target_path.is_empty() {
        let text = "staging_target_path is missing: the volume must be staged first";
        return Err(Failure::new(Code::FailedPrecondition, text));
    }
    let _turn = driver.turn(id)?;
    let record = driver.records.volume(id)?;
    let given = match (&record, request.volume_context.is_empty()) {
        // The context is optional in this call.
        (Some(record), true) => Attributes::of(&record.attributes)?,
        (None, true) => {
            return Err(Failure::new(
                Code::NotFound,
                format!("the volume {id:?} is not staged on this node"),
            ));
        }
        _ => Attributes::of(&request.volume_context)?,
    };
    if given.source.is_remote && !access.read_only {
        let text =
            "a remote can only be read: publish it with readOnly: true, or with an access mode of readers";
        return Err(Failure::invalid(text));
    }
    let placed = Placed { target, access };
    let Some(record) = record else {
        if !is_inline {
            return Err(Failure::new(
                Code::NotFound,
                format!("the volume {id:?} is not staged on this node"),
            ));
        }
        given.check_inline(&driver.settings.inline_paths)?;
        return begin(driver, id, given, secrets, None, vec![placed], until);
    };
    refuse_others(&record, &given.texts)?;
    let staging = record.staged.as_ref().map(|staged| staged.target.text()).unwrap_or_default();
    if !record.is_inline && Target::of("staging_target_path", &request.staging_target_path)?.text() != staging
    {
        let text = format!("the volume {id:?} is staged at {staging}, not at staging_target_path");
        return Err(Failure::new(Code::FailedPrecondition, text));
    }
    let known = record.published.iter().find(|known| known.target == placed.target);
    if known.is_some_and(|known| *known != placed) {
        let text = format!("the volume {id:?} is published at {} in another way", placed.target.text());
        return Err(Failure::exists(text));
    }
    let is_elsewhere = record.published.iter().any(|known| known.target != placed.target);
    if is_elsewhere && !placed.access.is_shared() {
        let text = format!("the volume {id:?} is published at another path, and its access mode allows one");
        return Err(Failure::new(Code::FailedPrecondition, text));
    }
    add(driver, &record, &placed, until)
}

/// Makes a volume that this node does not know. Leaves nothing of it if that fails.
fn begin(
    driver: &Driver,
    id: &str,
    attributes: Attributes,
    secrets: Secrets,
    staged: Option<Placed>,
    published: Vec<Placed>,
    until: Instant,
) -> Outcome<Empty> {
    let Attributes { texts, source, collection, is_inline } = attributes;
    let daemon = Daemon::of(&driver.records, source, secrets);
    let record = VolumeRecord {
        id: id.to_owned(),
        attributes: texts,
        daemon: daemon.digest.clone(),
        collection,
        is_inline,
        staged,
        published,
    };
    let _turn = driver.daemon_turn(&daemon.digest, until)?;
    for placed in record.places() {
        refuse_foreign(&placed.target)?;
    }
    let volumes = driver.records.volumes_of(&daemon.digest);
    if !volumes.readable.is_empty()
        && driver.daemons.known(&daemon.digest)?.is_some_and(|known| !known.is_as(&daemon))
    {
        let text =
            "the store is mounted for a volume with other secrets; give all volumes of a store the same ones";
        return Err(Failure::new(Code::FailedPrecondition, text));
    }
    driver.records.keep_volume(&record)?;
    let mounted = driver
        .ensure(&daemon, until)
        .and_then(|()| record.places().try_for_each(|placed| driver.mount(&record, placed, until)));
    if let Err(failure) = &mounted {
        for placed in record.places() {
            // The record stays with its mount, for the next call.
            leave(&record, placed).inspect_err(|_| log::warn!("{failure}"))?;
        }
        driver.records.forget_volume(id)?;
        if let Err(failure) = driver.end_unused(&daemon.digest) {
            log::warn!("{failure}");
        }
    }
    mounted.map(|()| Empty {})
}

/// Mounts a known volume on one more place, or on one that it has.
fn add(driver: &Driver, record: &VolumeRecord, placed: &Placed, until: Instant) -> Outcome<Empty> {
    let _turn = driver.daemon_turn(&record.daemon, until)?;
    let daemon = driver.daemons.known(&record.daemon)?;
    let unknown = || Failure::new(Code::Internal, "the daemon of the volume has no description");
    let daemon = daemon.ok_or_else(unknown)?;
    let is_new = !record.places().any(|known| known == placed);
    let mut wider = record.clone();
    if is_new {
        refuse_foreign(&placed.target)?;
        wider.published.push(placed.clone());
        driver.records.keep_volume(&wider)?;
    }
    let mounted = driver.ensure(&daemon, until).and_then(|()| driver.mount(&wider, placed, until));
    if let Err(failure) = &mounted
        && is_new
    {
        leave(&wider, placed).inspect_err(|_| log::warn!("{failure}"))?;
        driver.records.keep_volume(record)?;
    }
    mounted.map(|()| Empty {})
}

/// Refuses a place that no record names, and where something is mounted.
fn refuse_foreign(target: &Target) -> Outcome<()> {
    match target.mounted()? {
        None => Ok(()),
        Some(_) => Err(Failure::exists(format!("something else is mounted on {}", target.text()))),
    }
}

/// Unmounts a place. The directory of a publish goes too; that of a stage is the caller's.
fn leave(record: &VolumeRecord, placed: &Placed) -> Outcome<()> {
    placed.target.clear(None)?;
    if record.published.contains(placed) { placed.target.remove() } else { Ok(()) }
}

/// Unmounts a path that no record has, if the mount of a daemon of this node is there that no other volume has: the records
/// were lost. Others have mounts of tierfs too.
fn leave_unknown(driver: &Driver, target: &Target) -> Outcome<Empty> {
    let Some(there) = target.mounted()?.filter(|there| there.is_ours()) else { return Ok(Empty {}) };
    let volumes = driver.records.volumes();
    volumes.are_all?;
    let is_known = volumes.readable.iter().any(|record| record.places().any(|known| known.target == *target));
    let may_go = target.is_of_the_kubelet() || driver.daemons.has_device(there.device)?;
    if may_go && !is_known && !target.path().starts_with(&driver.settings.state) {
        target.clear(None)?;
        target.remove()?;
    }
    Ok(Empty {})
}

pub(in crate::csi) fn unpublish(driver: &Driver, request: &PlaceRequest, until: Instant) -> Outcome<Empty> {
    let id = volume_id(&request.volume_id)?;
    let target = Target::of("target_path", &request.path)?;
    let _turn = driver.turn(id)?;
    let Some(mut record) = driver.records.volume(id)? else { return leave_unknown(driver, &target) };
    let Some(at) = record.published.iter().position(|known| known.target == target) else {
        return leave_unknown(driver, &target);
    };
    let _daemon = driver.daemon_turn(&record.daemon, until)?;
    let placed = record.published.swap_remove(at);
    placed.target.clear(None)?;
    placed.target.remove()?;
    if !record.is_inline || !record.published.is_empty() {
        driver.records.keep_volume(&record)?;
        return Ok(Empty {});
    }
    finish(driver, &record)
}

pub(in crate::csi) fn unstage(driver: &Driver, request: &PlaceRequest, until: Instant) -> Outcome<Empty> {
    let id = volume_id(&request.volume_id)?;
    let target = Target::of("staging_target_path", &request.path)?;
    let _turn = driver.turn(id)?;
    let Some(record) = driver.records.volume(id)? else { return leave_unknown(driver, &target) };
    let Some(staged) = record.staged.as_ref().filter(|staged| staged.target == target) else {
        return leave_unknown(driver, &target);
    };
    let _daemon = driver.daemon_turn(&record.daemon, until)?;
    for used in &record.published {
        if used.target.is_ours()? {
            let text = format!("the volume {id:?} is still published at {}", used.target.text());
            return Err(Failure::new(Code::FailedPrecondition, text));
        }
    }
    staged.target.clear(None)?;
    finish(driver, &record)
}

/// Forgets a volume of which nothing is mounted, after the end of its daemon if that has no other volume.
fn finish(driver: &Driver, record: &VolumeRecord) -> Outcome<Empty> {
    let volumes = driver.records.volumes_of(&record.daemon);
    let is_last = volumes.readable.iter().all(|other| other.id == record.id);
    match volumes.are_all {
        Ok(()) if is_last => driver.daemons.end(&record.daemon)?,
        Ok(()) => {}
        // The daemon ends when the other record can be read, or is gone.
        Err(failure) => log::warn!("{failure}"),
    }
    driver.records.forget_volume(&record.id)?;
    Ok(Empty {})
}

pub(in crate::csi) fn stats(driver: &Driver, request: &PlaceRequest) -> Outcome<VolumeStats> {
    let id = volume_id(&request.volume_id)?;
    if request.path.is_empty() {
        return Err(Failure::invalid("volume_path is missing"));
    }
    let absent = || Failure::new(Code::NotFound, format!("the volume {id:?} is not at volume_path"));
    let record = driver.records.volume(id)?.ok_or_else(absent)?;
    let target = Target::of("volume_path", &request.path).map_err(|_| absent())?;
    let is_there = record.places().any(|known| known.target == target);
    if !is_there || !target.is_ours()? {
        return Err(absent());
    }
    let path = target.path().to_owned();
    let until = Instant::now() + STATS;
    let found = driver.asked(&record.daemon, "stats", until, move || rustix::fs::statvfs(path));
    let found = found.ok_or_else(|| Failure::late("asking the daemon of the volume"))?;
    let found = found.map_err(|error| {
        let text = format!("{}: {}", target.text(), crate::model::plain(&error.into()));
        Failure::new(Code::Unavailable, text)
    })?;
    let usage = |unit, total: u64, free: u64, available: u64, each: u64| {
        let number = |count: u64| i64::try_from(count.saturating_mul(each)).unwrap_or(i64::MAX);
        VolumeUsage {
            unit,
            total: number(total),
            used: number(total.saturating_sub(free)),
            available: number(available),
        }
    };
    Ok(VolumeStats {
        usage: vec![
            usage(BYTES, found.f_blocks, found.f_bfree, found.f_bavail, found.f_frsize),
            usage(INODES, found.f_files, found.f_ffree, found.f_favail, 1),
        ],
    })
}
