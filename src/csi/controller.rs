//! The Controller service: volumes of a StorageClass, which are static, and clones.
//!
//! A static volume has the parameters of its class as attributes; nothing is made for it. A clone is a collection of a store of
//! this node, made by `tierfs clone` from a volume of a remote, and removed with its volume.

use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use crate::csi::access::Access;
use crate::csi::attributes::{Attributes, Source};
use crate::csi::driver::Driver;
use crate::csi::failure::{Code, Failure, Outcome, internal};
use crate::csi::messages::{
    Capabilities, CapacityRange, Confirmed, ContentSource, CreateRequest, CreateResponse, DeleteRequest,
    Empty, SourceName, Texts, ValidateRequest, ValidateResponse, Volume, VolumeCapability,
};
use crate::csi::node::volume_id;
use crate::csi::programs;
use crate::csi::records::{CreatedRecord, write_private};
use crate::csi::secrets::Secrets;
use crate::store::clone_source_at;

const CREATE_DELETE_VOLUME: i32 = 1;
const CLONE_VOLUME: i32 = 7;
const SINGLE_NODE_MULTI_WRITER: i32 = 13;

/// Bytes of a name.
const NAME_BYTES_MAX: usize = 128;
/// An identity begins with this; a clone of a tenant has it as its name.
const PREFIX: &str = "volume-";

pub(in crate::csi) fn capabilities() -> Capabilities {
    Capabilities::of(&[CREATE_DELETE_VOLUME, CLONE_VOLUME, SINGLE_NODE_MULTI_WRITER])
}

pub(in crate::csi) fn create(
    driver: &Driver,
    request: &CreateRequest,
    until: Instant,
) -> Outcome<CreateResponse> {
    check_name(&request.name)?;
    check_capacity(request.capacity_range)?;
    if !request.mutable_parameters.is_empty() {
        return Err(Failure::invalid("mutable_parameters are not known: no attribute of a volume changes"));
    }
    let attributes = Attributes::of(&request.parameters)?;
    check_capabilities(&request.volume_capabilities, attributes.source.is_remote)?;
    if attributes.is_inline {
        return Err(Failure::invalid("an inline volume is not created"));
    }
    let secrets = Secrets::of(&request.secrets)?;
    let from = match &request.volume_content_source {
        None => None,
        Some(ContentSource { volume: Some(SourceName { id }), snapshot: None }) => {
            Some(volume_id(id)?.to_owned())
        }
        Some(_) => return Err(Failure::invalid("the source of a volume is another volume, not a snapshot")),
    };
    let id = format!("{PREFIX}{}", driver.records.digest(["name", &request.name]));
    let _turn = driver.turn(&id)?;
    let wanted = CreatedRecord {
        id,
        parameters: attributes.texts.clone(),
        attributes: attributes.texts.clone(),
        capacity: CreatedRecord::capacity_of(request.capacity_range),
        source: from.clone(),
        is_made: true,
    };
    let known = driver.records.created(&wanted.id)?;
    if let Some(known) = &known {
        let is_same = known.parameters == wanted.parameters
            && known.capacity == wanted.capacity
            && known.source == wanted.source;
        if !is_same {
            let text = format!("the volume {:?} exists with other parameters", request.name);
            return Err(Failure::exists(text));
        }
    }
    let made = match (known, from) {
        (Some(known), _) if known.is_made => known,
        (_, Some(from)) => {
            let of = driver.records.created(&from)?;
            let absent =
                || Failure::new(Code::NotFound, format!("the source volume {from:?} does not exist"));
            let of = Attributes::of(&of.ok_or_else(absent)?.attributes)?;
            make_clone(driver, wanted, &attributes, &of, &secrets, until)?
        }
        (_, None) => {
            driver.records.keep_created(&wanted)?;
            wanted
        }
    };
    let content_source =
        made.source.map(|id| ContentSource { snapshot: None, volume: Some(SourceName { id }) });
    let volume =
        Volume { capacity_bytes: 0, volume_id: made.id, volume_context: made.attributes, content_source };
    Ok(CreateResponse { volume: Some(volume) })
}

fn check_name(name: &str) -> Outcome<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Failure::invalid(format!(
            "name is missing, has control characters, or over {NAME_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

fn check_capabilities(all: &[VolumeCapability], is_remote: bool) -> Outcome<()> {
    if all.is_empty() {
        return Err(Failure::invalid("volume_capabilities is missing"));
    }
    all.iter().try_for_each(|capability| Access::of(Some(capability), false)?.check_source(is_remote))
}

fn check_capacity(range: Option<CapacityRange>) -> Outcome<()> {
    let Some(CapacityRange { required_bytes, limit_bytes }) = range else { return Ok(()) };
    if required_bytes < 0 || limit_bytes < 0 {
        return Err(Failure::invalid("capacity_range is negative"));
    }
    if limit_bytes > 0 && limit_bytes < required_bytes {
        return Err(Failure::new(Code::OutOfRange, "capacity_range has a limit below what is required"));
    }
    Ok(())
}

/// Makes a clone, or goes on with one that an earlier call has begun.
fn make_clone(
    driver: &Driver,
    wanted: CreatedRecord,
    attributes: &Attributes,
    of: &Attributes,
    secrets: &Secrets,
    until: Instant,
) -> Outcome<CreatedRecord> {
    if attributes.source.is_remote {
        return Err(Failure::invalid("a clone lies in a store; its class needs the attribute store"));
    }
    if !of.source.is_remote || !of.collection.contains('/') {
        return Err(Failure::invalid(
            "a clone is one of a collection of a remote, and the source volume shows none",
        ));
    }
    let name = match attributes.collection.as_str() {
        "" => return Err(Failure::invalid("a clone needs collection: TENANT or TENANT/COLLECTION")),
        collection if collection.contains('/') => collection.to_owned(),
        tenant => format!("{tenant}/{}", wanted.id),
    };
    let mut record = CreatedRecord { is_made: false, ..wanted };
    record.attributes.insert("collection".to_owned(), name.clone());
    // Nodes and a removal take them as they are now.
    Attributes::of(&record.attributes)?;
    let store = &attributes.source.place;
    driver.records.keep_created(&record)?;
    let key = driver.settings.state.join(format!("{}.pem", record.id));
    let arguments = clone_arguments(driver, &of.source, &of.collection, &name, store, &record.id)?;
    let mut command = programs::own_command(secrets);
    command.args(arguments);
    let cloned = programs::run(command, &format!("cloning {}", of.source.place), until);
    crate::csi::records::remove_file(&key).map_err(internal)?;
    match cloned {
        Ok(()) => {}
        // An earlier call has made it, and was not answered; without its mark, it is somebody else's.
        Err(failure) if failure.code == Code::AlreadyExists && is_own(store, &name, &record.id)? => {}
        Err(failure) => {
            // A clone that was not in time may be there all the same.
            if failure.code != Code::DeadlineExceeded {
                driver.records.forget_created(&record.id)?;
            }
            return Err(failure);
        }
    }
    record.is_made = true;
    driver.records.keep_created(&record)?;
    Ok(record)
}

fn clone_arguments(
    driver: &Driver,
    of: &Source,
    from: &str,
    to: &str,
    store: &str,
    id: &str,
) -> Outcome<Vec<OsString>> {
    let mut arguments: Vec<OsString> = ["clone", "--json", "--mark", id].map(OsString::from).into();
    let at = of.at.as_ref().and_then(|at| at.strip_prefix(from)?.strip_prefix('='));
    arguments.extend(at.map(|at| OsString::from(format!("--at={at}"))));
    let key = match (of.own_key(), &of.trust) {
        (Some(key), _) => {
            let path = driver.settings.state.join(format!("{id}.pem"));
            write_private(&path, key.as_bytes()).map_err(internal)?;
            Some(path.display().to_string())
        }
        (None, path) => path.clone(),
    };
    arguments.extend(key.map(|key| OsString::from(format!("--trust={key}"))));
    arguments.extend([OsString::from(&of.place), format!("{from}={to}").into(), OsString::from(store)]);
    Ok(arguments)
}

/// Whether a collection is the clone of this volume, and not one that somebody else has made under its name.
fn is_own(store: &str, name: &str, id: &str) -> Outcome<bool> {
    let source = clone_source_at(Path::new(store), name)?;
    Ok(source.and_then(|source| source.mark).is_some_and(|mark| mark == id))
}

pub(in crate::csi) fn delete(driver: &Driver, request: &DeleteRequest, until: Instant) -> Outcome<Empty> {
    let id = volume_id(&request.volume_id)?;
    let _turn = driver.turn(id)?;
    let Some(record) = driver.records.created(id)? else { return Ok(Empty {}) };
    if driver.records.volume(id)?.is_some() {
        let text = format!("the volume {id:?} is staged on this node");
        return Err(Failure::new(Code::FailedPrecondition, text));
    }
    if record.source.is_some() {
        let clone = Attributes::of(&record.attributes)?;
        if is_own(&clone.source.place, &clone.collection, id)? {
            let mut command = programs::own_command(&Secrets::default());
            command.args(["rm", "--json", &clone.source.place, &clone.collection]);
            match programs::run(command, &format!("removing {}", clone.collection), until) {
                Err(failure) if failure.code != Code::NotFound => return Err(failure),
                _ => {}
            }
        }
    }
    driver.records.forget_created(id)?;
    Ok(Empty {})
}

pub(in crate::csi) fn validate(driver: &Driver, request: &ValidateRequest) -> Outcome<ValidateResponse> {
    let id = volume_id(&request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return Err(Failure::invalid("volume_capabilities is missing"));
    }
    let created = driver.records.created(id)?.map(|record| record.attributes);
    let staged = driver.records.volume(id)?.map(|record| record.attributes);
    let known: Option<Texts> = created.or(staged);
    let absent = || Failure::new(Code::NotFound, format!("the volume {id:?} does not exist"));
    let attributes = Attributes::of(&known.ok_or_else(absent)?)?;
    let refused = |message: &str| ValidateResponse { confirmed: None, message: message.to_owned() };
    for capability in &request.volume_capabilities {
        match Access::of(Some(capability), false) {
            Err(failure) => return Ok(refused(&failure.text)),
            Ok(access) if attributes.source.is_remote && !access.read_only => {
                return Ok(refused("a remote can only be read: ask for an access mode of readers"));
            }
            Ok(_) => {}
        }
    }
    let confirmed = Confirmed {
        volume_context: request.volume_context.clone(),
        volume_capabilities: request.volume_capabilities.clone(),
        parameters: request.parameters.clone(),
    };
    Ok(ValidateResponse { confirmed: Some(confirmed), message: String::new() })
}
