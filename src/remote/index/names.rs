//! Names of the objects of a collection. A listing may have any text as a key.

use std::collections::{HashMap, HashSet};

use crate::model::escape_component;
use crate::remote::source::SourceObject;

/// Longer keys are left out. S3 has keys of at most 1024 bytes.
const KEY_BYTES_MAX: usize = 4096;

/// An object and its path in the collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    /// Names, outermost first. Control characters and reserved names are escaped.
    pub path: Vec<Vec<u8>>,
    pub object: SourceObject,
}

/// An object that is not shown, and why.
pub(super) type LeftOut = (String, &'static str);

/// The objects below a directory as files, in the order of their keys, and those that are left out. Objects of no bytes
/// that stand for directories are in neither.
pub(super) fn named(below: &str, mut objects: Vec<SourceObject>) -> (Vec<Named>, Vec<LeftOut>) {
    objects.sort_by(|one, next| one.key.cmp(&next.key));
    let (mut named, mut left_out) = (Vec::new(), Vec::new());
    // Consoles make an object for each directory, also for the one that is listed.
    for object in objects.into_iter().filter(|object| object.key != below || object.bytes > 0) {
        match path_of(below, &object.key) {
            Ok(path) => named.push(Named { path, object }),
            Err(why) => left_out.push((object.key, why)),
        }
    }
    let mut directories = HashSet::new();
    for Named { path, .. } in &named {
        directories.extend((1..path.len()).filter_map(|len| path.get(..len)).map(<[Vec<u8>]>::to_vec));
    }
    let mut seen: HashMap<Vec<Vec<u8>>, String> = HashMap::new();
    named.retain(|Named { path, object }| {
        if directories.contains(path) {
            if object.bytes > 0 {
                left_out.push((object.key.clone(), "a directory has its name"));
            }
            return false;
        }
        if seen.insert(path.clone(), object.key.clone()).is_some() {
            left_out.push((object.key.clone(), "another object has its name"));
            return false;
        }
        true
    });
    (named, left_out)
}

/// The path of a key below a directory, or why it has none.
fn path_of(below: &str, key: &str) -> Result<Vec<Vec<u8>>, &'static str> {
    if key.len() > KEY_BYTES_MAX {
        return Err("its key is too long");
    }
    let rest = match below {
        "" => Some(key),
        below => key.strip_prefix(below).and_then(|rest| rest.strip_prefix('/')),
    };
    let rest = rest.ok_or("it is not in the directory that was listed")?;
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    if !rest.split('/').all(is_name) {
        return Err("its key has a part that is no name");
    }
    Ok(rest.split('/').map(|part| escape_component(part).into_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::named;
    use crate::remote::client::version::Version;
    use crate::remote::source::SourceObject;

    fn object(key: &str, bytes: u64) -> SourceObject {
        let (key, at, version) = (key.to_owned(), key.to_owned(), Version::Fixed);
        SourceObject { key, at, bytes, version, modified: 0, sha256: None }
    }

    #[test]
    fn keys_that_are_no_paths_are_left_out_and_others_keep_theirs() {
        let keys = [
            ("d/a", 1),
            ("d/a/b", 1),
            ("d/c/", 0),
            ("d//x", 1),
            ("d/../etc/passwd", 1),
            ("d/./y", 1),
            ("e/z", 1),
            ("d/new\nline", 1),
            ("d/.as", 1),
            ("d/mark", 0),
            ("d/mark/in", 1),
            ("d/twice", 1),
            ("d/twice", 2),
            ("d", 0),
        ];
        let (named, left_out) = named("d", keys.iter().map(|(key, bytes)| object(key, *bytes)).collect());
        let paths = named.iter().map(|named| String::from_utf8(named.path.join(&b'/')).unwrap());
        assert_eq!(paths.collect::<Vec<_>>(), ["%2Eas", "a/b", "mark/in", "new%0Aline", "twice"]);
        assert_eq!(left_out.len(), 7, "{left_out:?}");
    }

    #[test]
    fn a_key_of_a_million_parts_takes_no_time() {
        let (named, left_out) = named("", vec![object(&"a/".repeat(1_000_000), 1)]);
        assert_eq!((named.len(), left_out.len()), (0, 1));
    }
}
