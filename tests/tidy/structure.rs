//! Rules about the crate as a whole: imports between files, folders with methods of a type, and fields of shared
//! structures.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use crate::source::{Finding, Source, skip_spaces, word_at, words};

/// The rooms of a layer with their height. A file of a room may name its own room and lower ones. A file that stands
/// in the layer's folder itself is a room. The layer's `mod.rs` may name all.
const ROOMS: &[(&str, &[(&str, u8)])] = &[
    ("fs", &[("kernel", 0), ("state", 1), ("answer", 2), ("mount", 3)]),
    ("ingest", &[("find", 0), ("recognize", 1), ("bytes", 2), ("publish", 3), ("job", 4)]),
    (
        "remote",
        &[
            ("client", 0),
            ("place", 1),
            ("source", 1),
            ("traces", 1),
            ("read", 2),
            ("clone", 3),
            ("index", 3),
            ("push", 4),
        ],
    ),
    (
        "store",
        &[
            ("disk", 0),
            ("many_at_once", 0),
            ("version_use", 0),
            ("settings", 0),
            ("quota", 1),
            ("push_file", 1),
            ("clock", 1),
            ("link_candidates", 1),
            ("trail", 1),
            ("pieces", 1),
            ("version_disk", 2),
            ("clones", 2),
            ("upstream", 3),
            ("events", 2),
            ("tenant", 2),
            ("object", 3),
            ("batch", 4),
            ("state", 5),
            ("log", 6),
            ("space", 7),
            ("version_list", 8),
            ("collection", 8),
            ("io", 9),
            ("open_collections", 9),
            ("repair", 10),
            ("store", 11),
            ("snapshot", 12),
            ("shown_numbers", 12),
            ("relocation", 12),
            ("read_collections", 12),
            ("clone_snapshot", 13),
            ("versions", 13),
        ],
    ),
    ("vfs", &[("form", 0), ("open", 0), ("tree", 1)]),
];

/// The most files that may import each other in a circle.
pub const CYCLE_FILES_MAX: usize = 3;
/// The most folders in which the methods of one type may stand.
pub const IMPL_FOLDERS_MAX: usize = 2;
/// The most fields of a structure that threads share.
pub const SHARED_FIELDS_MAX: usize = 12;

/// All findings about these files of the crate. Unit tests do not count: their code is at the end of a file.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let product: Vec<&Source> =
        sources.iter().filter(|source| source.is_product_code() && !source.is_unit_test_file()).collect();
    let tree = Tree::of(&product);
    let mut findings = Vec::new();
    for file in &tree.files {
        findings.extend(heights(file));
    }
    findings.extend(cycles_of_files(&tree));
    findings.extend(cycles_of_folders(&tree));
    findings.extend(spread_methods(&tree));
    findings.extend(large_structures(&tree));
    findings.extend(tree.files.iter().flat_map(tuple_parameters));
    findings
}

/// A path in the code, from the crate's root.
struct Named {
    at: usize,
    segments: Vec<String>,
    /// Whether a `pub use` makes it a name of this module.
    is_given_again: bool,
}

struct File<'a> {
    source: &'a Source<'a>,
    /// The code before the unit tests.
    code: &'a str,
    /// Its module, from the crate's root.
    module: Vec<String>,
    named: Vec<Named>,
}

/// The files of the crate, by module.
struct Tree<'a> {
    files: Vec<File<'a>>,
    by_module: HashMap<Vec<String>, usize>,
}

impl<'a> Tree<'a> {
    fn of(sources: &[&'a Source<'a>]) -> Tree<'a> {
        let files: Vec<File> = sources
            .iter()
            .map(|source| {
                let code = before_tests(&source.code);
                let module = module_of(source.path);
                let root: Vec<String> = source.own_crate().into_iter().map(str::to_owned).collect();
                let named = paths(code, &module, &root);
                File { source, code, module, named }
            })
            .collect();
        let by_module = files.iter().enumerate().map(|(at, file)| (file.module.clone(), at)).collect();
        Tree { files, by_module }
    }

    /// The file that defines a path: the deepest module on it or, if that only re-exports the name, the file of the
    /// definition.
    fn target(&self, segments: &[String]) -> Option<usize> {
        let mut segments = segments.to_vec();
        for _ in 0..8 {
            let known = (1..=segments.len()).rev().find_map(|len| {
                let file = self.by_module.get(&segments[..len])?;
                Some((*file, len))
            });
            let (file, len) = known?;
            let again = segments.get(len).and_then(|name| {
                let named = self.files[file].named.iter().filter(|named| named.is_given_again);
                named
                    .map(|named| &named.segments)
                    .find(|other| other.last() == Some(name) && **other != segments)
            });
            match again {
                Some(other) => segments = [other, &segments[len + 1..]].concat(),
                None => return Some(file),
            }
        }
        None
    }

    /// The other files that a file names, each with the place of the first use.
    fn targets(&self, file: usize) -> BTreeMap<usize, usize> {
        let mut found = BTreeMap::new();
        for named in &self.files[file].named {
            if let Some(target) = self.target(&named.segments).filter(|target| *target != file) {
                found.entry(target).or_insert(named.at);
            }
        }
        found
    }
}

fn before_tests(code: &str) -> &str {
    let begins = code.match_indices("#[cfg(").map(|(at, _)| at).find(|at| {
        let condition = code[*at..].split(']').next().unwrap_or_default();
        let next = skip_spaces(code, at + condition.len() + 1);
        words(condition, "test").next().is_some() && word_at(code, next) == "mod"
    });
    &code[..begins.unwrap_or(code.len())]
}

/// `src/store/log/replay.rs` is `store::log::replay`.
fn module_of(path: &str) -> Vec<String> {
    let below = path.strip_prefix("src/").unwrap_or(path);
    let below = below.strip_suffix(".rs").unwrap_or(below);
    let parts = below.split('/').filter(|part| !matches!(*part, "mod" | "lib" | "main"));
    parts.map(str::to_owned).collect()
}

/// All paths that begin with `crate`, which stands for `root`, `super` or `self`, and those of `pub use` that begin with a
/// module below; groups are taken apart.
fn paths(code: &str, module: &[String], root: &[String]) -> Vec<Named> {
    let mut found = Vec::new();
    for keyword in ["crate", "super", "self"] {
        for at in words(code, keyword) {
            let next = skip_spaces(code, at + keyword.len());
            let before = code[..at].trim_end();
            // Not the middle of a path, and not `pub(in crate::store)`.
            if !code[next..].starts_with("::") || before.ends_with(':') || before.ends_with("(in") {
                continue;
            }
            let (mut base, mut rest) = (module.to_vec(), next + 2);
            match keyword {
                "crate" => base = root.to_vec(),
                "super" => drop(base.pop()),
                _ => {}
            }
            while word_at(code, skip_spaces(code, rest)) == "super" {
                base.pop();
                rest = skip_spaces(code, skip_spaces(code, rest) + "super".len()) + 2;
            }
            let first = found.len();
            follow(code, rest, &base, &mut found);
            let is_given_again = before.strip_suffix("use").is_some_and(is_public);
            found[first..].iter_mut().for_each(|named| named.is_given_again = is_given_again);
        }
    }
    for at in words(code, "use").filter(|at| is_public(&code[..*at])) {
        let begin = skip_spaces(code, at + "use".len());
        if !matches!(word_at(code, begin), "crate" | "super" | "self" | "std" | "") {
            let first = found.len();
            follow(code, begin, module, &mut found);
            found[first..].iter_mut().for_each(|named| named.is_given_again = true);
        }
    }
    found
}

/// Whether the item after this code is public, at least in a part of the crate.
fn is_public(before: &str) -> bool {
    let before = before.trim_end();
    before.ends_with("pub") || before.ends_with(')')
}

/// Adds the paths below `base` of which the rest, perhaps a group, begins at `at`. Returns where they end.
fn follow(code: &str, at: usize, base: &[String], found: &mut Vec<Named>) -> usize {
    let mut segments = base.to_vec();
    let mut at = skip_spaces(code, at);
    loop {
        if code[at..].starts_with('{') {
            at = skip_spaces(code, at + 1);
            while at < code.len() && !code[at..].starts_with('}') {
                let end = follow(code, at, &segments, found);
                let end = skip_spaces(code, end);
                at = if code[end..].starts_with(',') { skip_spaces(code, end + 1) } else { end.max(at + 1) };
            }
            return (at + 1).min(code.len());
        }
        let word = word_at(code, at);
        if word.is_empty() {
            return at + 1;
        }
        let end = at + word.len();
        if word != "self" {
            segments.push(word.to_owned());
        }
        let next = skip_spaces(code, end);
        if !code[next..].starts_with("::") {
            found.push(Named { at, segments, is_given_again: false });
            return next;
        }
        at = skip_spaces(code, next + 2);
        if code[at..].starts_with('<') {
            found.push(Named { at: end, segments, is_given_again: false });
            return at;
        }
    }
}

/// Imports between the rooms of a layer go downwards only.
fn heights(file: &File) -> Vec<Finding> {
    let Some((layer, rooms)) = ROOMS.iter().find(|(layer, _)| Some(*layer) == file.source.layer()) else {
        return Vec::new();
    };
    let Some(own) = file.module.get(1) else {
        return Vec::new();
    };
    let height = |room: &str| rooms.iter().find(|(name, _)| *name == room).map(|(_, height)| *height);
    let Some(own_height) = height(own) else {
        let what =
            format!("`{own}` is not a known room of `{layer}`; give it a height in tests/tidy/structure.rs");
        return vec![file.source.finding(0, what)];
    };
    let mut findings = Vec::new();
    for named in file.named.iter().filter(|named| named.segments.first().is_some_and(|first| first == layer))
    {
        let Some(room) = named.segments.get(1).filter(|room| *room != own) else { continue };
        let advice = match height(room) {
            Some(other) if other < own_height => continue,
            Some(_) => "that is upwards: move what is needed down, or take it as an argument",
            None => "that is the layer's face: name the file that defines it",
        };
        findings.push(file.source.finding(named.at, format!("`{layer}/{own}` names `{room}`; {advice}")));
    }
    findings
}

/// The groups of more than one node that can all be reached from each other.
fn circles<N: Copy + Ord>(edges: &BTreeMap<N, BTreeSet<N>>) -> Vec<BTreeSet<N>> {
    let reached = |from: N| {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
        while let Some(node) = waiting.pop() {
            for next in edges.get(&node).into_iter().flatten() {
                if seen.insert(*next) {
                    waiting.push(*next);
                }
            }
        }
        seen
    };
    let all: BTreeMap<N, BTreeSet<N>> = edges.keys().map(|node| (*node, reached(*node))).collect();
    let mut found: Vec<BTreeSet<N>> = Vec::new();
    for (node, seen) in &all {
        if found.iter().any(|circle| circle.contains(node)) {
            continue;
        }
        let back = |other: &&N| all.get(*other).is_some_and(|seen| seen.contains(node));
        let circle: BTreeSet<N> = seen.iter().filter(back).copied().collect();
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

fn cycles_of_files(tree: &Tree) -> Vec<Finding> {
    let edges = (0..tree.files.len()).map(|file| (file, tree.targets(file).into_keys().collect())).collect();
    let large = circles(&edges).into_iter().filter(|circle| circle.len() > CYCLE_FILES_MAX);
    large
        .filter_map(|circle| {
            let first = &tree.files[*circle.first()?];
            let names: Vec<&str> = circle.iter().map(|file| tree.files[*file].source.path).collect();
            let what = format!(
                "{} files import each other in a circle, {CYCLE_FILES_MAX} at most; move what they share to a file \
                 below: {}",
                names.len(),
                names.join(", ")
            );
            Some(first.source.finding(0, what))
        })
        .collect()
}

/// Folders below a layer do not import each other in a circle.
fn cycles_of_folders(tree: &Tree) -> Vec<Finding> {
    let folder = |file: usize| {
        let path = tree.files[file].source.path;
        let mut parts = path.split('/').skip(1);
        let (layer, folder, is_inside) = (parts.next()?, parts.next()?, parts.next().is_some());
        is_inside.then_some((layer, folder))
    };
    let mut edges: BTreeMap<(&str, &str), BTreeSet<(&str, &str)>> = BTreeMap::new();
    for file in 0..tree.files.len() {
        let Some(own) = folder(file) else { continue };
        let others = tree.targets(file).into_keys().filter_map(folder).filter(|other| *other != own);
        edges.entry(own).or_default().extend(others);
    }
    let describe = |circle: BTreeSet<(&str, &str)>| {
        let names: Vec<String> =
            circle.iter().map(|(layer, folder)| format!("src/{layer}/{folder}")).collect();
        let first = tree.files.iter().find(|file| file.source.path.starts_with(&format!("{}/", names[0])));
        first.map(|file| {
            let what = format!("folders import each other in a circle: {}", names.join(", "));
            file.source.finding(0, what)
        })
    };
    circles(&edges).into_iter().filter_map(describe).collect()
}

/// The methods of a type stand in few folders: beside it, and in one more.
fn spread_methods(tree: &Tree) -> Vec<Finding> {
    // By the file and the name of a type: for each folder, the file and the offset of the first methods.
    type Folders<'a> = BTreeMap<&'a str, (usize, usize)>;
    let mut places: BTreeMap<(usize, String), Folders> = BTreeMap::new();
    for (number, file) in tree.files.iter().enumerate() {
        let folder = file.source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (at, name) in own_methods(file.code) {
            let imported =
                file.named.iter().find(|named| named.segments.last().is_some_and(|last| last == name));
            let home = imported.and_then(|named| tree.target(&named.segments)).unwrap_or(number);
            places.entry((home, name.to_owned())).or_default().entry(folder).or_insert((number, at));
        }
    }
    let mut findings = Vec::new();
    for ((_, name), folders) in places.into_iter().filter(|(_, folders)| folders.len() > IMPL_FOLDERS_MAX) {
        let names: Vec<&str> = folders.keys().copied().collect();
        let what = format!(
            "methods of `{name}` stand in {} folders, {IMPL_FOLDERS_MAX} at most: {}; write functions that take it",
            names.len(),
            names.join(", ")
        );
        if let Some((file, at)) = folders.values().last() {
            findings.push(tree.files[*file].source.finding(*at, what));
        }
    }
    findings
}

/// The types of inherent `impl` blocks.
fn own_methods(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for at in words(code, "impl") {
        let is_item = code[..at]
            .lines()
            .next_back()
            .is_none_or(|line| line.trim().is_empty() || code[..at].ends_with('\n'));
        if !is_item {
            continue;
        }
        let mut begin = skip_spaces(code, at + "impl".len());
        if code[begin..].starts_with('<') {
            begin = skip_spaces(code, begin + bracketed(&code[begin..]));
        }
        let head = code[begin..].split('{').next().unwrap_or_default();
        let name = word_at(code, begin);
        if words(head, "for").next().is_none() && !name.is_empty() {
            found.push((at, name));
        }
    }
    found
}

/// The length of the group that begins with an opening bracket.
fn bracketed(code: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' if at > 0 && code.as_bytes()[at - 1] == b'-' => {}
            b'>' | b')' | b'}' | b']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// No function has a tuple as a parameter: at a call nothing says which value is which.
fn tuple_parameters(file: &File) -> Vec<Finding> {
    let code = file.code;
    let mut findings = Vec::new();
    for at in words(code, "fn") {
        let name_at = skip_spaces(code, at + "fn".len());
        let name = word_at(code, name_at);
        let mut open = skip_spaces(code, name_at + name.len());
        if code[open..].starts_with('<') {
            open = skip_spaces(code, open + bracketed(&code[open..]));
        }
        // A type of a function has no name.
        if name.is_empty() || !code[open..].starts_with('(') {
            continue;
        }
        let list = &code[open + 1..open + bracketed(&code[open..]) - 1];
        for parameter in split(list, ',') {
            // `::` is not an end of a pattern.
            let without_paths = parameter.replace("::", "  ");
            if split(&without_paths, ':').get(1).is_some_and(|of_type| is_tuple(of_type)) {
                let parameter = parameter.split_whitespace().collect::<Vec<_>>().join(" ");
                let what = format!(
                    "`{name}` has a tuple as a parameter, `{parameter}`; name its concept by a struct, or take several \
                     parameters"
                );
                findings.push(file.source.finding(at, what));
            }
        }
    }
    findings
}

/// Whether a type is a tuple, or a reference to one.
fn is_tuple(of_type: &str) -> bool {
    let mut rest = of_type.trim();
    while let Some(target) = rest.strip_prefix('&') {
        let target = target.trim_start();
        let target = match target.strip_prefix('\'') {
            Some(lifetime) => {
                lifetime.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').trim_start()
            }
            None => target,
        };
        rest = target.strip_prefix("mut ").unwrap_or(target).trim_start();
    }
    // The brackets of `&(dyn A + Send)` hold one type.
    rest.starts_with('(') && split(&rest[1..bracketed(rest) - 1], ',').len() > 1
}

/// The parts of code between separators that stand in no brackets.
fn split(code: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    while at < code.len() {
        let byte = code.as_bytes()[at];
        if matches!(byte, b'<' | b'(' | b'{' | b'[') {
            at += bracketed(&code[at..]);
            continue;
        }
        if char::from(byte) == separator {
            parts.push(&code[begin..at]);
            begin = at + 1;
        }
        at += 1;
    }
    parts.push(&code[begin..]);
    parts
}

/// Structures that threads share, because they contain a lock or are inside one, have few fields; their parts are types
/// of their own.
fn large_structures(tree: &Tree) -> Vec<Finding> {
    let locked: HashSet<&str> = tree.files.iter().flat_map(|file| locked_types(file.code)).collect();
    let mut findings = Vec::new();
    for file in &tree.files {
        for (at, name, body) in structures(file.code) {
            let body = &file.code[body];
            let has_lock =
                ["Mutex", "RwLock", "OnceLock"].iter().any(|lock| words(body, lock).next().is_some());
            let count = fields(body);
            let is_shared = has_lock || locked.contains(name);
            if is_shared && count > SHARED_FIELDS_MAX {
                let what = format!(
                    "`{name}` has a lock, or a lock has it, and {count} fields, {SHARED_FIELDS_MAX} at most; make types \
                     of the parts"
                );
                findings.push(file.source.finding(at, what));
            }
        }
    }
    findings
}

/// The types in the brackets of a lock.
fn locked_types(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for at in ["Mutex", "RwLock"].iter().flat_map(|lock| words(code, lock).map(|at| at + lock.len())) {
        if code[at..].starts_with('<') {
            let inside = &code[at..at + bracketed(&code[at..])];
            found.extend(
                inside.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()),
            );
        }
    }
    found
}

/// The structures with named fields: place, name and body.
fn structures(code: &str) -> Vec<(usize, &str, Range<usize>)> {
    let mut found = Vec::new();
    for at in words(code, "struct") {
        let name_at = skip_spaces(code, at + "struct".len());
        let name = word_at(code, name_at);
        let open = code[name_at..].find(['{', ';', '(']).map(|open| name_at + open);
        if let Some(open) = open.filter(|open| code[*open..].starts_with('{')) {
            found.push((at, name, open + 1..open + bracketed(&code[open..]) - 1));
        }
    }
    found
}

/// The number of fields in the body of a structure.
fn fields(body: &str) -> usize {
    let (mut count, mut is_open, mut at) = (0, false, 0);
    while at < body.len() {
        let byte = body.as_bytes()[at];
        if matches!(byte, b'<' | b'(' | b'{' | b'[') {
            at += bracketed(&body[at..]);
            continue;
        }
        match byte {
            b':' if !is_open && body[at..].get(1..2) != Some(":") => {
                count += 1;
                is_open = true;
            }
            b',' => is_open = false,
            _ => {}
        }
        at += 1;
    }
    count
}
