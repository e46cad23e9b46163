//! Signatures of snapshots: made by keys and commands, compared by openssl, and demanded by mounts.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Answer, Mounted, Place, answer, events, repository, tierfs, wait_until};

struct Stand {
    place: Place,
    url: String,
}

fn key(name: &str) -> String {
    repository("tests/golden/keys").join(name).to_str().unwrap().to_owned()
}

impl Stand {
    fn new() -> Stand {
        let place = Place::new();
        fs::create_dir(place.path("bucket")).unwrap();
        let url = format!("file://{}", place.path("bucket").display());
        answer(tierfs().arg("init").arg(place.store())).ok();
        let stand = Stand { place, url };
        stand.change("one");
        stand
    }

    fn change(&self, text: &str) {
        self.place.import("acme/m", &[&self.place.write("config.json", text)], &[]);
    }

    fn push(&self, options: &[&str]) -> Answer {
        let mut command = tierfs();
        command.arg("push").arg(self.place.store()).args(["acme/m", &self.url, "--create"]);
        answer(command.args(options))
    }

    fn push_signed(&self, name: &str) {
        self.push(&["--sign", &key(name)]).ok();
    }

    fn mount(&self, name: &str, cache: &str, options: &[&str]) -> Mounted {
        let cache = self.place.path(cache);
        let trust = key("release.pub.pem");
        let options = [&["--cache", cache.to_str().unwrap(), "--trust", &trust], options].concat();
        self.place.mount_store_by(&mut tierfs(), PathBuf::from(&self.url), name, &options)
    }

    /// The config in a new mount with a new cache.
    fn read(&self, name: &str) -> std::io::Result<String> {
        let mounted = self.mount(name, &format!("cache-{name}"), &[]);
        let found = config(&mounted);
        if let Err(error) = &found {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}: {error}");
            let told = events(&mounted, "remote");
            assert!(!told.is_empty(), "{name}: {told:?}");
        }
        mounted.unmount();
        found
    }

    fn manifest(&self, number: u64) -> PathBuf {
        self.place.path(format!("bucket/snap/acme/m/{number:016x}"))
    }

    fn verify(&self, options: &[&str]) -> Answer {
        answer(tierfs().args(["verify", &self.url]).args(options))
    }
}

fn config(mounted: &Mounted) -> std::io::Result<String> {
    fs::read_to_string(mounted.path("acme/m/config.json"))
}

/// The message that was signed, the key, and the signature of a manifest.
fn parts(manifest: &[u8]) -> (String, Vec<u8>, Vec<u8>) {
    let (rest, _) = manifest.split_at(manifest.len() - 32);
    let (rest, signature) = rest.split_at(rest.len() - 64);
    let (content, public) = rest.split_at(rest.len() - 32);
    (format!("tierfs snapshot {}\n", blake3::hash(content).to_hex()), public.to_vec(), signature.to_vec())
}

/// Whether openssl finds that a key has signed a manifest.
fn is_signed(place: &Place, manifest: &Path, public: &str) -> bool {
    let (message, _, signature) = parts(&fs::read(manifest).unwrap());
    let (message, signature) = (place.write("message", message), place.write("signature", signature));
    let mut openssl = Command::new("openssl");
    openssl.args(["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", public]);
    answer(openssl.arg("-in").arg(message).arg("-sigfile").arg(signature)).code == Some(0)
}

#[test]
fn a_signed_snapshot_is_shown_and_openssl_agrees() {
    let stand = Stand::new();
    stand.push(&[]).ok();
    // The state is published, but not signed.
    let told = stand.push(&["--sign", &key("release.pem")]).ok();
    assert!(told.starts_with("pushed snapshot 2") && told.contains("0 B sent"), "{told}");
    assert!(stand.push(&["--sign", &key("release.pem")]).ok().starts_with("nothing new, still snapshot 2"));
    assert!(is_signed(&stand.place, &stand.manifest(2), &key("release.pub.pem")));
    assert!(!is_signed(&stand.place, &stand.manifest(2), &key("other.pub.pem")));
    assert_eq!(stand.read("trusted").unwrap(), "one");
    // By a command, raw and in base64.
    for (text, filter) in [("two", "cat"), ("three", "base64")] {
        stand.change(text);
        let message = stand.place.path("message");
        let (path, key) = (message.display(), key("release.pem"));
        let command =
            format!("cat > {path} && openssl pkeyutl -sign -rawin -inkey {key} -in {path} | {filter}");
        stand.push(&["--sign-with", &command]).ok();
        assert_eq!(stand.read(text).unwrap(), text);
    }
    assert!(is_signed(&stand.place, &stand.manifest(4), &key("release.pub.pem")));
    stand.change("four");
    stand.push(&["--sign-with", "echo no"]).failed(1, &["did not print an ed25519 signature"]);
    stand.push(&["--sign-with", "exit 3"]).failed(1, &["the command failed"]);
    stand
        .push(&["--sign", &key("release.pub.pem")])
        .failed(1, &["no private ed25519 key", "openssl genpkey"]);
    assert!(!stand.manifest(5).exists());
    // The daemon of a mounted store signs too.
    let local = stand.place.mount(&[]);
    stand.push(&["--sign-with", "true"]).failed(1, &["unmount the store, or use --sign"]);
    stand.push_signed("release.pem");
    local.unmount();
    assert!(is_signed(&stand.place, &stand.manifest(5), &key("release.pub.pem")));
    // A remote with signatures is read by those who do not ask for them.
    let plain = stand.place.mount_store_by(
        &mut tierfs(),
        PathBuf::from(&stand.url),
        "plain",
        &["--cache", stand.place.path("plain-cache").to_str().unwrap()],
    );
    assert_eq!(config(&plain).unwrap(), "four");
    plain.unmount();
}

#[test]
fn snapshots_that_are_unsigned_or_signed_by_others_are_refused() {
    let stand = Stand::new();
    stand.push_signed("release.pem");
    let following = stand.mount("following", "cache", &["--follow", "1"]);
    assert_eq!(config(&following).unwrap(), "one");
    for (options, why) in [(&[][..], "is not signed"), (&["--sign", &key("other.pem")], "no key of --trust")]
    {
        stand.change(why);
        stand.push(options).ok();
        wait_until("the mount has met the snapshot", || {
            events(&following, "remote").iter().any(|event| event["text"].as_str().unwrap().contains(why))
        });
        assert_eq!(config(&following).unwrap(), "one", "the last snapshot that is trusted stays");
        stand.read(&why.replace(' ', "")).unwrap_err();
    }
    // Nor does anybody without the key remove a collection.
    answer(tierfs().args(["rm", &stand.url, "acme/m"])).ok();
    stand.read("removed").unwrap_err();
    assert_eq!(config(&following).unwrap(), "one");
    answer(tierfs().args(["push", &stand.url, "acme/m", "--revert", "1", "--sign", &key("release.pem")]))
        .ok();
    assert_eq!(stand.read("back").unwrap(), "one");
    let listed = stand.verify(&["--trust", &key("release.pub.pem")]).ok();
    let lines: Vec<&str> = listed.lines().collect();
    assert!(
        lines[0].starts_with("acme/m snapshot 5: signed by /") && lines[0].ends_with("release.pub.pem"),
        "{listed}"
    );
    assert!(
        lines[1].ends_with("snapshot 4: not signed") && lines[3].ends_with("snapshot 2: not signed"),
        "{listed}"
    );
    assert!(lines[2].contains("snapshot 3: signed by the key "), "{listed}");
    assert_eq!(stand.verify(&["--trust", &key("other.pub.pem"), "--json"]).code, Some(1));
    answer(tierfs().args(["rm", &stand.url, "acme/m", "--sign", &key("release.pem")])).ok();
    wait_until("it is removed", || {
        config(&following).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
    following.unmount();
}

#[test]
fn forged_and_replayed_manifests_are_refused() {
    let stand = Stand::new();
    stand.push_signed("release.pem");
    stand.change("two");
    stand.push_signed("release.pem");
    let mounted = stand.mount("before", "cache", &[]);
    assert_eq!(config(&mounted).unwrap(), "two");
    mounted.unmount();
    let sound = fs::read(stand.manifest(2)).unwrap();
    // Another time of creation, and the digest that fits.
    let mut forged = sound.clone();
    forged[88] ^= 1;
    let end = forged.len() - 32;
    let digest = *blake3::hash(&forged[..end]).as_bytes();
    forged[end..].copy_from_slice(&digest);
    fs::write(stand.manifest(2), &forged).unwrap();
    stand.read("forged").unwrap_err();
    assert_eq!(stand.verify(&[]).code, Some(3));
    // The signature cut off, and the flag cleared.
    let mut cut = sound[..sound.len() - 128].to_vec();
    cut[6] = 0;
    let digest = *blake3::hash(&cut).as_bytes();
    cut.extend_from_slice(&digest);
    fs::write(stand.manifest(2), &cut).unwrap();
    stand.read("cut").unwrap_err();
    // The older manifest as the newest.
    fs::copy(stand.manifest(1), stand.manifest(2)).unwrap();
    let mounted = stand.mount("copied", "cache-copied", &[]);
    config(&mounted).unwrap_err();
    mounted.unmount();
    // The newest one taken away: only who has seen it knows.
    fs::remove_file(stand.manifest(2)).unwrap();
    fs::remove_file(stand.place.path("bucket/head/acme/m")).unwrap();
    let mounted = stand.mount("replayed", "cache", &[]);
    assert_eq!(config(&mounted).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let told = events(&mounted, "remote");
    assert!(told.iter().any(|event| event["text"].as_str().unwrap().contains("is older than 2")), "{told:?}");
    mounted.unmount();
    let wanted = stand.mount("wanted", "cache", &["--at", "acme/m=1"]);
    assert_eq!(config(&wanted).unwrap(), "one");
    wanted.unmount();
}
