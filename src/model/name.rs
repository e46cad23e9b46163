//! Names: what may stand in a path, and how a tensor's name becomes one.

use crate::model::id::TensorId;

/// A component of a path has at most this many bytes.
const COMPONENT_BYTES_MAX: usize = 255;
/// Of a longer one, this many bytes are kept before its id.
const KEPT_BYTES: usize = 200;

/// A tensor's name as directories and a file name, outermost first.
pub type EscapedPath = Vec<String>;

/// Whether a component names a tree that every directory has beside its entries.
pub fn is_reserved(component: &str) -> bool {
    matches!(component, ".as" | ".ctl")
}

/// Whether `label` can name a tenant or a collection: 1 to 255 bytes, no control
/// character, no slash, no leading dot. `Err` says what is wrong.
pub fn check_label(label: &str) -> Result<(), &'static str> {
    if label.is_empty() {
        Err("is empty")
    } else if label.len() > COMPONENT_BYTES_MAX {
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

/// The path that shows the tensor `name`. `is_file(prefix)` tells whether the part of
/// the name before one of its slashes is itself a file: that slash cannot part
/// directories and is escaped.
///
/// Nothing is refused. Control characters, the components `.`, `..`, `.as`, `.ctl` and
/// empty ones, and slashes that cannot stand become `%XX`; a name in which anything is
/// escaped has its `%` as `%25`. A component of more than 255 bytes becomes its first
/// 200, `%~`, and the 32 hex digits of `id`.
pub fn escape_tensor_path(name: &str, id: TensorId, is_file: impl Fn(&str) -> bool) -> EscapedPath {
    let mut components = vec![String::new()];
    for (at, letter) in name.char_indices() {
        let before = name.get(..at).unwrap_or_default();
        if letter == '/' && !is_file(before) {
            components.push(String::new());
        } else if let Some(last) = components.last_mut() {
            last.push(letter);
        }
    }
    let escaped = components.iter().any(|part| needs_escape(part));
    components.into_iter().map(|part| shorten(if escaped { escape(&part) } else { part }, id)).collect()
}

/// One component of a path, escaped as [`escape_tensor_path`] does, slashes included.
pub fn escape_component(name: &str, id: TensorId) -> String {
    shorten(if needs_escape(name) { escape(name) } else { name.to_owned() }, id)
}

fn stands_for_itself(component: &str) -> bool {
    !matches!(component, "" | "." | "..") && !is_reserved(component)
}

fn needs_escape(component: &str) -> bool {
    !stands_for_itself(component) || component.chars().any(|c| c.is_control() || c == '/')
}

fn escape(component: &str) -> String {
    let mut out = String::with_capacity(component.len() + 8);
    let hex = |out: &mut String, letter: char| {
        for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
            out.push_str(&format!("%{byte:02X}"));
        }
    };
    if component.is_empty() {
        // Nothing to write in hex: the slash that ended the empty component.
        return "%2F".to_owned();
    }
    for (at, letter) in component.char_indices() {
        let dot_of_a_special_name = letter == '.' && !stands_for_itself(component);
        // One escaped dot is enough to make `..` a name, but `%2E.` would be read as
        // half a parent directory: both go.
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

fn shorten(component: String, id: TensorId) -> String {
    if component.len() <= COMPONENT_BYTES_MAX {
        return component;
    }
    let kept = component.floor_char_boundary(KEPT_BYTES);
    format!("{}%~{id}", component.get(..kept).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{check_label, escape_tensor_path};
    use crate::model::id::TensorId;

    fn path(name: &str) -> String {
        escape_tensor_path(name, TensorId(0xab), |prefix| prefix == "a").join("/")
    }

    #[test]
    fn names_that_can_stand_are_left_alone() {
        for name in ["w", "layers.0.weight", "b/c", "100%", "ä/ö", ".hidden", "..."] {
            assert_eq!(path(name), name);
        }
    }

    #[test]
    fn names_that_cannot_stand_are_escaped() {
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
    fn a_long_component_keeps_its_beginning_and_gets_the_id() {
        let shown = path(&"é".repeat(200));
        assert_eq!(shown, format!("{}%~{:032x}", "é".repeat(100), 0xab));
        assert_eq!(path(&"x".repeat(255)), "x".repeat(255));
    }

    #[test]
    fn labels_are_short_plain_and_without_a_leading_dot() {
        assert!(check_label("acme").is_ok());
        for bad in ["", ".x", "a/b", "a\tb", &"x".repeat(256)] {
            assert!(check_label(bad).is_err(), "{bad}");
        }
    }
}
