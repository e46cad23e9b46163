//! Names of tensors as paths. The first byte decides which beginnings of the name are files themselves.

use tierfs::model::{TensorId, check_label, escape_component, escape_tensor_path, is_reserved};

const ID: TensorId = TensorId(0x0123_4567_89ab_cdef);

pub fn check(bytes: &[u8]) {
    let [choice, name @ ..] = bytes else { return };
    let Ok(name) = std::str::from_utf8(name) else { return };
    let is_file = |before: &str| *choice != 0 && before.len() % 5 == usize::from(*choice) % 5;
    let path = escape_tensor_path(name, ID, is_file);
    assert!(!path.is_empty());
    for component in path.iter().chain([&escape_component(name, ID)]) {
        assert!((1..=255).contains(&component.len()), "{component:?}");
        assert!(!matches!(component.as_str(), "." | "..") && !is_reserved(component), "{component:?}");
        assert!(!component.contains('/') && !component.chars().any(char::is_control), "{component:?}");
    }
    let slashes = name.char_indices().filter(|(at, letter)| *letter == '/' && !is_file(&name[..*at])).count();
    assert_eq!(path.len(), slashes + 1);
    let is_cut = path.iter().any(|component| component.contains("%~"));
    // An empty component, and one of a single slash that could not part directories, look the same.
    let is_unclear = *choice != 0 && path.iter().any(|component| component == "%2F");
    if !is_cut && !is_unclear && path.join("/") != name {
        assert_eq!(original(&path), name, "{path:?}");
    }
    if check_label(name).is_ok() {
        assert!(
            (1..=255).contains(&name.len()) && !name.starts_with('.') && !name.contains(['/', '\0', '\n'])
        );
    }
}

/// What the escapes stand for.
fn original(path: &[String]) -> String {
    let parts: Vec<String> =
        path.iter().map(|part| if part == "%2F" { String::new() } else { plain(part) }).collect();
    parts.join("/")
}

fn plain(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = if *first == b'%' { after.get(..2) } else { None };
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
