//! Identities: 128-bit numbers of stores, tensors, and the objects that own blocks.

use std::fmt;

macro_rules! wide_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, concat!(stringify!($name), "({:032x})"), self.0)
            }
        }
    };
}

wide_id!(
    /// Identity of a tensor, derived from its names: the same names give the same identity anywhere.
    TensorId
);
wide_id!(
    /// Identity of the owner of blocks. It survives a rename, and two files with the same name at
    /// different times have different ones.
    ObjectId
);
wide_id!(
    /// The place of a shard in its tensor. Shards are in ascending order of it.
    SeedId
);
wide_id!(
    /// The uuid of a store.
    StoreId
);

/// The number of a directory entry in its collection, never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct EntryId(pub u64);

impl TensorId {
    /// The first 16 bytes, read little-endian, of
    /// `blake3(tenant 00 collection 00 name 00 parent)`; the parent is 16
    /// little-endian bytes, zeros for none.
    pub fn of(tenant: &str, collection: &str, name: &str, parent: TensorId) -> TensorId {
        TensorId::below(tenant, collection, "")(name, parent)
    }

    /// Returns a function that computes the identities of tensors in one directory from the rest of
    /// their names and their parents. It hashes the directory's path only once.
    pub fn below(
        tenant: &str,
        collection: &str,
        directory: &str,
    ) -> impl Fn(&str, TensorId) -> TensorId + use<> {
        let mut above = blake3::Hasher::new();
        for part in [tenant, collection] {
            above.update(part.as_bytes());
            above.update(&[0]);
        }
        if !directory.is_empty() {
            above.update(directory.as_bytes());
            above.update(b"/");
        }
        move |name, parent| {
            let mut hasher = above.clone();
            hasher.update(name.as_bytes());
            hasher.update(&[0]);
            hasher.update(&parent.0.to_le_bytes());
            TensorId(leading(&hasher))
        }
    }
}

impl ObjectId {
    /// The first 16 bytes, read little-endian, of `blake3(tensor seed creation)`, all little-endian.
    /// `creation` is the log sequence number of the record that created the object.
    pub fn of(tensor: TensorId, seed: SeedId, creation: u64) -> ObjectId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&tensor.0.to_le_bytes());
        hasher.update(&seed.0.to_le_bytes());
        hasher.update(&creation.to_le_bytes());
        ObjectId(leading(&hasher))
    }

    /// Parses the displayed form: 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<ObjectId> {
        let is_shown = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_shown).map(ObjectId)
    }
}

fn leading(hasher: &blake3::Hasher) -> u128 {
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    u128::from_le_bytes(bytes)
}
