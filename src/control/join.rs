//! The control file `join`: a line of JSON makes a file of the bytes of files that the collection has.

use serde_json::Value;

use crate::control::context::Context;
use crate::ingest::{Join, Target, WholeTensor};
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape, is_reserved};
use crate::store::State;
use crate::vfs::{FileView, Invalidation, Located};

/// A request to join files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Request {
    /// The path of the new file in the collection.
    name: String,
    /// The paths of the files, in the order of their bytes.
    sources: Vec<String>,
    whole: Option<WholeTensor>,
}

/// Joins the named files.
pub(super) fn start(context: &Context, text: &str) -> Result<Invalidation> {
    let Request { name, sources, whole } = Request::parse(text)?;
    let sources: Vec<EntryId> = sources.iter().map(|path| node(context, path)).collect::<Result<_>>()?;
    let vfs = &context.mounted.vfs;
    let join = Join { target: target(&name)?, sources: &sources, whole, owner: vfs.owner() };
    vfs.join(context.collection()?, &join).map(|(_, invalidation)| invalidation)
}

impl Request {
    fn parse(text: &str) -> Result<Request> {
        let wrong = |what: String| {
            Error::invalid(format!("{what}; write {{\"name\": PATH, \"sources\": [PATH, ...]}}"))
        };
        let value: Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("the request is not JSON: {error}")))?;
        let map = value.as_object().ok_or_else(|| wrong("the request is not an object".to_owned()))?;
        let (mut request, mut dtype, mut shape) = (Request::default(), None, None);
        for (key, value) in map {
            let text = || value.as_str().ok_or_else(|| wrong(format!("{key} is not a text")));
            match key.as_str() {
                "name" => request.name = text()?.to_owned(),
                "sources" => {
                    let list = value.as_array().ok_or_else(|| wrong("sources is not a list".to_owned()))?;
                    for path in list {
                        let path = path.as_str().ok_or_else(|| wrong("a source is not a text".to_owned()))?;
                        request.sources.push(path.to_owned());
                    }
                }
                "dtype" => {
                    let name = text()?;
                    let found = Dtype::from_name(name);
                    dtype = Some(found.ok_or_else(|| wrong(format!("{name:?} is not an element type")))?);
                }
                "shape" => {
                    let sizes = text()?;
                    let found = Shape::parse(sizes);
                    shape = Some(found.ok_or_else(|| wrong(format!("{sizes:?} is not a shape")))?);
                }
                _ => return Err(wrong(format!("unknown key {key:?}"))),
            }
        }
        request.whole = match (dtype, shape) {
            (Some(dtype), shape) => Some(WholeTensor { dtype, shape }),
            (None, Some(_)) => return Err(wrong("shape needs dtype".to_owned())),
            (None, None) => None,
        };
        Ok(request)
    }
}

/// The place of a new file.
fn target(name: &str) -> Result<Target> {
    let mut parts: Vec<Vec<u8>> = name.split('/').map(|part| part.as_bytes().to_vec()).collect();
    let is_taken = |part: &&Vec<u8>| {
        matches!(part.as_slice(), b"" | b"." | b"..") || is_reserved(&String::from_utf8_lossy(part))
    };
    if let Some(part) = parts.iter().find(is_taken) {
        let text = format!("{name:?} is not a path of a new file: {:?}", String::from_utf8_lossy(part));
        return Err(Error::invalid(text));
    }
    if parts.iter().any(|part| part.len() > crate::model::NAME_BYTES_MAX) {
        return Err(Error::new(ErrorKind::NameTooLong, "a name of more than 255 bytes"));
    }
    let name = parts.pop().unwrap_or_default();
    Ok(Target { directories: parts, name })
}

/// The file of a path in the collection.
fn node(context: &Context, path: &str) -> Result<EntryId> {
    let collection = context.collection()?;
    let none =
        || Error::new(ErrorKind::NotFound, format!("there is no file {path:?} in {}", collection.path()));
    match context.mounted.vfs.walk(format!("{}/{path}", collection.path()).as_bytes()) {
        Ok((_, Located::Node(FileView { node, .. }))) if !State::is_computed(node.entry.id) => {
            Ok(node.entry.id)
        }
        Ok(_) => Err(none()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => Err(none()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, target};
    use crate::ingest::WholeTensor;
    use crate::model::{Dtype, ErrorKind, Shape};

    #[test]
    fn a_request_is_taken_apart_and_an_invalid_one_is_refused() {
        let whole = Some(WholeTensor { dtype: Dtype::Bf16, shape: Shape::new(&[4, 8]) });
        let sources = vec!["p0".to_owned(), "d/p 1".to_owned()];
        let request = Request { name: "w".to_owned(), sources, whole };
        let text = r#"{"name": "w", "sources": ["p0", "d/p 1"], "dtype": "bf16", "shape": "4x8"}"#;
        assert_eq!(Request::parse(text).unwrap(), request);
        for wrong in [
            "",
            "[]",
            r#"{"name": 7}"#,
            r#"{"sources": "p0"}"#,
            r#"{"sources": [1]}"#,
            r#"{"name": "w", "shape": "2x2"}"#,
            r#"{"name": "w", "dtype": "f33"}"#,
            r#"{"name": "w", "dtype": "f32", "shape": "x"}"#,
            r#"{"name": "w", "other": 1}"#,
        ] {
            assert_eq!(Request::parse(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    fn a_new_file_has_a_plain_path() {
        let found = target("a/b.bin").unwrap();
        assert_eq!((found.directories, found.name), (vec![b"a".to_vec()], b"b.bin".to_vec()));
        for wrong in ["", "/", "a/", "../a", "a//b", ".tensors/w", ".as", "a/.ctl/b"] {
            assert_eq!(target(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
