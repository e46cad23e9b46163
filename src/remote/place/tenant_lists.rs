//! The lists of tenants' collections in a remote: how pushes and collections of garbage change them.
//!
//! A change reads a list, merges and writes it back if it is still the same (`If-Match`). On a server that cannot
//! compare it reads it once more and merges again if others have overwritten the change. An entry counts only with the ETag
//! of the `head/` of its collection, so an entry that was lost, or that a killed push has not made, hides nothing: readers
//! ask for that collection until its next push, or the next collection of garbage.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;

use crate::format::snapshot::keys::{self, KeyName};
use crate::format::snapshot::tenant_list::{LIST_BYTES_MAX, ListedCollection, TenantList};
use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::{Put, Tag, Tagged};
use crate::remote::place::remote::Remote;

/// A list that others change all the time is given up.
const TRIES_MAX: u32 = 12;
/// The pause after the first try; each further one takes longer.
const PAUSE: Duration = Duration::from_millis(20);

/// A list as it is stored.
enum Stored {
    Missing,
    List(TenantList, Tag),
    /// Its bytes are those of no list, too many, or not to be had.
    Unreadable,
}

/// The list of a tenant. Fails only if the remote does not answer.
fn read(remote: &Remote, tenant: &str) -> Result<Stored> {
    let key = keys::tenant_list(tenant);
    let unreadable = |error: Error| {
        log::warn!("{}/{key}: {error}; it counts as empty", remote.place());
        Stored::Unreadable
    };
    match remote.client().get_tagged(&key, LIST_BYTES_MAX) {
        Ok(None) => Ok(Stored::Missing),
        Ok(Some(Tagged { bytes, tag })) => {
            Ok(TenantList::parse(&bytes).map_or_else(unreadable, |list| Stored::List(list, tag)))
        }
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        Err(error) => Ok(unreadable(error)),
    }
}

/// The list of a tenant's collections; empty if it is missing or cannot be read.
pub(in crate::remote) fn listed(remote: &Remote, tenant: &str) -> Result<TenantList> {
    Ok(match read(remote, tenant)? {
        Stored::List(list, _) => list,
        Stored::Missing | Stored::Unreadable => TenantList::default(),
    })
}

/// Changes the list of a tenant's collections.
pub(in crate::remote) fn change(
    remote: &Remote,
    tenant: &str,
    change: impl Fn(&mut TenantList),
) -> Result<()> {
    let (key, mut refused) = (keys::tenant_list(tenant), None::<Tag>);
    for tried in 0..TRIES_MAX {
        let stored = read(remote, tenant)?;
        let mut list = match &stored {
            Stored::List(list, _) => list.clone(),
            Stored::Missing | Stored::Unreadable => TenantList::default(),
        };
        change(&mut list);
        if matches!(&stored, Stored::List(before, _) if *before == list) {
            return Ok(());
        }
        let bytes = Bytes::from(list.to_text());
        if bytes.len() as u64 > LIST_BYTES_MAX {
            log::warn!("{}: {tenant} has too many collections for a list", remote.place());
            return Ok(());
        }
        let put = match &stored {
            Stored::Missing => remote.client().create(&key, bytes.clone()),
            // Some servers refuse the tag that they have just said.
            Stored::List(_, tag) if tag.is_known() && refused.as_ref() != Some(tag) => {
                remote.client().replace(&key, bytes.clone(), tag)
            }
            Stored::List(..) => remote.client().put(&key, bytes.clone()).map(|()| Put::Exists),
            // It may stay unreadable here.
            Stored::Unreadable => remote.client().put(&key, bytes.clone()).map(|()| Put::Created),
        };
        match put {
            Ok(Put::Created) => return Ok(()),
            Ok(Put::Exists) => refused = if let Stored::List(_, tag) = stored { Some(tag) } else { None },
            // The next look says whether it is still there.
            Err(error) if error.kind() == ErrorKind::NotSupported => remote.client().put(&key, bytes)?,
            Err(error) => return Err(error),
        }
        std::thread::sleep(PAUSE * tried);
    }
    log::warn!("{}/{key}: others change it all the time", remote.place());
    Ok(())
}

/// The hints of a tenant's collections, by the last parts of their keys, with their ETags.
pub(in crate::remote) fn heads(remote: &Remote, tenant: &str) -> Result<HashMap<String, String>> {
    let above = keys::heads_of_tenant(tenant);
    let listed = remote.client().list(above.trim_end_matches('/'), None)?;
    let named = listed
        .iter()
        .filter_map(|head| Some((head.key.strip_prefix(&above)?.to_owned(), head.e_tag().to_owned())));
    Ok(named.filter(|(name, _)| keys::unescape(name).is_some()).collect())
}

/// Whether an entry was made with the present hint of its collection, which has this ETag.
pub(in crate::remote) fn is_of_head(listed: &ListedCollection, head: &str) -> bool {
    !head.is_empty() && listed.head == head
}

/// The name in a last part of a key, if it is whole there.
pub(in crate::remote) fn whole_name(part: &str) -> Option<String> {
    match keys::unescape(part)? {
        KeyName::Whole(name) => Some(name),
        KeyName::Shortened(_) => None,
    }
}

/// The knowledge of a collection of garbage before it lists manifests.
pub(in crate::remote) struct Rebuilding {
    heads: HashMap<String, String>,
    before: TenantList,
}

impl Rebuilding {
    /// Looks at a tenant before the manifests are listed: a push that comes later leaves another `head/`.
    pub fn begin(remote: &Remote, tenant: &str) -> Result<Rebuilding> {
        Ok(Rebuilding { heads: heads(remote, tenant)?, before: listed(remote, tenant)? })
    }

    /// Makes the list that of these newest snapshots. Collections that are listed and have no snapshot go.
    pub fn end(
        mut self,
        remote: &Remote,
        tenant: &str,
        mut newest: BTreeMap<String, ListedCollection>,
    ) -> Result<()> {
        for (name, listed) in &mut newest {
            let part = keys::escape(name);
            // It is missing since a push was killed.
            if !self.heads.contains_key(&part) {
                let number = Bytes::from(format!("{:016x}", listed.number));
                let e_tag = remote.client().put_tagged(&keys::head(tenant, name), number)?;
                self.heads.insert(part.clone(), e_tag);
            }
            listed.head = self.heads.get(&part).cloned().unwrap_or_default();
        }
        let before = &self.before;
        change(remote, tenant, |list| {
            list.0.retain(|name, listed| newest.contains_key(name) || before.0.get(name) != Some(&*listed));
            let mut made = TenantList(newest.clone());
            for (name, made) in &mut made.0 {
                // A push knows more than the manifest.
                let known = list
                    .0
                    .get(name)
                    .filter(|known| (known.number, known.digest) == (made.number, made.digest));
                if let Some(known) = known {
                    *made = ListedCollection { directory: known.directory, ..made.clone() };
                }
            }
            list.take(&made);
        })
    }
}
