//! `tierfs report`: its numbers are those of the control files, names stay text, and a browser shows it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use support::{Mounted, Place, Random, container_of, get, imported, npy_file, python, run};

/// Writes a page, and reads it as a browser would.
fn report(of: &Path, page: &Path, options: &[&str]) -> Value {
    let words = ["report".as_ref(), of.as_os_str(), "-o".as_ref(), page.as_os_str()];
    run(words.into_iter().chain(options.iter().map(std::convert::AsRef::as_ref))).ok();
    serde_json::from_str(&python("report.py", [page])).unwrap()
}

fn rows(page: &Value, head: &str) -> Vec<Vec<String>> {
    let tables = page["tables"].as_array().unwrap();
    let found = tables.iter().filter(|table| table[0][0] == head);
    let rows = found.flat_map(|table| table.as_array().unwrap().iter().skip(1));
    rows.map(|row| serde_json::from_value(row.clone()).unwrap()).collect()
}

/// A store with an exact, a quantized and a packed collection.
fn store() -> Place {
    let (place, _) = imported(&["--tier", "q5:all"]);
    let sources = [place.path("model/model.safetensors"), place.path("model/x.npy")];
    place.import("demo/exact", &[&sources[0], &sources[1]], &[]);
    place.import("other/packed", &[&sources[0]], &["--pack"]);
    place
}

fn tiles_equal_the_statistics(page: &Value, stats: &Value) {
    let mut tiles = 0;
    for share in stats["shares"].as_array().unwrap() {
        for (tier, tally) in share["tiers"].as_object().unwrap() {
            let stored = tally["stored_bytes"].as_u64().unwrap();
            let found = page["tiles"]
                .as_array()
                .unwrap()
                .iter()
                .find(|tile| tile["collection"] == share["path"] && tile["tier"] == tier.as_str());
            let Some(tile) = found else {
                assert_eq!(stored, 0, "{tier} of {share}");
                continue;
            };
            assert_eq!(tile["stored"], stored.to_string());
            assert_eq!(tile["logical"], tally["logical_bytes"].to_string());
            tiles += 1;
        }
    }
    assert_eq!(tiles, page["tiles"].as_array().unwrap().len());
    assert!(tiles >= 4, "{page}");
}

/// Compares the table of a file with the attributes of its tensors, and returns their number.
fn tensors_equal_their_attributes(page: &Value, mounted: &Mounted, file: &str, folder: &str) -> usize {
    let owners = page["owners"].as_array().unwrap();
    let tables = page["tables"].as_array().unwrap();
    let is_of = |(owner, table): (&Value, &Value)| {
        owner.as_str().unwrap().starts_with(file) && table[0][0] == "tensor"
    };
    let place = owners.iter().zip(tables).position(is_of).unwrap();
    let rows: Vec<Vec<String>> = serde_json::from_value(page["tables"][place].clone()).unwrap();
    for row in &rows[1..] {
        let path = mounted.path(folder).join(&row[0]);
        let names = ["dtype", "shape", "tier", "bits", "bytes_stored"];
        for (name, shown) in names.iter().zip(&row[1..]) {
            let value = get(&path, name);
            assert_eq!(
                *shown,
                if value.is_empty() { "scalar".to_owned() } else { value },
                "{name} of {row:?}"
            );
        }
        let error: f64 = get(&path, "error").split_once("rms=").unwrap().1.parse().unwrap();
        let shown: f64 = row[6].parse().unwrap();
        assert!((shown - error).abs() <= error * 1e-3, "{row:?}");
    }
    rows.len() - 1
}

#[test]
fn the_numbers_of_a_page_are_those_of_the_control_files() {
    let place = store();
    let offline = report(&place.store(), &place.path("offline.html"), &[]);
    let mounted = place.mount(&[]);
    let stats = mounted.stats();
    let page = report(&mounted.mountpoint, &place.path("page.html"), &[]);
    let by_store = report(&place.store(), &place.path("by-store.html"), &["--no-samples"]);
    for page in [&offline, &page, &by_store] {
        tiles_equal_the_statistics(page, &stats);
        let texts: String =
            page["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        assert!(texts.contains("No problems are known."), "{texts}");
    }
    let file = "demo/model/model.safetensors";
    let tensors =
        tensors_equal_their_attributes(&page, &mounted, file, "demo/model/.tensors/model.safetensors");
    assert!(tensors > 3, "{page}");
    assert_eq!(rows(&offline, "tensor").len(), rows(&page, "tensor").len());
    assert_eq!(page["cells"].as_array().unwrap().len(), offline["cells"].as_array().unwrap().len());
    // The areas of tiles are in proportion to their bytes.
    let tiles = page["tiles"].as_array().unwrap();
    let bytes = |tile: &Value| tile["stored"].as_str().unwrap().parse::<f64>().unwrap();
    for tile in tiles.iter().filter(|tile| bytes(tile) > 0.0) {
        assert!(tile["area"].as_f64().unwrap() > 0.0, "{tile}");
    }
    assert!(rows(&by_store, "model").iter().all(|row| row.len() == 1), "nothing was sampled");
}

#[test]
fn savings_are_those_that_a_move_then_has() {
    let place = Place::new();
    let names: Vec<String> = (0..4).map(|layer| format!("layers.{layer}.weight")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), 40_000)).collect();
    let source = place.write("m.safetensors", container_of(&mut Random(3), &tensors));
    place.import("demo/c", &[&source], &[]);
    let page = report(&place.store(), &place.path("page.html"), &[]);
    let promised = rows(&page, "model").into_iter().find(|row| row[2] == "q5").unwrap();
    let groups: Vec<Vec<String>> =
        rows(&page, "tensor group").into_iter().map(|row| row[..2].to_vec()).collect();
    assert_eq!(groups, [["layers.*.weight", "4"], ["sum of the model", "4"]]);
    let mounted = place.mount(&[]);
    run(["tier".as_ref(), "q5:all".as_ref(), "--lossy".as_ref(), mounted.path("demo/c").as_os_str()]).ok();
    let then = report(&mounted.mountpoint, &place.path("then.html"), &[]);
    let stored: f64 = rows(&then, "tensor").iter().map(|row| row[5].parse::<f64>().unwrap()).sum();
    let kibibytes: f64 = promised[3].strip_suffix(" KiB").unwrap().parse().unwrap();
    assert!((stored / 1024.0 - kibibytes).abs() / kibibytes < 0.02, "{promised:?} and {stored}");
    // The error that was measured beforehand is the one that the store then records.
    let percent: f64 = promised[6].strip_suffix(" %").unwrap().parse().unwrap();
    let cosine: f64 = promised[7].parse().unwrap();
    for row in rows(&then, "tensor") {
        let shown: f64 = row[7].parse().unwrap();
        assert!((shown - cosine).abs() < 2e-4, "{row:?} and {promised:?}");
    }
    assert!(percent > 0.5 && percent < 10.0, "{promised:?}");
}

#[test]
fn a_model_of_a_thousand_tensors_makes_less_than_two_megabytes() {
    let place = Place::new();
    let names: Vec<String> = (0..1000)
        .map(|at| format!("model.layers.{}.self_attn.projection_{}.weight", at / 10, at % 10))
        .collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), 512)).collect();
    let source = place.write("m.safetensors", container_of(&mut Random(3), &tensors));
    place.import("demo/c", &[&source], &["--tier", "q8:all"]);
    let path = place.path("page.html");
    let page = report(&place.store(), &path, &[]);
    assert_eq!(rows(&page, "tensor").len(), 1000);
    assert_eq!(page["cells"].as_array().unwrap().len(), 1000);
    let bytes = fs::metadata(&path).unwrap().len();
    assert!(bytes < 2_000_000, "{bytes}");
}

#[test]
fn hostile_names_stay_text() {
    let place = Place::new();
    let hostile = [
        "<script>alert(1)</script>",
        "a\"onmouseover=\"x",
        "'&lt;&amp;",
        "</td></tr></table>",
        "\u{202e}live",
    ];
    let tensors: Vec<_> = hostile.iter().map(|name| (*name, 64)).collect();
    let mut container = container_of(&mut Random(3), &[]);
    container.clear();
    let mut header = String::from("{");
    for (at, (name, count)) in tensors.iter().enumerate() {
        let name = serde_json::to_string(name).unwrap();
        let (from, to) = (at * count * 4, (at + 1) * count * 4);
        let comma = if at == 0 { "" } else { "," };
        header.push_str(&format!(
            "{comma}{name}:{{\"dtype\":\"F32\",\"shape\":[{count}],\"data_offsets\":[{from},{to}]}}"
        ));
    }
    header.push('}');
    container.extend((header.len() as u64).to_le_bytes());
    container.extend(header.bytes());
    container.extend(vec![1; tensors.len() * 64 * 4]);
    let source = place.write("<b>m.safetensors", container);
    place.import("demo/<i>&amp;\"c", &[&source], &[]);
    let path = place.path("page.html");
    // The reader fails at a script, an event handler, or elements that do not nest.
    let page = report(&place.store(), &path, &[]);
    let shown: Vec<String> = rows(&page, "tensor").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(shown.len(), hostile.len(), "{shown:?}");
    assert!(shown.iter().any(|name| name.contains("<script>alert(1)")), "{shown:?}");
    assert!(page["tiles"].as_array().unwrap().iter().all(|tile| tile["collection"] == "demo/<i>&amp;\"c"));
    assert!(!fs::read_to_string(&path).unwrap().contains("<script"));
}

#[test]
fn damaged_bytes_and_problems_are_in_the_page() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(3).floats(64 << 10)));
    place.import("demo/c", &[&source], &["--tier", "q8:all"]);
    let path = place.store().join("demo/c/tier1.dat");
    let length = fs::metadata(&path).unwrap().len();
    fs::write(&path, vec![0xaa; length as usize]).unwrap();
    let mounted = place.mount(&[]);
    run(["scrub".as_ref(), mounted.mountpoint.as_os_str()]).failed(3, &[]);
    let page = report(&mounted.mountpoint, &place.path("page.html"), &[]);
    let tensor = rows(&page, "tensor").remove(0);
    assert!(tensor[11].contains("Input/output error"), "{tensor:?}");
    let health = rows(&page, "collection").remove(0);
    assert!(health[4].contains("demo/c/w.npy: bytes 128 to "), "{health:?}");
}

/// A Chromium, if the machine has one.
fn chromium() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = names.iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    found.map(PathBuf::from)
}

#[test]
fn a_browser_shows_the_page_without_errors_or_requests() {
    let Some(chromium) = chromium() else {
        println!("left out: no Chromium is installed; Debian's package chromium has one");
        return;
    };
    let place = store();
    let path = place.path("page.html");
    report(&place.store(), &path, &[]);
    let folder = place.path("browser");
    let shown: Value =
        serde_json::from_str(&python("browser.py", [chromium.as_path(), &path, &folder])).unwrap();
    assert_eq!(shown["console"], serde_json::json!([]));
    assert_eq!(shown["requests"], serde_json::json!([]));
    // The check itself sees both.
    let planted = "<img src=\"http://127.0.0.1:9/x.png\"><script>console.error('planted')</script>";
    let bad = place.write("bad.html", format!("<!DOCTYPE html><html><body>{planted}</body></html>"));
    let seen: Value =
        serde_json::from_str(&python("browser.py", [chromium.as_path(), &bad, &folder])).unwrap();
    assert_eq!(seen["requests"], serde_json::json!(["http://127.0.0.1:9/x.png"]));
    assert!(seen["console"][0].as_str().unwrap().contains("planted"), "{seen}");
    assert!(shown["rectangles"].as_u64().unwrap() > 8 && shown["pictures"].as_u64().unwrap() >= 2, "{shown}");
    // The paper, the ink of the tiers and the bands have their colours of each scheme.
    for (scheme, paper, tiers) in
        [("light", "ffffff", ["4c7fd1", "d9b53a"]), ("dark", "15191d", ["4470b8", "a88c2d"])]
    {
        let counts = &shown[scheme];
        assert!(counts[paper].as_u64().unwrap_or(0) > 100_000, "{scheme}: {counts}");
        for tier in tiers {
            assert!(counts[tier].as_u64().unwrap_or(0) > 1000, "{scheme}, {tier}: {counts}");
        }
    }
}
