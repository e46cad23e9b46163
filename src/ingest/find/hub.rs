//! The cache of the Hugging Face Hub's client: repositories, and the files of their revisions.
//!
//! | path in the cache | content |
//! |---|---|
//! | `models--ORG--NAME/` | a repository; also `datasets--...`, `spaces--...` |
//! | `REPOSITORY/refs/REF` | the commit of a branch or tag, as text |
//! | `REPOSITORY/snapshots/COMMIT/PATH` | a symbolic link to the blob of a file |
//! | `REPOSITORY/blobs/ETAG` | the bytes of a file; `ETAG.incomplete` while they are downloaded |
//! | `REPOSITORY/.no_exist/COMMIT/PATH` | an empty file for each path that the repository does not have |
//! | `.locks/` | locks of downloads |
//!
//! Of a file in `refs` at most 256 bytes are read, and each name of a repository is looked at a few times, so work and
//! memory follow from the number of names.
//!
//! Source: <https://huggingface.co/docs/huggingface_hub/guides/manage-cache>.

use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use crate::model::{Error, ErrorKind, Result, check_label};
use crate::store::disk::files::visit_files;

/// The prefix of a model's directory.
const MODEL: &str = "models--";
/// Prefixes of the directories of other repositories.
const OTHERS: &[(&str, &str)] = &[("datasets--", "dataset"), ("spaces--", "space")];
/// The ref that the client follows by default.
const MAIN: &str = "main";
/// Maximal length of a file in `refs`. A commit has 40 characters.
const REF_BYTES_MAX: u64 = 256;
/// Commits and refs that an error names.
const SHOWN_MAX: usize = 10;

/// The revisions of a repository that an import takes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::ingest) enum Revisions {
    /// The commit of `refs/main`, or the only commit.
    #[default]
    Main,
    /// The commit of this branch or tag, or the commit with this prefix.
    Named(String),
    /// All commits, each in a directory named after it.
    All,
}

/// A repository of a cache.
pub(in crate::ingest) struct Repository {
    path: PathBuf,
    /// The name of its directory.
    name: String,
}

/// A repository of a cache, and the collection that it becomes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubRepository {
    pub path: PathBuf,
    /// `ORG--NAME` of a model.
    pub collection: String,
}

/// The repositories of a cache.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HubCache {
    /// The models, by name.
    pub models: Vec<HubRepository>,
    /// Repositories that an import of the whole cache leaves out, with reasons.
    pub left_out: Vec<(PathBuf, String)>,
}

/// The repositories of the cache `path`, or the repository `path` itself. `None` if it is neither.
pub fn hub_cache(path: &Path) -> Result<Option<HubCache>> {
    let mut cache = HubCache::default();
    if let Some(repository) = Repository::at(path) {
        cache.models.push(repository.as_collection()?);
        return Ok(Some(cache));
    }
    let failed = |error| Error::io(path.display(), error);
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(None);
    }
    for entry in fs::read_dir(path).map_err(failed)? {
        let Some(repository) = Repository::at(&entry.map_err(failed)?.path()) else { continue };
        match repository.kind() {
            None => cache.models.push(repository.as_collection()?),
            Some(kind) => {
                let (name, path) = (&repository.name, repository.path.display());
                let text = format!(
                    "a {kind}; only models are imported with the whole cache; \
                     to import it, name its directory: TENANT/{name} {path}"
                );
                cache.left_out.push((repository.path, text));
            }
        }
    }
    cache.models.sort_by(|one, other| one.collection.cmp(&other.collection));
    cache.left_out.sort();
    Ok((!cache.models.is_empty() || !cache.left_out.is_empty()).then_some(cache))
}

impl Repository {
    /// The repository in the directory `path`, if it is one.
    pub fn at(path: &Path) -> Option<Repository> {
        // A path like `.` has no name.
        let absolute = std::path::absolute(path).ok()?;
        let name = absolute.file_name()?.to_str()?.to_owned();
        let known = name.starts_with(MODEL) || OTHERS.iter().any(|(prefix, _)| name.starts_with(prefix));
        (known && path.join("snapshots").is_dir()).then(|| Repository { path: path.to_owned(), name })
    }

    /// The word for a repository that is not a model.
    fn kind(&self) -> Option<&'static str> {
        OTHERS.iter().find(|(prefix, _)| self.name.starts_with(prefix)).map(|(_, kind)| *kind)
    }

    fn as_collection(&self) -> Result<HubRepository> {
        let collection = self.name.strip_prefix(MODEL).unwrap_or(&self.name).to_owned();
        check_label(&collection)
            .map_err(|wrong| Error::invalid(format!("{}: {wrong}", self.path.display())))?;
        Ok(HubRepository { path: self.path.clone(), collection })
    }

    /// The directory of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commits that an import takes: one, or all.
    pub fn commits(&self, revisions: &Revisions) -> Result<Vec<String>> {
        let all = self.all_commits()?;
        let wanted = match revisions {
            Revisions::All if all.is_empty() => {
                return Err(self.missing("it has no revision; the download did not begin"));
            }
            Revisions::All => return Ok(all),
            Revisions::Named(name) => name.as_str(),
            Revisions::Main => MAIN,
        };
        let commit = match (self.commit_of(wanted)?, revisions, all.as_slice()) {
            (Some(commit), ..) => commit,
            (None, Revisions::Main, [only]) => only.clone(),
            (None, Revisions::Main, _) => {
                let text = format!("no refs/main; choose one with --revision: {}", self.shown(&all));
                return Err(self.missing(&text));
            }
            (None, ..) => {
                let mut begin = all.iter().filter(|commit| commit.starts_with(wanted));
                match (begin.next(), begin.next()) {
                    (Some(commit), None) if !wanted.is_empty() => commit.clone(),
                    _ => {
                        let text = format!("no revision {wanted}; it has {}", self.shown(&all));
                        return Err(self.missing(&text));
                    }
                }
            }
        };
        if !all.contains(&commit) {
            let text = format!("the files of {wanted}, commit {commit}, are not there; download them");
            return Err(self.missing(&text));
        }
        Ok(vec![commit])
    }

    /// Branches and tags, each with its commit.
    pub fn refs(&self) -> Result<Vec<(String, String)>> {
        let (refs, mut names) = (self.path.join("refs"), Vec::new());
        if refs.exists() {
            visit_files(&refs, &mut |path, metadata| {
                let name = path.strip_prefix(&refs).ok().and_then(Path::to_str);
                names.extend(name.filter(|_| metadata.is_file()).map(str::to_owned));
            })?;
        }
        names.sort();
        let commit = |name: String| Ok(self.commit_of(&name)?.map(|commit| (name, commit)));
        names.into_iter().filter_map(|name| commit(name).transpose()).collect()
    }

    fn all_commits(&self) -> Result<Vec<String>> {
        let path = self.path.join("snapshots");
        let failed = |error| Error::io(path.display(), error);
        let mut commits = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().into_string()
                && entry.path().is_dir()
            {
                commits.push(name);
            }
        }
        commits.sort();
        Ok(commits)
    }

    /// The commit of a branch or tag.
    fn commit_of(&self, name: &str) -> Result<Option<String>> {
        if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            return Ok(None);
        }
        let path = self.path.join("refs").join(name);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            return Ok(None);
        }
        let mut text = String::new();
        let read = fs::File::open(&path).and_then(|file| file.take(REF_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| Error::io(path.display(), error))?;
        let commit = text.trim();
        match Path::new(commit).components().collect::<Vec<_>>().as_slice() {
            [Component::Normal(_)] => Ok(Some(commit.to_owned())),
            _ => Err(Error::invalid(format!("{}: {commit:?} is not the name of a commit", path.display()))),
        }
    }

    /// The names of revisions, for errors.
    fn shown(&self, commits: &[String]) -> String {
        let refs = self.refs().unwrap_or_default();
        let mut names: Vec<&str> = refs.iter().map(|(name, _)| name.as_str()).collect();
        names.extend(commits.iter().map(String::as_str));
        let more = if names.len() > SHOWN_MAX { ", ..." } else { "" };
        names.truncate(SHOWN_MAX);
        if names.is_empty() { "none".to_owned() } else { format!("{}{more}", names.join(", ")) }
    }

    fn missing(&self, text: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("{}: {text}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Repository, Revisions, hub_cache};

    #[test]
    fn revisions_are_found_by_branch_commit_and_beginning() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("models--org--name");
        for commit in ["aaa1", "aab2", "b3"] {
            fs::create_dir_all(path.join("snapshots").join(commit)).unwrap();
        }
        fs::create_dir_all(path.join("refs/pr")).unwrap();
        fs::write(path.join("refs/main"), "b3\n").unwrap();
        fs::write(path.join("refs/pr/1"), "aaa1").unwrap();
        let repository = Repository::at(&path).unwrap();
        let commits = |revisions| repository.commits(&revisions).map_err(|error| error.to_string());
        let named = |name: &str| commits(Revisions::Named(name.to_owned()));
        assert_eq!(commits(Revisions::Main).unwrap(), ["b3"]);
        assert_eq!(commits(Revisions::All).unwrap(), ["aaa1", "aab2", "b3"]);
        assert_eq!(named("pr/1").unwrap(), ["aaa1"]);
        assert_eq!(named("aab").unwrap(), ["aab2"]);
        for wrong in ["aa", "c", "", "../refs/main", "/etc/passwd"] {
            let error = named(wrong).unwrap_err();
            assert!(error.ends_with("it has main, pr/1, aaa1, aab2, b3"), "{error}");
        }
        fs::write(path.join("refs/main"), "../../elsewhere").unwrap();
        assert!(commits(Revisions::Main).unwrap_err().contains("is not the name of a commit"));
        fs::write(path.join("refs/main"), "gone").unwrap();
        assert!(commits(Revisions::Main).unwrap_err().contains("are not there"));
        fs::remove_file(path.join("refs/main")).unwrap();
        assert!(commits(Revisions::Main).unwrap_err().contains("--revision"));
        fs::create_dir(place.path().join("models--empty")).unwrap();
        let cache = hub_cache(place.path()).unwrap().unwrap();
        let names: Vec<&str> = cache.models.iter().map(|model| model.collection.as_str()).collect();
        assert_eq!(names, ["org--name"], "a directory without snapshots is not a repository");
        assert_eq!(hub_cache(&path.join("snapshots")).unwrap(), None);
    }
}
