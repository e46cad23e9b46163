//! The documents. Every path and every `Type::name` in backquotes must exist in the tree, in documents and at the heads of
//! sources. Each document has a budget of words, and so have all together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::source::{Finding, Source, skip_spaces, word_at, words};

/// Documents about other versions: they may name removed files.
const OF_OTHER_TIMES: &[&str] = &["docs/CHANGELOG.md"];
/// The documents in which every folder is one of the tree; elsewhere a folder may be one of a store or of a user.
const MAPS: &[&str] = &["docs/TOUR.md", GUIDE_TO_CHANGES];
/// The document with the answers to usual changes, below this heading.
const GUIDE_TO_CHANGES: &str = "docs/CHANGING.md";
const ANSWERS: &str = "## Where do I add";
/// The answers that it has at least: a tier, a format, an attribute, a subcommand, a form, a log record, a service.
const ANSWERS_MIN: usize = 7;
/// The most words of each document: what stands between spaces and has a letter or a digit.
const BUDGETS: &[(&str, usize)] = &[
    ("README.md", 1_000),
    ("docs/GUIDE.md", 2_260),
    ("docs/CONTAINERS.md", 1_300),
    ("docs/SOURCES.md", 1_130),
    ("docs/manual/README.md", 250),
    ("docs/manual/names.md", 1_355),
    ("docs/manual/reading.md", 1_220),
    ("docs/manual/writing.md", 1_530),
    ("docs/manual/tiers.md", 2_080),
    ("docs/manual/import.md", 1_305),
    ("docs/manual/controls.md", 1_410),
    ("docs/manual/mounting.md", 1_080),
    ("docs/manual/forms.md", 1_850),
    ("docs/CONTROL.md", 2_205),
    ("docs/REMOTE.md", 3_390),
    ("docs/TIERS.md", 965),
    ("docs/LOADERS.md", 1_510),
    ("docs/PYTHON.md", 700),
    ("docs/RUST.md", 500),
    ("docs/GPU.md", 950),
    ("docs/CHANGELOG.md", 315),
    ("docs/TOUR.md", 1_730),
    ("docs/CHANGING.md", 970),
    ("docs/LOCKS.md", 945),
    ("docs/DECISIONS.md", 2_590),
    ("docs/BENCHMARKS.md", 1_450),
    ("docs/FORMAT.md", 10_830),
];
/// The most words of all documents together.
const WORDS_MAX: usize = 46_000;
/// Types of other projects that the documents name.
const FOREIGN_TYPES: &[&str] = &["VarBuilder", "CudaStream", "Cufile", "FileHandle"];
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

    /// Whether a path exists in the folder of a source that names it, or in one above.
    fn has_path_beside(&self, source: &str, path: &str) -> bool {
        let mut below = source;
        while let Some((folder, _)) = below.rsplit_once('/').filter(|_| source.ends_with(".rs")) {
            if self.has_path(&format!("{folder}/{path}")) {
                return true;
            }
            below = folder;
        }
        false
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
        let is_on_map = MAPS.contains(&document) && word.ends_with('/');
        let is_ours = is_file || is_of_src || is_on_map || FOLDERS.contains(&first);
        (is_ours && !self.has_path(word) && !self.has_path_beside(document, word))
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

/// The comment at the head of a source, with the same lines.
fn head_of(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
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

/// The tree of the package, its documents, and the heads of its sources, each with its path.
#[derive(Default)]
struct Package {
    tree: Tree,
    documents: Vec<(String, String)>,
    heads: Vec<(String, String)>,
}

impl Package {
    fn read() -> io::Result<Package> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (mut package, mut paths) = (Package::default(), Vec::new());
        for folder in FOLDERS {
            files(root, folder, &mut paths)?;
        }
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                paths.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        for path in paths {
            if path.starts_with("src/") && path.ends_with(".rs") {
                let text = fs::read_to_string(root.join(&path))?;
                package.tree.add_source(&path, &text);
                package.heads.push((path, head_of(&text)));
            } else {
                package.tree.add_path(&path);
                if path == "README.md" || path.starts_with("docs/") && path.ends_with(".md") {
                    let text = fs::read_to_string(root.join(&path))?;
                    package.documents.push((path, text));
                }
            }
        }
        Ok(package)
    }
}

#[track_caller]
fn assert_nothing(findings: &[String]) {
    assert!(findings.is_empty(), "{} things to mend:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn paths_and_types_that_documents_and_heads_of_sources_name_exist() {
    let Package { tree, documents, heads } = Package::read().unwrap();
    for map in MAPS {
        assert!(documents.iter().any(|(path, _)| path == map), "found no {map}");
    }
    let of_now = documents.iter().filter(|(path, _)| !OF_OTHER_TIMES.contains(&path.as_str()));
    let findings = of_now.chain(&heads).flat_map(|(path, text)| check(&tree, path, text));
    assert_nothing(&findings.map(|finding| finding.to_string()).collect::<Vec<_>>());
}

/// Sections of the answers that name fewer than two files of the tree.
fn poor_answers(tree: &Tree, text: &str) -> Vec<String> {
    let answers = text.split_once(ANSWERS).map(|(_, rest)| rest).unwrap_or_default();
    let answers = answers.split("\n## ").next().unwrap_or_default();
    let sections: Vec<&str> = answers.split("\n### ").skip(1).collect();
    let mut findings = Vec::new();
    if sections.len() < ANSWERS_MIN {
        findings.push(format!("{GUIDE_TO_CHANGES} has {} answers below `{ANSWERS}`", sections.len()));
    }
    for section in sections {
        let is_file =
            |word: &&str| word.contains('.') && is_path(word) && (tree.has_path(word) || tree.has_name(word));
        let named = quoted_words(section).into_iter().map(|(_, word)| word).filter(is_file).count();
        if named < 2 {
            let title = section.lines().next().unwrap_or_default();
            findings
                .push(format!("{GUIDE_TO_CHANGES}: `{title}` names {named} files; say which ones to edit"));
        }
    }
    findings
}

#[test]
fn the_answers_to_usual_changes_name_files() {
    let package = Package::read().unwrap();
    let text = package.documents.iter().find(|(path, _)| path == GUIDE_TO_CHANGES).map(|(_, text)| text);
    assert_nothing(&poor_answers(&package.tree, text.unwrap()));
}

/// Documents that exceed their budget or have none, and a sum that is too large.
fn long_documents<'a>(documents: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let (mut findings, mut sum) = (Vec::new(), 0);
    for (path, text) in documents {
        let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
        let words = text.split_whitespace().filter(is_word).count();
        sum += words;
        match BUDGETS.iter().find(|(of, _)| *of == path) {
            Some((_, budget)) if words > *budget => findings.push(format!(
                "{path}: {words} words, {budget} at most; move reasons to the head of a folder, or say things once"
            )),
            Some(_) => {}
            None => findings.push(format!("{path}: {words} words; give it a budget in tests/tidy/docs.rs")),
        }
    }
    if sum > WORDS_MAX {
        findings.push(format!("all documents: {sum} words, {WORDS_MAX} at most"));
    }
    findings
}

#[test]
fn documents_keep_to_their_budgets_of_words() {
    let package = Package::read().unwrap();
    let documents = package.documents.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    assert_nothing(&long_documents(documents));
}

#[test]
fn a_long_document_one_without_a_budget_and_a_poor_answer_are_found() {
    let (path, budget) = BUDGETS[0];
    assert_eq!(long_documents([(path, "word ".repeat(budget).as_str())].into_iter()), Vec::<String>::new());
    let long = long_documents([(path, "word ".repeat(budget + 1).as_str())].into_iter());
    assert!(matches!(&long[..], [only] if only.starts_with(path)), "{long:?}");
    let without = long_documents([("docs/NEW.md", "two words")].into_iter());
    assert!(matches!(&without[..], [only] if only.contains("give it a budget")), "{without:?}");
    let most = "word ".repeat(budget);
    let sum = long_documents(vec![(path, most.as_str()); WORDS_MAX / budget + 1].into_iter());
    assert!(matches!(&sum[..], [only] if only.starts_with("all documents")), "{sum:?}");
    let answer = |files: &str| {
        format!("{ANSWERS} ...\n{}\n## Tests\n", format!("\n### a lock\n{files}").repeat(ANSWERS_MIN))
    };
    let enough = answer("`store/lock.rs` and `store/wait.rs`, `Lock::wait`\n");
    assert_eq!(poor_answers(&planted(), &enough), Vec::<String>::new());
    assert_eq!(poor_answers(&planted(), &answer("`store/lock.rs` and `store/look.rs`\n")).len(), ANSWERS_MIN);
    assert_eq!(poor_answers(&planted(), "no answers").len(), 1);
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
        MAPS[0],
        "`store/`, `src/vfs/open/`, `.ci/run`, `scripts/bench.sh --quick`, ``scripts/bench.sh``",
    );
    assert_one("README.md", "one\ntwo `store/look.rs`", 2, "store/look.rs");
    assert_one("README.md", "`look.rs`", 1, "look.rs");
    assert_one("docs/FORMAT.md", "| a | `docs/FORM.md` |", 1, "docs/FORM.md");
    assert_one("docs/FORMAT.md", "run `VALUE=1 scripts/look.sh store`", 1, "scripts/look.sh");
    assert_one("docs/FORMAT.md", "see `tests/look/`, `tests/log/`", 1, "tests/look/");
    assert_one("docs/FORMAT.md", "`store/lock/` is a file", 1, "store/lock/");
    assert_one("docs/FORMAT.md", "`.ci/look`", 1, ".ci/look");
    // The head of a source may name files of its folder.
    assert_none("src/vfs/mod.rs", "`open/mod.rs`, `vfs/open/mod.rs`");
    assert_one("src/store/mod.rs", "`open/mod.rs`", 1, "open/mod.rs");
    assert_one("docs/FORMAT.md", "on two\n`scripts/bench.sh\nscripts/look.sh` lines", 3, "scripts/look.sh");
    assert_one(MAPS[0], "`look/` went", 1, "look/");
}

#[test]
fn a_document_names_fields_and_functions_of_types_that_exist() {
    assert_none(MAPS[0], "`Lock::holder`, `Lock::wait`, `Kind::File` and `Lock::wait(&self)`");
    assert_one(MAPS[0], "a\n\nb `Lock::owner`", 3, "Lock::owner");
    assert_one(MAPS[0], "`Look::holder`", 1, "Look::holder");
    // Another type's, and a word of a comment.
    assert_one(MAPS[0], "`Kind::holder`", 1, "Kind::holder");
    assert_one(MAPS[0], "`Lock::freed`", 1, "Lock::freed");
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
