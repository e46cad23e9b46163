//! The checker against planted violations, and against what only looks like one.

use crate::check;
use crate::rules::{CODE_LINES_MAX, ERRNO_FILE, INTRINSICS_FOLDER, SHORT_FILE_LINES, UNFINISHED, fragments};
use crate::source::{Finding, Source};
use crate::structure::{CYCLE_FILES_MAX, IMPL_FOLDERS_MAX, SHARED_FIELDS_MAX};

/// The findings for a file whose first line is a proper module line.
fn found(path: &str, body: &str) -> Vec<String> {
    let text = format!("//! A module.\n{body}\n");
    check(path, &text).iter().map(Finding::to_string).collect()
}

#[track_caller]
fn assert_one(path: &str, body: &str, line: usize, part: &str) {
    let findings = found(path, body);
    assert_eq!(findings.len(), 1, "{body}: {findings:?}");
    let start = format!("{path}:{line}: ");
    assert!(findings[0].starts_with(&start) && findings[0].contains(part), "{body}: {findings:?}");
}

#[track_caller]
fn assert_none(path: &str, body: &str) {
    assert_eq!(found(path, body), Vec::<String>::new(), "{body}");
}

#[test]
fn imports_go_downwards_only() {
    assert_none("src/store/index.rs", "use crate::model::Id;\nuse crate::store::lock::Lock;");
    assert_none("src/fs/mod.rs", "use crate::{model::{Id, Error}, stream::plan, control};");
    assert_none("src/lib.rs", "pub use crate::store::Store;");
    assert_none("src/main.rs", "fn main() { tierfs::cli::main() }");
    assert_one(
        "src/store/index.rs",
        "\nuse crate::ingest::npy;",
        3,
        "`store` names `ingest`; that is upwards",
    );
    assert_one("src/store/index.rs", "use tierfs::fs::Mount;", 2, "upwards");
    assert_one("src/model/id.rs", "use crate::{model::Name, codec};", 2, "`codec`");
    assert_one(
        "src/model/id.rs",
        "use crate::{\n    model::{Name, Id},\n    codec::decode,\n};",
        4,
        "`codec`",
    );
    assert_one("src/codec/mod.rs", "fn f() { crate :: fs :: reply() }", 2, "`fs`");
}

#[test]
fn siblings_and_the_crate_root_are_no_lower_layers() {
    assert_one("src/codec/mod.rs", "use crate::format::Header;", 2, "siblings");
    assert_none("src/control/mod.rs", "use crate::vfs::Node;");
    assert_one("src/store/mod.rs", "use crate::Store;", 2, "the crate's root");
}

#[test]
fn an_import_of_a_higher_layer_by_super_is_found() {
    assert_none("src/store/log/replay.rs", "use super::super::index;\nuse super::records;");
    assert_none("src/cli/import.rs", "use super::super::ingest;");
    assert_one("src/store/log/replay.rs", "use super::super::super::cli;", 2, "`cli`");
    assert_one("src/store/mod.rs", "use super::ingest;", 2, "`ingest`");
    assert_none("src/store/log/mod.rs", "use super::format;");
}

#[test]
fn an_unknown_layer_is_a_finding() {
    assert_one("src/helpers.rs", "", 1, "not a known layer");
    assert_one("src/extra/mod.rs", "use crate::store::Store;", 1, "not a known layer");
}

#[test]
fn a_crate_of_its_own_and_the_daemon_do_not_name_each_other() {
    assert_none("src/client/tensor.rs", "use crate::shape::Shape;\nuse crate::{error, npy::read};");
    assert_none("src/client/tensor.rs", "/// See `tierfs::store`.\nconst A: &str = \"tierfs\";");
    assert_one("src/client/tensor.rs", "use tierfs::model::Shape;", 2, "names nothing of the daemon");
    assert_one("src/client/lib.rs", "use ::tierfs as daemon;", 2, "names nothing of the daemon");
    assert_one("src/control/mod.rs", "use tierfs_client::Tensor;", 2, "call the store itself");
}

#[test]
fn wrapped_crates_are_named_in_their_place_only() {
    assert_none("src/fs/kernel/session.rs", "use fuser::Session;");
    assert_one("src/fs/kernel/request.rs", "use fuser::INodeNo;", 2, "only in src/fs/kernel/session.rs");
    assert_none("src/cli/mod.rs", "use clap::Parser;");
    assert_none(
        "src/store/mod.rs",
        "// fuser is not named here\nconst A: &str = \"clap\";\nfn clap_hands() {}",
    );
    assert_one("src/store/mod.rs", "use fuser::Request;", 2, "only in src/fs/kernel/session.rs");
    assert_one("src/fs/mod.rs", "#[derive(clap::Args)]\nstruct A;", 2, "only in src/cli/");
    assert_one("src/codec/mod.rs", "use cudarc::driver;", 2, "call src/gpu");
    assert_none("src/format/checksum.rs", "fn of(bytes: &[u8]) -> u32 { crc_fast::crc32_iscsi(bytes) }");
    assert_one("src/store/log/append.rs", "use crc32c as sums;", 2, "call `checksum::of`");
}

#[test]
fn a_module_is_not_named_by_a_participle() {
    assert_none("src/store/block_ranges.rs", "");
    assert_none("src/store/kept_blocks.rs", "");
    assert_none("src/store/listing.rs", "");
    assert_one("src/store/kept.rs", "", 1, "is a participle");
    assert_one("src/store/sharded/mod.rs", "", 1, "is a participle");
    assert_one("src/store/placing.rs", "", 1, "is a participle");
}

#[test]
fn intrinsics_stand_in_their_folder_only() {
    assert_none("src/codec/arch/avx2.rs", "use core::arch::x86_64::*;");
    assert_one("src/codec/pack.rs", "use std::arch::aarch64::*;", 2, INTRINSICS_FOLDER);
    assert_one("src/codec/pack.rs", "use std::{arch::x86_64::*, mem};", 2, INTRINSICS_FOLDER);
    assert_one("src/codec/pack.rs", "fn f() { core::arch::x86_64::_mm_pause() }", 2, INTRINSICS_FOLDER);
}

#[test]
fn the_core_asks_one_file_for_the_time() {
    assert_none("src/model/clock.rs", "use std::time::{Duration, Instant, SystemTime};");
    assert_none("src/store/quota.rs", "use std::time::Duration;\nuse crate::model::Instant;");
    assert_none("src/remote/listing.rs", "use std::time::Instant;");
    assert_none("src/store/quota.rs", "#[cfg(test)]\nmod tests {\n    use std::time::Instant;\n}");
    assert_one("src/store/quota.rs", "use std::time::{Duration, Instant};", 2, "src/model/clock.rs");
    assert_one("src/vfs/tree/ino.rs", "fn f() { std::time::SystemTime::now(); }", 2, "src/model/clock.rs");
}

#[test]
fn error_numbers_stand_in_one_file_only() {
    assert_none(ERRNO_FILE, "use libc::{EIO, ENOENT};\nconst A: i32 = libc::EROFS;");
    assert_none(
        "src/store/mod.rs",
        "const A: i32 = libc::EFD_CLOEXEC;\nconst B: i32 = libc::EPOLLIN;\nfn f(e: Errno) {}",
    );
    assert_one("src/store/mod.rs", "const A: i32 = libc::EIO;", 2, "`EIO`");
    assert_one("src/store/mod.rs", "use libc::{c_int, ENOSPC};", 2, "`ENOSPC`");
    assert_one("src/fs/answer/requests.rs", "fn f(r: Reply) { r.error(Errno::ENOENT) }", 2, ERRNO_FILE);
    assert_none("src/store/lock.rs", "const A: Errno = rustix::io::Errno::WOULDBLOCK;");
}

#[test]
fn a_file_begins_with_a_module_comment() {
    let findings = check("src/store/mod.rs", "use crate::model::Id;\n");
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].what.contains("`//!` line"), "{findings:?}");
}

#[test]
fn the_length_limit_ignores_unit_tests() {
    let longest = "\n".repeat(CODE_LINES_MAX - 2);
    assert_none("src/store/mod.rs", &format!("{longest}\n#[cfg(test)]\nmod tests {{{longest}}}"));
    let too_long = "\n".repeat(CODE_LINES_MAX);
    assert_one("src/store/mod.rs", &too_long, 1, "split it");
    assert_one("src/store/mod.rs", &format!("#[cfg(test)]\nuse a::B;\n{too_long}"), 1, "split it");
    assert_none("src/store/tests.rs", &too_long);
    assert_none("tests/mounted.rs", &too_long);
}

#[test]
fn names_of_earlier_versions_are_found() {
    assert_none("src/store/mod.rs", "// Live\nconst A: &str = \"settle\";\nstruct Lively;\nfn settled() {}");
    assert_one("src/store/mod.rs", "struct Live;", 2, "write OpenFile");
    assert_one("src/vfs/mod.rs", "fn f(file: &File) { file.settle() }", 2, "write flush");
    assert_one("src/store/mod.rs", "use a::{Link, Pending};", 2, "write Reservations");
    assert_one("src/store/log/ahead.rs", "struct A;", 1, "write verify_on_open");
    assert_one("src/store/many/mod.rs", "", 1, "write import_job");
}

#[test]
fn comments_without_a_subject_are_found() {
    assert_one("src/store/mod.rs", "/// What a read returns.\npub fn f() {}", 2, "begins with `What`");
    assert_one(
        "tests/mounted.rs",
        "struct A {\n    /// Who may read it.\n    a: u8,\n}",
        3,
        "begins with `Who`",
    );
    assert_none("src/store/mod.rs", "/// Whether it is open. What follows is no beginning.\npub fn f() {}");
}

#[test]
fn short_files_of_functions_alone_are_found() {
    let found =
        |path: &str, body: &str| fragments(&Source::new(path, &format!("//! A module.\n{body}\n"))).len();
    let functions = "impl Collection {\n    pub fn f() {}\n}";
    assert_eq!(found("src/store/io/part.rs", functions), 1);
    assert_eq!(found("src/store/io/part.rs", "pub fn f() {}"), 1);
    assert_eq!(found("src/store/io/part.rs", &format!("{functions}{}", "\n".repeat(SHORT_FILE_LINES))), 0);
    assert_eq!(found("src/store/io/mod.rs", functions), 0);
    assert_eq!(found("tests/mounted.rs", functions), 0);
    for own in ["struct A;", "enum A {}", "trait A {}", "const A: u8 = 1;", "static A: u8 = 1;"] {
        assert_eq!(found("src/store/io/part.rs", &format!("{own}\n{functions}")), 0, "{own}");
    }
    assert_eq!(found("src/store/io/part.rs", "pub use a::B;"), 0);
}

#[test]
fn unfinished_work_is_found_in_code_and_comments_not_in_strings() {
    for marker in UNFINISHED {
        assert_one("src/store/mod.rs", &format!("// {marker} later"), 2, marker);
        assert_one("tests/mounted.rs", &format!("fn f() {{}} /* {marker} */"), 2, marker);
        assert_none("src/store/mod.rs", &format!("const A: &str = \"{marker}\";"));
    }
}

#[test]
fn thrown_away_values_are_found() {
    assert_none(
        "src/store/mod.rs",
        "let _guard = lock();\nlet (_, b) = pair();\n// let _ = f();\nif let Some(_) = x {}",
    );
    assert_one("src/store/mod.rs", "let _ = f();", 2, "thrown away");
    assert_one("tests/mounted.rs", "let _: Result<(), ()> = f();", 2, "thrown away");
    assert_one("src/store/mod.rs", "let\n    _=f();", 2, "thrown away");
}

#[test]
fn test_names_have_at_least_two_words_and_a_subject() {
    let test = |name: &str| format!("#[test]\n#[should_panic]\nfn {name}() {{}}");
    assert_none("src/store/mod.rs", &test("a_torn_record_is_dropped"));
    assert_one("src/store/mod.rs", &test("works"), 2, "`works`");
    assert_one("tests/mounted.rs", &test("test_"), 2, "`test_`");
    assert_one("tests/mounted.rs", &test("what_is_torn_is_dropped"), 2, "name the thing");
    assert_none("src/store/mod.rs", "fn works() {}");
}

#[test]
fn code_in_literals_and_comments_is_ignored() {
    let bodies = [
        "const A: &str = \"say \\\" crate::fs\";",
        "const A: &str = r#\"a \" crate::fs\"#;",
        "const A: &[u8] = br\"crate::fs\\\";",
        "/* outer /* inner */ crate::fs */",
        "const A: char = '\"'; // crate::fs \"",
        "/// [`crate::fs::Mount`]",
    ];
    for body in bodies {
        assert_none("src/store/mod.rs", body);
        assert_one("src/store/mod.rs", &format!("{body}\nuse crate::fs::Mount;"), 3, "`fs`");
    }
    let with_lifetime = "fn f<'a>(x: &'a str) -> &'a str { x }\nuse crate::fs::Mount;";
    assert_one("src/store/mod.rs", with_lifetime, 3, "`fs`");
}

/// The findings about files that together are the crate.
fn found_in_all(files: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
    crate::structure::check(&sources).iter().map(Finding::to_string).collect()
}

#[track_caller]
fn assert_one_in_all(files: &[(&str, &str)], place: &str, part: &str) {
    let findings = found_in_all(files);
    assert_eq!(findings.len(), 1, "{files:?}: {findings:?}");
    assert!(findings[0].starts_with(place) && findings[0].contains(part), "{files:?}: {findings:?}");
}

#[track_caller]
fn assert_none_in_all(files: &[(&str, &str)]) {
    assert_eq!(found_in_all(files), Vec::<String>::new(), "{files:?}");
}

#[test]
fn rooms_import_downwards_only() {
    let log = ("src/store/log/mod.rs", "use crate::store::{state::State, object};\nuse crate::model::Id;");
    let face = ("src/store/mod.rs", "mod io;\npub use io::read::Open;\nuse crate::store::store::Store;");
    assert_none_in_all(&[log, face]);
    let upwards =
        ("src/store/object/mod.rs", "use crate::model::Id;\nuse crate::store::{disk, state::State};");
    assert_one_in_all(
        &[log, upwards],
        "src/store/object/mod.rs:2: ",
        "`store/object` names `state`; that is upwards",
    );
    let climbing = ("src/store/state/pins.rs", "use super::super::io;");
    assert_one_in_all(&[climbing], "src/store/state/pins.rs:1: ", "upwards");
    let inside = ("src/store/log/scan.rs", "fn f() { crate::store::io::read::read() }");
    assert_one_in_all(&[inside], "src/store/log/scan.rs:1: ", "`io`");
    let by_face = ("src/store/io/read.rs", "use crate::store::Collection;");
    assert_one_in_all(&[by_face], "src/store/io/read.rs:1: ", "name the file that defines it");
    assert_one_in_all(&[("src/store/attic.rs", "")], "src/store/attic.rs:1: ", "not a known room");
    assert_none_in_all(&[("src/store/log/scan.rs", "#[cfg(test)]\nmod tests { use crate::store::io; }")]);
}

#[test]
fn large_circles_of_files_are_found_and_small_ones_left_alone() {
    let paths: Vec<String> = (0..=CYCLE_FILES_MAX).map(|at| format!("src/store/io/f{at}.rs")).collect();
    let circle = |len: usize| -> Vec<(String, String)> {
        let text = |at: usize| format!("use crate::store::io::f{}::Thing;", (at + 1) % len);
        (0..len).map(|at| (paths[at].clone(), text(at))).collect()
    };
    let as_files = |files: &[(String, String)]| -> Vec<String> {
        found_in_all(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
    };
    assert_eq!(as_files(&circle(CYCLE_FILES_MAX)), Vec::<String>::new());
    let mut files = circle(CYCLE_FILES_MAX + 1);
    let findings = as_files(&files);
    assert!(findings.len() == 1 && findings[0].contains("4 files import each other"), "{findings:?}");
    // Through a name that a face gives again, and through `super`.
    files[0].1 = "use crate::store::Thing;".to_owned();
    files[1].1 = "use super::f2::Thing;".to_owned();
    files.push(("src/store/mod.rs".to_owned(), "pub use io::f1::{Other, Thing};".to_owned()));
    let findings = as_files(&files);
    assert!(findings.iter().any(|finding| finding.contains("4 files import each other")), "{findings:?}");
}

#[test]
fn folders_that_import_each_other_are_found() {
    let one = ("src/format/log/mod.rs", "use crate::format::files::npy;");
    let other = ("src/format/files/npy.rs", "use crate::format::log::Slot;");
    assert_none_in_all(&[one, ("src/format/files/npy.rs", "")]);
    let part = "folders import each other in a circle: src/format/files, src/format/log";
    assert_one_in_all(&[one, other], "src/format/files/npy.rs:1: ", part);
}

#[test]
fn methods_of_a_type_stand_in_few_folders() {
    let files = [
        ("src/store/collection/mod.rs", "pub struct Collection;\nimpl Collection {}"),
        ("src/store/io/read.rs", "use crate::store::collection::Collection;\nimpl Collection {}"),
        ("src/engine/by.rs", "struct Collection;\nimpl Collection {}\nimpl<T: X<u8>> Drop for Collection {}"),
        ("src/vfs/open/file.rs", "use crate::store::Collection;\nimpl Collection {}"),
        ("src/store/mod.rs", "pub use collection::Collection;"),
    ];
    assert_none_in_all(&files[..3]);
    assert_eq!(IMPL_FOLDERS_MAX, 2);
    assert_one_in_all(&files, "src/vfs/open/", "methods of `Collection` stand in 3 folders");
}

#[test]
fn shared_structures_have_few_fields() {
    let with = |count: usize, last: &str| {
        let fields: String =
            (0..count - 1).map(|at| format!("/// a: b, c: d\n f{at}: Map<(u8, u8), [u8; 2]>,\n")).collect();
        format!("struct Thing {{\n{fields} last: {last},\n}}")
    };
    let file = |text: &str| found_in_all(&[("src/store/io/read.rs", text)]);
    assert_eq!(file(&with(SHARED_FIELDS_MAX, "Mutex<u8>")), Vec::<String>::new());
    assert_eq!(file(&with(SHARED_FIELDS_MAX + 1, "u8")), Vec::<String>::new());
    for text in [
        with(SHARED_FIELDS_MAX + 1, "RwLock<u8>"),
        with(SHARED_FIELDS_MAX + 1, "u8") + "\nstruct Other { thing: Arc<Mutex<Option<Thing>>> }",
    ] {
        let findings = file(&text);
        assert!(findings.len() == 1 && findings[0].contains("`Thing` has a lock"), "{text}: {findings:?}");
    }
}

#[test]
fn tuples_as_parameters_are_found() {
    let path = "src/store/io/read.rs";
    for parameter in [
        "(tenant, name): (&str, &str)",
        "place: &(u8, u64)",
        "sum: &'a mut (u64, u64)",
        "Pair { one, .. }: Pair, two: (u8,)",
        "model::Pair { one, .. }: (Pair, u8)",
    ] {
        for function in [
            "fn f(PARAMETER) {}",
            "pub fn f<F: Fn(u8) -> u8>(&self, PARAMETER, a: u8) {}",
            "fn f(\n    PARAMETER,\n);",
        ] {
            let text = function.replace("PARAMETER", parameter);
            assert_one_in_all(&[(path, &text)], "src/store/io/read.rs:1: ", "`f` has a tuple as a parameter");
        }
    }
    for other in [
        "fn f(a: &(dyn Fn(u8, u8) -> u8 + Sync), b: [(u8, u8); 2], c: Option<(u8, u8)>, d: ()) -> (u8, u8) {}",
        "fn f(a: impl Fn((u8, u8)) -> (u8, u8), b: fn(&(u8, u8)) -> u8) { g(|(a, b): (u8, u8)| a + b) }",
        "fn f() {}\n#[cfg(test)]\nmod tests { fn g(a: (u8, u8)) {} }",
    ] {
        assert_none_in_all(&[(path, other)]);
    }
}

#[test]
fn a_change_of_a_file_by_no_known_operation_is_found() {
    assert_one(
        "src/engine/moves.rs",
        "fn f(file: &File) { file.punch(change, 0, 1) }",
        2,
        "name the operation",
    );
    assert_one("src/vfs/open.rs", "fn f(file: &File) { file.set_len(1) }", 2, "in 1 places, 0 of them known");
    assert_none("src/engine/moves.rs", "// file.punch(0, 1)\nfn f() { file.read_at(2) }");
}
