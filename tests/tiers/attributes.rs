//! Attributes as programs get and set them.

use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::support::{Place, Random, container_of};

pub fn get(path: &Path, name: &str) -> String {
    try_get(path, name).unwrap()
}

pub fn try_get(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::getxattr(path, format!("user.tierfs.{name}"), &mut value[..])?;
    Ok(String::from_utf8(value[..len].to_vec()).unwrap())
}

pub fn set(path: &Path, name: &str, value: &str) -> Result<(), Errno> {
    rustix::fs::setxattr(path, format!("user.tierfs.{name}"), value.as_bytes(), XattrFlags::empty())
}

/// A refusal, and the reason that it leaves.
pub fn refused(path: &Path, name: &str, value: &str, errno: Errno) -> String {
    assert_eq!(set(path, name, value), Err(errno), "{name}={value} of {}", path.display());
    get(path, "why")
}

#[test]
fn settings_are_inherited_kept_and_checked() {
    let place = Place::new();
    let model = place.write("in/sub/m.safetensors", container_of(&mut Random(1), &[("w", 4096)]));
    place.import("t/c", &[model.parent().unwrap().parent().unwrap()], &[]);
    let mounted = place.mount(&[]);
    let (collection, folder) = (mounted.path("t/c"), mounted.path("t/c/sub"));
    let (container, tensor) = (folder.join("m.safetensors"), folder.join("w"));
    let defaults = [("lossy", "deny"), ("policy", "manual"), ("encoder", "best"), ("writes", "exact")];
    for (name, value) in defaults {
        for path in [&collection, &folder, &container, &tensor] {
            assert_eq!(get(path, name), value);
        }
    }
    set(&collection, "lossy", "allow").unwrap();
    set(&folder, "encoder", "absmax").unwrap();
    set(&container, "policy", "auto").unwrap();
    set(&tensor, "lossy", "deny\n").unwrap();
    let seen = |name: &str| [&collection, &folder, &container, &tensor].map(|path| get(path, name));
    assert_eq!(seen("lossy"), ["allow", "allow", "allow", "deny"]);
    assert_eq!(seen("encoder"), ["best", "absmax", "absmax", "absmax"]);
    assert_eq!(seen("policy"), ["manual", "manual", "auto", "auto"]);
    for (name, value) in
        [("lossy", "yes"), ("policy", ""), ("encoder", "worst"), ("tier", "q9"), ("tier", "absent")]
    {
        assert!(refused(&container, name, value, Errno::INVAL).contains(name), "{name}={value}");
    }
    assert!(refused(&tensor, "writes", "delta", Errno::PERM).contains("lossy"));
    set(&container, "writes", "delta").unwrap();
    assert_eq!(set(&tensor, "blocks", "1"), Err(Errno::PERM));
    assert_eq!(set(&tensor, "nothing", "1"), Err(Errno::NODATA));
    assert_eq!(try_get(&tensor, "evict"), Err(Errno::NODATA));
    mounted.unmount();
    let mounted = place.mount(&["--read-only"]);
    let tensor = mounted.path("t/c/sub/w");
    assert_eq!((get(&tensor, "lossy"), get(&tensor, "encoder")), ("deny".to_owned(), "absmax".to_owned()));
    assert_eq!(get(&tensor, "writes"), "delta");
    assert_eq!(set(&tensor, "lossy", "allow"), Err(Errno::ROFS));
}
