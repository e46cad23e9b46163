//! A push as a user asks for it: a command carries it out, or has the daemon of a mounted store do it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::format::snapshot::manifest::OwnerAndMode;
use crate::model::{
    Error, ErrorKind, MoveTo, OwnedCollectionName, Owner, Progress, Result, StoreId, check_label,
};
use crate::remote::client::Client;
use crate::remote::place::remote::Remote;
use crate::remote::place::signatures::Signer;
use crate::remote::place::tags::{Move, check_tag, set_tag};
use crate::remote::push::outcome::Pushed;
use crate::remote::push::parameters::{
    Caption, DIFFERENCE_PERCENT, JOBS, Keyframes, May, Parameters, Variants,
};
use crate::remote::push::publish::push;
use crate::remote::read::cache::{Cache, Size};
use crate::store::disk::files::random_id;
use crate::store::{Recode, Settings, Store, now_nanoseconds};

/// The most pieces sent at the same time.
pub const JOBS_MAX: usize = 128;

/// A request to publish: the collection, the remote, and the options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PushRequest {
    /// The collection: its tenant and its name.
    pub collection: OwnedCollectionName,
    /// Its tenant and its name in the remote.
    pub named: OwnedCollectionName,
    /// The URL of the remote. It holds no credentials.
    pub url: String,
    /// A message for those who list snapshots.
    pub message: String,
    /// A tag for the snapshot.
    pub tag: Option<String>,
    /// Other collections of the remote whose pieces are named again.
    pub dedup_with: Vec<OwnedCollectionName>,
    /// The variants to publish beside the collection; without, those that the newest snapshot has.
    pub variants: Option<Vec<MoveTo>>,
    pub keyframes: Keyframes<PathBuf>,
    pub may: May,
    /// The file of the key that signs the snapshot.
    pub sign: Option<PathBuf>,
    /// Pieces sent at the same time.
    pub jobs: usize,
    /// Tells the job of this request from others.
    pub label: Option<String>,
}

/// The tenant and the name of `TENANT/COLLECTION`.
pub fn parse_place(text: &str) -> Result<OwnedCollectionName> {
    let wrong = || Error::invalid(format!("{text:?} is not of the form TENANT/COLLECTION"));
    let (tenant, name) = text.trim_end_matches('/').split_once('/').ok_or_else(wrong)?;
    for label in [tenant, name] {
        check_label(label).map_err(|wrong| Error::invalid(format!("{label:?}: {wrong}")))?;
    }
    Ok(OwnedCollectionName::new(tenant, name))
}

/// The two places of `HERE=THERE`, each TENANT/COLLECTION; twice the same of a single one. Names may have equals signs too:
/// the sign that divides two places is the last one between their slashes.
pub fn parse_two_places(text: &str) -> Result<(OwnedCollectionName, OwnedCollectionName)> {
    let text = text.trim_end_matches('/');
    let parts = text.rsplit_once('/').and_then(|(above, _)| {
        let (at, _) = above.char_indices().rfind(|(_, letter)| *letter == '=')?;
        let (here, there) = (text.get(..at)?, text.get(at + 1..)?);
        here.contains('/').then_some((here, there))
    });
    let (here, there) = parts.unwrap_or((text, text));
    Ok((parse_place(here)?, parse_place(there)?))
}

/// The name that stands for no variants.
const NONE: &str = "none";

/// The moves of variants with these names, in the order of the names; none for `none`.
pub fn parse_variants(names: &[impl AsRef<str>]) -> Result<Vec<MoveTo>> {
    if let [only] = names
        && only.as_ref() == NONE
    {
        return Ok(Vec::new());
    }
    let mut found: Vec<MoveTo> =
        names.iter().map(|name| MoveTo::parse_variant(name.as_ref())).collect::<Result<_>>()?;
    found.sort_by_key(|to| to.variant_name());
    found.dedup();
    Ok(found)
}

/// Makes the variant of a move, for a store with these settings. The layer above knows how.
pub type MakeVariant = fn(MoveTo, &Settings) -> Arc<dyn Recode>;

/// Makes parts of a snapshot.
pub struct Makers {
    pub variant: MakeVariant,
    pub signer: Option<Arc<Signer>>,
}

impl PushRequest {
    /// Pushes a collection under its own name.
    pub fn new(collection: OwnedCollectionName, url: &str) -> PushRequest {
        PushRequest {
            named: collection.clone(),
            collection,
            url: url.to_owned(),
            message: String::new(),
            tag: None,
            dedup_with: Vec::new(),
            variants: None,
            keyframes: Keyframes::default(),
            may: May::default(),
            sign: None,
            jobs: JOBS,
            label: None,
        }
    }

    /// The request as one line of JSON.
    pub fn to_json(&self) -> String {
        let value = json!({
            "collection": self.collection.to_string(),
            "named": self.named.to_string(),
            "url": self.url,
            "create": self.may.create,
            "message": self.message,
            "tag": self.tag,
            "single_writer": self.may.single_writer,
            "dedup_with": self.dedup_with.iter().map(OwnedCollectionName::to_string).collect::<Vec<_>>(),
            "variants": self.variants.as_ref().map(|all| all.iter().map(|to| to.variant_name()).collect::<Vec<_>>()),
            "keyframe_after": self.keyframes.limits.pushes_max,
            "difference_max": self.keyframes.limits.percent_max,
            "cache": self.keyframes.cache.as_ref().map(|cache| cache.to_string_lossy()),
            "force": self.may.force,
            "sign": self.sign,
            "jobs": self.jobs,
            "label": self.label,
        });
        value.to_string()
    }

    /// Reads an request. Fields that are missing have their defaults.
    pub fn parse(text: &str) -> Result<PushRequest> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("the request is not valid JSON: {error}")))?;
        let Value::Object(fields) = value else {
            return Err(Error::invalid("the request is not a JSON object"));
        };
        let needed = |key: &str| {
            let text = fields.get(key).and_then(Value::as_str);
            text.ok_or_else(|| Error::invalid(format!("{key} is missing or not text")))
        };
        let mut request = PushRequest::new(parse_place(needed("collection")?)?, needed("url")?);
        request.take(&fields)?;
        // A URL with credentials must not reach a list of jobs.
        Client::open(&request.url)?;
        Ok(request)
    }

    fn take(&mut self, fields: &Map<String, Value>) -> Result<()> {
        for (key, value) in fields {
            let wrong = || Error::invalid(format!("{key} cannot be {value}"));
            let text = || value.as_str().ok_or_else(wrong);
            let switch = || value.as_bool().ok_or_else(wrong);
            match key.as_str() {
                "collection" | "url" => {}
                "tag" | "label" | "variants" | "cache" | "sign" if value.is_null() => {}
                "named" => self.named = parse_place(text()?)?,
                "create" => self.may.create = switch()?,
                "message" => self.message = text()?.to_owned(),
                "tag" => self.tag = Some(text()?.to_owned()),
                "single_writer" => self.may.single_writer = switch()?,
                "dedup_with" => {
                    let places = value.as_array().ok_or_else(wrong)?.iter();
                    let places = places.map(|place| parse_place(place.as_str().ok_or_else(wrong)?));
                    self.dedup_with = places.collect::<Result<_>>()?;
                }
                "variants" => {
                    let names = value.as_array().ok_or_else(wrong)?.iter();
                    let names = names.map(|name| name.as_str().ok_or_else(wrong));
                    self.variants = Some(parse_variants(&names.collect::<Result<Vec<_>>>()?)?);
                }
                "cache" => {
                    let cache = Some(PathBuf::from(text()?)).filter(|cache| cache.is_absolute());
                    self.keyframes.cache = Some(cache.ok_or_else(wrong)?);
                }
                "keyframe_after" => self.keyframes.limits.pushes_max = value.as_u64().ok_or_else(wrong)?,
                "difference_max" => {
                    let percent = value.as_u64().and_then(|percent| u8::try_from(percent).ok());
                    let percent = percent.filter(|percent| DIFFERENCE_PERCENT.contains(percent));
                    self.keyframes.limits.percent_max = percent.ok_or_else(wrong)?;
                }
                "force" => self.may.force = switch()?,
                "sign" => self.sign = Some(PathBuf::from(text()?)),
                "jobs" => {
                    let jobs = value.as_u64().and_then(|jobs| usize::try_from(jobs).ok());
                    let jobs = jobs.filter(|jobs| (1..=JOBS_MAX).contains(jobs));
                    self.jobs = jobs.ok_or_else(wrong)?;
                }
                "label" => self.label = Some(text()?.to_owned()),
                _ => return Err(Error::invalid(format!("unknown option {key} of a push"))),
            }
        }
        Ok(())
    }

    fn variants(&self, variant: MakeVariant, settings: &Settings) -> Variants {
        let settings = settings.clone();
        match &self.variants {
            Some(all) => Variants::These(all.iter().map(|to| variant(*to, &settings)).collect()),
            None => Variants::AsBefore(Arc::new(move |name| {
                MoveTo::parse_variant(name).map(|to| variant(to, &settings))
            })),
        }
    }

    /// Pushes from `store`. `owner` has the tenants without an owner. The snapshot is signed by
    /// the key of the request.
    pub fn run(
        &self,
        store: &Store,
        owner: Owner,
        variant: MakeVariant,
        progress: &dyn Progress,
    ) -> Result<Pushed> {
        let signer = self.sign.as_deref().map(Signer::read).transpose()?.map(Arc::new);
        self.run_by(store, owner, Makers { variant, signer }, progress)
    }

    /// Does as [`run`](Self::run), with the signer of the caller in place of the key of the request.
    pub fn run_by(
        &self,
        store: &Store,
        owner: Owner,
        Makers { variant, signer }: Makers,
        progress: &dyn Progress,
    ) -> Result<Pushed> {
        if let Some(tag) = &self.tag {
            check_tag(tag)?;
        }
        let collection = store.collection(&self.collection.tenant, &self.collection.name)?;
        let client = Client::open(&self.url)?;
        let client = if self.may.single_writer { client.for_single_writer() } else { client };
        let now = now_nanoseconds();
        let remote = if self.may.create {
            Remote::open_or_create(client, random()?, now / 1_000_000_000)?
        } else {
            Remote::open(client)?
        };
        let cache = self.keyframes.cache.as_deref().map(keyframe_cache).transpose()?.flatten();
        let entry = store.tenant(&self.collection.tenant).entry();
        let Owner { uid, gid } = entry.owner.unwrap_or(owner);
        let parameters = Parameters {
            tenant: self.named.tenant.clone(),
            collection: self.named.name.clone(),
            tenant_owner: OwnerAndMode { uid, gid, mode: entry.mode },
            caption: Caption { message: self.message.clone(), tag: self.tag.clone() },
            jobs: self.jobs,
            push: random()?.0,
            created_at: u64::try_from(now).unwrap_or(0),
            may: self.may,
            dedup_with: self.dedup_with.clone(),
            variants: self.variants(variant, store.settings()),
            keyframes: Keyframes { limits: self.keyframes.limits, cache: cache.map(Arc::new) },
            signer,
        };
        let pushed = push(&remote, &collection, &parameters, progress)?;
        if let Some(tag) = &self.tag {
            set_tag(&remote, self.named.borrowed(), tag, pushed.number, Move::Refused)?;
        }
        Ok(pushed)
    }
}

/// The cache of keyframes; `None` while another process checks it.
fn keyframe_cache(directory: &Path) -> Result<Option<Cache>> {
    match Cache::open(directory, Size::default()) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            log::warn!("keyframes are read from the remote, and not kept: {error}");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn random() -> Result<StoreId> {
    random_id().map_err(|error| Error::io("reading /dev/urandom", error))
}

#[cfg(test)]
mod tests {
    use super::{Keyframes, May, PushRequest, parse_two_places, parse_variants};
    use crate::model::OwnedCollectionName;
    use crate::remote::push::parameters::DifferenceLimits;

    #[test]
    fn names_of_two_places_may_have_equals_signs() {
        for (text, here, there) in [
            ("t/c", "t/c", "t/c"),
            ("t/c/", "t/c", "t/c"),
            ("t/c=u/d", "t/c", "u/d"),
            ("t/lr=3e-4", "t/lr=3e-4", "t/lr=3e-4"),
            ("t/lr=3e-4=u/lr=1", "t/lr=3e-4", "u/lr=1"),
            ("a=b/c", "a=b/c", "a=b/c"),
            ("a=b/c=d=e/f", "a=b/c=d", "e/f"),
        ] {
            let (one, other) = parse_two_places(text).unwrap();
            assert_eq!((one.to_string(), other.to_string()), (here.to_owned(), there.to_owned()), "{text}");
        }
        for wrong in ["", "t", "t/", "=", "/=/", "t/c/d", "t/c=u/d/e"] {
            assert!(parse_two_places(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let place = |name: &str| OwnedCollectionName::new("acme", name);
        let plain = PushRequest::new(place("m"), "s3://models/demo");
        let full = PushRequest {
            named: place("other"),
            message: "a \"message\"".to_owned(),
            tag: Some("v1".to_owned()),
            dedup_with: vec![place("base")],
            variants: Some(parse_variants(&["q8", "q5:all", "warm5", "q8"]).unwrap()),
            keyframes: Keyframes {
                limits: DifferenceLimits { pushes_max: 0, percent_max: 90 },
                cache: Some("/srv/keyframes".into()),
            },
            may: May { create: true, single_writer: true, force: true },
            sign: Some("/etc/tierfs/key.pem".into()),
            jobs: 3,
            label: Some("7-8".to_owned()),
            ..plain.clone()
        };
        assert_eq!(full.variants.as_ref().unwrap().len(), 3, "{:?}", full.variants);
        assert_eq!(parse_variants(&["none"]).unwrap(), []);
        assert!(parse_variants(&["q8", "none"]).is_err());
        let without = PushRequest { variants: Some(Vec::new()), ..plain.clone() };
        for request in [plain, full, without] {
            assert_eq!(PushRequest::parse(&request.to_json()).unwrap(), request);
        }
    }

    #[test]
    fn wrong_orders_are_refused() {
        for text in [
            "",
            "[]",
            "{\"collection\": \"acme/m\"}",
            "{\"collection\": \"acme\", \"url\": \"s3://b/p\"}",
            "{\"collection\": \"acme/m\", \"url\": \"/srv\"}",
            "{\"collection\": \"acme/m\", \"url\": \"s3://key:secret@b/p\"}",
            "{\"collection\": \"acme/m\", \"url\": \"s3://b/p\", \"jobs\": 0}",
            "{\"collection\": \"acme/m\", \"url\": \"s3://b/p\", \"difference_max\": 91}",
            "{\"collection\": \"acme/m\", \"url\": \"s3://b/p\", \"colour\": 1}",
            "{\"collection\": \"acme/m\", \"url\": \"s3://b/p\", \"variants\": [\"exact\"]}",
        ] {
            let error = PushRequest::parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
