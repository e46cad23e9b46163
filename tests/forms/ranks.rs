//! `.as/tp`: the models of the ranks of tensor parallelism, against NumPy.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use support::{
    Mapping, Mounted, Place, Random, assert_same, errno, get, names, python, run, safetensors_file, set,
    try_get, wait_until,
};

const MODELS: [&str; 9] =
    ["dense", "mixtral", "qwen_moe", "gpt_oss", "phi", "deepseek", "gptq", "gptq_order", "compressed"];

fn made(place: &Place) -> PathBuf {
    let folder = place.path("made");
    python("ranks.py", ["make".as_ref(), folder.as_os_str()]);
    folder
}

fn compare(model: &Path, ranks: &Path, counts: &[u64]) {
    let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
    let counts = counts.iter().map(|count| OsStr::new(count.as_str()));
    let of = [OsStr::new("compare"), model.as_os_str(), ranks.as_os_str()];
    python("ranks.py", of.into_iter().chain(counts));
}

/// The numbers of ranks that a model can be split in, and some that it cannot.
fn told(model: &Path) -> (Vec<u64>, Vec<u64>) {
    let text = fs::read_to_string(model.join("expected.json")).unwrap();
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers =
        |key: &str| told[key].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect();
    (numbers("ranks"), numbers("refused"))
}

#[test]
fn the_ranks_of_a_model_have_its_tensors_in_parts() {
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"]] {
        let place = Place::new();
        let folder = made(&place);
        for model in MODELS {
            place.import(&format!("t/{model}"), &[&folder.join(model)], options);
        }
        let mounted = place.mount(&["--read-only"]);
        for model in MODELS {
            let (source, ranks) = (folder.join(model), mounted.path(format!("t/{model}/.as/tp")));
            let (known, refused) = told(&source);
            let few = if options.is_empty() { &known[..] } else { &known[..1] };
            compare(&source, &ranks, few);
            for count in refused {
                assert_eq!(
                    errno(fs::metadata(ranks.join(format!("0-of-{count}")))),
                    libc::ENOENT,
                    "{model} {count}"
                );
            }
            let listed = known.iter().filter(|count| (2..=16).contains(*count));
            let mut listed: Vec<String> =
                listed.flat_map(|count| (0..*count).map(move |rank| format!("{rank}-of-{count}"))).collect();
            listed.sort();
            assert_eq!(names(&ranks), listed, "{model}");
        }
        mounted.unmount();
    }
}

#[test]
fn numbers_of_ranks_that_do_not_divide_a_model_are_refused_by_name() {
    let place = Place::new();
    let folder = made(&place);
    place.import("t/c", &[&folder], &[]);
    place.import("t/none", &[&place.write("plain/a.npy", support::npy_file(&[0; 64]))], &[]);
    let mounted = place.mount(&["--read-only"]);
    let ranks = mounted.path("t/c/.as/tp");
    let why = get(&ranks, "why");
    assert!(why.contains("ranks cannot share"), "{why}");
    for name in
        ["2", "00-of-2", "0-of-02", "2-of-2", "-1-of-2", "0-of-0", "0-of-2 ", "0-of-65538", "a-of-2", "0-of-"]
    {
        assert_eq!(errno(fs::metadata(ranks.join(name))), libc::ENOENT, "{name}");
    }
    // One model can be split in 16, and the other says why not.
    compare(&folder.join("dense"), &dense_only(&mounted), &[16]);
    let other = ranks.join("3-of-16/phi/model.safetensors");
    assert_eq!(fs::metadata(&other).unwrap().len(), 0);
    assert_eq!(errno(fs::read(&other)), libc::EOPNOTSUPP);
    let why = get(&other, "why");
    assert!(why.contains("16 ranks cannot share 8 attention heads"), "{why}");
    assert!(try_get(&ranks.join("3-of-16/dense/model-00001-of-00003.safetensors"), "why").is_err());
    // A collection without models has no ranks.
    assert_eq!(names(&mounted.path("t/none/.as/tp")), Vec::<String>::new());
    assert!(get(&mounted.path("t/none/.as/tp"), "why").contains("no safetensors file"));
    mounted.unmount();
}

/// A folder with links to the ranks of the model in `dense`.
fn dense_only(mounted: &Mounted) -> PathBuf {
    let links = mounted.path("../links");
    fs::create_dir_all(&links).unwrap();
    for rank in 0..16 {
        let name = format!("{rank}-of-16");
        std::os::unix::fs::symlink(mounted.path(format!("t/c/.as/tp/{name}/dense")), links.join(name))
            .unwrap();
    }
    links
}

#[test]
fn the_files_of_a_rank_have_one_number_and_are_read_only() {
    let place = Place::new();
    let folder = made(&place);
    place.import("t/c", &[&folder.join("mixtral")], &[]);
    let mounted = place.mount(&[]);
    let ranks = mounted.path("t/c/.as/tp");
    let found =
        support::shell(&ranks, "find . -printf '%i\\n' | sort | uniq -d; cd 1-of-4/.tensors/.. && pwd -P");
    assert!(support::text(&found.stdout).trim_end().ends_with("/.as/tp/1-of-4"), "{found:?}");
    assert_eq!(support::text(&found.stdout).lines().count(), 1);
    let file = ranks.join("1-of-4/model-00001-of-00004.safetensors");
    let whole = fs::read(&file).unwrap();
    assert_same(Mapping::of(&file, libc::MAP_SHARED).bytes(), &whole, "mapped");
    let open = fs::File::open(&file).unwrap();
    let mut random = Random(3);
    for _ in 0..200 {
        let at = random.below(whole.len());
        let mut found = vec![0; random.below((whole.len() - at).min(5000)) + 1];
        open.read_exact_at(&mut found, at as u64).unwrap();
        assert_same(&found, &whole[at..at + found.len()], "a range");
    }
    drop(open);
    assert_eq!(errno(fs::OpenOptions::new().write(true).open(&file)), libc::EROFS);
    assert_eq!(set(&file, "pin", "1"), Err(rustix::io::Errno::PERM));
    assert_eq!(try_get(&file, "pin"), Err(rustix::io::Errno::NODATA));
    run(["ls".as_ref(), file.as_os_str()]).ok();
    run(["ls".as_ref(), "--tensors".as_ref(), file.as_os_str()]).ok();
    assert!(get(&file, "why").contains("cannot be pinned"));
    assert_eq!(
        errno(fs::metadata(
            ranks.join("1-of-4/.tensors/model.layers.0.block_sparse_moe.experts.0.w1.weight")
        )),
        libc::ENOENT
    );
    mounted.unmount();
    let to = place.path("exported");
    let (store, as_rank) = (place.store(), ["export", "--as", "tp/1-of-4"]);
    let arguments = as_rank.iter().map(OsStr::new).chain([store.as_os_str(), "t/c".as_ref(), to.as_os_str()]);
    run(arguments).ok();
    assert_same(&fs::read(to.join("model-00001-of-00004.safetensors")).unwrap(), &whole, "exported");
}

/// A model with two matrices of 4096 x 2048 floats.
fn large(place: &Place) -> PathBuf {
    let bytes = 4096 * 2048 * 4;
    let entry = |name: &str, at: usize, shape: &str| {
        format!(
            r#""model.layers.0.{name}.weight":{{"dtype":"F32","shape":{shape},"data_offsets":[{at},{}]}}"#,
            at + bytes
        )
    };
    let header = format!(
        "{{{},{}}}",
        entry("mlp.up_proj", 0, "[4096,2048]"),
        entry("mlp.down_proj", bytes, "[2048,4096]")
    );
    place.write("large/model.safetensors", safetensors_file(&header, &Random(8).floats(2 * bytes / 4)))
}

/// The bytes that the daemon has read from files and from the kernel.
fn bytes_read(mounted: &Mounted) -> u64 {
    let path = format!("/proc/{}/io", mounted.daemon().unwrap());
    let text = fs::read_to_string(path).unwrap();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn a_rank_reads_its_share_of_the_stored_bytes_of_rows() {
    let place = Place::new();
    let source = large(&place);
    place.import("t/c", &[source.parent().unwrap()], &[]);
    place.import("t/q", &[source.parent().unwrap()], &["--tier", "q8"]);
    let mounted = place.mount(&["--read-only", "--decoded-cache", "off"]);
    let matrix = 4096 * 2048 * 4;
    // Exact, then in q8: a byte and a little an element.
    for (collection, stored) in [("c", matrix), ("q", matrix * 9 / 32)] {
        for count in [2, 4, 8] {
            let name =
                format!("t/{collection}/.as/tp/1-of-{count}/.tensors/model.layers.0.mlp.up_proj.weight");
            let file = mounted.path(&name);
            let size = fs::metadata(&file).unwrap().len();
            assert_eq!(size, matrix / count);
            let before = bytes_read(&mounted);
            let found = fs::read(&file).unwrap();
            let read = bytes_read(&mounted) - before;
            let most = stored / count + stored / 16;
            assert!(read <= most, "{name}: {read} of {stored} bytes, {most} at most");
            let whole =
                fs::read(mounted.path(format!("t/{collection}/.tensors/model.layers.0.mlp.up_proj.weight")))
                    .unwrap();
            assert_same(&found, &whole[found.len()..2 * found.len()], &name);
            // The columns of a matrix.
            let name = name.replace("up_proj", "down_proj");
            let found = fs::read(mounted.path(&name)).unwrap();
            let whole = fs::read(
                mounted.path(format!("t/{collection}/.tensors/model.layers.0.mlp.down_proj.weight")),
            )
            .unwrap();
            let row = 4096 * 4 / count as usize;
            let rows =
                whole.chunks(4096 * 4).flat_map(|whole| whole[row..2 * row].to_vec()).collect::<Vec<u8>>();
            assert_same(&found, &rows, &name);
        }
    }
    mounted.unmount();
}

#[test]
fn a_rank_follows_writes_moves_and_the_configuration() {
    let place = Place::new();
    let folder = made(&place);
    place.import("t/c", &[&folder.join("dense")], &[]);
    let mounted = place.mount(&["--decoded-cache", "64M"]);
    let collection = mounted.path("t/c");
    let name = "model.layers.1.self_attn.k_proj.weight";
    let (tensor, rank) = (collection.join(".tensors").join(name), collection.join(".as/tp/1-of-8"));
    let part = rank.join(".tensors").join(name);
    let before = fs::read(&part).unwrap();
    let whole = fs::read(&tensor).unwrap();
    assert_eq!((get(&part, "dtype"), get(&part, "shape")), ("f32".to_owned(), "6x48".to_owned()));
    // Two ranks share a head of keys.
    assert_same(&before, &whole[..whole.len() / 4], "the first head");
    let open = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    open.write_all_at(&[7; 24], 0).unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read(&part).unwrap()[..24], [7; 24]);
    open.write_all_at(&whole[..24], 0).unwrap();
    drop(open);
    assert_same(&fs::read(&part).unwrap(), &before, "written back");
    // The tier of the tensor.
    set(&tensor, "lossy", "allow").unwrap();
    set(&tensor, "tier", "q8").unwrap();
    let moved = fs::read(&tensor).unwrap();
    assert!(moved != whole);
    assert_same(&fs::read(&part).unwrap(), &moved[..moved.len() / 4], "in q8");
    // The number of heads.
    let shard = fs::read_dir(&rank).unwrap().map(|entry| entry.unwrap().path());
    let shard = shard.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).min().unwrap();
    let size = fs::metadata(&shard).unwrap().len();
    assert_eq!(fs::read(&shard).unwrap().len() as u64, size);
    let config = r#"{"model_type":"qwen3","num_attention_heads":16,"num_key_value_heads":16}"#;
    fs::write(collection.join("config.json"), config).unwrap();
    let half = fs::read(&part).unwrap();
    assert_same(&half, &moved[half.len()..2 * half.len()], "a head of its own");
    assert_eq!(half.len(), moved.len() / 8);
    fs::write(collection.join("config.json"), "[]").unwrap();
    assert_same(&fs::read(&part).unwrap(), &half, "rows of unknown heads");
    fs::remove_file(collection.join("config.json")).unwrap();
    assert_same(&fs::read(&part).unwrap(), &half, "no configuration");
    mounted.unmount();
}

/// A safetensors file of f32 tensors of these sizes, and the bytes of its data.
fn matrices(tensors: &[(&str, [usize; 2])], seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut at = 0;
    let mut entry = |(name, [rows, columns]): &(&str, [usize; 2])| {
        let begin = at;
        at += rows * columns * 4;
        format!(r#""{name}":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[{begin},{at}]}}"#)
    };
    let entries: Vec<String> = tensors.iter().map(&mut entry).collect();
    let data = Random(seed).floats(at / 4);
    (safetensors_file(&format!("{{{}}}", entries.join(",")), &data), data)
}

fn is_there(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

#[test]
fn all_ranks_of_a_number_exist_or_none() {
    let place = Place::new();
    // The first half of the experts, as one of two shards that were not all downloaded.
    let names: Vec<String> =
        (0..4).map(|index| format!("model.layers.0.mlp.experts.{index}.up_proj.weight")).collect();
    let tensors: Vec<(&str, [usize; 2])> = names.iter().map(|name| (name.as_str(), [4, 4])).collect();
    let file = place.write("m/model-00001-of-00002.safetensors", matrices(&tensors, 1).0);
    place.write("m/config.json", br#"{"model_type":"qwen3_moe","num_experts":8}"#);
    place.import("t/c", &[file.parent().unwrap()], &[]);
    let mounted = place.mount(&["--read-only"]);
    let ranks = mounted.path("t/c/.as/tp");
    for count in 1..10 {
        let there: Vec<bool> =
            (0..count).map(|rank| is_there(&ranks.join(format!("{rank}-of-{count}")))).collect();
        assert_eq!(there, vec![8 % count == 0; count], "{count}");
    }
    let listed: Vec<String> = names_of_experts(&ranks.join("0-of-2"));
    assert_eq!(listed, names);
    assert_eq!(names_of_experts(&ranks.join("1-of-2")), Vec::<String>::new());
    mounted.unmount();
}

fn names_of_experts(rank: &Path) -> Vec<String> {
    names(&rank.join(".tensors"))
}

#[test]
fn models_that_share_a_directory_are_split_on_their_own() {
    const UP: &str = "model.layers.0.mlp.up_proj.weight";
    const DOWN: &str = "model.layers.0.mlp.down_proj.weight";
    let place = Place::new();
    let (one, one_data) = matrices(&[(UP, [12, 2])], 1);
    let (two, two_data) = matrices(&[(UP, [10, 2])], 2);
    let (three, _) = matrices(&[(DOWN, [2, 10])], 3);
    let folder = place.write("m/one.safetensors", one);
    let folder = folder.parent().unwrap();
    place.write("m/a1.safetensors", two);
    place.write("m/a2.safetensors", three);
    let index = format!(
        r#"{{"metadata":{{"total_size":160}},"weight_map":{{"{UP}":"a1.safetensors","{DOWN}":"a2.safetensors"}}}}"#
    );
    place.write("m/a.safetensors.index.json", index.into_bytes());
    place.import("t/c", &[folder], &[]);
    let mounted = place.mount(&["--read-only"]);
    let ranks = mounted.path("t/c/.as/tp");
    for (count, splits_one, splits_two) in
        [(2, true, true), (3, true, false), (5, false, true), (6, true, false), (7, false, false)]
    {
        assert_eq!(is_there(&ranks.join(format!("1-of-{count}"))), splits_one || splits_two, "{count}");
        if !splits_one && !splits_two {
            continue;
        }
        let rank = ranks.join(format!("1-of-{count}"));
        let cases = [("one", "one", splits_one, &one_data), ("a1", "a1", splits_two, &two_data)];
        for (file, container, is_split, data) in cases {
            let tensor = rank.join(format!(".tensors/{container}.safetensors/{UP}"));
            let file = rank.join(format!("{file}.safetensors"));
            if is_split {
                let own = data.len() / count;
                let found = fs::read(&file).unwrap();
                assert_same(&found[found.len() - own..], &data[own..2 * own], "the file");
                assert_same(&fs::read(&tensor).unwrap(), &data[own..2 * own], "the tensor");
            } else {
                assert_eq!(errno(fs::read(&file)), libc::EOPNOTSUPP, "{}", file.display());
                assert!(get(&file, "why").contains("ranks cannot share"), "{}", file.display());
            }
        }
        let index = fs::read_to_string(rank.join("a.safetensors.index.json"));
        if splits_two {
            let index: serde_json::Value = serde_json::from_str(&index.unwrap()).unwrap();
            assert_eq!(index["metadata"]["total_size"], 160 / count, "{count}");
        } else {
            assert_eq!(errno(index), libc::EOPNOTSUPP);
        }
    }
    mounted.unmount();
}

#[test]
fn the_ranks_of_a_model_are_found_with_few_reads() {
    let place = Place::new();
    let names: Vec<String> =
        (0..64).map(|index| format!("model.layers.0.mlp.experts.{index}.up_proj.weight")).collect();
    let tensors: Vec<(&str, [usize; 2])> = names.iter().map(|name| (name.as_str(), [4, 4])).collect();
    let file = place.write("m/model.safetensors", matrices(&tensors, 1).0);
    let config = format!(r#"{{"num_experts":64{}}}"#, " ".repeat(500_000));
    place.write("m/config.json", config.clone().into_bytes());
    place.import("t/c", &[file.parent().unwrap()], &[]);
    let mounted = place.mount(&[]);
    let ranks = mounted.path("t/c/.as/tp");
    let before = bytes_read(&mounted);
    for count in [2, 4, 8, 16, 32, 64] {
        for rank in 0..count {
            let rank = ranks.join(format!("{rank}-of-{count}"));
            assert_eq!(self::names(&rank.join(".tensors")).len(), 64 / count, "{}", rank.display());
        }
    }
    let read = bytes_read(&mounted) - before;
    assert!(read < 20_000_000, "{read} bytes");
    // One that is too long may say anything.
    fs::write(mounted.path("t/c/config.json"), format!("{config}{}", " ".repeat(600_000))).unwrap();
    // The kernel keeps a name for a second.
    wait_until("a configuration of any length", || !is_there(&ranks.join("3-of-16")));
    assert!(get(&ranks, "why").contains("too long"), "{}", get(&ranks, "why"));
    fs::write(mounted.path("t/c/config.json"), config.replace("64", "16")).unwrap();
    wait_until("experts that the configuration does not count", || !is_there(&ranks.join("1-of-2")));
    fs::write(mounted.path("t/c/config.json"), config).unwrap();
    wait_until("the first configuration", || is_there(&ranks.join("1-of-2")));
    mounted.unmount();
}
