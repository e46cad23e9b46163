//! Import requests: the options of `tierfs import`, and the line of JSON that passes them to a
//! daemon.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::ingest::bytes::options::Options;
use crate::ingest::find::hub::Revisions;
use crate::ingest::find::walk::{path_of, url_of};
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::parts::WholeTensor;
use crate::model::{
    Dtype, Encoder, Error, MoveTo, OwnedCollectionName, Result, Shape, check_label, check_tag, parse_tags,
};

/// Maximal length of a tag in characters.
const TAG_LEN_MAX: usize = 64;

/// The options of an import.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    pub collection: OwnedCollectionName,
    pub paths: Vec<PathBuf>,
    /// The tier that float tensors go to, as [`MoveTo::parse_tier`] takes it.
    pub tier: Option<String>,
    /// Pack exact tensors, independent of the setting `pack`.
    pub pack: bool,
    /// How scales are chosen.
    pub encoder: Encoder,
    /// The paths are the shards of one file of this name.
    pub shard_of: Option<String>,
    /// The element type and the shape of that file, unless its name and bytes make it a container.
    pub dtype: Option<String>,
    pub shape: Option<String>,
    /// The lineage parents: a collection, or one tensor.
    pub parent: Option<String>,
    /// Keep the state before the import and the state after it as versions.
    pub previous: bool,
    /// How many versions are left then; the oldest go.
    pub keep: Option<u64>,
    /// How evicted tensors of the import are reconstructed.
    pub reconstruct: Option<String>,
    /// Import in place: the bytes stay in the source files.
    pub in_place: bool,
    /// Bytes of a block.
    pub block_bytes: Option<u64>,
    /// Head dimension in elements; blocks hold whole positions of it.
    pub head_dim: Option<u64>,
    /// A manifest in the format of sha256sum; all files must be in it.
    pub manifest: Option<PathBuf>,
    /// Of a repository of a hub cache: the branch, tag or commit; else that of `refs/main`.
    pub revision: Option<String>,
    /// Of a repository of a hub cache: all revisions, in a directory each.
    pub all_revisions: bool,
    /// Recognize present files by their digests rather than their modification times.
    pub checksum: bool,
    /// Leave files that were changed in the collection after they were changed in the source.
    pub update: bool,
    /// Remove files that an import of the same directories created, and that they no longer have.
    pub delete: bool,
    /// Store bytes that a data file of the store has already.
    pub no_share: bool,
    /// Refuse files that can only be plain files.
    pub strict: bool,
    /// List the actions without taking them.
    pub dry_run: bool,
    /// Tags that the files get, beside those that they have.
    pub tags: Vec<String>,
    pub tag: Option<String>,
}

/// Tenant and collection of `TENANT/COLLECTION`.
pub fn parse_collection(text: &str) -> Result<OwnedCollectionName> {
    let (tenant, name) = text
        .trim_end_matches('/')
        .split_once('/')
        .ok_or_else(|| Error::invalid(format!("{text:?} is not of the form TENANT/COLLECTION")))?;
    for label in [tenant, name] {
        check_label(label).map_err(|wrong| Error::invalid(format!("{label:?}: {wrong}")))?;
    }
    Ok(OwnedCollectionName::new(tenant, name))
}

/// Parses the name of an encoder.
pub fn parse_encoder(text: &str) -> Result<Encoder> {
    Encoder::from_name(text).ok_or_else(|| Error::invalid(format!("{text:?} is not best, least or absmax")))
}

impl Request {
    /// Whether the tensors are packed after the import, which left them in place.
    pub fn packs_later(&self) -> bool {
        self.pack && self.in_place
    }

    /// The URL that is imported, if the source is not on this machine.
    pub fn url(&self) -> Option<&str> {
        self.paths.iter().find_map(|path| url_of(path))
    }

    /// Whether the bytes stay at a URL.
    pub fn leaves_files_far(&self) -> bool {
        self.in_place && self.paths.iter().any(|path| url_of(path).is_some() && path_of(path).is_none())
    }

    /// The options of the import. Fails with `Invalid` for impossible values, and for options that
    /// exclude each other.
    pub fn options(&self) -> Result<Options> {
        if self.paths.is_empty() {
            return Err(Error::invalid("no paths"));
        }
        if self.shard_of.is_some() && self.manifest.is_some() {
            return Err(Error::invalid("shard_of excludes manifest"));
        }
        if self.shard_of.is_none() && (self.dtype.is_some() || self.shape.is_some()) {
            return Err(Error::invalid(
                "dtype and shape need shard_of; of other files they are settings: tierfs set",
            ));
        }
        if self.in_place && self.tier.is_some() {
            return Err(Error::invalid("in_place excludes tier: files in place stay exact"));
        }
        let blocking = match (self.block_bytes, self.head_dim) {
            (None, None) => Blocking::default(),
            (Some(bytes), None) => Blocking::bytes(bytes)?,
            (None, Some(elements)) => Blocking::head_dim(elements)?,
            _ => return Err(Error::invalid("block_bytes and head_dim exclude each other")),
        };
        if self.shard_of.is_some() && (self.checksum || self.update || self.delete || self.dry_run) {
            return Err(Error::invalid(
                "shard_of excludes checksum, update, delete and dry_run, because shards are always imported",
            ));
        }
        if self.revision.is_some() && self.all_revisions {
            return Err(Error::invalid("revision and all_revisions exclude each other"));
        }
        if self.reconstruct.as_deref() == Some("delta") && self.parent.is_none() {
            return Err(Error::invalid(
                "reconstruct=delta needs a lineage parent; name it: --parent TENANT/COLLECTION",
            ));
        }
        if self.reconstruct.as_deref() == Some("origin") && !self.in_place {
            return Err(Error::invalid("reconstruct=origin needs files that stay in place; add --in-place"));
        }
        self.check_url()?;
        self.check_previous()?;
        self.tags.iter().try_for_each(|tag| check_tag(tag))?;
        parse_tags(&self.tags.join(","))?;
        let tier = self.tier.as_deref().map(MoveTo::parse_tier).transpose()?;
        let (encoder, strict, pack, no_share) = (self.encoder, self.strict, self.pack, self.no_share);
        let whole = self.whole()?;
        Ok(Options { tier, pack, encoder, blocking, strict, no_share, whole, ..Options::default() })
    }

    fn check_url(&self) -> Result<()> {
        let Some(url) = self.url() else { return Ok(()) };
        let excluded = [
            (self.paths.len() > 1, "other sources"),
            (self.shard_of.is_some(), "--shard-of"),
            (self.revision.is_some() || self.all_revisions, "revisions of a hub cache"),
        ];
        match excluded.iter().find(|(is_given, _)| *is_given) {
            Some((_, what)) => Err(Error::invalid(format!("{url} is imported without {what}"))),
            None => Ok(()),
        }
    }

    fn check_previous(&self) -> Result<()> {
        if self.keep.is_some() && !self.previous {
            return Err(Error::invalid("keep needs previous: without it an import makes no versions"));
        }
        if self.keep == Some(0) {
            return Err(Error::invalid("keep is at least 1: the newest version stays"));
        }
        let excluded = [
            (self.in_place, "in_place: a file in place may change, and a version must not"),
            (self.parent.is_some(), "parent: a version does not need another collection"),
            (self.reconstruct.is_some(), "reconstruct: a version has bytes of its own"),
        ];
        match excluded.iter().find(|(is_given, _)| self.previous && *is_given) {
            Some((_, why)) => Err(Error::invalid(format!("previous excludes {why}"))),
            None => Ok(()),
        }
    }

    fn whole(&self) -> Result<Option<WholeTensor>> {
        let dtype = self.dtype.as_deref().map(|text| {
            let wrong = || {
                Error::invalid(format!(
                    "invalid value {text:?} of dtype; expected a type such as f32 or bf16"
                ))
            };
            Dtype::from_name(text).ok_or_else(wrong)
        });
        let shape = self.shape.as_deref().map(|text| {
            let wrong = || {
                Error::invalid(format!("invalid value {text:?} of shape; expected sizes such as 4096x11008"))
            };
            Shape::parse(text).ok_or_else(wrong)
        });
        match (dtype.transpose()?, shape.transpose()?) {
            (None, None) => Ok(None),
            (Some(dtype), shape) => Ok(Some(WholeTensor { dtype, shape })),
            (None, Some(_)) => Err(Error::invalid("shape needs dtype")),
        }
    }

    /// The revisions of a hub cache's repositories.
    pub(in crate::ingest) fn revisions(&self) -> Revisions {
        match &self.revision {
            _ if self.all_revisions => Revisions::All,
            Some(name) => Revisions::Named(name.clone()),
            None => Revisions::Main,
        }
    }

    /// Parses a line of JSON. Fails with `Invalid` for a syntax error, for unknown keys, and for
    /// relative paths, because the daemon has no meaningful working directory. URLs stay as they are.
    pub fn parse(text: &str) -> Result<Request> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("the request is not valid JSON: {error}")))?;
        let Value::Object(map) = value else {
            return Err(Error::invalid("the request is not a JSON object"));
        };
        let mut request = Request::default();
        let mut has_collection = false;
        for (key, value) in &map {
            let wrong = || Error::invalid(format!("{key} cannot be {value}"));
            let text = || value.as_str().ok_or_else(wrong);
            let number = || value.as_u64().ok_or_else(wrong);
            match key.as_str() {
                "collection" => {
                    request.collection = parse_collection(text()?)?;
                    has_collection = true;
                }
                "paths" => {
                    for path in value.as_array().ok_or_else(wrong)? {
                        request.paths.push(absolute(path.as_str().ok_or_else(wrong)?)?);
                    }
                }
                "tier" => request.tier = Some(text()?.to_owned()),
                "encoder" => request.encoder = parse_encoder(text()?)?,
                "shard_of" => request.shard_of = Some(text()?.to_owned()),
                "dtype" => request.dtype = Some(text()?.to_owned()),
                "shape" => request.shape = Some(text()?.to_owned()),
                "parent" => request.parent = Some(text()?.to_owned()),
                "reconstruct" => request.reconstruct = Some(text()?.to_owned()),
                "revision" => request.revision = Some(text()?.to_owned()),
                "previous" => request.previous = value.as_bool().ok_or_else(wrong)?,
                "keep" => request.keep = Some(number()?),
                "pack" => request.pack = value.as_bool().ok_or_else(wrong)?,
                "in_place" => request.in_place = value.as_bool().ok_or_else(wrong)?,
                "all_revisions" => request.all_revisions = value.as_bool().ok_or_else(wrong)?,
                "checksum" => request.checksum = value.as_bool().ok_or_else(wrong)?,
                "update" => request.update = value.as_bool().ok_or_else(wrong)?,
                "delete" => request.delete = value.as_bool().ok_or_else(wrong)?,
                "no_share" => request.no_share = value.as_bool().ok_or_else(wrong)?,
                "strict" => request.strict = value.as_bool().ok_or_else(wrong)?,
                "dry_run" => request.dry_run = value.as_bool().ok_or_else(wrong)?,
                "block_bytes" => request.block_bytes = Some(number()?),
                "head_dim" => request.head_dim = Some(number()?),
                "manifest" => request.manifest = Some(absolute(text()?)?),
                "tags" => {
                    for tag in value.as_array().ok_or_else(wrong)? {
                        request.tags.push(tag.as_str().ok_or_else(wrong)?.to_owned());
                    }
                }
                "tag" => request.tag = Some(checked_tag(text()?)?),
                _ => return Err(Error::invalid(format!("unknown option {key:?} of an import"))),
            }
        }
        if !has_collection {
            return Err(Error::invalid("no collection"));
        }
        request.options()?;
        Ok(request)
    }

    /// Formats the request for [`parse`](Self::parse), with absolute paths. Fails with `Invalid` for
    /// paths that are not UTF-8.
    pub fn to_json(&self) -> Result<String> {
        let path = |path: &PathBuf| {
            if let Some(url) = url_of(path) {
                return Ok(Value::from(url));
            }
            let absolute = std::path::absolute(path).map_err(|error| Error::io(path.display(), error))?;
            let text = absolute.to_str().map(|text| Value::from(text.to_owned()));
            text.ok_or_else(|| Error::invalid(format!("{} is not UTF-8", path.display())))
        };
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
        put("collection", self.collection.to_string().into());
        put("paths", self.paths.iter().map(path).collect::<Result<Vec<_>>>()?.into());
        put("encoder", self.encoder.name().into());
        for (key, is_set) in [
            ("previous", self.previous),
            ("pack", self.pack),
            ("in_place", self.in_place),
            ("all_revisions", self.all_revisions),
            ("checksum", self.checksum),
            ("update", self.update),
            ("delete", self.delete),
            ("no_share", self.no_share),
            ("strict", self.strict),
            ("dry_run", self.dry_run),
        ] {
            if is_set {
                put(key, true.into());
            }
        }
        for (key, text) in [
            ("tier", &self.tier),
            ("shard_of", &self.shard_of),
            ("dtype", &self.dtype),
            ("shape", &self.shape),
            ("tag", &self.tag),
            ("parent", &self.parent),
            ("reconstruct", &self.reconstruct),
            ("revision", &self.revision),
        ] {
            if let Some(text) = text {
                put(key, text.as_str().into());
            }
        }
        let numbers = [("block_bytes", self.block_bytes), ("head_dim", self.head_dim), ("keep", self.keep)];
        for (key, number) in numbers {
            if let Some(number) = number {
                put(key, number.into());
            }
        }
        if !self.tags.is_empty() {
            put("tags", self.tags.clone().into());
        }
        if let Some(manifest) = &self.manifest {
            put("manifest", path(manifest)?);
        }
        Ok(Value::Object(map).to_string())
    }
}

fn absolute(text: &str) -> Result<PathBuf> {
    let path = Path::new(text);
    match (path.is_absolute() || url_of(path).is_some()) && !text.contains('\0') {
        true => Ok(path.to_owned()),
        false => Err(Error::invalid(format!("{text:?} is not an absolute path"))),
    }
}

fn checked_tag(text: &str) -> Result<String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match is_plain && (1..=TAG_LEN_MAX).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err(Error::invalid("a tag is 1 to 64 letters, digits and hyphens")),
    }
}

#[cfg(test)]
mod tests {
    use super::Request;
    use crate::model::ErrorKind;

    #[test]
    fn requests_round_trip_and_invalid_ones_are_refused() {
        let line = r#"{"collection":"t/c","paths":["/a","/b c"],"tier":"q5:all","encoder":"absmax",
            "block_bytes":8192,"manifest":"/m","tag":"1-x","revision":"v1","checksum":true,"update":true,
            "pack":true,"delete":true,"no_share":true,"strict":true,"dry_run":true,
            "previous":true,"keep":3}"#;
        let request = Request::parse(line).unwrap();
        assert_eq!(Request::parse(&request.to_json().unwrap()).unwrap(), request);
        #[cfg(feature = "remote")]
        {
            let url = Request::parse(r#"{"collection":"t/c","paths":["s3://a/b"]}"#).unwrap();
            assert_eq!(url.url(), Some("s3://a/b"));
            assert_eq!(Request::parse(&url.to_json().unwrap()).unwrap(), url);
        }
        let shards = r#"{"collection":"t/c","paths":["/a"],"shard_of":"w","head_dim":64}"#;
        let shards = Request::parse(shards).unwrap();
        assert_eq!(Request::parse(&shards.to_json().unwrap()).unwrap(), shards);
        for wrong in [
            "",
            "{}",
            "[]",
            "x",
            r#"{"collection":"t/c"}"#,
            r#"{"paths":["/a"]}"#,
            r#"{"collection":"t","paths":["/a"]}"#,
            r#"{"collection":"t/.c","paths":["/a"]}"#,
            r#"{"collection":"t/c","paths":[]}"#,
            r#"{"collection":"t/c","paths":["a"]}"#,
            r#"{"collection":"t/c","paths":["/a\u0000"]}"#,
            r#"{"collection":"t/c","paths":"/a"}"#,
            r#"{"collection":"t/c","paths":["/a"],"x":1}"#,
            r#"{"collection":"t/c","paths":["/a"],"tier":"q9"}"#,
            r#"{"collection":"t/c","paths":["/a"],"tier":"q5","in_place":true}"#,
            r#"{"collection":"t/c","paths":["/a"],"shard_of":"x","manifest":"/m"}"#,
            r#"{"collection":"t/c","paths":["/a"],"block_bytes":1}"#,
            r#"{"collection":"t/c","paths":["/a"],"block_bytes":4096,"head_dim":64}"#,
            r#"{"collection":"t/c","paths":["/a"],"manifest":"m"}"#,
            r#"{"collection":"t/c","paths":["/a"],"tag":""}"#,
            r#"{"collection":"t/c","paths":["/a"],"in_place":1}"#,
            r#"{"collection":"t/c","paths":["/a"],"pack":"ladder"}"#,
            r#"{"collection":"t/c","paths":["/a"],"tier":"packed"}"#,
            r#"{"collection":"t/c","paths":["/a"],"shard_of":"x","in_place":true,"tier":"q8"}"#,
            r#"{"collection":"t/c","paths":["/a"],"dtype":"f32"}"#,
            r#"{"collection":"t/c","paths":["/a"],"shard_of":"x","shape":"2x2"}"#,
            r#"{"collection":"t/c","paths":["/a"],"shard_of":"x","dtype":"f33"}"#,
            r#"{"collection":"t/c","paths":["/a"],"delete":"yes"}"#,
            r#"{"collection":"t/c","paths":["/a"],"tags":["a,b"]}"#,
            r#"{"collection":"t/c","paths":["/a"],"tags":[""]}"#,
            r#"{"collection":"t/c","paths":["/a"],"shard_of":"x","checksum":true}"#,
            r#"{"collection":"t/c","paths":["/a"],"revision":"x","all_revisions":true}"#,
            r#"{"collection":"t/c","paths":["/a"],"keep":3}"#,
            r#"{"collection":"t/c","paths":["/a"],"previous":true,"keep":0}"#,
            r#"{"collection":"t/c","paths":["/a"],"previous":true,"in_place":true}"#,
            r#"{"collection":"t/c","paths":["/a"],"previous":true,"parent":"t/b"}"#,
            r#"{"collection":"t/c","paths":["/a"],"previous":true,"parent":"t/b","reconstruct":"delta"}"#,
            r#"{"collection":"t/c","paths":["/a"],"previous":true,"reconstruct":"factor"}"#,
            r#"{"collection":"t/c","paths":["s3://a","/b"]}"#,
            r#"{"collection":"t/c","paths":["s3://a"],"shard_of":"x"}"#,
            r#"{"collection":"t/c","paths":["s3://a"],"all_revisions":true}"#,
            r#"{"collection":"t/c","paths":["/a"]} x"#,
        ] {
            assert_eq!(Request::parse(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
