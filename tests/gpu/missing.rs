//! Messages for a missing driver, device or library.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::fake::{build, gpu_read};
use support::{Place, answer, tierfs};

#[test]
fn without_a_driver_the_message_names_it_and_what_to_do() {
    let place = Place::new();
    // Files that are not libraries, for machines that have a driver.
    let folder = place.path("libraries");
    fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1", "libcufile.so", "libcufile.so.0"] {
        fs::write(folder.join(name), b"").unwrap();
    }
    let file = place.write("f", [0; 10]);
    for options in [&[][..], &["--bench"], &["--route", "host"], &["--json", "--verify"]] {
        let said = gpu_read(&folder, &[], options, &[&file]);
        assert_eq!(said.code, Some(1));
        // With --json the error is an object on the standard output, as for every command.
        let (text, other) =
            if options.contains(&"--json") { (&said.out, &said.err) } else { (&said.err, &said.out) };
        assert_eq!(other, "");
        for words in ["libcuda.so.1 is not found", "install NVIDIA's driver"] {
            assert!(text.contains(words), "{text}");
        }
    }
    let mut doctor = tierfs();
    let rows = answer(doctor.env("LD_LIBRARY_PATH", &folder).args(["doctor", "--json"])).json();
    let row = |what: &str| rows.as_array().unwrap().iter().find(|row| row["what"] == what).unwrap().clone();
    for what in ["CUDA", "cuFile"] {
        assert_eq!(row(what)["verdict"], "warn");
    }
    assert!(row("CUDA")["found"].as_str().unwrap().contains("libcuda.so.1 is not found"));
}

#[test]
fn without_a_device_the_message_is_the_drivers() {
    let place = Place::new();
    let folder = build(&place, &["cuda"]);
    let file = place.write("f", [0; 10]);
    let said = gpu_read(&folder, &[("TIERFS_FAKE_NO_DEVICE", "1")], &[], &[&file]);
    said.failed(1, &["CUDA_ERROR_NO_DEVICE", "nvidia-smi"]);
    gpu_read(&folder, &[], &["--device", "1"], &[&file]).failed(1, &["there are 1 CUDA devices"]);
}

#[test]
fn without_cufile_a_file_is_read_through_the_host_and_the_report_says_why() {
    let place = Place::new();
    let folder = build(&place, &["cuda"]);
    for name in ["libcufile.so", "libcufile.so.0"] {
        fs::write(folder.join(name), b"").unwrap();
    }
    let file = place.write("f", [9; 10_000]);
    let said = gpu_read(&folder, &[], &["--verify"], &[&file]).ok();
    assert!(said.contains("through host memory") && said.contains("libcufile.so is not found"), "{said}");
    assert!(said.contains("compared on the device: the same"), "{said}");
    gpu_read(&folder, &[], &["--route", "cufile"], &[&file]).failed(1, &["libcufile.so is not found"]);
}

#[test]
fn a_driver_that_lacks_a_function_is_an_error_and_no_panic() {
    let place = Place::new();
    let folder = place.path("libraries");
    fs::create_dir_all(&folder).unwrap();
    let source = place.write("old.c", "int cuInit(unsigned flags) { return flags; }\n");
    let mut command = std::process::Command::new("cc");
    answer(command.args(["-shared", "-fPIC", "-o"]).arg(folder.join("libcuda.so")).arg(source)).ok();
    let file = place.write("f", [0; 10]);
    let said = gpu_read(&folder, &[], &[], &[&file]).failed(1, &["the CUDA driver has no cu", "newer"]);
    assert!(!said.contains("panic"));
}

/// The names in `text` that stand between `before` and `after`.
fn names<'a>(text: &'a str, before: &str, after: char) -> BTreeSet<&'a str> {
    let starts = text.match_indices(before).map(|(at, _)| &text[at + before.len()..]);
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let ends =
        starts.filter_map(|rest| rest.split_once(|letter| !is_name(letter)).map(|(name, _)| (name, rest)));
    ends.filter(|(name, rest)| rest[name.len()..].starts_with(after)).map(|(name, _)| name).collect()
}

#[test]
fn every_function_of_the_driver_that_is_called_is_looked_for_first() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu");
    let mut sources = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|suffix| suffix == "rs") {
            sources.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let mut called = names(&sources, "sys::", '(');
    called.retain(|name| name.starts_with("cu") && *name != "culib");
    let looked_for: BTreeSet<&str> =
        names(&sources, "    \"", '"').into_iter().filter(|name| name.starts_with("cu")).collect();
    assert!(called.len() > 20, "{called:?}");
    assert_eq!(called, looked_for);
}
