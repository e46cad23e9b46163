//! Names: the limits of path components, and how a tensor's name becomes a path.

use std::collections::HashMap;

use crate::model::error::{Error, Result, beginning};
use crate::model::id::EntryId;

/// Longest name in a directory, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// A longer component is cut to this many bytes before its digest.
const KEPT_BYTES: usize = 200;

/// Maximum bytes of a tensor's own name. Names in models have a few dozen.
pub const TENSOR_NAME_BYTES_MAX: usize = 4096;
/// Maximum number of parts between the slashes of a tensor's own name.
pub const TENSOR_NAME_PARTS_MAX: usize = 64;
/// Maximum number of a container's tensors and of the directories that the slashes in their names make.
/// Each takes about a kilobyte of memory, and as much of the log.
pub const CONTAINER_NAMES_MAX: usize = 1 << 16;
/// Digits of a number in the name of a shard.
const SHARD_DIGITS: usize = 5;
/// Letters before the digits of element types and quantizations.
const VARIANT_LETTERS: [&str; 9] = ["f", "fp", "bf", "int", "i", "u", "q", "iq", "nf"];
/// Messages quote at most this many bytes of a name.
const QUOTED_BYTES_MAX: usize = 200;

/// A name in a directory of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameIn<'a> {
    /// The directory.
    pub directory: EntryId,
    /// The name.
    pub name: &'a [u8],
}

/// A tensor's name as directories and a file name, outermost first.
pub type EscapedPath = Vec<String>;

/// The beginning of a name, for messages.
pub fn quoted_name(name: &str) -> &str {
    beginning(name, QUOTED_BYTES_MAX)
}

/// Checks that a tensor can have this name in its container. `Unsupported` if the name is too long or
/// has too many slashes.
pub fn check_tensor_name(name: &str) -> Result<()> {
    let len = name.len();
    let refused = |text: String| {
        let quoted = quoted_name(name);
        Err(Error::unsupported(format!("the name of a tensor that begins with {quoted:?} {text}")))
    };
    if len > TENSOR_NAME_BYTES_MAX {
        return refused(format!("has {len} bytes; at most {TENSOR_NAME_BYTES_MAX} are supported"));
    }
    let parts = name.split('/').count();
    if parts > TENSOR_NAME_PARTS_MAX {
        refused(format!("has {parts} parts; at most {TENSOR_NAME_PARTS_MAX} are supported"))
    } else {
        Ok(())
    }
}

/// The names of a container's tensors, split at their slashes, to tell which slashes separate
/// directories. Work on a name takes time linear in its length.
pub struct TensorNames<'a> {
    /// By a place and the next part of a name: the place after that part. Place 0 is before all names.
    places: HashMap<(usize, &'a str), usize>,
    /// By place: whether a complete name ends there.
    is_name: Vec<bool>,
}

impl<'a> TensorNames<'a> {
    /// The names of all tensors of a container. `Unsupported` if a name is refused, or if the names and
    /// the directories that they make are more than [`CONTAINER_NAMES_MAX`].
    pub fn new(names: impl IntoIterator<Item = &'a str>) -> Result<TensorNames<'a>> {
        let mut all = TensorNames { places: HashMap::new(), is_name: vec![false] };
        for name in names {
            check_tensor_name(name)?;
            let mut at = 0;
            for part in name.split('/') {
                let next = all.is_name.len();
                at = *all.places.entry((at, part)).or_insert(next);
                if at == next {
                    all.is_name.push(false);
                }
            }
            if let Some(is_name) = all.is_name.get_mut(at) {
                *is_name = true;
            }
            if all.places.len() > CONTAINER_NAMES_MAX {
                return Err(Error::unsupported(format!(
                    "more than {CONTAINER_NAMES_MAX} tensors and directories that their names make"
                )));
            }
        }
        Ok(all)
    }

    /// The path that shows the tensor `name`.
    ///
    /// No name is refused. Control characters, the components `.`, `..`, `.as`, `.ctl` and empty ones,
    /// and slashes behind the name of another of these tensors become `%XX`. A name in which anything
    /// is escaped has its `%` as `%25`. A component of more than 255 bytes becomes its first 200, `%~`,
    /// and the first 32 hex digits of the BLAKE3 of `name`.
    pub fn path(&self, name: &str) -> EscapedPath {
        let mut components: Vec<String> = Vec::new();
        let (mut at, mut is_behind_name) = (Some(0), false);
        for part in name.split('/') {
            match components.last_mut().filter(|_| is_behind_name) {
                Some(last) => {
                    last.push('/');
                    last.push_str(part);
                }
                None => components.push(part.to_owned()),
            }
            at = at.and_then(|at| self.places.get(&(at, part)).copied());
            is_behind_name = at.and_then(|at| self.is_name.get(at)).is_some_and(|is_name| *is_name);
        }
        let escaped = components.iter().any(|part| needs_escape(part) || looks_escaped(part));
        components.into_iter().map(|part| shorten(if escaped { escape(&part) } else { part }, name)).collect()
    }
}

/// Whether a component is the name of a tree that a directory has beside its entries.
pub fn is_reserved(component: &str) -> bool {
    matches!(component, ".as" | ".ctl" | ".tensors")
}

/// Checks that `label` can name a tenant or a collection: 1 to 255 bytes, no control character, no
/// slash, no leading dot. `Err` has the reason.
pub fn check_label(label: &str) -> Result<(), &'static str> {
    if label.is_empty() {
        Err("is empty")
    } else if label.len() > NAME_BYTES_MAX {
        Err("is longer than 255 bytes")
    } else if label.starts_with('.') {
        Err("begins with a dot")
    } else if label.contains('/') {
        Err("contains a slash")
    } else if label.chars().any(char::is_control) {
        Err("contains a control character")
    } else {
        Ok(())
    }
}

/// The name of a file, escaped as [`TensorNames::path`] does, slashes included. A name that looks escaped stays.
pub fn escape_component(name: &str) -> String {
    shorten(if needs_escape(name) { escape(name) } else { name.to_owned() }, name)
}

/// Whether the name of a container is that of a variant of another: without its suffix and the numbers
/// of a shard (`-00001-of-00002`) it ends in a word after a dot, or in an element type or quantization
/// after a dash or underscore (`fp16`, `bf16`, `q4_k_m`, `int8`).
pub fn is_variant(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let stem = name.rsplit_once('.').map_or(&*name, |(stem, _)| stem);
    let is_number =
        |text: &str| text.len() == SHARD_DIGITS && text.bytes().all(|digit| digit.is_ascii_digit());
    let shard = stem.rsplit_once("-of-").and_then(|(before, count)| Some((before.rsplit_once('-')?, count)));
    let stem = match shard {
        Some(((stem, number), count)) if is_number(number) && is_number(count) => stem,
        _ => stem,
    };
    let is_type = |word: &str| {
        let digits = VARIANT_LETTERS.iter().find_map(|letters| word.strip_prefix(letters));
        digits.is_some_and(|digits| digits.starts_with(|first: char| first.is_ascii_digit()))
    };
    let has_dot =
        stem.rsplit_once('.').is_some_and(|(before, after)| !before.is_empty() && !after.is_empty());
    has_dot || stem.split(['-', '_']).skip(1).any(is_type)
}

fn stands_for_itself(component: &str) -> bool {
    !matches!(component, "" | "." | "..") && !is_reserved(component)
}

fn needs_escape(component: &str) -> bool {
    !stands_for_itself(component) || component.chars().any(|c| c.is_control() || c == '/')
}

/// Whether a name could be taken for the escaped or shortened form of another.
fn looks_escaped(component: &str) -> bool {
    component.as_bytes().windows(2).any(|two| two == b"%~")
        || component.as_bytes().windows(3).any(|three| {
            let [percent, high, low] = three else { return false };
            *percent == b'%' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit()
        })
}

fn escape(component: &str) -> String {
    let mut out = String::with_capacity(component.len() + 8);
    let hex = |out: &mut String, letter: char| {
        for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
            out.push_str(&format!("%{byte:02X}"));
        }
    };
    if component.is_empty() {
        // There is no byte to escape, so this escapes the slash that ended the empty component.
        return "%2F".to_owned();
    }
    for (at, letter) in component.char_indices() {
        let dot_of_a_special_name = letter == '.' && !stands_for_itself(component);
        // Escaping one dot would make `..` a name, but `%2E.` looks like half a parent directory, so
        // both are escaped.
        if letter.is_control()
            || matches!(letter, '/' | '%')
            || (dot_of_a_special_name && (at == 0 || component == ".."))
        {
            hex(&mut out, letter);
        } else {
            out.push(letter);
        }
    }
    out
}

fn shorten(component: String, name: &str) -> String {
    if component.len() <= NAME_BYTES_MAX {
        return component;
    }
    let kept = component.floor_char_boundary(KEPT_BYTES);
    let digest = blake3::hash(name.as_bytes()).to_hex();
    format!("{}%~{digest:.32}", component.get(..kept).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{
        CONTAINER_NAMES_MAX, TENSOR_NAME_BYTES_MAX, TENSOR_NAME_PARTS_MAX, TensorNames, check_label,
        check_tensor_name, is_variant,
    };
    use crate::model::error::ErrorKind;

    fn path(name: &str) -> String {
        TensorNames::new([name, "a"]).unwrap().path(name).join("/")
    }

    #[test]
    fn valid_names_stay_unchanged() {
        for name in ["w", "layers.0.weight", "b/c", "100%", "ä/ö", ".hidden", "..."] {
            assert_eq!(path(name), name);
        }
    }

    #[test]
    fn invalid_names_are_escaped() {
        assert_eq!(path("a/b"), "a%2Fb");
        assert_eq!(path("a/b/c%"), "a%2Fb/c%25");
        assert_eq!(path("../x"), "%2E%2E/x");
        assert_eq!(path("."), "%2E");
        assert_eq!(path("x\ny"), "x%0Ay");
        assert_eq!(path(".ctl/x%"), "%2Ectl/x%25");
        assert_eq!(path("/etc/passwd"), "%2F/etc/passwd");
        assert_eq!(path(""), "%2F");
        assert_eq!(path("\u{85}"), "%C2%85");
    }

    #[test]
    fn names_that_look_escaped_differ_from_the_escaped_names() {
        for (name, other) in [("", "%2F"), (".", "%2E"), ("x\n", "x%0A"), ("x\n", "x%0a")] {
            assert_ne!(path(name), path(other));
        }
        assert_eq!(path("a%2Fb"), "a%252Fb");
        assert_eq!(path("a%~"), "a%25~");
        assert_eq!(path("5%2"), "5%2");
    }

    #[test]
    fn a_long_component_keeps_its_beginning_and_gets_a_digest_of_the_name() {
        let long = "é".repeat(200);
        let digest = blake3::hash(long.as_bytes()).to_hex();
        assert_eq!(path(&long), format!("{}%~{}", "é".repeat(100), &digest[..32]));
        assert_eq!(path(&"x".repeat(255)), "x".repeat(255));
    }

    #[test]
    fn labels_are_short_plain_and_without_a_leading_dot() {
        assert!(check_label("acme").is_ok());
        for bad in ["", ".x", "a/b", "a\tb", &"x".repeat(256)] {
            assert!(check_label(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_slash_that_ends_a_tensor_name_is_escaped_and_no_other() {
        let all = ["", "/", "b", "b/c/d", "b/c/d/e", "x/y", "x/y/z/w"];
        let names = TensorNames::new(all).unwrap();
        // The definition, written without regard to speed.
        for name in all {
            let mut parts = vec![String::new()];
            for (at, letter) in name.char_indices() {
                match letter {
                    '/' if !all.contains(&&name[..at]) => parts.push(String::new()),
                    _ => parts.last_mut().unwrap().push(letter),
                }
            }
            let shown =
                |part: &String| if part.is_empty() { "%2F".to_owned() } else { part.replace('/', "%2F") };
            assert_eq!(names.path(name), parts.iter().map(shown).collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn variants_are_told_by_a_word_behind_a_dot_or_by_a_type() {
        let plain =
            ["model.safetensors", "model-00001-of-00002.safetensors", "llama-2-7b.gguf", "x.npy", "f16.npy"];
        for name in plain.iter().chain(&["model-final.safetensors", "unit-5.gguf", ".safetensors", "model"]) {
            assert!(!is_variant(name.as_bytes()), "{name}");
        }
        let variants =
            ["model.fp16.safetensors", "model.fp16-00001-of-00002.safetensors", "model_bf16.safetensors"];
        for name in variants.iter().chain(&[
            "llama-7b.Q4_K_M.gguf",
            "llama-7b-Q4_K_M.gguf",
            "a-int8.gguf",
            "a.ema.gguf",
        ]) {
            assert!(is_variant(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn names_are_limited_in_length_parts_and_number() {
        let kind = |name: &str| check_tensor_name(name).map_err(|error| error.kind());
        assert_eq!(kind(&"n".repeat(TENSOR_NAME_BYTES_MAX)), Ok(()));
        assert_eq!(kind(&"n".repeat(TENSOR_NAME_BYTES_MAX + 1)), Err(ErrorKind::Unsupported));
        assert_eq!(kind(&"/".repeat(TENSOR_NAME_PARTS_MAX - 1)), Ok(()));
        assert_eq!(kind(&"/".repeat(TENSOR_NAME_PARTS_MAX)), Err(ErrorKind::Unsupported));
        let of = |count: usize, suffix: &str| {
            let names: Vec<String> = (0..count).map(|number| format!("{number}{suffix}")).collect();
            TensorNames::new(names.iter().map(String::as_str)).map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!((of(CONTAINER_NAMES_MAX, ""), of(CONTAINER_NAMES_MAX / 2, "/x")), (Ok(()), Ok(())));
        assert_eq!(of(CONTAINER_NAMES_MAX + 1, ""), Err(ErrorKind::Unsupported));
        assert_eq!(of(CONTAINER_NAMES_MAX / 2 + 1, "/x"), Err(ErrorKind::Unsupported));
    }
}
