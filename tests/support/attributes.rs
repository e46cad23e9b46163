//! The extended attributes `user.tierfs.*`.

use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// An attribute, by the part of its name after `user.tierfs.`.
#[track_caller]
pub fn get(path: &Path, name: &str) -> String {
    try_get(path, name).unwrap_or_else(|error| panic!("{name} of {}: {error}", path.display()))
}

pub fn try_get(path: &Path, name: &str) -> Result<String, Errno> {
    try_get_any(path, &format!("user.tierfs.{name}"))
}

/// An attribute by its full name.
pub fn try_get_any(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::getxattr(path, name, &mut value[..])?;
    Ok(String::from_utf8(value[..len].to_vec()).unwrap())
}

pub fn set(path: &Path, name: &str, value: &str) -> Result<(), Errno> {
    rustix::fs::setxattr(path, format!("user.tierfs.{name}"), value.as_bytes(), XattrFlags::empty())
}

/// Sets an attribute, which must fail with `errno`; the attribute `why`.
#[track_caller]
pub fn refused_set(path: &Path, name: &str, value: &str, errno: Errno) -> String {
    assert_eq!(set(path, name, value), Err(errno), "{name}={value} of {}", path.display());
    get(path, "why")
}
