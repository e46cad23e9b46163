//! Keys that sign snapshots, and keys that a reader trusts: ed25519, in PEM as `openssl genpkey -algorithm ed25519` and
//! `openssl pkey -pubout` write them.
//!
//! `ring` signs and compares; it is in the program for TLS. Its other signatures are left out: one kind is enough, and services
//! for keys have it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use crate::format::snapshot::signature::{self, Signature};
use crate::model::{CollectionName, Error, ErrorKind, Result, hex};

/// The public key of an ed25519 key in PEM has this before its 32 bytes (RFC 8410).
const PUBLIC_KEY_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const HINT: &str = "make one with openssl genpkey -algorithm ed25519 -out KEY, and its public half with openssl pkey -in KEY -pubout";

/// Signs snapshots.
pub enum Signer {
    /// By a key in a file.
    Key(Box<Ed25519KeyPair>),
    /// By a command of a shell, which reads the message and prints the signature: 64 bytes, or their base64.
    Command(String),
}

impl Signer {
    /// The key in a file.
    pub fn read(path: &Path) -> Result<Signer> {
        let wrong =
            || Error::invalid(format!("{} has no private ed25519 key in PEM; {HINT}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| Error::io(path.display(), error))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&bytes).map_err(|_| wrong())?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der()).map_err(|_| wrong())?;
        Ok(Signer::Key(Box::new(pair)))
    }

    /// The public key, if it is known before a signature.
    pub fn public(&self) -> Option<[u8; 32]> {
        match self {
            Signer::Key(pair) => pair.public_key().as_ref().try_into().ok(),
            Signer::Command(_) => None,
        }
    }

    /// A signed manifest.
    pub fn sign(&self, manifest: &[u8]) -> Result<Vec<u8>> {
        signature::sign(manifest, &|message| {
            let bytes = match self {
                Signer::Key(pair) => pair.sign(message).as_ref().try_into().ok(),
                Signer::Command(command) => signature_of(&printed(command, message)?),
            };
            let wrong = || {
                Error::invalid(
                    "--sign-with: the command did not print an ed25519 signature (64 bytes, or their base64)",
                )
            };
            Ok(Signature { key: self.public(), bytes: bytes.ok_or_else(wrong)? })
        })
    }
}

/// The output of a command of a shell that reads a message.
fn printed(command: &str, message: &[u8]) -> Result<Vec<u8>> {
    let failed = |error| Error::io("--sign-with", error);
    let mut shell = Command::new("/bin/sh");
    let mut child =
        shell.arg("-c").arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A message is shorter than a pipe holds. A command that does not read it fails by itself.
        input.write_all(message).or_else(|error| match error.kind() {
            std::io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(failed(error)),
        })?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(Error::invalid(format!("--sign-with: the command failed ({})", output.status)));
    }
    Ok(output.stdout)
}

/// The signature that is printed.
fn signature_of(printed: &[u8]) -> Option<[u8; 64]> {
    if let Ok(raw) = printed.try_into() {
        return Some(raw);
    }
    // Programs break the lines of base64.
    let letters = printed.iter().filter(|letter| !letter.is_ascii_whitespace());
    let text: String = letters.map(|letter| char::from(*letter)).collect();
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = ((bits << 6 | u32::from(value)) & 0xffff, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes.try_into().ok()
}

/// A public key, and the name of its file.
struct Trusted {
    name: String,
    key: [u8; 32],
}

/// The keys that a reader trusts.
#[derive(Default)]
pub struct Trust(Vec<Trusted>);

/// The signer of a snapshot, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SignedBy {
    Nobody,
    /// The key in the file of this name.
    Trusted(String),
    /// Another key; `None` if the signature does not say which.
    Other(Option<[u8; 32]>),
    /// The signature is not one of the key that it names.
    Forged,
}

impl Trust {
    /// The keys in files.
    pub fn read(paths: &[PathBuf]) -> Result<Trust> {
        let one = |path: &PathBuf| {
            let wrong =
                || Error::invalid(format!("{} has no public ed25519 key in PEM; {HINT}", path.display()));
            let bytes = std::fs::read(path).map_err(|error| Error::io(path.display(), error))?;
            let key = SubjectPublicKeyInfoDer::from_pem_slice(&bytes).map_err(|_| wrong())?;
            let key = key.as_ref().strip_prefix(&PUBLIC_KEY_HEAD).and_then(|key| key.try_into().ok());
            Ok(Trusted { name: path.display().to_string(), key: key.ok_or_else(wrong)? })
        };
        paths.iter().map(one).collect::<Result<Vec<_>>>().map(Trust)
    }

    /// The signer of a manifest, which was parsed.
    pub fn signer_of(&self, manifest: &[u8]) -> SignedBy {
        let Some((message, Signature { key, bytes })) = signature::signed(manifest) else {
            return SignedBy::Nobody;
        };
        let is_by = |key: &[u8; 32]| UnparsedPublicKey::new(&ED25519, key).verify(&message, &bytes).is_ok();
        if let Some(trusted) = self.0.iter().find(|trusted| is_by(&trusted.key)) {
            return SignedBy::Trusted(trusted.name.clone());
        }
        if key.is_some_and(|key| !is_by(&key)) { SignedBy::Forged } else { SignedBy::Other(key) }
    }

    /// Fails with `Forbidden` unless one of the keys has signed the manifest of a snapshot.
    pub fn check(&self, place: CollectionName<'_>, number: u64, manifest: &[u8]) -> Result<()> {
        let reason = match self.signer_of(manifest) {
            SignedBy::Trusted(_) => return Ok(()),
            SignedBy::Nobody => "is not signed".to_owned(),
            SignedBy::Other(None) => "is signed by none of the keys of --trust".to_owned(),
            SignedBy::Other(Some(key)) => format!("is signed by {}, which is no key of --trust", hex(&key)),
            SignedBy::Forged => "has a signature that is not one of its key".to_owned(),
        };
        Err(Error::new(ErrorKind::Forbidden, format!("snapshot {number} of {place} {reason}")))
    }
}

impl SignedBy {
    /// The finding, for people.
    pub fn text(&self) -> String {
        match self {
            SignedBy::Nobody => "not signed".to_owned(),
            SignedBy::Trusted(name) => format!("signed by {name}"),
            SignedBy::Other(Some(key)) => format!("signed by the key {}", hex(key)),
            SignedBy::Other(None) => "signed by a key that the signature does not name".to_owned(),
            SignedBy::Forged => "the signature is not one of its key".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::signature_of;

    #[test]
    fn a_signature_is_printed_raw_or_in_base64() {
        let raw: Vec<u8> = (0..64).collect();
        assert_eq!(signature_of(&raw).unwrap().as_slice(), raw);
        let text =
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==\n";
        assert_eq!(signature_of(text.as_bytes()).unwrap().as_slice(), raw);
        let broken = format!("{}\n{}", &text[..76], &text[76..]);
        assert_eq!(signature_of(broken.as_bytes()).unwrap().as_slice(), raw);
        for wrong in ["", "AAEC", "no signature", &text[..80]] {
            assert_eq!(signature_of(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
