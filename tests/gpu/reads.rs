//! Whole reads: the bytes that reach the device by both routes, and each fallback from cuFile.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use crate::fake::{build, gpu_read};
use support::{Place, Random, container_of, imported, wait_until};

const BOTH: &[&str] = &["cuda", "cufile"];

/// The report of the one read that was compared.
#[track_caller]
fn report(folder: &Path, settings: &[(&str, &str)], options: &[&str], path: &Path) -> Value {
    let options = [&["--json", "--verify"], options].concat();
    let rows = gpu_read(folder, settings, &options, &[path]).json();
    let report = rows[0].clone();
    assert_eq!(report["compared"]["differing"], 0, "{report:#}");
    assert_eq!(report["device"], "A fake GPU");
    report
}

#[test]
fn exact_files_are_read_by_cufile_and_encoded_ones_through_the_host() {
    let (place, _) = imported(&[]);
    let folder = build(&place, BOTH);
    let model = place.write("big.safetensors", container_of(&mut Random(3), &[("w", 5_000_001), ("v", 77)]));
    place.import("t/exact", &[&model], &[]);
    place.import("t/there", &[&model], &["--in-place"]);
    place.import("t/q8", &[&model], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    for (name, route) in [
        ("t/exact/w", "cufile"),
        ("t/exact/big.safetensors", "cufile"),
        ("t/there/w", "cufile"),
        ("t/there/v", "cufile"),
        ("t/q8/w", "host"),
        ("t/q8/big.safetensors", "host"),
        ("demo/model/empty", "host"),
        ("t/exact/.as/f16/w", "host"),
        ("t/exact/.as/npy/w.npy", "host"),
    ] {
        let report = report(&folder, &[], &[], &mounted.path(name));
        assert_eq!(report["route"], route, "{name}: {report:#}");
        assert_eq!(report["bytes"], std::fs::metadata(mounted.path(name)).unwrap().len());
        assert_eq!(report["why"].is_string(), route == "host");
        assert_eq!(report["compared"]["on"], "device");
    }
    let said = gpu_read(&folder, &[], &["--verify"], &[&mounted.path("t/q8/w")]).ok();
    assert!(said.contains("through host memory") && said.contains("codes of tier q8"), "{said}");
}

#[test]
fn pinned_tensors_batches_and_forms_are_read_by_cufile() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let folder = build(&place, BOTH);
    let batch = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/batch.cgeb");
    place.import("demo/batch", &[&batch], &[]);
    let mounted = place.mount(&[]);
    let pinned = ["model/x", "model/.as/safetensors/x.safetensors", "model/.as/bf16/model.safetensors"];
    for name in pinned.into_iter().chain(["batch/batch.cgeb"]) {
        let path = mounted.path("demo").join(name);
        assert_eq!(report(&folder, &[], &[], &path)["route"], "host", "{name}");
        support::set(&path, "pin", "1").unwrap();
        let report = report(&folder, &[], &["--route", "cufile"], &path);
        assert_eq!(report["route"], "cufile", "{name}: {report:#}");
    }
}

#[test]
fn a_copy_that_goes_while_it_is_read_does_not_count() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let folder = build(&place, BOTH);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("demo/model/x");
    let program = support::tierfs().get_program().to_str().unwrap().to_owned();
    let write =
        format!("printf changed | dd of={} bs=1 seek=20000 conv=notrunc status=none", tensor.display());
    let unpin = format!("{program} unpin {} > /dev/null", tensor.display());
    let form = mounted.path("demo/model/.as/npy/x.npy");
    for (path, during) in [(&tensor, &unpin), (&tensor, &write), (&form, &write)] {
        support::set(path, "pin", "1").unwrap();
        let planned = || tierfs::gpu::route::plan(path, Default::default()).unwrap().route;
        wait_until("a copy", || matches!(planned(), tierfs::gpu::Route::CuFile { .. }));
        let report = report(&folder, &[("TIERFS_FAKE_DURING", during)], &[], path);
        assert_eq!(report["route"], "host", "{during}: {report:#}");
        assert!(report["why"].as_str().unwrap().contains("while it was read"), "{report:#}");
    }
}

#[test]
fn any_part_of_a_long_file_arrives_whole_on_either_route() {
    let place = Place::new();
    let folder = build(&place, BOTH);
    let mebibytes = 1 << 20;
    let file = place.write("long", Random(9).bytes(37 * mebibytes + 13));
    for (offset, len) in [
        (0, 37 * mebibytes + 13),
        (1, 33 * mebibytes),
        (4095, 2),
        (16 * mebibytes - 1, 2),
        (16 * mebibytes, 16 * mebibytes),
        (37 * mebibytes + 12, 1),
    ] {
        let (offset, len) = (offset.to_string(), len.to_string());
        for route in ["cufile", "host"] {
            let options = ["--offset", &offset, "--len", &len, "--route", route];
            let report = report(&folder, &[], &options, &file);
            assert_eq!((report["route"].as_str(), report["bytes"].to_string()), (Some(route), len.clone()));
        }
    }
    gpu_read(&folder, &[], &["--offset", "99999999"], &[&file]).failed(1, &["bytes", "long"]);
}

#[test]
fn every_failure_of_cufile_falls_back_to_the_host_with_a_reason() {
    let place = Place::new();
    let folder = build(&place, BOTH);
    let file = place.write("long", Random(10).bytes((33 << 20) + 5));
    for (how, why) in [
        ("closed", "CU_FILE_NVFS_DRIVER_ERROR"),
        ("type", "CU_FILE_INVALID_FILE_TYPE"),
        ("unknown", "error 7000, and the CUDA driver 2"),
        ("read", "CU_FILE_NVFS_DRIVER_ERROR"),
        ("errno", "reading at 0: Input/output error"),
    ] {
        let settings = [("TIERFS_FAKE_CUFILE", how)];
        let report = report(&folder, &settings, &[], &file);
        assert_eq!(report["route"], "host", "{how}");
        assert!(report["why"].as_str().unwrap().contains(why), "{how}: {report:#}");
        gpu_read(&folder, &settings, &["--route", "cufile"], &[&file]).failed(1, &["cuFile cannot", why]);
    }
    let disk = std::fs::metadata(&file).unwrap().dev();
    let entry = format!("/run/udev/data/b{}:{}", libc::major(disk), libc::minor(disk));
    let why = if Path::new(&entry).exists() { "CU_FILE_HANDLE_NOT_REGISTERED (5027)" } else { &entry };
    let options = ["--route", "cufile"];
    gpu_read(&folder, &[("TIERFS_FAKE_CUFILE", "disk")], &options, &[&file]).failed(1, &["registering", why]);
    let indirect = [("TIERFS_FAKE_CUFILE", "indirect")];
    let slow = report(&folder, &indirect, &[], &file);
    assert_eq!(slow["route"], "host");
    assert!(slow["why"].as_str().unwrap().contains("neither the module nvidia-fs nor P2PDMA"), "{slow:#}");
    let asked = report(&folder, &indirect, &["--route", "cufile"], &file);
    assert_eq!(asked["route"], "cufile");
    assert!(asked["steps"].to_string().contains("through host memory"), "{asked:#}");
    let report_of = |how| report(&folder, &[("TIERFS_FAKE_CUFILE", how)], &[], &file);
    assert_eq!(report_of("short")["route"], "cufile");
    let unregistered = report_of("memory");
    assert_eq!(unregistered["route"], "cufile");
    assert!(unregistered["steps"][0].as_str().unwrap().contains("CU_FILE_GPU_MEMORY_PINNING_FAILED"));
}

#[test]
fn differing_bytes_are_reported_with_exit_code_3_on_either_route() {
    let place = Place::new();
    let folder = build(&place, BOTH);
    let file = place.write("f", Random(4).bytes(10_000));
    let said = gpu_read(&folder, &[("TIERFS_FAKE_WRONG_AT", "9999")], &["--verify"], &[&file]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.out.contains("compared on the device: 1 bytes differ"), "{said:?}");
    let report = report(&folder, &[("TIERFS_FAKE_NO_PROGRAM", "1")], &[], &file);
    assert_eq!(report["compared"]["on"], "host");
    assert!(report["steps"].to_string().contains("CUDA_ERROR_INVALID_PTX"), "{report:#}");
}

#[test]
fn a_benchmark_prints_a_row_for_each_route_of_a_file() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let folder = build(&place, BOTH);
    let file = place.write("plain", Random(4).bytes(100_000));
    let mounted = place.mount(&[]);
    let tensor = mounted.path("demo/model/x");
    let said = gpu_read(&folder, &[], &["--bench", "--verify"], &[&file, &tensor]);
    let rows: Vec<Vec<&str>> = said.out.lines().map(|line| line.split(" | ").collect()).collect();
    let routes: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], row[2])).collect();
    let (file, tensor) = (format!("| {}", file.display()), format!("| {}", tensor.display()));
    assert_eq!(routes, [(&*file, "cuFile"), (&*file, "host"), (&*tensor, "host")], "{said:?}");
    assert!(rows.iter().all(|row| row[5].starts_with("compared on the device: the same")), "{said:?}");
    assert!(rows.iter().all(|row| row[6] == "A fake GPU |"), "{said:?}");
    assert_eq!(said.code, Some(0));
}
