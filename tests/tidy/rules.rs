//! The rules. Each takes a source and returns findings that say how to fix them.

use crate::source::{Finding, Source, first_segments, skip_spaces, word_at, words};

/// The layers with their height. A file of a layer may name its own layer and lower ones, never a sibling or a higher
/// one. A new top-level module gets a line here and a place in the picture of docs/TOUR.md.
const LAYERS: &[(&str, u8)] = &[
    ("model", 0),
    ("codec", 1),
    ("format", 1),
    ("trace", 1),
    ("store", 2),
    ("stream", 3),
    ("remote", 3),
    ("ingest", 4),
    ("engine", 4),
    ("vfs", 5),
    ("control", 6),
    ("csi", 7),
    ("fs", 7),
    ("gpu", 7),
    ("cli", 8),
];

/// Folders of src that are crates of their own. They name nothing of tierfs, and no layer names them.
pub const CRATES: &[(&str, &str)] = &[("client", "tierfs_client")];

/// Crates that one place wraps: the crate, the path prefixes that may name it, the alternative for other code.
const WRAPPED_CRATES: &[(&str, &[&str], &str)] = &[
    (
        "fuser",
        &["src/fs/kernel/session.rs"],
        "use the types of src/fs/kernel; session.rs alone mounts and notifies by the crate",
    ),
    ("io_uring", &["src/fs/kernel/rings/ring.rs"], "use `Ring` of src/fs/kernel/rings/ring.rs"),
    (
        "memmap2",
        &["src/fs/kernel/rings/memory.rs", "src/cli/bench.rs", "src/client/memory_map.rs"],
        "read files by calls; src/fs/kernel/rings maps only memory of its own",
    ),
    (
        "clap",
        &["src/cli/", "src/main.rs"],
        "take parsed values as arguments; src/cli parses the command line",
    ),
    ("cudarc", &["src/gpu/"], "call src/gpu"),
    ("ratatui", &["src/cli/top/"], "let src/cli/top draw it"),
    ("httparse", &["src/control/http.rs"], "let src/control/http.rs answer requests"),
    ("prometheus_client", &["src/control/metrics.rs"], "add the metric to src/control/metrics.rs"),
    ("object_store", &["src/remote/"], "call src/remote"),
    (
        "tokio",
        &["src/remote/", "src/csi/server.rs"],
        "use threads; src/remote and the server of src/csi have the only asynchronous code",
    ),
    ("tonic", &["src/csi/server.rs"], "let src/csi/server.rs serve it"),
    ("prost", &["src/csi/messages.rs", "src/csi/calls.rs"], "add a message to src/csi/messages.rs"),
    ("reqwest", &["src/remote/"], "call src/remote"),
    ("rustls", &["src/remote/"], "call src/remote"),
    ("opentelemetry", &["src/remote/traces.rs"], "make spans by the functions of src/trace.rs"),
    ("tracing", &["src/trace.rs", "src/remote/traces.rs"], "make spans by the functions of src/trace.rs"),
    ("crc_fast", &["src/format/checksum.rs"], "call `checksum::of`"),
    ("crc32c", &["src/format/checksum.rs"], "call `checksum::of` or `checksum::joined`"),
];

/// The file that asks the clock of the system, for all layers of the portable core.
const CLOCK_FILE: &str = "src/model/clock.rs";
/// The layers that hosts without an operating system use too.
const CORE_HEIGHT_MAX: u8 = 5;

pub const INTRINSICS_FOLDER: &str = "src/codec/arch/";
pub const ERRNO_FILE: &str = "src/fs/kernel/errno.rs";
pub const CODE_LINES_MAX: usize = 800;

/// Markers of unfinished work, in code and comments. Written in halves, because this file is checked too.
pub const UNFINISHED: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("#[ig", "nore"),
    concat!("allow(dead", "_code)"),
    concat!("expect(dead", "_code)"),
];

/// Names of earlier versions that must not return, each with the name that replaced it.
const OLD_NAMES: &[(&str, &str)] = &[
    ("Live", "OpenFile"),
    ("LiveTable", "OpenFiles"),
    ("settle", "flush"),
    ("Forgetter", "Invalidator"),
    ("owed", "pending_invalidations"),
    ("let_go", "drop_cached, forget or release"),
    ("Rare", "WriteState"),
    ("Pending", "Reservations"),
    ("TakenSlots", "ReservedSlots"),
    ("Cut", "BlockLayout"),
    ("Taken", "StoredParts or RecordedDigests"),
    ("Told", "NameWatcher or FailedReads"),
    ("ask_for", "mark_requested_by_kernel"),
    ("bell", "Waker"),
    ("rope", "wake_handle"),
];

/// Names of earlier modules that must not return, each with the name that replaced it.
const OLD_MODULES: &[(&str, &str)] = &[
    ("ahead", "verify_on_open"),
    ("beside", "embedding_index"),
    ("edit", "open"),
    ("many", "import_job"),
    ("namespace", "vfs"),
    ("take", "store_parts"),
];

/// Words with the endings of participles that name a thing.
const NOUNS: &[&str] = &["backing", "feed", "listing", "ring", "setting"];
/// Participles with other endings.
const PARTICIPLES: &[&str] = &[
    "begun", "done", "found", "given", "gone", "held", "kept", "known", "left", "lost", "made", "seen",
    "sent", "shown", "taken", "told", "written",
];

/// A file with fewer lines is a table, a type, a subcommand or a folder's face.
pub const SHORT_FILE_LINES: usize = 60;

/// Short files of functions alone, which have no neighbour to be part of.
const SHORT_FILES: &[&str] = &[
    // Below delta.rs and difference.rs, which both use it.
    "src/format/payload/element.rs",
    // Takes the place of reading.rs in a build without CUDA.
    "src/gpu/absent.rs",
];

fn height(layer: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, height)| *height)
}

/// Imports between layers go downwards only.
pub fn layering(source: &Source) -> Vec<Finding> {
    let Some(own) = source.layer() else {
        return Vec::new();
    };
    if source.own_crate().is_some() {
        let what = "a crate of its own names nothing of the daemon; write what it needs there, and compare both in tests/";
        let named = words(&source.code, "tierfs");
        return named.map(|at| source.finding(at, format!("`{own}` names `tierfs`: {what}"))).collect();
    }
    let Some(own_height) = height(own) else {
        let what = format!(
            "`{own}` is not a known layer; give it a height in tests/tidy/rules.rs and a place in docs/TOUR.md"
        );
        return vec![source.finding(0, what)];
    };
    let mut named = first_segments(&source.code, "crate");
    named.extend(first_segments(&source.code, "tierfs"));
    named.extend(through_super(source));
    let mut findings = Vec::new();
    for (_, name) in CRATES {
        let what =
            format!("`{own}` names `{name}`, which is for programs that use a mount; call the store itself");
        findings.extend(words(&source.code, name).map(|at| source.finding(at, what.clone())));
    }
    for (at, other) in named {
        if other == own {
            continue;
        }
        let advice = match height(other) {
            Some(lower) if lower < own_height => continue,
            Some(same) if same == own_height => {
                "they are siblings: move what both need to a lower layer, or let a higher one pass the value"
            }
            Some(_) => {
                "that is upwards: take the value or a trait as an argument, or move what is needed down"
            }
            None => "that is the crate's root: name the layer that defines it",
        };
        findings.push(source.finding(at, format!("`{own}` names `{other}`; {advice}")));
    }
    findings
}

/// Layers named by climbing to the root: `super::super::store::...`.
fn through_super<'a>(source: &'a Source) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (at, segment) in first_segments(&source.code, "super") {
        let path = source.code[..at].trim_end_matches(['{', ' ']);
        let above = path.trim_end_matches("super::");
        let supers = (path.len() - above.len()) / "super::".len();
        // Further entries of a group do not show their `super`: assume at least one.
        if height(segment).is_some() && supers.max(1) >= source.depth() {
            found.push((at, segment));
        }
    }
    found
}

/// Foreign names stay behind the module that wraps them.
pub fn foreign_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, allowed, instead) in WRAPPED_CRATES {
        if !allowed.iter().any(|prefix| source.path.starts_with(prefix)) {
            let what = format!("`{name}` is named only in {}; {instead}", allowed.join(" and "));
            findings.extend(words(&source.code, name).map(|at| source.finding(at, what.clone())));
        }
    }
    let height = source.layer().filter(|layer| *layer != "remote").and_then(height);
    if height.is_some_and(|height| height <= CORE_HEIGHT_MAX) && source.path != CLOCK_FILE {
        let product = source.code.split("#[cfg(test)]").next().unwrap_or_default();
        for (at, name) in first_segments(product, "time") {
            if matches!(name, "Instant" | "SystemTime") {
                let what = format!(
                    "`{name}` of the standard library panics on hosts without a clock; use {CLOCK_FILE}"
                );
                findings.push(source.finding(at, what));
            }
        }
    }
    if !source.path.starts_with(INTRINSICS_FOLDER) {
        let roots = ["core", "std"].into_iter();
        for (at, _) in roots.flat_map(|root| first_segments(&source.code, root)).filter(|(_, s)| *s == "arch")
        {
            let what = format!(
                "intrinsics stand only in {INTRINSICS_FOLDER}; put the function there, behind a check of the processor"
            );
            findings.push(source.finding(at, what));
        }
    }
    if source.path != ERRNO_FILE {
        let roots = ["libc", "Errno"].into_iter();
        for (at, name) in roots.flat_map(|root| first_segments(&source.code, root)) {
            if is_error_number(&source.code, at, name) {
                let what = format!(
                    "`{name}` is an error number; return an error with a kind (or match std::io::ErrorKind) and map it in {ERRNO_FILE}"
                );
                findings.push(source.finding(at, what));
            }
        }
    }
    findings
}

/// `libc::EIO` and `Errno::EIO`; not rustix's `Errno::IO`, which comes from the operating system and is not an answer
/// to a program; not EPOLLIN, not `EFD_CLOEXEC`, not a function.
fn is_error_number(code: &str, at: usize, name: &str) -> bool {
    let upper = !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    let of_rustix = code[..at].trim_end().ends_with("rustix::io::Errno::");
    upper && !of_rustix && name.starts_with('E') && !name.starts_with("EPOLL")
}

/// Each module begins with its purpose, and has a length for one sitting.
pub fn shape_of_the_file(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !source.text.starts_with("//! ") {
        findings.push(source.finding(0, "begin the file with a `//!` line that says what the module is"));
    }
    if source.is_unit_test_file() {
        return findings;
    }
    let lines: Vec<&str> = source.code.lines().collect();
    let starts_tests =
        |pair: &[&str]| pair[0].trim() == "#[cfg(test)]" && pair[1].trim_start().starts_with("mod ");
    let code_lines = lines.windows(2).position(starts_tests).unwrap_or(lines.len());
    if code_lines > CODE_LINES_MAX {
        let what = format!(
            "{code_lines} lines before the tests, {CODE_LINES_MAX} at most; a file this long usually holds two ideas: split it"
        );
        findings.push(source.finding(0, what));
    }
    findings
}

/// Names of earlier versions do not return.
pub fn old_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (old, new) in OLD_NAMES {
        let what = format!("`{old}` is a name of earlier versions; write {new}");
        findings.extend(words(&source.code, old).map(|at| source.finding(at, what.clone())));
    }
    let module = module_name(source.path);
    if let Some((old, new)) = OLD_MODULES.iter().find(|(old, _)| *old == module) {
        findings.push(source.finding(0, format!("`{old}` is a module of earlier versions; write {new}")));
    }
    findings
}

fn module_name(path: &str) -> &str {
    let path = path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    path.rsplit('/').next().unwrap_or_default()
}

/// The name of a module says which things it is about: a participle alone does not.
pub fn participles(source: &Source) -> Vec<Finding> {
    let module = module_name(source.path);
    let has_ending = (module.ends_with("ed") || module.ends_with("ing")) && !module.contains('_');
    let is_participle = has_ending && !NOUNS.contains(&module) || PARTICIPLES.contains(&module);
    let what = || format!("`{module}` is a participle; name the things that the module is about");
    is_participle.then(|| source.finding(0, what())).into_iter().collect()
}

/// A comment names its subject first.
pub fn headless_comments(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut at = 0;
    for line in source.text.lines() {
        let text = line.trim_start();
        let comment = text.strip_prefix("//! ").or_else(|| text.strip_prefix("/// ")).unwrap_or_default();
        if let Some(word) =
            ["What ", "Who ", "Whose ", "Whoever "].iter().find(|word| comment.starts_with(**word))
        {
            let what =
                format!("a comment begins with `{}`; name the thing, then say what it does", word.trim_end());
            findings.push(source.finding(at, what));
        }
        at += line.len() + 1;
    }
    findings
}

/// A short file is not a fragment of an idea.
pub fn fragments(source: &Source) -> Vec<Finding> {
    let is_face = ["/mod.rs", "/lib.rs", "/main.rs"].iter().any(|end| source.path.ends_with(end));
    let defines = ["struct", "enum", "trait", "const", "static", "macro_rules"];
    let is_own = defines.iter().any(|kind| words(&source.code, kind).next().is_some());
    let has_functions = words(&source.code, "fn").next().is_some();
    let lines = source.text.lines().count();
    if !source.is_product_code()
        || source.is_unit_test_file()
        || is_face
        || is_own
        || !has_functions
        || lines >= SHORT_FILE_LINES
        || SHORT_FILES.contains(&source.path)
    {
        return Vec::new();
    }
    let what = format!("{lines} lines of functions alone; move them to a neighbour, or to their type");
    vec![source.finding(0, what)]
}

/// No unfinished work, no ignored result.
pub fn habits(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for marker in UNFINISHED {
        for (at, _) in source.without_strings.match_indices(marker) {
            findings.push(source.finding(at, format!("`{marker}`: finish it, or take it out")));
        }
    }
    for at in words(&source.code, "let") {
        let pattern = skip_spaces(&source.code, at + "let".len());
        let after = skip_spaces(&source.code, pattern + word_at(&source.code, pattern).len());
        let binds = source.code[after..].starts_with([':', '=']);
        if word_at(&source.code, pattern) == "_" && binds {
            findings.push(source.finding(
                at,
                "a value thrown away unseen: handle the error, log it, or call drop() if it has none",
            ));
        }
    }
    findings
}

/// Calls that change bytes of a file, or its length.
const CHANGES_OF_FILES: &[&str] = &[".write_at(", ".write_parts_at(", ".write_over(", ".set_len(", ".punch("];

/// Where product code makes such calls, how often, and by which operations of `Change`
/// (src/store/disk/change.rs), or on files that no program was shown.
const PLACES_OF_CHANGES: &[(&str, usize, &str)] = &[
    ("src/engine/pins.rs", 2, "a new copy"),
    ("src/fs/state/decoded_copies/decode.rs", 1, "a new decoded copy"),
    ("src/fs/state/decoded_copies/file.rs", 1, "a new decoded copy"),
    ("src/ingest/bytes/store_parts.rs", 1, "a new data file"),
    ("src/ingest/bytes/pending_parts.rs", 1, "a new data file"),
    ("src/remote/read/cache/blob.rs", 1, "a new file of the cache"),
    ("src/remote/read/cache/verify.rs", 2, "Evict, the map"),
    ("src/store/clone_snapshot.rs", 4, "new files of a clone"),
    ("src/store/clones/file.rs", 4, "the seam"),
    ("src/store/clones/shared_file.rs", 2, "Evict, Adopt"),
    ("src/store/collection/allocate.rs", 2, "Slots"),
    ("src/store/collection/open.rs", 1, "the log"),
    ("src/store/collection/reclaim.rs", 3, "Reclaim, PunchLeft"),
    ("src/store/trail.rs", 2, "the trail, which nothing maps"),
    ("src/store/disk/descriptors.rs", 4, "the seam"),
    ("src/store/disk/files.rs", 3, "the seam, and the note in the lock"),
    ("src/store/disk/forward.rs", 4, "the seam"),
    ("src/store/disk/mod.rs", 3, "the seam, and new small files"),
    ("src/store/io/relocate.rs", 3, "Return, Slots"),
    ("src/store/io/write.rs", 2, "Append, Return, Slots"),
    ("src/store/log/append.rs", 3, "the log"),
    ("src/store/pieces/arrival.rs", 3, "pieces that arrive"),
    ("src/store/pieces/file.rs", 2, "pieces that arrive, Evict"),
    ("src/store/pieces/file/claim.rs", 2, "the map"),
    ("src/store/pieces/file/states.rs", 4, "the map"),
    ("src/store/repair/mod.rs", 1, "a new log"),
    ("src/store/space/files.rs", 1, "Slots"),
    ("src/store/versions/differences.rs", 2, "new files of a version"),
    ("src/store/versions/keep.rs", 2, "new files of a version"),
];

/// Every operation that changes bytes of a file is known, with those who may see them.
pub fn changes_of_files(source: &Source) -> Vec<Finding> {
    if source.path.starts_with("src/cli/") || source.path == "src/vfs/open/source.rs" {
        return Vec::new();
    }
    let product = source.code.split("#[cfg(test)]").next().unwrap_or_default();
    let mut places: Vec<usize> =
        CHANGES_OF_FILES.iter().flat_map(|call| product.match_indices(call)).map(|(at, _)| at).collect();
    places.sort_unstable();
    let known = PLACES_OF_CHANGES.iter().find(|(path, ..)| *path == source.path);
    let count = known.map_or(0, |(_, count, _)| *count);
    if places.len() <= count {
        return Vec::new();
    }
    let at = places.get(count).copied().unwrap_or(0);
    let what = format!(
        "changes bytes of files in {} places, {count} of them known: name the operation in `Change`, with its row \
         in src/store/disk/change.rs, and count it in PLACES_OF_CHANGES",
        places.len()
    );
    vec![source.finding(at, what)]
}

/// A test's name is a sentence.
pub fn test_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, attribute) in source.code.match_indices("#[test]") {
        let Some(function) = words(&source.code[at..], "fn").next() else {
            continue;
        };
        let name_at = skip_spaces(&source.code, at + function + "fn".len());
        let name = word_at(&source.code, name_at);
        if name.split('_').filter(|word| !word.is_empty()).count() < 2 {
            let what = format!("the test `{name}` says little; name it with a sentence of what holds");
            findings.push(source.finding(at + attribute.len(), what));
        }
        let first = name.split('_').next().unwrap_or_default();
        if ["what", "who", "whose", "whatever", "whoever"].contains(&first) {
            let what = format!("the test `{name}` has a clause as its subject; name the thing");
            findings.push(source.finding(at + attribute.len(), what));
        }
    }
    findings
}
