//! The signature of a manifest, which stands before its digest, if flag 1 is set.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 32 | public key, ed25519; zeros if the signer did not say |
//! | 32 | 64 | signature of the message |
//!
//! The message is the line `tierfs snapshot`, a space, and 64 hexadecimal digits: the BLAKE3 of everything before the public
//! key. So it covers the number, the names, the remote and the pieces, which are named by BLAKE3 themselves.

use crate::model::{Error, Result, hex};

/// The offset of the flags of a manifest, and the flag of a signed one.
const FLAGS_AT: usize = 6;
pub(super) const SIGNED: u16 = 1;
/// Bytes of the digest at the end of a manifest.
pub(super) const DIGEST_BYTES: usize = 32;
/// Bytes of the public key and the signature.
pub(super) const SIGNATURE_BYTES: usize = 96;

/// A signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signature {
    /// The public key, if the signer said it.
    pub key: Option<[u8; 32]>,
    /// The signature of the message.
    pub bytes: [u8; 64],
}

/// The message that is signed of a manifest, and its signature, if it has one. The manifest was parsed.
pub fn signed(manifest: &[u8]) -> Option<(Vec<u8>, Signature)> {
    if manifest.get(FLAGS_AT).is_none_or(|flags| u16::from(*flags) & SIGNED == 0) {
        return None;
    }
    let (rest, _) = manifest.split_last_chunk::<DIGEST_BYTES>()?;
    let (rest, bytes) = rest.split_last_chunk::<64>()?;
    let (content, key) = rest.split_last_chunk::<32>()?;
    let key = (*key != [0; 32]).then_some(*key);
    Some((message(content), Signature { key, bytes: *bytes }))
}

/// The manifest with a signature, which `sign` makes of the message.
pub fn sign(manifest: &[u8], sign: &dyn Fn(&[u8]) -> Result<Signature>) -> Result<Vec<u8>> {
    let content = manifest.split_last_chunk::<DIGEST_BYTES>().map(|(content, _)| content);
    let mut signed = content.ok_or_else(|| Error::invalid("the manifest is cut off"))?.to_vec();
    match signed.get_mut(FLAGS_AT) {
        Some(flags) if u16::from(*flags) & SIGNED == 0 => *flags |= SIGNED as u8,
        _ => return Err(Error::invalid("the manifest is signed already")),
    }
    let Signature { key, bytes } = sign(&message(&signed))?;
    signed.extend_from_slice(&key.unwrap_or_default());
    signed.extend_from_slice(&bytes);
    let digest = blake3::hash(&signed);
    signed.extend_from_slice(digest.as_bytes());
    Ok(signed)
}

fn message(content: &[u8]) -> Vec<u8> {
    format!("tierfs snapshot {}\n", hex(blake3::hash(content).as_bytes())).into_bytes()
}
