//! Pickles of checkpoints as `torch.save` writes them, with what `torch.load` reads beside plain tensors, and pickles whose
//! structure repeats itself.

use tierfs::format::budget::{Budget, STEPS_MIN, STEPS_PER_BYTE};
use tierfs::format::files::torch::{self, Checkpoint};
use tierfs::model::{ErrorKind, Result};

use crate::archives::{archive, stored, tensor, text};

/// The result of reading a checkpoint with this pickle and a storage of 64 bytes, and the budget after it.
fn read(pickle: &[u8]) -> (Result<Checkpoint>, Budget) {
    let bytes = archive(&[stored("x/data.pkl", pickle), stored("x/data/0", &[7; 64])]).0;
    let mut read = |out: &mut [u8], at: u64| {
        out.copy_from_slice(&bytes[at as usize..][..out.len()]);
        Ok(())
    };
    let mut budget = Budget::default();
    let found = torch::parse(&mut read, bytes.len() as u64, &mut budget);
    (found, budget)
}

fn loaded(pickle: &[u8]) -> Checkpoint {
    read(pickle).0.unwrap()
}

fn names(found: &Checkpoint) -> Vec<&str> {
    found.tensors.iter().map(|entry| &*entry.name).collect()
}

/// A dictionary with these entries.
fn dict(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|(key, value)| [&text(key), *value].concat());
    [&b"\x80\x02}("[..], &entries.collect::<Vec<_>>(), b"u."].concat()
}

fn whole() -> Vec<u8> {
    tensor(0, &[4], &[1])
}

/// The storage, of elements of this class. A key has one class in a pickle, so odd classes have a key of their own.
fn storage(class: &str) -> Vec<u8> {
    let key = if class.contains("Complex") || class.contains("QInt") { "1" } else { "0" };
    let class = format!("c{}\n", class.replace('.', "\n"));
    [&b"("[..], &text("storage"), class.as_bytes(), &text(key), &text("cpu"), b"K\x10tQ"].concat()
}

/// A call of a name with arguments.
fn call(name: &str, arguments: &[&[u8]]) -> Vec<u8> {
    let (module, name) = name.rsplit_once('.').unwrap();
    [format!("c{module}\n{name}\n(").as_bytes(), &arguments.concat(), b"tR"].concat()
}

const HOOKS: &[u8] = b"ccollections\nOrderedDict\n)R";

/// A tensor of 4 elements of the storage of a class, with more arguments.
fn rebuilt(function: &str, class: &str, more: &[&[u8]]) -> Vec<u8> {
    let storage = storage(class);
    let place: [&[u8]; 6] = [&storage, b"K\0", b"K\x04\x85", b"K\x01\x85", b"\x89", HOOKS];
    call(&format!("torch._utils.{function}"), &[&place, more].concat())
}

#[test]
fn an_odd_tensor_is_left_out_with_a_reason_and_the_others_are_read() {
    let v2 = |more: &[&[u8]]| rebuilt("_rebuild_tensor_v2", "torch.FloatStorage", more);
    let flag = |name: &str| [&b"}"[..], &text(name), b"\x88s"].concat();
    let from_type = |class: &str, state: &[u8]| {
        let storage = storage("torch.FloatStorage");
        let inner = [&b"("[..], &storage, b"K\0K\x04\x85K\x01\x85\x89", HOOKS, b"t"].concat();
        let class = format!("c{}\n", class.replacen(' ', "\n", 1));
        let function = b"ctorch._utils\n_rebuild_tensor_v2\n";
        call("torch._tensor._rebuild_from_type_v2", &[function, class.as_bytes(), &inner, state])
    };
    let with_state =
        |state: &[u8]| call("torch._utils._rebuild_parameter_with_state", &[&whole(), b"\x88", HOOKS, state]);
    let attribute = |name: &str| [&b"}"[..], &text(name), b"Ns"].concat();
    for (made, why) in [
        (v2(&[&flag("neg")]), "negative bit"),
        (v2(&[&flag("conj")]), "conjugate bit"),
        (v2(&[&flag("new")]), "metadata"),
        (v2(&[b"]"]), "metadata"),
        (tensor(0, &[1; 9], &[1; 9]), "8 numbers"),
        (rebuilt("_rebuild_tensor_v2", "torch.ComplexDoubleStorage", &[]), "torch.ComplexDoubleStorage"),
        (rebuilt("_rebuild_tensor_v2", "torch.QInt8Storage", &[]), "torch.QInt8Storage"),
        (
            rebuilt("_rebuild_tensor_v3", "torch.UntypedStorage", &[b"ctorch\ncomplex128\n"]),
            "torch.complex128",
        ),
        (rebuilt("_rebuild_qtensor", "torch.QInt8Storage", &[]), "quantized"),
        (rebuilt("_rebuild_unknown", "torch.FloatStorage", &[]), "not read"),
        (rebuilt("_rebuild_tensor_v2", "torch.FloatStorage", &[b"N", b"N"]), "arguments are not"),
        (call("torch._utils._rebuild_tensor_v2", &[b"N", b"K\0))\x89", HOOKS]), "no storage"),
        (call("torch._utils._rebuild_sparse_tensor", &[b"N)"]), "sparse"),
        (call("torch._utils._rebuild_meta_tensor_no_storage", &[b"N)"]), "meta"),
        (call("torch._utils._rebuild_wrapper_subclass", &[b"N)"]), "class that only Python knows"),
        (call("torch._utils._rebuild_device_tensor_from_numpy", &[b"NNN\x89"]), "another device"),
        (call("torch._utils._rebuild_nested_tensor", &[b"N)"]), "nested"),
        (from_type("m Class", b"N"), "class that only Python knows"),
        (from_type("torch Tensor", &attribute("data")), "attributes"),
        (with_state(&attribute("data")), "attributes"),
        (b"ctorch._tensor\nTensor\n)\x81Nb".to_vec(), "state"),
        ([&whole()[..], b"Nb"].concat(), "state"),
        (call("m.Class", &[&whole()]), "an object of m.Class"),
        ([&b"cm\nClass\n)\x81}"[..], &text("w"), &whole(), b"sb"].concat(), "an object of m.Class"),
        ([&b"\x8f("[..], &whole(), b"\x90"].concat(), "an object of builtins.set"),
        ([&b"}K\x01\x85"[..], &whole(), b"s"].concat(), "neither text nor number"),
    ] {
        let found = loaded(&dict(&[("a", &whole()), ("odd", &made), ("z", &tensor(8, &[4], &[1]))]));
        assert_eq!(names(&found), ["a", "z"], "{why}");
        let [(name, found)] = &found.others[..] else { panic!("{why}: {found:?}") };
        assert!(name == "odd" && found.contains(why), "{name}: {found} instead of {why}");
        // Alone it makes a plain file, with the reason.
        let error = read(&dict(&[("odd", &made)])).0.unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn odd_storages_of_a_file_without_an_archive_hide_no_other() {
    for (class, bytes) in
        [("torch.ComplexDoubleStorage", 16), ("torch.QInt8Storage", 1), ("torch.QInt32Storage", 4)]
    {
        let odd = rebuilt("_rebuild_tensor_v2", class, &[]);
        let keys = [&b"\x80\x02]("[..], &text("1"), &text("0"), b"e."].concat();
        let storage = |bytes: usize| [&16_u64.to_le_bytes()[..], &vec![7; 16 * bytes]].concat();
        let file = [
            &b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."[..],
            b"\x80\x02M\xe9\x03.",
            &[&b"\x80\x02}("[..], &text("little_endian"), b"\x88u."].concat(),
            &dict(&[("odd", &odd), ("w", &whole())]),
            &keys,
            &storage(bytes),
            &storage(4),
        ]
        .concat();
        let found = crate::archives::checkpoint(&file).unwrap();
        assert_eq!((names(&found), found.others.len()), (vec!["w"], 1), "{class}");
        assert!(crate::archives::checkpoint(&file[..file.len() - 1]).is_err());
    }
}

#[test]
fn tensors_made_in_other_ways_have_their_elements() {
    let v3 = rebuilt("_rebuild_tensor_v3", "torch.UntypedStorage", &[b"ctorch\nuint16\n"]);
    let bare: [&[u8]; 4] = [&storage("torch.ShortStorage"), b"K\x02", b"K\x03\x85", b"K\x01\x85"];
    let attributes = [&b"}"[..], &text("note"), b"Ns"].concat();
    for (made, bytes) in [
        (whole(), 16),
        (rebuilt("_rebuild_tensor_v2", "torch.FloatStorage", &[b"}"]), 16),
        (rebuilt("_rebuild_tensor_v2", "torch.FloatStorage", &[b"N"]), 16),
        (rebuilt("_rebuild_tensor_v2", "torch.UntypedStorage", &[]), 4),
        (v3, 8),
        (call("torch._utils._rebuild_tensor", &bare), 6),
        (call("torch._utils._rebuild_parameter", &[&whole(), b"\x88", HOOKS]), 16),
        (call("torch._utils._rebuild_parameter_with_state", &[&whole(), b"\x88", HOOKS, &attributes]), 16),
        (tensor(3, &[0, 5], &[5, 1]), 0),
    ] {
        let found = loaded(&dict(&[("w", &made)]));
        let [entry] = &found.tensors[..] else { panic!("{found:?}") };
        assert_eq!(entry.end - entry.begin, bytes, "{entry:?}");
        assert!(found.others.is_empty());
    }
}

#[test]
fn odd_values_beside_tensors_hide_none() {
    let latin = [&text("abc")[..], &text("latin1")].concat();
    for value in [
        &b"c__builtin__\nset\n](K\x01K\x02e\x85R"[..],
        b"\x8f(K\x01K\x02\x90",
        b"(K\x01\x91",
        b"ccollections\nCounter\n}\x85R",
        &[&b"c_codecs\nencode\n("[..], &latin, b"tR"].concat(),
        b"B\x02\0\0\0ab",
        b"C\x01\xff",
        b"\x96\x01\0\0\0\0\0\0\0x",
        b"c__builtin__\nbytearray\n)R",
        b"c__builtin__\ncomplex\n(G\0\0\0\0\0\0\0\0G\0\0\0\0\0\0\0\0tR",
        b"ctorch\ncomplex64\n",
        b"ctorch\nper_channel_affine\n",
        &[&b"ctorch.serialization\n_get_layout\n"[..], &text("torch.strided"), b"\x85R"].concat(),
        &[&b"ctorch\ndevice\n"[..], &text("cpu"), b"\x85R"].concat(),
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(U\x02f8I00\nI01\ntR(K\x03U\x01<NNNtbU\x08\0\0\0\0\0\0\0\0tR",
        b"cargparse\nNamespace\n)\x81}U\x02lrK\x01sb",
        b"cm\nPath\n)}\x92",
        b"(im\nOld\n",
        b"(cm\nOld\nK\x01o",
        b"I-5\n",
        b"I01\n",
        b"L99999999999999999999L\n",
        b"F0.5\n",
        b"Vplain\n",
        b"S'text'\n",
        b"\x8b\x02\0\0\0\xff\xff",
        b"X\x02\0\0\0\xff\xfe",
        b"N",
    ] {
        let found = loaded(&dict(&[("a", &whole()), ("odd", value), ("z", &tensor(8, &[4], &[1]))]));
        assert_eq!((names(&found), found.others.len()), (vec!["a", "z"], 0), "{}", value.escape_ascii());
    }
}

#[test]
fn dictionaries_have_the_last_value_of_each_key_and_pairs_make_them_too() {
    let [one, other] = [whole(), tensor(8, &[4], &[1])];
    let found = loaded(&dict(&[("w", &one), ("v", b"N"), ("w", &other), ("v", &one)]));
    assert_eq!(names(&found), ["w", "v"]);
    assert!(found.tensors[0].begin > found.tensors[1].begin);
    let found = loaded(&dict(&[("w", &one), ("v", &other), ("w", b"N")]));
    assert_eq!((names(&found), found.others.len()), (vec!["v"], 0));
    let pairs = [&b"ccollections\nOrderedDict\n]]("[..], &text("w"), &one, b"ea\x85R"].concat();
    assert_eq!(names(&loaded(&dict(&[("p", &pairs)]))), ["p/w"]);
    let default = [&b"ccollections\ndefaultdict\ncm\nf\n\x85R"[..], &text("w"), &one, b"s"].concat();
    assert_eq!(names(&loaded(&dict(&[("d", &default)]))), ["d/w"]);
    // Two dictionaries of which one has a slash in a key give two tensors one name.
    let nested = [&b"}"[..], &text("b"), &other, b"s"].concat();
    let found = loaded(&dict(&[("a/b", &one), ("a", &nested)]));
    assert_eq!((names(&found), found.others.len()), (vec!["a/b"], 1));
}

#[test]
fn a_list_that_contains_itself_ends() {
    let mut list = b"\x80\x02]q\x00(h\x00".to_vec();
    list.extend([&whole()[..], b"e."].concat());
    let found = loaded(&list);
    assert_eq!(names(&found), ["1"]);
    assert!(found.others[0].1.contains("contains itself"));
    assert_eq!(loaded(b"\x80\x02]q\x00h\x00a."), Checkpoint::default());
    let deep = [&whole()[..], &b"\x85".repeat(100), b"."].concat();
    assert!(read(&deep).0.unwrap_err().to_string().contains("more than 60"));
}

#[test]
fn a_shared_list_without_tensors_is_looked_at_once() {
    let many = |count: usize, item: &[u8]| item.repeat(count);
    let shared =
        [&b"\x80\x02]("[..], &many(32_768, b"N"), b"eq\x000](", &many(16_384, b"h\0"), b"e."].concat();
    let keys =
        [&b"\x80\x02"[..], &text(&"k".repeat(100_000)), b"q\x000}(", &many(20_000, b"h\0N"), b"u."].concat();
    // The same, with a tensor at its end.
    let tensor_too =
        [&b"\x80\x02"[..], &whole(), b"q\x010](", &many(30_000, b"N"), b"h\x01eq\x000]("].concat();
    let tensor_too = [tensor_too, many(300, b"h\0"), b"e.".to_vec()].concat();
    let mut laughs = b"\x80\x02]q\x00".to_vec();
    for place in 0..40_u8 {
        laughs.extend([b']', b'q', place + 1, b'(', b'h', place, b'h', place, b'e']);
    }
    laughs.push(b'.');
    let arguments =
        [&b"("[..], &many(40_000, b"K\x01"), b"tq\x000", &storage("torch.FloatStorage"), b"q\x020]("]
            .concat();
    let calls = [&b"\x80\x02"[..], &arguments, &many(9_000, b"cm\nf\nh\0R"), b"e."].concat();
    let sizes = b"ctorch._utils\n_rebuild_tensor_v2\n(h\x02K\0h\0h\0\x89NtR";
    let tensors = [&b"\x80\x02"[..], &arguments, &sizes.repeat(5_000), b"e."].concat();
    for (pickle, what) in [
        (shared, "a list"),
        (keys, "a key"),
        (tensor_too, "a list beside a tensor"),
        (laughs, "lists of lists"),
        (calls, "arguments"),
        (tensors, "sizes"),
    ] {
        let (found, budget) = read(&pickle);
        assert!(found.is_ok() || found.unwrap_err().kind() == ErrorKind::Unsupported, "{what}");
        let (spent, read) = (budget.spent(), budget.read());
        assert!(spent < 12 * read, "{what}: {spent} steps for {read} bytes");
    }
}

#[test]
fn repeated_names_end_with_the_budget() {
    // Dictionaries that are shared on four levels, with keys of a kilobyte.
    let mut pickle = [&b"\x80\x02"[..], &whole(), b"q\x000"].concat();
    for level in 0..4_u8 {
        pickle.push(b'}');
        for entry in 0..15_u8 {
            pickle
                .extend([&text(&format!("{entry}{}", "n".repeat(1000)))[..], b"h", &[level], b"s"].concat());
        }
        pickle.extend([b'q', level + 1, b'0']);
    }
    pickle.extend([b'h', 4, b'.']);
    let mut doubled = [&b"\x80\x02"[..], &whole(), b"q\x00"].concat();
    for place in 0..40_u8 {
        doubled.extend([b']', b'q', place + 1, b'(', b'h', place, b'h', place, b'e']);
    }
    doubled.push(b'.');
    for pickle in [pickle, doubled] {
        let (found, budget) = read(&pickle);
        let error = found.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains("repeats parts"),
            "{error}"
        );
        assert!(budget.spent() < 2 * (STEPS_MIN + STEPS_PER_BYTE * budget.read()));
    }
}

#[test]
fn a_large_checkpoint_takes_few_steps_a_byte() {
    // As torch.save writes them: names, classes and tuples are kept and recalled.
    let mut model = b"\x80\x02}q\x00(".to_vec();
    model.extend([&text("state_dict")[..], b"ccollections\nOrderedDict\nq\x01)R("].concat());
    for layer in 0..30_000 {
        let name = text(&format!("model.layers.{layer}.self_attn.query_key_value.weight"));
        let moments = [&b"}("[..], &text("exp_avg"), &whole(), &text("exp_avg_sq"), &whole(), b"u"].concat();
        model.extend([name, moments].concat());
    }
    model.extend(b"uu.");
    let (found, budget) = read(&model);
    let found = found.unwrap();
    assert_eq!((found.tensors.len(), found.views.len()), (1, 59_999));
    let (spent, read) = (budget.spent(), budget.read());
    assert!(spent < 4 * read, "{spent} steps for {read} bytes");
}
