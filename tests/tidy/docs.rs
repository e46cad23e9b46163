//! Names in the documents: every path and every `Type::name` in backquotes must exist in the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::source::{Finding, Source, skip_spaces, word_at, words};

/// Documents about other versions: they may name removed files.
const OF_OTHER_TIMES: &[&str] = &["docs/CHANGELOG.md", "docs/DECISIONS.md"];
/// The document in which every folder is one of the tree; elsewhere a folder may be one of a store or of a user.
const MAP: &str = "docs/ARCHITECTURE.md";
/// Types of other projects that the documents name.
const FOREIGN_TYPES: &[&str] = &["VarBuilder"];
/// The folders of the tree.
const FOLDERS: &[&str] = &[".ci", ".config", "docs", "scripts", "src", "tests"];
/// Files with these suffixes are files of the tree, in any folder.
const SUFFIXES: &[&str] = &[".rs", ".sh", ".md"];

/// The names in the tree.
#[derive(Default)]
struct Tree {
    /// Files and folders, relative to the root.
    paths: BTreeSet<String>,
    /// The code of each file of src, without comments and literals.
    code: Vec<String>,
    /// Offsets in `code` of the files that define a type or have an `impl` block of it.
    types: BTreeMap<String, Vec<usize>>,
    /// The types that are defined.
    defined: BTreeSet<String>,
}

impl Tree {
    fn add_path(&mut self, path: &str) {
        let mut rest = path;
        self.paths.insert(path.to_owned());
        while let Some((folder, _)) = rest.rsplit_once('/') {
            self.paths.insert(folder.to_owned());
            rest = folder;
        }
    }

    fn add_source(&mut self, path: &str, text: &str) {
        self.add_path(path);
        let code = Source::new(path, text).code;
        let place = self.code.len();
        for keyword in ["struct", "enum", "trait", "type"] {
            for at in words(&code, keyword) {
                let name = word_at(&code, skip_spaces(&code, at + keyword.len()));
                self.defined.insert(name.to_owned());
                self.types.entry(name.to_owned()).or_default().push(place);
            }
        }
        for line in code.lines().map(str::trim_start).filter(|line| line.starts_with("impl")) {
            let names = line.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_');
            for name in names.filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase())) {
                self.types.entry(name.to_owned()).or_default().push(place);
            }
        }
        self.code.push(code);
    }

    /// Whether a path exists, from the root or from src.
    fn has_path(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.paths.contains(path) || self.paths.contains(&format!("src/{path}"))
    }

    /// Whether any file or folder has this name.
    fn has_name(&self, name: &str) -> bool {
        self.paths.iter().any(|path| path.rsplit('/').next() == Some(name))
    }

    /// Whether a type is defined and one of its files has the word.
    fn has_member(&self, of: &str, name: &str) -> bool {
        let places = self.types.get(of).filter(|_| self.defined.contains(of));
        places
            .is_some_and(|places| places.iter().any(|place| words(&self.code[*place], name).next().is_some()))
    }

    fn is_folder_of_src(&self, name: &str) -> bool {
        self.paths.contains(&format!("src/{name}"))
    }

    /// The error in a word in backquotes, if it looks like a name of the tree.
    fn wrong(&self, document: &str, word: &str) -> Option<String> {
        if let Some((of, name)) = member(word) {
            let is_there = self.has_member(of, name) || FOREIGN_TYPES.contains(&of);
            return (!is_there).then(|| {
                format!("`{of}::{name}`: no file of src defines `{of}` and has the word `{name}`; name what is there")
            });
        }
        if !is_path(word) {
            return None;
        }
        let is_file = SUFFIXES.iter().any(|suffix| word.ends_with(suffix) && word.len() > suffix.len());
        let Some((first, _)) = word.split_once('/') else {
            return (is_file && !self.has_name(word))
                .then(|| format!("`{word}`: no file has this name; name one that is there"));
        };
        let last = word.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let is_of_src = self.is_folder_of_src(first) && (word.ends_with('/') || !last.contains('.'));
        let is_on_map = document == MAP && word.ends_with('/');
        let is_ours = is_file || is_of_src || is_on_map || FOLDERS.contains(&first);
        (is_ours && !self.has_path(word))
            .then(|| format!("`{word}`: there is no such path in the tree; name one that is there"))
    }
}

/// `Type` and `name` of `Type::name`, without any text behind them.
fn member(word: &str) -> Option<(&str, &str)> {
    let (of, rest) = word.split_once("::")?;
    let name = word_at(rest, 0);
    let is_type = of.starts_with(|first: char| first.is_ascii_uppercase()) && word_at(of, 0) == of;
    (is_type && !name.is_empty()).then_some((of, name))
}

fn is_path(word: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/@".contains(&byte);
    !word.starts_with('/') && word.bytes().all(is_plain)
}

/// The words in backquotes outside code blocks, with their offsets.
fn quoted_words(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    // The start of the code that a run of this many backquotes opens.
    let mut open: Option<(usize, usize)> = None;
    let mut line_begin = 0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let marker = ["```", "~~~"].into_iter().find(|marker| trimmed.starts_with(marker));
        if let Some(begun) = fence {
            if marker == Some(begun) {
                fence = None;
            }
        } else if marker.is_some() {
            (fence, open) = (marker, None);
        } else if trimmed.is_empty() {
            open = None;
        } else {
            let mut at = 0;
            while let Some(next) = line[at..].find('`') {
                let begin = at + next;
                let run = line[begin..].bytes().take_while(|byte| *byte == b'`').count();
                at = begin + run;
                match open {
                    None => open = Some((line_begin + at, run)),
                    Some((from, opened)) if opened == run => {
                        found.extend(split_words(text, from, line_begin + begin));
                        open = None;
                    }
                    Some(_) => {}
                }
            }
        }
        line_begin += line.len();
    }
    found
}

fn split_words(text: &str, from: usize, until: usize) -> impl Iterator<Item = (usize, &str)> {
    let code = &text[from..until];
    let words =
        code.split_whitespace().map(move |word| (from + word.as_ptr().addr() - code.as_ptr().addr(), word));
    words.map(|(at, word)| (at, word.trim_end_matches([',', ';'])))
}

fn check(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let source = Source::new(path, text);
    let words = quoted_words(text).into_iter();
    words.filter_map(|(at, word)| Some(source.finding(at, tree.wrong(path, word)?))).collect()
}

/// All files below a folder, relative to the package.
fn files(root: &Path, folder: &str, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            files(root, &path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

#[test]
fn paths_and_types_that_the_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut tree, mut paths) = (Tree::default(), Vec::new());
    for folder in FOLDERS {
        files(root, folder, &mut paths).unwrap();
    }
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            tree.add_path(&entry.file_name().to_string_lossy());
        }
    }
    let mut documents = vec!["README.md".to_owned()];
    for path in paths {
        if path.starts_with("src/") && path.ends_with(".rs") {
            tree.add_source(&path, &fs::read_to_string(root.join(&path)).unwrap());
        } else {
            tree.add_path(&path);
        }
        if path.starts_with("docs/") && path.ends_with(".md") && !OF_OTHER_TIMES.contains(&path.as_str()) {
            documents.push(path);
        }
    }
    assert!(documents.iter().any(|path| path == MAP), "found no {MAP} among {documents:?}");
    let mut findings = Vec::new();
    for path in &documents {
        findings.extend(check(&tree, path, &fs::read_to_string(root.join(path)).unwrap()));
    }
    let report: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(report.is_empty(), "{} names of nothing:\n{}", report.len(), report.join("\n"));
}

/// A small tree for planted errors.
fn planted() -> Tree {
    let mut tree = Tree::default();
    for path in ["README.md", "docs/FORMAT.md", "scripts/bench.sh", "tests/log/main.rs", ".ci/run"] {
        tree.add_path(path);
    }
    tree.add_source("src/store/lock.rs", "//! Locks.\npub struct Lock {\n    pub holder: u32,\n}\n");
    tree.add_source("src/store/wait.rs", "impl Lock {\n    fn wait(&self) {} // until freed\n}\n");
    tree.add_source("src/vfs/open/mod.rs", "pub enum Kind {\n    File,\n}\n");
    tree
}

#[track_caller]
fn assert_one(path: &str, text: &str, line: usize, part: &str) {
    let findings: Vec<String> = check(&planted(), path, text).iter().map(Finding::to_string).collect();
    assert_eq!(findings.len(), 1, "{text}: {findings:?}");
    let start = format!("{path}:{line}: `{part}`: ");
    assert!(findings[0].starts_with(&start), "{text}: {findings:?}");
}

#[track_caller]
fn assert_none(path: &str, text: &str) {
    assert_eq!(check(&planted(), path, text), Vec::new(), "{text}");
}

#[test]
fn a_document_names_paths_that_exist() {
    assert_none(
        "README.md",
        "`store/lock.rs`, `src/store/lock.rs`, `lock.rs`, `docs/FORMAT.md` and `tests/log/`",
    );
    assert_none(
        MAP,
        "`store/`, `src/vfs/open/`, `.ci/run`, `scripts/bench.sh --quick`, ``scripts/bench.sh``",
    );
    assert_one("README.md", "one\ntwo `store/look.rs`", 2, "store/look.rs");
    assert_one("README.md", "`look.rs`", 1, "look.rs");
    assert_one("docs/FORMAT.md", "| a | `docs/FORM.md` |", 1, "docs/FORM.md");
    assert_one("docs/FORMAT.md", "run `VALUE=1 scripts/look.sh store`", 1, "scripts/look.sh");
    assert_one("docs/FORMAT.md", "see `tests/look/`, `tests/log/`", 1, "tests/look/");
    assert_one("docs/FORMAT.md", "`store/lock/` is a file", 1, "store/lock/");
    assert_one("docs/FORMAT.md", "`.ci/look`", 1, ".ci/look");
    assert_one("docs/FORMAT.md", "on two\n`scripts/bench.sh\nscripts/look.sh` lines", 3, "scripts/look.sh");
    assert_one(MAP, "`look/` went", 1, "look/");
}

#[test]
fn a_document_names_fields_and_functions_of_types_that_exist() {
    assert_none(MAP, "`Lock::holder`, `Lock::wait`, `Kind::File` and `Lock::wait(&self)`");
    assert_one(MAP, "a\n\nb `Lock::owner`", 3, "Lock::owner");
    assert_one(MAP, "`Look::holder`", 1, "Look::holder");
    // Another type's, and a word of a comment.
    assert_one(MAP, "`Kind::holder`", 1, "Kind::holder");
    assert_one(MAP, "`Lock::freed`", 1, "Lock::freed");
}

#[test]
fn other_words_in_documents_are_ignored() {
    assert_none(
        "README.md",
        "a `store`, `/mnt/look.rs`, `acme/llama`, `model.safetensors`, `data/`, `<name>.rs`",
    );
    assert_none(
        "README.md",
        "```\n`store/look.rs`\n```\n~~~ sh\nscripts/look.sh `look.rs`\n~~~\nstore/look.rs",
    );
    assert_none("README.md", "a quote ` that stays open\n\nstore/look.rs `store/lock.rs`");
    assert_none("README.md", "[`store/`](https://example.org/look.rs), `std::fs`, `a::B`");
    assert_none("docs/LOADERS.md", "`VarBuilder::look`");
}
