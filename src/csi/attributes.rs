//! The attributes of a volume: the source that a daemon mounts, and the part of it that the volume shows.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::csi::failure::{Code, Failure, Outcome};
use crate::csi::messages::Texts;
use crate::model::MoveTo;
use crate::remote::client::url::is_remote;
use crate::remote::push::request::parse_place;

/// The names of the attributes, for messages.
const NAMES: &str = "remote, store, collection, snapshot, tier, follow and trust";
/// Attributes that the orchestrator adds begin with these.
const OF_THE_ORCHESTRATOR: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// A key that stands in the attribute itself, not in a file.
const PEM: &str = "-----BEGIN ";
/// As CSI limits the texts of a map, in bytes of names and values.
const BYTES_MAX: usize = 4 << 10;
/// The orchestrator adds a few to those that have names here.
const COUNT_MAX: usize = 64;
/// A file with several keys is shorter.
const TRUST_BYTES_MAX: usize = 2 << 10;
/// Stands for a collection in a path that is checked as that of one.
const ANY: &str = "c";

/// A mount that a daemon makes, but for its credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::csi) struct Source {
    /// The URL of a remote, or the path of a store.
    pub place: String,
    pub is_remote: bool,
    /// As `tierfs mount --at` takes it.
    pub at: Option<String>,
    pub tier: Option<String>,
    pub follows: bool,
    /// A path, or the key itself.
    pub trust: Option<String>,
}

/// The attributes of a volume.
#[derive(Clone, Debug)]
pub(in crate::csi) struct Attributes {
    /// As they were given, without those of the orchestrator.
    pub texts: Texts,
    pub source: Source,
    /// TENANT/COLLECTION, TENANT, or nothing for the whole source.
    pub collection: String,
    /// Whether the volume lives and dies with one pod, of which it is a part.
    pub is_inline: bool,
}

impl Attributes {
    /// Takes the attributes of a call.
    pub fn of(given: &Texts) -> Outcome<Attributes> {
        let is_inline = Attributes::are_inline(given);
        let own =
            given.iter().filter(|(name, _)| !OF_THE_ORCHESTRATOR.iter().any(|begin| name.starts_with(begin)));
        let texts: Texts = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        check_sizes(given.len(), &texts)?;
        let (mut remote, mut store, mut collection, mut snapshot) = (None, None, None, None);
        let (mut tier, mut follows, mut trust) = (None, None, None);
        for (name, value) in &texts {
            let place = match name.as_str() {
                "remote" => &mut remote,
                "store" => &mut store,
                "collection" => &mut collection,
                "snapshot" => &mut snapshot,
                "tier" => &mut tier,
                "follow" => &mut follows,
                "trust" => &mut trust,
                _ => {
                    let text = format!("the attribute {name:?} is not known; the attributes are {NAMES}");
                    return Err(Failure::invalid(text));
                }
            };
            if value.is_empty() || value.contains('\0') {
                return Err(Failure::invalid(format!("the attribute {name} is empty or has a zero")));
            }
            *place = Some(value.clone());
        }
        let collection = checked_collection(collection)?;
        let (place, is_remote) = checked_place(remote, store)?;
        let follows = match follows.as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                return Err(Failure::invalid(format!("follow is {other:?}; expected true or false")));
            }
        };
        let tier = tier.map(|tier| MoveTo::parse_variant(&tier).map(MoveTo::variant_name)).transpose()?;
        let at = snapshot.map(|snapshot| at(&snapshot, &collection)).transpose()?;
        if let Some(trust) = trust.as_deref() {
            if trust.len() > TRUST_BYTES_MAX {
                return Err(Failure::invalid(format!("trust has more than {TRUST_BYTES_MAX} bytes")));
            }
            if !trust.starts_with(PEM) {
                checked_path("trust", trust)?;
            }
        }
        let has_options = at.is_some() || tier.is_some() || trust.is_some() || follows;
        if !is_remote && has_options {
            return Err(Failure::invalid(
                "snapshot, tier, follow and trust are attributes of a remote, not of a store",
            ));
        }
        // A mount of the directory would show the snapshot of its beginning for ever.
        if follows && collection.contains('/') {
            let text = "a volume that follows shows a tenant or the whole remote, in which collections come and go: give \
                        as collection the TENANT alone, and read COLLECTION below the mount";
            return Err(Failure::invalid(text));
        }
        let source = Source { place, is_remote, at, tier, follows, trust };
        Ok(Attributes { texts, source, collection, is_inline })
    }

    /// Whether attributes are those of a volume that is a part of a pod.
    pub fn are_inline(given: &Texts) -> bool {
        given.get(EPHEMERAL).is_some_and(|value| value == "true")
    }

    /// Refuses an inline volume that names a path of the node which `allowed` does not contain: its author is that of a pod, and root
    /// reads for him.
    pub fn check_inline(&self, allowed: &[PathBuf]) -> Outcome<()> {
        let Source { place, is_remote, trust, .. } = &self.source;
        let place = if *is_remote { place.strip_prefix("file://") } else { Some(place.as_str()) };
        let key = trust.as_deref().filter(|trust| !trust.starts_with(PEM));
        for path in place.into_iter().chain(key) {
            let path = checked_path("an inline volume", path)?;
            // A link in an allowed directory may lead out of it.
            let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            let is_below = |above: &PathBuf| {
                path.starts_with(above)
                    && (real == path || real.starts_with(fs::canonicalize(above).unwrap_or_default()))
            };
            if !allowed.iter().any(is_below) {
                let text = format!(
                    "an inline volume may not name {}; paths of the node are for persistent volumes, or below a directory \
                     of --inline-paths",
                    path.display()
                );
                return Err(Failure::new(Code::PermissionDenied, text));
            }
        }
        Ok(())
    }
}

impl Source {
    /// The key to trust, if it stands in the attribute itself.
    pub fn own_key(&self) -> Option<&str> {
        self.trust.as_deref().filter(|trust| trust.starts_with(PEM))
    }
}

/// Limits what a record and the arguments of a daemon hold.
fn check_sizes(given: usize, own: &Texts) -> Outcome<()> {
    let bytes: usize = own.iter().map(|(name, value)| name.len() + value.len()).sum();
    if given > COUNT_MAX || bytes > BYTES_MAX {
        let text = format!("the attributes are more than {COUNT_MAX}, or have more than {BYTES_MAX} bytes");
        return Err(Failure::invalid(text));
    }
    Ok(())
}

/// The source, and whether it is a remote.
fn checked_place(remote: Option<String>, store: Option<String>) -> Outcome<(String, bool)> {
    match (remote, store) {
        (Some(url), None) if is_remote(&url) && has_user(&url) => {
            Err(Failure::invalid("credentials are not allowed in the URL of remote; give them as secrets"))
        }
        // Nothing may take it for a variable, such as one with a credential.
        (Some(url), None) if is_remote(&url) && url.contains("${") => {
            Err(Failure::invalid("`${` is not allowed in the URL of remote"))
        }
        (Some(url), None) if is_remote(&url) => Ok((url, true)),
        // A text that is no URL may be a secret in the wrong place.
        (Some(_), None) => Err(Failure::invalid("remote is no URL of a remote, such as s3://BUCKET/PREFIX")),
        (None, Some(path)) => Ok((checked_path("store", &path)?.display().to_string(), false)),
        _ => Err(Failure::invalid("a volume has either the attribute remote or the attribute store")),
    }
}

/// Whether the part of a URL that names a host has a user.
fn has_user(url: &str) -> bool {
    let host = url.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    !url.starts_with("file:") && host.is_some_and(|host| host.contains('@'))
}

fn checked_collection(given: Option<String>) -> Outcome<String> {
    let Some(given) = given else { return Ok(String::new()) };
    let place = if given.contains('/') { given.clone() } else { format!("{given}/{ANY}") };
    parse_place(&place)?;
    Ok(given)
}

/// An absolute path without `..`.
pub(in crate::csi) fn checked_path(name: &str, text: &str) -> Outcome<PathBuf> {
    let path = Path::new(text);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !is_plain || text.contains('\0') {
        return Err(Failure::invalid(format!("{name}: {text:?} is not an absolute path without `..`")));
    }
    Ok(path.components().collect())
}

/// The value of `--at`: the snapshot of the volume's collection, or as that option takes it.
fn at(snapshot: &str, collection: &str) -> Outcome<String> {
    if let Some((place, _)) = snapshot.rsplit_once('=') {
        parse_place(place)?;
        return Ok(snapshot.to_owned());
    }
    if !collection.contains('/') {
        return Err(Failure::invalid(
            "a snapshot is one of a collection; write collection: TENANT/COLLECTION",
        ));
    }
    Ok(format!("{collection}={snapshot}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::Attributes;
    use crate::csi::failure::Code;

    fn attributes(pairs: &[(&str, &str)]) -> super::Outcome<Attributes> {
        let given = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Attributes::of(&given.collect())
    }

    #[test]
    fn attributes_become_a_source_and_the_part_that_is_shown() {
        let found = attributes(&[
            ("remote", "s3://b/p"),
            ("collection", "acme/llama"),
            ("snapshot", "7"),
            ("tier", "q5"),
            ("follow", "false"),
            ("csi.storage.k8s.io/pod.name", "x"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "1-2-csi.tierfs.io"),
        ])
        .unwrap();
        assert_eq!((found.collection.as_str(), found.texts.len(), found.is_inline), ("acme/llama", 5, false));
        assert_eq!(found.source.at.as_deref(), Some("acme/llama=7"));
        let whole =
            attributes(&[("store", "/srv//tensors/"), ("csi.storage.k8s.io/ephemeral", "true")]).unwrap();
        assert_eq!((whole.source.place.as_str(), whole.collection.as_str()), ("/srv/tensors", ""));
        assert!(whole.is_inline && !whole.source.is_remote);
    }

    #[test]
    fn wrong_attributes_are_refused_by_name() {
        for (pairs, named) in [
            (&[("remote", "s3://b"), ("colour", "blue")][..], "colour"),
            (&[], "remote"),
            (&[("remote", "s3://b"), ("store", "/s")], "store"),
            (&[("remote", "/srv/s")], "URL"),
            (&[("store", "srv/s")], "store"),
            (&[("store", "/srv/../etc")], "store"),
            (&[("store", "/s"), ("tier", "q5")], "tier"),
            (&[("store", "/s"), ("follow", "true")], "follow"),
            (&[("remote", "s3://b"), ("follow", "yes")], "follow"),
            (&[("remote", "s3://b"), ("follow", "true"), ("collection", "t/c")], "TENANT"),
            (&[("remote", "s3://b"), ("tier", "q9")], "q9"),
            (&[("remote", "s3://b"), ("snapshot", "7")], "collection"),
            (&[("remote", "s3://b"), ("collection", "a/b/c")], "b/c"),
            (&[("remote", "s3://b"), ("collection", "../x")], ".."),
            (&[("remote", "s3://b"), ("collection", ".ctl")], ".ctl"),
            (&[("remote", "s3://b"), ("trust", "key.pem")], "trust"),
            (&[("remote", "s3://key:hush@b/p")], "secrets"),
            (&[("remote", "--allow-other")], "URL"),
            (&[("remote", "https://x/${AWS_SECRET_ACCESS_KEY}")], "${"),
        ] {
            let failure = attributes(pairs).unwrap_err();
            assert_eq!(failure.code, Code::InvalidArgument, "{pairs:?}");
            assert!(failure.text.contains(named), "{pairs:?}: {failure}");
        }
    }

    #[test]
    fn attributes_have_a_limited_number_and_length() {
        let key = |bytes: usize| format!("-----BEGIN PUBLIC KEY-----{}", "A".repeat(bytes - 26));
        let tried = |pairs: &[(&str, &str)]| attributes(pairs).map(drop).map_err(|failure| failure.code);
        let invalid = Err(Code::InvalidArgument);
        for (bytes, expected) in [(2048, Ok(())), (2049, invalid)] {
            assert_eq!(tried(&[("remote", "s3://b"), ("trust", &key(bytes))]), expected);
        }
        for (bytes, expected) in [(4000, Ok(())), (4096, invalid)] {
            assert_eq!(tried(&[("remote", &format!("s3://{}", "b".repeat(bytes)))]), expected);
        }
        assert_eq!(tried(&[(&"n".repeat(1 << 20), "x"), ("remote", "s3://b")]), invalid);
        let names: Vec<String> = (0..64).map(|number| format!("csi.storage.k8s.io/{number}")).collect();
        let mut pairs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        pairs.push(("remote", "s3://b"));
        assert_eq!((tried(&pairs), tried(&pairs[1..])), (invalid, Ok(())));
    }

    #[test]
    fn an_inline_volume_names_only_paths_that_are_allowed() {
        let allowed = [PathBuf::from("/srv/shared")];
        for (pairs, is_allowed) in [
            (&[("remote", "s3://b")][..], true),
            (&[("remote", "s3://b"), ("trust", "-----BEGIN PUBLIC KEY-----")], true),
            (&[("remote", "s3://b"), ("trust", "/etc/shadow")], false),
            (&[("remote", "file:///etc")], false),
            (&[("remote", "file:///srv/shared/x")], true),
            (&[("store", "/srv/sharedx")], false),
            (&[("store", "/srv/shared")], true),
        ] {
            let found = attributes(pairs).unwrap().check_inline(&allowed);
            assert_eq!(found.is_ok(), is_allowed, "{pairs:?}");
        }
    }

    #[test]
    fn a_link_leads_an_inline_volume_to_no_other_directory() {
        let root = tempfile::tempdir().unwrap();
        let allowed = root.path().join("allowed");
        std::fs::create_dir_all(allowed.join("store")).unwrap();
        std::os::unix::fs::symlink("store", allowed.join("inside")).unwrap();
        std::os::unix::fs::symlink("/etc", allowed.join("outside")).unwrap();
        std::os::unix::fs::symlink(&allowed, root.path().join("other name")).unwrap();
        for (below, is_allowed) in
            [("store", true), ("inside", true), ("outside", false), ("outside/ssl", false)]
        {
            for above in [allowed.clone(), root.path().join("other name")] {
                let place = above.join(below).display().to_string();
                let found = attributes(&[("store", &place)]).unwrap().check_inline(&[above]);
                assert_eq!(found.is_ok(), is_allowed, "{place}");
            }
        }
    }
}
