//! Tools that copy, move and archive model directories: within the mount, into it and out of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use support::{Fixture, Random, assert_same, container_of, minilm, script, tensors_of};

/// A model with its tokenizer, a model in three shards with their index, and one in a directory below.
fn placed(fixture: &Fixture) -> PathBuf {
    let source = fixture.place.path("source");
    fs::create_dir_all(source.join("sharded")).unwrap();
    fs::create_dir_all(source.join("nested/onnx")).unwrap();
    script(&source, &format!("cp -rL {} minilm", minilm().display())).ok();
    let mut map = serde_json::Map::new();
    for shard in 1..=3_u64 {
        let names = [format!("layers.{shard}.q"), format!("layers.{shard}.k"), format!("head/{shard}/w")];
        let tensors: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 20_000)).collect();
        let file = format!("model-{shard:05}-of-00003.safetensors");
        fs::write(source.join("sharded").join(&file), container_of(&mut Random(shard), &tensors)).unwrap();
        map.extend(names.into_iter().map(|name| (name, file.clone().into())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(source.join("sharded/model.safetensors.index.json"), index.to_string()).unwrap();
    fs::write(source.join("nested/config.json"), b"{}").unwrap();
    let nested = container_of(&mut Random(9), &[("a", 30_000), ("deep/er/b", 501)]);
    fs::write(source.join("nested/onnx/model.safetensors"), nested).unwrap();
    source
}

/// The regular files below a directory, by their paths.
fn files(at: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![at.to_owned()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                waiting.push(path);
            } else {
                found.insert(path.strip_prefix(at).unwrap().to_owned(), metadata.len());
            }
        }
    }
    found
}

/// Stored bytes of the whole store, as the daemon counts them.
fn stored(fixture: &Fixture) -> u64 {
    let tiers = fs::read_to_string(fixture.mounted().path(".ctl/stats.json")).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&tiers).unwrap();
    stats["tiers"].as_object().unwrap().values().map(|tier| tier["stored_bytes"].as_u64().unwrap()).sum()
}

/// A copy in the mount equals the source, byte for byte and file for file, and each tensor shares its container's bytes: a
/// write to one shows in the other.
fn check(copy: &Path, source: &Path, context: &str) {
    assert_eq!(files(copy), files(source), "{context}");
    for name in files(source).into_keys() {
        let bytes = fs::read(copy.join(&name)).unwrap();
        assert_same(
            &bytes,
            &fs::read(source.join(&name)).unwrap(),
            &format!("{context}: {}", name.display()),
        );
        if name.extension().is_none_or(|suffix| suffix != "safetensors") {
            continue;
        }
        let (container, folder) = (copy.join(&name), copy.join(name.parent().unwrap()));
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        for (tensor, values) in tensors_of(&bytes) {
            let path = folder.join(".tensors").join(&tensor);
            assert_same(&fs::read(&path).unwrap(), &values, &format!("{context}: {}", path.display()));
        }
        // The first tensor of the file.
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..data as usize]).unwrap();
        let first =
            header.as_object().unwrap().iter().find(|(_, entry)| entry["data_offsets"][0] == 0).unwrap();
        let tensor = folder.join(".tensors").join(first.0);
        let was = bytes[data as usize];
        for (value, writer, reader, at) in
            [(!was, &tensor, &container, (0, data)), (was, &container, &tensor, (data, 0))]
        {
            let file = fs::OpenOptions::new().write(true).open(writer).unwrap();
            file.write_all_at(&[value], at.0).unwrap();
            drop(file);
            let mut read = [0];
            fs::File::open(reader).unwrap().read_exact_at(&mut read, at.1).unwrap();
            assert_eq!(read, [value], "{context}: {}", reader.display());
        }
    }
}

mod heavy {
    use super::*;

    #[test]
    fn copies_in_a_mount_have_the_files_of_the_source_and_tensors_of_their_own() {
        let mut fixture = Fixture::lasting(std::time::Duration::from_secs(500));
        let source = placed(&fixture);
        let here = fixture.path("");
        script(&here, &format!("cp -r {} one", source.display())).ok();
        check(&fixture.path("one"), &source, "cp -r into the mount");
        let once = stored(&fixture);
        fs::create_dir(fixture.mounted().path("demo/other")).unwrap();
        let into = format!("cd '{}'; ", here.display());
        for (round, line) in [
            "cp -r one two",
            "cp -a one two",
            "rsync -a one/ two/",
            "rsync -a --inplace one/ two/",
            "mkdir two && tar -C one -cf - . | tar -C two -xf -",
            "cp -a one ../other/two && mv ../other/two two",
            "cp -a one x && mv x two",
        ]
        .into_iter()
        .enumerate()
        {
            script(&here, &format!("{into}set -e; {line}")).ok();
            check(&fixture.path("two"), &source, line);
            fs::write(fixture.mounted().path(".ctl/sync"), "1").unwrap();
            let twice = stored(&fixture);
            assert!(
                twice > once + once * 9 / 10 && twice < once + once * 11 / 10,
                "{line}: {once}, then {twice}"
            );
            if round % 3 == 0 {
                fixture.remount();
                check(&fixture.path("two"), &source, &format!("{line}, after a remount"));
            }
            script(&here, &format!("{into}rm -r two")).ok();
            assert!(!fixture.path("two").exists());
        }
        fixture.check();
    }

    #[test]
    fn copies_into_a_mount_and_out_of_it_equal_the_source() {
        let fixture = Fixture::lasting(std::time::Duration::from_secs(500));
        let source = placed(&fixture);
        let out = fixture.place.path("out");
        let (from, here, out_path) =
            (source.display(), fixture.path("").display().to_string(), out.display());
        for line in [
            format!("rsync -ac --delete {from}/ m/"),
            format!("rsync -a --inplace {from}/ m/"),
            format!("rsync -a {from}/ m/ && rsync -a --delete {from}/ m/"),
            format!("cp -r {from} m"),
            format!("cp -a {from} m"),
            format!("cp -a {from} m && cp -r {from}/. m/"),
            format!("mkdir m && tar -C {from} -cf - . | tar -C m -xf -"),
        ] {
            script(Path::new(&here), &format!("set -e; {line}")).ok();
            check(&fixture.path("m"), &source, &line);
            for line in [
                format!("cp -r m {out_path}"),
                format!("cp -a m {out_path}"),
                format!("rsync -a m/ {out_path}/"),
                format!("mkdir {out_path} && tar -C m -cf - . | tar -C {out_path} -xf -"),
            ] {
                script(
                    Path::new(&here),
                    &format!("set -e; {line} && diff -r {from} {out_path} && rm -r {out_path}"),
                )
                .ok();
            }
            // `rsync --delete` removes only what was put there, and the tensors stay.
            let deleted = script(Path::new(&here), &format!("rsync -acn --delete -i {from}/ m/")).ok();
            assert!(!deleted.contains("deleting"), "{deleted}");
            script(Path::new(&here), "rm -r m").ok();
        }
        // Moves out of the mount and into it.
        script(
            Path::new(&here),
            &format!("set -e; cp -a {from} m; mv m {out_path}; diff -r {from} {out_path}; mv {out_path} m"),
        )
        .ok();
        check(&fixture.path("m"), &source, "mv");
        fixture.check();
    }

    #[test]
    fn find_du_and_git_meet_each_file_once() {
        let fixture = Fixture::lasting(std::time::Duration::from_secs(300));
        let source = placed(&fixture);
        let here = fixture.path("");
        script(&here, &format!("cp -r {} m", source.display())).ok();
        let count = |line: &str| script(&here, line).ok().trim().parse::<u64>().unwrap();
        assert_eq!(count("find m -type f | wc -l"), files(&source).len() as u64);
        assert_eq!(count("find m -name .tensors | wc -l"), 0);
        let of_files: u64 = files(&source).values().sum();
        let used = count("du -s -B1 m | cut -f1");
        assert!(used >= of_files && used < of_files + of_files / 20, "{used} of {of_files}");
        // The stored size of a container includes its tensors.
        let container = fs::metadata(fixture.path("m/minilm/model.safetensors")).unwrap();
        assert!(container.blocks() * 512 >= container.len(), "{} blocks", container.blocks());
        let commit = "git -c user.name=a -c user.email=a@b commit -qm all";
        script(&here, &format!("cd m && git init -q . && git add . && {commit} && git status --porcelain"))
            .ok();
        assert_eq!(count("cd m && git ls-files | wc -l"), files(&source).len() as u64);
        assert_eq!(script(&here, "cd m && git status --porcelain").ok(), "");
        script(&here, "rm -r m").ok();
        fixture.check();
    }
}

#[test]
fn an_editor_that_saves_by_a_rename_or_in_place_leaves_the_tensors_as_they_are() {
    let mut fixture = Fixture::new();
    let bytes = container_of(&mut Random(4), &[("w", 3000), ("config", 20)]);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    fs::write(fixture.path("config.json"), b"{}").unwrap();
    let save = "set -e; printf '{\"a\": 1}' >.config.json.swp; mv config.json config.json~; \
                mv .config.json.swp config.json; printf ' ' >>config.json; sed -i 's/1/2/' config.json; rm config.json~";
    script(&fixture.path(""), save).ok();
    for _ in 0..2 {
        assert_eq!(support::names(&fixture.path("")), ["config.json", "m.safetensors"]);
        assert_eq!(fixture.read("config.json"), b"{\"a\": 2} ");
        for (tensor, values) in tensors_of(&bytes) {
            assert_same(&fixture.read(&format!(".tensors/{tensor}")), &values, &tensor);
            assert_same(&fixture.read(&tensor), &values, &tensor);
        }
        fixture.remount();
    }
}
