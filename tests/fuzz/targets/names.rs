//! Names of tensors as paths. The bytes behind the first zero byte are the name of another tensor of the container.

use tierfs::model::{TensorNames, check_label, check_tensor_name, escape_component, is_reserved};

pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (name, other) = text.split_once('\0').unwrap_or((text, text));
    let names = TensorNames::new([name, other]);
    let is_taken = check_tensor_name(name).is_ok() && check_tensor_name(other).is_ok();
    assert_eq!(names.is_ok(), is_taken);
    let Ok(names) = names else { return };
    let is_file = |before: &str| before == other || before == name;
    let path = names.path(name);
    assert!(!path.is_empty());
    for component in path.iter().chain([&escape_component(name)]) {
        assert!((1..=255).contains(&component.len()), "{component:?}");
        assert!(!matches!(component.as_str(), "." | "..") && !is_reserved(component), "{component:?}");
        assert!(!component.contains('/') && !component.chars().any(char::is_control), "{component:?}");
    }
    let slashes = name.char_indices().filter(|(at, letter)| *letter == '/' && !is_file(&name[..*at])).count();
    assert_eq!(path.len(), slashes + 1);
    let is_cut = path.iter().any(|component| component.contains("%~"));
    // An empty component and one of a single slash that could not separate directories look the same.
    let is_unclear = name != other && path.iter().any(|component| component == "%2F");
    if !is_cut && !is_unclear && path.join("/") != name {
        assert_eq!(original(&path), name, "{path:?}");
    }
    if check_label(name).is_ok() {
        assert!(
            (1..=255).contains(&name.len()) && !name.starts_with('.') && !name.contains(['/', '\0', '\n'])
        );
    }
}

/// The unescaped text.
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
