//! Signatures of snapshots: made by keys and commands, compared by openssl, and demanded by mounts.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::{Answer, Mounted, Place, Random, answer, container_of, events, repository, tierfs, wait_until};
use tierfs::format::snapshot::keys::{self, PieceName};
use tierfs::format::snapshot::manifest::{FileKind, Manifest};
use tierfs::model::CollectionName;
use tierfs::remote::client::Client;
use tierfs::remote::place::at::At;
use tierfs::remote::place::remote::Remote;
use tierfs::remote::place::signatures::Signer;
use tierfs::remote::push::history::{How, Writers, revert_within};
use tierfs::remote::push::parameters::Caption;

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

    /// A command that signs by a key.
    fn command(&self, name: &str) -> String {
        let (path, key) = (self.place.path("message"), key(name));
        let path = path.display();
        format!("cat > {path} && openssl pkeyutl -sign -rawin -inkey {key} -in {path}")
    }

    /// The pieces that a snapshot names, in the order of the manifest.
    fn pieces(&self, number: u64) -> Vec<PieceName> {
        let manifest = Manifest::parse(&fs::read(self.manifest(number)).unwrap()).unwrap();
        manifest.pieces.iter().map(|piece| piece.name).collect()
    }

    fn remote(&self) -> Remote {
        Remote::open(Client::open(&self.url).unwrap()).unwrap()
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

    /// A mount with these options alone, and a new cache.
    fn mount_by(&self, name: &str, options: &[&str]) -> Mounted {
        let cache = self.place.path(format!("cache-{name}"));
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        self.place.mount_store_by(&mut tierfs(), PathBuf::from(&self.url), name, &options)
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
        let command = format!("({}) | {filter}", stand.command("release.pem"));
        let options = ["--sign-with", &command, "--sign-key", &key("release.pub.pem")];
        stand.push(&options).ok();
        assert_eq!(stand.read(text).unwrap(), text);
        assert!(stand.push(&options).ok().starts_with("nothing new"), "it is signed by that key");
        let by_file = stand.push(&["--sign", &key("release.pem")]).ok();
        assert!(by_file.starts_with("nothing new"), "{by_file}");
    }
    assert!(is_signed(&stand.place, &stand.manifest(4), &key("release.pub.pem")));
    stand.change("four");
    let by = |command: &str, public: &str| stand.push(&["--sign-with", command, "--sign-key", &key(public)]);
    by("echo no", "release.pub.pem").failed(1, &["did not print an ed25519 signature"]);
    by("exit 3", "release.pub.pem").failed(1, &["the command failed"]);
    let signs = stand.command("release.pem");
    by(&signs, "other.pub.pem").failed(1, &["not one of the key of --sign-key"]);
    by(&format!("cat > /dev/null; echo other | ({signs})"), "release.pub.pem")
        .failed(1, &["not one of the key of --sign-key"]);
    stand.push(&["--sign-with", "true"]).failed(2, &["--sign-key"]);
    stand
        .push(&["--sign", &key("release.pub.pem")])
        .failed(1, &["no private ed25519 key", "openssl genpkey"]);
    assert!(!stand.manifest(5).exists());
    // The daemon of a mounted store signs too.
    let local = stand.place.mount(&[]);
    by("true", "release.pub.pem").failed(1, &["unmount the store, or use --sign"]);
    stand.push_signed("release.pem");
    local.unmount();
    assert!(is_signed(&stand.place, &stand.manifest(5), &key("release.pub.pem")));
    // A remote with signatures is read by those who do not ask for them.
    let plain = stand.mount_by("plain", &[]);
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
    let lines: Vec<&str> = listed.lines().skip(1).collect();
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

#[test]
fn all_keys_of_a_file_are_trusted_and_a_signer_has_one() {
    let stand = Stand::new();
    let read = |name: &str| fs::read_to_string(key(name)).unwrap();
    let both = stand.place.write("both.pem", read("other.pub.pem") + &read("release.pub.pem"));
    let broken = stand.place.write(
        "broken.pem",
        read("other.pub.pem") + "-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n",
    );
    for name in ["release.pem", "other.pem"] {
        stand.change(name);
        stand.push_signed(name);
        let mounted = stand.mount_by(name, &["--trust", both.to_str().unwrap()]);
        assert_eq!(config(&mounted).unwrap(), name);
        mounted.unmount();
    }
    stand.verify(&["--trust", broken.to_str().unwrap()]).failed(1, &["has no public ed25519 key"]);
    let command = stand.command("release.pem");
    let several = ["--sign-with", &command, "--sign-key", both.to_str().unwrap()];
    stand.push(&several).failed(1, &["has several public keys"]);
}

#[test]
fn a_signer_takes_nothing_over_from_a_snapshot_that_he_has_not_signed() {
    let stand = Stand::new();
    let source = container_of(&mut Random(5), &[("w", 300_000), ("v", 2000)]);
    stand.place.import("acme/m", &[&stand.place.write("m.safetensors", &source)], &[]);
    stand.push(&["--variants", "q8:all"]).ok();
    let (sound, path) = (stand.pieces(1), stand.manifest(1));
    // Somebody names other bytes in the place of all payloads, also of those of the variant.
    let mut forged = Manifest::parse(&fs::read(&path).unwrap()).unwrap();
    let logs = forged.files.iter().filter(|file| file.kind == FileKind::Log);
    let logs: Vec<u32> = logs.flat_map(|file| &file.extents).map(|extent| extent.piece).collect();
    for (_, piece) in (0..).zip(&mut forged.pieces).filter(|(index, _)| !logs.contains(index)) {
        let bytes = vec![0xee; piece.stored as usize];
        piece.name.digest = *blake3::hash(&bytes).as_bytes();
        let path = stand.place.path("bucket").join(keys::piece(&piece.name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    assert!(forged.variants.len() == 1 && forged.pieces.len() > logs.len() + 1);
    fs::write(&path, forged.to_bytes().unwrap()).unwrap();
    assert_ne!(stand.pieces(1), sound);
    assert!(stand.push(&["--sign", &key("release.pem")]).ok().starts_with("pushed snapshot 2"));
    assert_eq!(stand.pieces(2), sound);
    let mounted = stand.mount("signed", "cache", &[]);
    assert!(fs::read(mounted.path("acme/m/m.safetensors")).unwrap() == source);
    mounted.unmount();
    // The same in a snapshot that another key has signed.
    fs::write(&path, forged.to_bytes().unwrap()).unwrap();
    fs::remove_file(stand.manifest(2)).unwrap();
    stand.push(&["--sign", &key("other.pem")]).ok();
    assert!(stand.push(&["--sign", &key("release.pem")]).ok().starts_with("pushed snapshot 3"));
    assert_eq!(stand.pieces(3), sound);
}

#[test]
fn a_revert_signs_only_what_the_key_has_signed_before() {
    let stand = Stand::new();
    stand.push(&[]).ok();
    for (text, name) in [("two", "release.pem"), ("three", "release.pem")] {
        stand.change(text);
        stand.push_signed(name);
    }
    let revert = |options: &[&str]| {
        answer(tierfs().args(["push", &stand.url, "acme/m", "--sign", &key("release.pem")]).args(options))
    };
    revert(&["--revert", "1"]).failed(1, &["snapshot 1 of acme/m is not signed by this key"]);
    // The unsigned one under the number of a signed one, and under the newest.
    let sound = fs::read(stand.manifest(3)).unwrap();
    let forged = Manifest { number: 3, ..Manifest::parse(&fs::read(stand.manifest(1)).unwrap()).unwrap() };
    fs::write(stand.manifest(3), forged.to_bytes().unwrap()).unwrap();
    revert(&["--revert", "3"]).failed(1, &["snapshot 3 of acme/m is not signed by this key"]);
    fs::write(stand.manifest(3), sound).unwrap();
    assert!(revert(&["--revert", "2"]).ok().starts_with("pushed snapshot 4"));
    assert_eq!(stand.read("reverted").unwrap(), "two");
}

#[test]
fn a_snapshot_whose_signature_takes_too_long_is_not_created() {
    let stand = Stand::new();
    for text in ["one", "two"] {
        stand.change(text);
        stand.push_signed("release.pem");
    }
    let touched = stand.place.path("message");
    let signer = Signer::by_command(&stand.command("release.pem"), key("release.pub.pem").as_ref()).unwrap();
    let how = How { writers: Writers::Many, signer: Some(&signer) };
    // The command sleeps for half the grace.
    let slow = || Duration::from_secs(if touched.exists() { 12 * 3600 } else { 0 });
    let revert = |elapsed: &(dyn Fn() -> Duration + Sync)| {
        let place = CollectionName::new("acme", "m");
        revert_within(&stand.remote(), place, &At::Number(1), &Caption::default(), how, elapsed)
    };
    let error = revert(&slow).unwrap_err().to_string();
    assert!(error.contains("took more than 12 hours"), "{error}");
    assert!(touched.exists() && !stand.manifest(3).exists());
    assert_eq!(revert(&|| Duration::ZERO).unwrap().number, 3);
}

#[test]
fn mount_options_clones_and_pulls_demand_signatures_too() {
    let stand = Stand::new();
    let trust = key("release.pub.pem");
    stand.push(&[]).ok();
    let by_option = format!("trust={trust}");
    let refused = stand.mount_by("refused", &["-o", &by_option]);
    assert_eq!(config(&refused).unwrap_err().kind(), ErrorKind::PermissionDenied);
    refused.unmount();
    let store = stand.place.path("clones");
    answer(tierfs().arg("init").arg(&store)).ok();
    let clone = |named: &str, options: &[&str]| {
        answer(tierfs().args(["clone", &stand.url, named]).arg(&store).args(options))
    };
    let pull = || answer(tierfs().arg("pull").arg(&store).args(["acme/plain", "--trust", &trust]));
    clone("acme/m", &["--trust", &trust]).failed(1, &["snapshot 1 of acme/m is not signed"]);
    clone("acme/m=acme/plain", &[]).ok();
    stand.change("two");
    stand.push(&["--sign", &key("other.pem")]).ok();
    pull().failed(1, &["snapshot 2 of acme/m is signed by", "no key of --trust"]);
    stand.push_signed("release.pem");
    clone("acme/m", &["--trust", &trust]).ok();
    assert!(pull().ok().starts_with("acme/plain is snapshot 3"));
    let shown = stand.mount_by("shown", &["-o", &by_option]);
    assert_eq!(config(&shown).unwrap(), "two");
    shown.unmount();
}

#[test]
fn a_key_for_one_remote_is_refused_for_the_copy_of_another() {
    let stand = Stand::new();
    stand.push_signed("release.pem");
    let told = stand.verify(&[]).ok();
    let id = told.lines().next().and_then(|line| line.strip_prefix("remote ")).unwrap();
    let bound = |id: &str| format!("{}@{id}", key("release.pub.pem"));
    let mounted = stand.mount_by("bound", &["--trust", &bound(id)]);
    assert_eq!(config(&mounted).unwrap(), "one");
    mounted.unmount();
    stand.verify(&["--trust", &bound(id)]).ok();
    // Another remote whose snapshots the same key signs takes the place of the first one.
    let other = Stand::new();
    other.push_signed("release.pem");
    fs::rename(stand.place.path("bucket"), stand.place.path("moved")).unwrap();
    fs::rename(other.place.path("bucket"), stand.place.path("bucket")).unwrap();
    stand.verify(&["--trust", &bound(id)]).failed(1, &[id, "is not trusted"]);
    let mut mount = tierfs();
    fs::create_dir(stand.place.path("none")).unwrap();
    mount.args(["mount", &stand.url]).arg(stand.place.path("none")).args(["--trust", &bound(id)]);
    answer(mount.arg("--cache").arg(stand.place.path("cache-none"))).failed(1, &[id, "is not trusted"]);
    stand.verify(&["--trust", &key("release.pub.pem")]).ok();
}
