//! Keys that sign snapshots, and keys that a reader trusts: ed25519, in PEM as `openssl genpkey -algorithm ed25519` and
//! `openssl pkey -pubout` write them.
//!
//! `ring` signs and compares; it is in the program for TLS. Its other signatures are left out: one kind is enough, and services
//! for keys have it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use crate::format::snapshot::signature::{self, Signature};
use crate::model::{CollectionName, Error, ErrorKind, Result, StoreId, hex};
use crate::remote::client::program::{Killed, wait_for_output};
use crate::remote::place::remote::Remote;

/// The public key of an ed25519 key in PEM has this before its 32 bytes (RFC 8410).
const PUBLIC_KEY_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const HINT: &str = "make one with openssl genpkey -algorithm ed25519 -out KEY, and its public half with openssl pkey -in KEY -pubout";

/// A command that signs may take so long: a person may have to touch a key. A push lasts hours at most.
const COMMAND_MAX: Duration = Duration::from_secs(300);
/// The most bytes that it prints.
const PRINTED_MAX: u64 = 4 << 10;

/// Signs snapshots.
pub enum Signer {
    /// By a key in a file.
    Key(Box<Ed25519KeyPair>),
    /// By a command of a shell, which reads the message and prints the signature: 64 bytes, or their base64.
    Command {
        command: String,
        /// The public key that the signatures must be of.
        key: [u8; 32],
    },
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

    /// A command, and the file of the public key that its signatures must be of.
    pub fn by_command(command: &str, key: &Path) -> Result<Signer> {
        Ok(Signer::Command { command: command.to_owned(), key: public_key(key)? })
    }

    /// The public key.
    fn public(&self) -> Result<[u8; 32]> {
        match self {
            Signer::Key(pair) => {
                let key = pair.public_key().as_ref().try_into();
                key.map_err(|_| Error::invalid("the key has no public half of 32 bytes"))
            }
            Signer::Command { key, .. } => Ok(*key),
        }
    }

    /// Whether a manifest, which was parsed, has a signature of this signer.
    pub fn has_signed(&self, manifest: &[u8]) -> bool {
        let key = self.public();
        signature::signed(manifest).zip(key.ok()).is_some_and(|((message, Signature { bytes, .. }), key)| {
            UnparsedPublicKey::new(&ED25519, key).verify(&message, &bytes).is_ok()
        })
    }

    /// A signed manifest, whose signature was verified.
    pub fn sign(&self, manifest: &[u8]) -> Result<Vec<u8>> {
        let key = self.public()?;
        signature::sign(manifest, &|message| {
            let bytes = match self {
                Signer::Key(pair) => pair.sign(message).as_ref().try_into().ok(),
                Signer::Command { command, .. } => signature_of(&printed(command, message, COMMAND_MAX)?),
            };
            let wrong = || {
                Error::invalid(
                    "--sign-with: the command did not print an ed25519 signature (64 bytes, or their base64)",
                )
            };
            let bytes = bytes.ok_or_else(wrong)?;
            let is_its = UnparsedPublicKey::new(&ED25519, key).verify(message, &bytes).is_ok();
            let other =
                || Error::invalid("the signature is not one of the key of --sign-key, of this snapshot");
            if is_its { Ok(Signature { key: Some(key), bytes }) } else { Err(other()) }
        })
    }
}

/// The output of a command of a shell that reads a message. The command may ask a person at the terminal, so it stays in the
/// group of this process.
fn printed(command: &str, message: &[u8], time_max: Duration) -> Result<Vec<u8>> {
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
    match wait_for_output(&mut child, PRINTED_MAX, time_max, Killed::Program).map_err(failed)? {
        None => Err(Error::invalid(format!(
            "--sign-with: the command {command:?} did not end within {} s",
            time_max.as_secs()
        ))),
        Some((status, _)) if !status.success() => {
            Err(Error::invalid(format!("--sign-with: the command failed ({status})")))
        }
        Some((_, output)) => Ok(output),
    }
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

/// The public key in a file of one.
fn public_key(path: &Path) -> Result<[u8; 32]> {
    let several = || Error::invalid(format!("{} has several public keys; name one", path.display()));
    if let [key] = public_keys(path)?[..] { Ok(key) } else { Err(several()) }
}

/// The public keys in a file; at least one.
fn public_keys(path: &Path) -> Result<Vec<[u8; 32]>> {
    let wrong = || Error::invalid(format!("{} has no public ed25519 key in PEM; {HINT}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| Error::io(path.display(), error))?;
    let one = |key: std::result::Result<SubjectPublicKeyInfoDer<'_>, _>| {
        let key = key.ok()?;
        key.as_ref().strip_prefix(&PUBLIC_KEY_HEAD).and_then(|key| key.try_into().ok())
    };
    let keys: Option<Vec<_>> = SubjectPublicKeyInfoDer::pem_slice_iter(&bytes).map(one).collect();
    keys.filter(|keys| !keys.is_empty()).ok_or_else(wrong)
}

/// The file of a key, and the uuid of the only remote that it is for, if one is given.
fn bound(path: &Path) -> (&Path, Option<StoreId>) {
    let parts = path.to_str().and_then(|text| text.rsplit_once('@'));
    let is_uuid = |text: &str| text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let id = parts
        .filter(|(_, id)| is_uuid(id))
        .and_then(|(file, id)| Some((Path::new(file), StoreId(u128::from_str_radix(id, 16).ok()?))));
    id.map_or((path, None), |(file, id)| (file, Some(id)))
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
    /// The keys in files, for a remote. A file with `@` and a uuid behind its name has a key for the remote with this uuid only:
    /// `Forbidden` if this is another one. Else its snapshots, and its uuid, could be copied into the place of a remote.
    pub fn read(paths: &[PathBuf], remote: &Remote) -> Result<Trust> {
        let one = |path: &PathBuf| {
            let (file, id) = bound(path);
            if id.is_some_and(|id| id != remote.id()) {
                let (shown, at, id) = (path.display(), remote.place(), remote.id());
                let text = format!("{at} is the remote {id}, for which the key {shown} is not trusted");
                return Err(Error::new(ErrorKind::Forbidden, text));
            }
            let trusted = |key| Trusted { name: file.display().to_string(), key };
            Ok(public_keys(file)?.into_iter().map(trusted).collect())
        };
        let trusted = paths.iter().map(one).collect::<Result<Vec<Vec<Trusted>>>>()?;
        Ok(Trust(trusted.into_iter().flatten().collect()))
    }

    /// The same; `None` without a file: then nobody asks for signatures.
    pub fn wanted(paths: &[PathBuf], remote: &Remote) -> Result<Option<Trust>> {
        if paths.is_empty() { Ok(None) } else { Trust::read(paths, remote).map(Some) }
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
