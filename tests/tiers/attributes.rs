//! Attributes as programs read and set them.

use rustix::io::Errno;

use support::{Place, Random, container_of, get, refused_set, set, try_get};

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
        assert!(refused_set(&container, name, value, Errno::INVAL).contains(name), "{name}={value}");
    }
    assert!(refused_set(&tensor, "writes", "delta", Errno::PERM).contains("lossy"));
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
