//! Mistakes of users and servers that lack something: each is named within 3 s, by the command that meets it first.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Answer, Place, Random, answer, assert_same, container_of, repository, tierfs};

use crate::imitation::{Behaviour, Conditions, GOOD, Imitation, Listings, Ranges};

const URL: &str = "s3://models/demo";

/// `tierfs` without the environment of this process, for a server at a port. `HOME` is the directory `home` of the place.
fn program(place: &Place, port: u16) -> Command {
    let mut command = tierfs();
    let path = std::env::var_os("PATH").unwrap_or_default();
    fs::create_dir_all(place.path("home")).unwrap();
    command.env_clear().env("PATH", path).env("HOME", place.path("home"));
    command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")).env("AWS_ALLOW_HTTP", "true");
    command
}

fn with_keys(command: &mut Command) -> &mut Command {
    command.env("AWS_ACCESS_KEY_ID", "KEY").env("AWS_SECRET_ACCESS_KEY", "secret")
}

/// The answer of a command, which must come in time.
#[track_caller]
fn soon(command: &mut Command) -> Answer {
    let begun = Instant::now();
    let done = answer(command);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}: {done:?}", begun.elapsed());
    done
}

/// A store with a collection that can be pushed. Returns its source.
fn store(place: &Place) -> (PathBuf, Vec<u8>) {
    let source = container_of(&mut Random(8), &[("a", 300_000), ("b", 90_000)]);
    let file = place.write("in/m.safetensors", &source);
    answer(tierfs().arg("init").arg(place.store())).ok();
    place.import("acme/m", &[&file], &[]);
    (place.store(), source)
}

fn push(place: &Place, server: &Imitation, options: &[&str]) -> Answer {
    let mut command = program(place, server.port());
    soon(with_keys(&mut command).arg("push").arg(place.store()).args(["acme/m", URL]).args(options))
}

/// Exports the collection and compares it.
fn compare(place: &Place, server: &Imitation, source: &[u8]) {
    let mut command = program(place, server.port());
    let out = place.path("out");
    answer(with_keys(&mut command).args(["export", URL, "acme/m"]).arg(&out)).ok();
    assert_same(&fs::read(out.join("m.safetensors")).unwrap(), source, "the export");
}

#[test]
fn answers_that_will_not_change_are_named_at_once() {
    let place = Place::new();
    let body = |code| match code {
        "NoSuchBucket" => "<Error><Code>NoSuchBucket</Code><Message>secret</Message></Error>",
        "ExpiredToken" => "<Error><Code>ExpiredToken</Code></Error>",
        "PermanentRedirect" => "<Error><Code>PermanentRedirect</Code></Error>",
        _ => "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>",
    };
    let region = "x-amz-bucket-region: eu-west-1\r\n";
    for (status, headers, code, wanted) in [
        ("404 Not Found", "", "NoSuchBucket", "there is no such bucket; create it"),
        ("400 Bad Request", "", "ExpiredToken", "400 ExpiredToken: the session token has expired"),
        (
            "301 Moved Permanently",
            region,
            "PermanentRedirect",
            "in the region eu-west-1: set AWS_REGION=eu-west-1",
        ),
        ("400 Bad Request", "", "AuthorizationHeaderMalformed", "set AWS_REGION=eu-west-1"),
        ("301 Moved Permanently", "", "PermanentRedirect", "check AWS_REGION and AWS_ENDPOINT"),
    ] {
        let server = Imitation::new(Behaviour { always: Some((status, headers, body(code))), ..GOOD });
        let command = &mut program(&place, server.port());
        let error = soon(with_keys(command).args(["ls", URL])).failed(1, &[wanted]);
        assert!(!error.contains("did not answer") && !error.contains("secret"), "{error}");
        let command = &mut program(&place, server.port());
        let examined = soon(with_keys(command).args(["doctor", URL]));
        assert!(examined.code == Some(1) && examined.out.contains(wanted), "{examined:?}");
    }
}

#[test]
fn a_certificate_of_an_unknown_authority_is_named_and_trusted_by_a_bundle() {
    let place = Place::new();
    let server = Imitation::with_tls(GOOD);
    let program = || {
        let mut command = program(&place, 0);
        with_keys(&mut command).env("AWS_ENDPOINT", format!("https://127.0.0.1:{}", server.port()));
        command.args(["ls", URL]);
        command
    };
    let error = soon(&mut program()).failed(1, &["UnknownIssuer", "AWS_CA_BUNDLE"]);
    assert!(!error.contains("ERROR"), "{error}");
    let authority = repository("tests/golden/tls/authority.pem");
    soon(program().env("AWS_CA_BUNDLE", &authority)).failed(1, &["is not a remote of tierfs"]);
    let none = place.write("none.pem", "no certificate");
    soon(program().env("AWS_CA_BUNDLE", &none)).failed(1, &["AWS_CA_BUNDLE", "none.pem"]);
    // A profile may name the bundle.
    place.write("home/.aws/config", format!("[default]\nca_bundle = {}\n", authority.display()));
    soon(&mut program()).failed(1, &["is not a remote of tierfs"]);
    // TLS where there is none.
    let plain = Imitation::new(GOOD);
    let endpoint = format!("https://127.0.0.1:{}", plain.port());
    soon(program().env("AWS_ENDPOINT", endpoint)).failed(1, &["does not speak TLS", "AWS_ALLOW_HTTP"]);
}

#[test]
fn endpoints_that_no_request_can_be_sent_to_are_named_at_once() {
    let place = Place::new();
    for (endpoint, allows, wanted) in [
        ("http://127.0.0.1:1", "false", "set AWS_ALLOW_HTTP=true"),
        ("127.0.0.1:9000", "true", "must begin with https:// or http://"),
        ("https://no-such-host.invalid", "false", "no-such-host.invalid"),
    ] {
        let command = &mut program(&place, 1);
        let command = with_keys(command).env("AWS_ENDPOINT", endpoint).env("AWS_ALLOW_HTTP", allows);
        soon(command.args(["ls", URL])).failed(1, &[wanted]);
    }
    // A variable that is set to nothing is not set.
    let server = Imitation::new(GOOD);
    let command = &mut program(&place, server.port());
    soon(with_keys(command).env("AWS_PROXY_URL", "").args(["ls", URL])).failed(1, &["is not a remote"]);
}

#[test]
fn without_credentials_the_error_says_where_they_were_looked_for() {
    let place = Place::new();
    let looked = [
        "no credentials were found: AWS_ACCESS_KEY_ID is not set",
        "the profile \"default\" of ~/.aws has no keys",
        "AWS_WEB_IDENTITY_TOKEN_FILE is not set",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI is not set",
        "AWS_SKIP_SIGNATURE=true",
    ];
    let server = Imitation::new(GOOD);
    let ls = |metadata: &str| {
        let mut command = program(&place, server.port());
        command.env("AWS_METADATA_ENDPOINT", metadata).args(["ls", URL]);
        soon(&mut command)
    };
    ls("http://127.0.0.1:1").failed(1, &looked);
    // A service that accepts and never answers, as on some networks.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    ls(&address).failed(1, &[&looked[..], &[&format!("the metadata service {address}")]].concat());
    assert!(server.requests().is_empty(), "nothing was sent without a signature");
    place.write("home/.aws/config", "[default]\nsso_session = corp\n");
    let advice = "credential_process = aws configure export-credentials --profile default";
    ls("http://127.0.0.1:1").failed(1, &[advice]);
    let mut command = program(&place, server.port());
    soon(command.env("AWS_PROFILE", "other").args(["ls", URL]))
        .failed(1, &["AWS_PROFILE is \"other\"", ".aws/config"]);
    let mut command = program(&place, server.port());
    soon(command.env("AWS_SKIP_SIGNATURE", "true").args(["ls", URL])).failed(1, &["is not a remote"]);
    assert!(server.requests().iter().all(|request| request.key().is_empty()));
    let nowhere = "127.0.0.1:1";
    for (url, variables, words) in [
        (
            "gs://bucket/models",
            [("GCE_METADATA_HOST", nowhere), ("GCE_METADATA_IP", nowhere)],
            ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE=true"],
        ),
        (
            "az://container/models",
            [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_MSI_ENDPOINT", "http://127.0.0.1:1/token")],
            ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_SKIP_SIGNATURE=true"],
        ),
    ] {
        let mut command = program(&place, server.port());
        soon(command.envs(variables).args(["ls", url]))
            .failed(1, &[&["no credentials were found"], &words[..]].concat());
    }
}

#[test]
fn profiles_containers_and_instances_give_the_keys_that_requests_are_signed_with() {
    let place = Place::new();
    place.write(
        "home/.aws/config",
        format!(
            "[profile dev]\nregion = eu-west-3\ncredential_process = printf '%s' '{}'\n",
            keys("OFPROGRAM")
        ),
    );
    let token = place.write("token", "tok\n");
    // The endpoint of a container wants the token without the newline.
    let (of_container, of_instance) = (keys("OFCONTAINER"), keys("OFINSTANCE"));
    let (container, asked) = service(move |head| {
        if !head.to_ascii_lowercase().contains("authorization: tok\r\n") {
            Err(REFUSED)
        } else {
            Ok(of_container.clone())
        }
    });
    let (instance, _) = service(move |head| {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok(match path.rsplit('/').next().unwrap_or_default() {
            "token" => "tok".to_owned(),
            "" => "role\n".to_owned(),
            _ => of_instance.clone(),
        })
    });
    for (name, value, key) in [
        ("AWS_PROFILE", "dev".to_owned(), "OFPROGRAM"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{container}/v1/credentials"), "OFCONTAINER"),
        ("AWS_METADATA_ENDPOINT", instance, "OFINSTANCE"),
    ] {
        let server = Imitation::new(GOOD);
        let mut command = program(&place, server.port());
        command.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token).env(name, value);
        soon(command.args(["ls", URL])).failed(1, &["is not a remote"]);
        let requests = server.requests();
        assert!(
            !requests.is_empty() && requests.iter().all(|request| request.key() == key),
            "{key}: {requests:?}"
        );
        let region = if key == "OFPROGRAM" { "/eu-west-3/" } else { "/us-east-1/" };
        assert!(requests[0].header("authorization").contains(region), "{requests:?}");
    }
    assert!(*asked.lock() > 0);
}

/// Credentials as programs and services give them.
fn keys(name: &str) -> String {
    format!(
        "{{\"AccessKeyId\": \"{name}\", \"SecretAccessKey\": \"s\", \"Token\": \"t\", \"Version\": 1, \
         \"Expiration\": \"2999-01-01T00:00:00Z\"}}"
    )
}

#[test]
fn a_program_that_takes_longer_than_a_request_gives_credentials_and_runs_once() {
    let place = Place::new();
    let (server, runs) = (Imitation::new(GOOD), place.path("runs"));
    let line = format!("echo >> {}; sleep 12; printf '%s' '{}'", runs.display(), keys("SLOW"));
    place.write("home/.aws/config", format!("[profile slow]\ncredential_process = {line}\n"));
    let mut command = program(&place, server.port());
    answer(command.env("AWS_PROFILE", "slow").args(["ls", URL])).failed(1, &["is not a remote"]);
    assert_eq!(fs::read_to_string(runs).unwrap().lines().count(), 1);
}

#[test]
fn a_service_that_fails_for_a_moment_is_asked_again_for_credentials() {
    let place = Place::new();
    let server = Imitation::new(GOOD);
    let has_failed = AtomicBool::new(false);
    let (instance, _) = service(move |head| {
        if !has_failed.swap(true, Ordering::SeqCst) {
            return Err("503 Service Unavailable");
        }
        Ok(match head.split(' ').nth(1).unwrap_or_default().rsplit('/').next().unwrap_or_default() {
            "token" => "tok".to_owned(),
            "" => "role\n".to_owned(),
            _ => keys("LATER"),
        })
    });
    let mut command = program(&place, server.port());
    answer(command.env("AWS_METADATA_ENDPOINT", instance).args(["ls", URL])).failed(1, &["is not a remote"]);
    assert!(server.requests().iter().all(|request| request.key() == "LATER"));
}

#[test]
fn the_token_service_is_asked_through_the_proxy() {
    let place = Place::new();
    let (sender, heads) = std::sync::mpsc::channel();
    let (proxy, _) = service(move |head| {
        sender.send(head).unwrap();
        Err(REFUSED)
    });
    let mut command = program(&place, 1);
    command.env("AWS_PROXY_URL", proxy).env("AWS_ROLE_ARN", "arn:aws:iam::1:role/r");
    command.env("AWS_WEB_IDENTITY_TOKEN_FILE", place.write("token", "tok"));
    soon(command.args(["ls", URL])).failed(1, &["the web identity, by https://sts.us-east-1.amazonaws.com"]);
    let head = heads.recv().unwrap();
    assert!(head.starts_with("CONNECT sts.us-east-1.amazonaws.com:443 "), "{head}");
}

const REFUSED: &str = "401 Unauthorized";

/// A service for HTTP without a body: the text for the head of a request, or a status.
fn service(
    give: impl Fn(String) -> Result<String, &'static str> + Send + 'static,
) -> (String, std::sync::Arc<parking_lot::Mutex<u32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = std::sync::Arc::new(parking_lot::Mutex::new(0));
    let counted = asked.clone();
    // It ends with the process of the test.
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && client.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            *counted.lock() += 1;
            let given = give(String::from_utf8_lossy(&head).into_owned());
            let status = given.as_ref().err().copied().unwrap_or("200 OK");
            let body = given.unwrap_or_default();
            let len = body.len();
            drop(write!(
                client,
                "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
            ));
        }
    });
    (address, asked)
}

#[test]
fn a_server_that_ignores_or_refuses_conditions_is_used_by_a_single_writer_only() {
    for conditions in [Conditions::Ignored, Conditions::Refused] {
        let place = Place::new();
        let (_, source) = store(&place);
        let server = Imitation::new(Behaviour { conditions, ..GOOD });
        let error = push(&place, &server, &["--create"]).failed(1, &["conditional PUT", "--single-writer"]);
        assert_eq!(error.contains("501 NotImplemented"), conditions == Conditions::Refused, "{error}");
        assert_eq!(server.keys(), [""; 0], "a refused push leaves nothing behind");
        push(&place, &server, &["--create", "--single-writer"]).ok();
        let first = server.requests().len();
        assert!(push(&place, &server, &["--single-writer"]).ok().contains("snapshot 1"));
        let methods: Vec<String> =
            server.requests()[first..].iter().map(|request| request.method.clone()).collect();
        assert!(!methods.contains(&"PUT".to_owned()), "{methods:?}");
        compare(&place, &server, &source);
        let examined = soon(with_keys(&mut program(&place, server.port())).args(["doctor", URL])).ok();
        assert!(examined.contains("does not support conditional PUT"), "{examined}");
        push(&place, &server, &["--variants", "q8"]).failed(1, &["conditional PUT"]);
        push(&place, &server, &["--variants", "q8", "--single-writer"]).ok();
        let plan = |options: &[&str]| {
            let mut command = program(&place, server.port());
            soon(
                with_keys(&mut command)
                    .args(["gc", URL, "--keep-days", "0", "--keep-last", "1"])
                    .args(options),
            )
        };
        if conditions == Conditions::Refused {
            plan(&[]).failed(1, &["501"]);
        }
        assert!(plan(&["--single-writer"]).ok().contains("planned 1 snapshots"));
    }
}

#[test]
fn answers_to_ranges_with_the_status_200_are_used_if_they_are_right_and_named_if_not() {
    let place = Place::new();
    let (_, source) = store(&place);
    let server = Imitation::new(Behaviour { ranges: Ranges::WithStatus200, ..GOOD });
    push(&place, &server, &["--create"]).ok();
    compare(&place, &server, &source);
    let server = Imitation::new(Behaviour { ranges: Ranges::Ignored, ..GOOD });
    push(&place, &server, &["--create"]).failed(1, &["status 200", "range requests"]);
    assert_eq!(server.keys(), [""; 0]);
    // A remote that was made before.
    let text = "format = 1\nuuid = \"000102030405060708090a0b0c0d0e0f\"\n";
    let quirk = Behaviour { always: Some(("200 OK", "", text)), ..GOOD };
    let server = Imitation::new(quirk);
    let mut command = program(&place, server.port());
    let examined = soon(with_keys(&mut command).args(["doctor", URL]));
    assert!(examined.code == Some(1) && examined.out.contains("bad   ranges"), "{examined:?}");
}

#[test]
fn doctor_says_whether_e_tags_are_compared() {
    let place = Place::new();
    store(&place);
    for (compares_e_tags, wanted) in [(true, "ETags are compared"), (false, "does not compare ETags")] {
        let server = Imitation::new(Behaviour { compares_e_tags, ..GOOD });
        let told = push(&place, &server, &["--create"]);
        assert_eq!((told.code, told.err.contains(wanted)), (Some(0), !compares_e_tags), "{told:?}");
        let mut command = program(&place, server.port());
        let examined = answer(with_keys(&mut command).args(["doctor", URL])).ok();
        assert!(examined.contains(wanted) && examined.contains("conditional PUT works"), "{examined}");
        assert!(server.requests().iter().any(|request| request.method == "HEAD"));
    }
}

#[test]
fn listings_without_an_end_end_by_the_timeout() {
    let place = Place::new();
    store(&place);
    for listings in [Listings::Repeated, Listings::Empty] {
        let sound = Imitation::new(GOOD);
        push(&place, &sound, &["--create"]).ok();
        let server = sound.with(Behaviour { listings, ..GOOD });
        let mut command = program(&place, server.port());
        let name = format!("{listings:?}");
        let options = ["--timeout", "2", "--cache", place.path(format!("cache-{name}")).to_str().unwrap()]
            .map(str::to_owned);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let begun = Instant::now();
        let mounted = place.mount_store_by(with_keys(&mut command), PathBuf::from(URL), &name, &options);
        let error =
            fs::read_dir(&mounted.mountpoint).and_then(|mut names| names.find(Result::is_err).transpose());
        let listed = fs::read_dir(mounted.path("acme"));
        assert!(error.is_err() || listed.is_err(), "{listings:?}: {error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{listings:?}: {:?}", begun.elapsed());
        mounted.unmount();
    }
}

#[test]
fn the_bucket_is_that_of_the_url_whatever_the_environment_has() {
    let place = Place::new();
    let (store, source) = store(&place);
    let server = Imitation::new(GOOD);
    for name in ["AWS_BUCKET", "AWS_BUCKET_NAME"] {
        let mut command = program(&place, server.port());
        command.env(name, "other").arg("push").arg(&store).args(["acme/m", URL, "--create"]);
        soon(with_keys(&mut command)).ok();
    }
    compare(&place, &server, &source);
    let targets = server.requests().into_iter().map(|request| request.target);
    assert_eq!(
        targets.filter(|target| !target.starts_with("/models")).collect::<Vec<_>>(),
        Vec::<String>::new()
    );
}

#[test]
fn a_bucket_is_a_part_of_the_host_where_the_endpoint_wants_that() {
    let place = Place::new();
    let (_, source) = store(&place);
    let server = Imitation::by_host();
    let run = |arguments: &[&str]| {
        let mut command = program(&place, 1);
        // The name of the host needs no address: the server is the proxy.
        command.env("AWS_PROXY_URL", format!("http://127.0.0.1:{}", server.port()));
        command.env("AWS_ENDPOINT", "http://s3.example").env("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
        soon(with_keys(&mut command).args(arguments)).ok()
    };
    let (store, out) = (place.store(), place.path("out"));
    run(&["push", store.to_str().unwrap(), "acme/m", URL, "--create"]);
    run(&["export", URL, "acme/m", out.to_str().unwrap()]);
    assert_same(&fs::read(out.join("m.safetensors")).unwrap(), &source, "the export");
    assert!(server.requests().iter().all(|request| request.host == "models.s3.example"));
}
