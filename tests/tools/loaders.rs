//! Programs that load models from a mount and from the imported directory: both must load the same.
//! `scripts/loaders.sh` runs those that need more than NumPy.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{Mounted, Place, answer, minilm, python_command, repository, wait_until};

/// A script of `tests/loaders/`, to run.
fn script(name: &str) -> Command {
    let mut command = python_command();
    command.env("OPENBLAS_NUM_THREADS", "1").arg(repository("tests/loaders").join(name));
    command
}

/// Runs a script of `tests/loaders/`, which must succeed; its output.
fn python<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> String {
    answer(script(name).args(arguments)).ok()
}

/// The output of `make.py` for this kind, and a mount of it.
fn made(kind: &str) -> (Place, PathBuf, Mounted) {
    let place = Place::new();
    let source = place.path(kind);
    python("make.py", [OsStr::new(kind), source.as_os_str()]);
    place.import("demo/m", &[&source], &[]);
    // From here on the source has the tensors beside their containers too.
    python("make.py", [OsStr::new("beside"), source.as_os_str()]);
    let mounted = place.mount(&[]);
    (place, source, mounted)
}

#[test]
fn numpy_loads_and_maps_arrays_and_tensors() {
    let (_place, source, mounted) = made("arrays");
    python("load_numpy.py", [source, mounted.path("demo/m")]);
}

#[test]
fn gguf_readers_see_metadata_and_tensors() {
    let (_place, source, mounted) = made("gguf");
    python("load_gguf.py", [source, mounted.path("demo/m")]);
}

/// A wrong result makes the loader fail.
#[test]
fn a_loader_fails_on_differing_bytes() {
    let place = Place::new();
    let [one, other] = ["one", "other"].map(|name| place.path(name));
    for folder in [&one, &other] {
        for kind in ["arrays", "beside"] {
            python("make.py", [OsStr::new(kind), folder.as_os_str()]);
        }
    }
    python("load_numpy.py", [&one, &other]);
    let mut bytes = fs::read(other.join("w")).unwrap();
    bytes[7 * 500 * 4 + 3 * 4] ^= 1;
    fs::write(other.join("w"), bytes).unwrap();
    answer(script("load_numpy.py").args([one, other])).failed(1, &["differs"]);
}

#[test]
fn every_snippet_of_the_document_is_run_by_a_test() {
    let document = fs::read_to_string(repository("docs/LOADERS.md")).unwrap();
    let mut found = 0;
    for entry in fs::read_dir(repository("tests/loaders")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("load_") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let snippet = text.split_once("# snippet\n").unwrap().1.split_once("# end\n").unwrap().0;
        let wanted = format!("<!-- tests/loaders/{name} -->\n```python\n{snippet}```\n");
        assert!(document.contains(&wanted), "docs/LOADERS.md has not:\n{wanted}");
        found += 1;
    }
    assert_eq!(document.matches("<!-- tests/loaders/").count(), found);
}

mod heavy {
    use super::*;

    fn model(options: &[&str]) -> (Place, Mounted) {
        let place = Place::new();
        place.import("demo/minilm", &[&minilm()], options);
        let mounted = place.mount(&[]);
        (place, mounted)
    }

    #[test]
    fn safetensors_loads_whole_models_single_tensors_and_parts_of_them() {
        let (_place, mounted) = model(&[]);
        python("load_safetensors.py", [minilm(), mounted.path("demo/minilm")]);
    }

    #[test]
    fn safetensors_loads_a_cast_model_in_half_precision() {
        let (place, mounted) = model(&[]);
        let half = place.path("half");
        fs::create_dir(&half).unwrap();
        let script = "import sys\n\
                      from safetensors.numpy import load_file, save_file\n\
                      tensors = load_file(sys.argv[1] + '/model.safetensors')\n\
                      halves = {name: t.astype('<f2') if t.dtype.kind == 'f' else t for name, t in tensors.items()}\n\
                      save_file(halves, sys.argv[2] + '/model.safetensors')\n";
        support::python_line(script, [&minilm(), &half]);
        python("load_safetensors.py", [half, mounted.path("demo/minilm/.as/f16")]);
    }

    #[test]
    fn an_embedding_from_the_mount_is_exact_and_close_in_8_and_5_bits() {
        let (_place, mounted) = model(&["--in-place"]);
        let (source, folder) = (minilm(), mounted.path("demo/minilm"));
        python("minilm.py", [&source, &folder]);
        let set = |number: usize, tier: &str| {
            support::set(&folder, "tier", tier).unwrap();
            wait_until("the end of the job", || {
                let jobs = fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
                jobs.lines().nth(number).is_some_and(|line| line.contains(" done in "))
            });
        };
        for (number, (tier, cosine)) in [("q8", "0.999"), ("q5", "0.985")].into_iter().enumerate() {
            set(number, tier);
            let arguments = [source.as_os_str(), folder.as_os_str(), OsStr::new(cosine)];
            println!("{tier}: cosine {}", python("minilm.py", arguments));
        }
        set(2, "exact");
        python("minilm.py", [&source, &folder]);
    }
}
