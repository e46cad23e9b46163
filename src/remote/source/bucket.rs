//! A prefix of a bucket, or a directory.

use crate::model::Result;
use crate::remote::client::{Client, Level, ObjectListed};
use crate::remote::source::{Source, SourceLevel, SourceObject};

/// The objects below a prefix.
pub(super) struct Bucket {
    client: Client,
}

impl Bucket {
    pub(super) fn new(client: Client) -> Bucket {
        Bucket { client }
    }
}

impl Source for Bucket {
    fn place(&self) -> &str {
        self.client.place()
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn may_be_remote(&self) -> bool {
        true
    }

    fn level(&self, below: &str) -> Result<SourceLevel> {
        let Level { directories, objects } = self.client.level(below)?;
        Ok(SourceLevel { directories, objects: objects.into_iter().map(of_listed).collect() })
    }

    fn list(&self, below: &str) -> Result<Vec<SourceObject>> {
        Ok(self.client.list(below, None)?.into_iter().map(of_listed).collect())
    }
}

fn of_listed(listed: ObjectListed) -> SourceObject {
    let ObjectListed { key, len: bytes, modified, version } = listed;
    SourceObject { at: key.clone(), key, bytes, version, modified, sha256: None }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::model::ErrorKind;
    use crate::remote::source::open;

    #[test]
    fn a_directory_is_listed_by_levels_and_a_replaced_file_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("llama/original")).unwrap();
        fs::write(path("README"), "text").unwrap();
        fs::write(path("llama/a.bin"), "0123456789").unwrap();
        fs::write(path("llama/original/b.bin"), "").unwrap();
        let source = open(&format!("file://{}", directory.path().display())).unwrap();
        let top = source.level("").unwrap();
        assert_eq!((top.directories, top.objects.len()), (vec!["llama".to_owned()], 1));
        let mut all = source.list("llama").unwrap();
        all.sort_by(|one, next| one.key.cmp(&next.key));
        assert_eq!(
            all.iter().map(|object| &*object.key).collect::<Vec<_>>(),
            ["llama/a.bin", "llama/original/b.bin"]
        );
        let read = || source.client().get_version(&all[0].at, 2..5, &all[0].pin());
        assert_eq!(read().unwrap(), b"234");
        fs::write(path("llama/new"), "abcdefghij").unwrap();
        fs::rename(path("llama/new"), path("llama/a.bin")).unwrap();
        assert_eq!(read().unwrap_err().kind(), ErrorKind::Gone);
        fs::remove_file(path("llama/a.bin")).unwrap();
        assert_eq!(read().unwrap_err().kind(), ErrorKind::Gone);
    }
}
