//! Requests: tiers, pins, evictions, and their refusals.

use std::fs;

use support::{Fixture, Random, container_of, get, wait_until};
use tierfs_client::{Consent, ErrorKind, Evict, Tensor, evict, pin, set_tier, unpin};

/// A mount with a container of a matrix, and the tensor.
fn with_tensor() -> (Fixture, Tensor) {
    let fixture = Fixture::new();
    fs::write(fixture.path("m.safetensors"), container_of(&mut Random(9), &[("a", 100_000), ("b", 64)]))
        .unwrap();
    let tensor = Tensor::open(fixture.path(".tensors/a")).unwrap();
    (fixture, tensor)
}

#[test]
fn a_refused_move_says_why_and_one_with_consent_is_done() {
    let (fixture, tensor) = with_tensor();
    let refused = tensor.set_tier("q8", Consent::AsSet).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains("lossy"), "{refused}");
    assert_eq!((refused.path(), tensor.tier().unwrap()), (tensor.path(), "exact".to_owned()));
    assert!(refused.raw_os_error().is_some());
    let unknown = tensor.set_tier("q9", Consent::Given).unwrap_err();
    assert!(unknown.kind() == ErrorKind::Refused && unknown.to_string().contains("q9"), "{unknown}");
    tensor.set_tier("q8", Consent::Given).unwrap();
    assert_eq!(tensor.tier().unwrap(), "q8");
    set_tier(fixture.path("m.safetensors"), "q5:all", Consent::Given).unwrap();
    assert_eq!(
        (tensor.tier().unwrap(), get(&fixture.path(".tensors/b"), "tier")),
        ("q5".into(), "q5".into())
    );
    assert_eq!(tensor.attribute("bits").unwrap(), "5.5");
    assert_eq!(tensor.attribute("nothing").unwrap_err().kind(), ErrorKind::NoAttribute);
    fixture.check();
}

#[test]
fn pins_hold_a_tensor_and_its_forms_in_place() {
    let (fixture, tensor) = with_tensor();
    tensor.pin().unwrap();
    assert_eq!(tensor.attribute("pin").unwrap(), "1");
    let refused = tensor.set_tier("q8", Consent::Given).unwrap_err();
    assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("pinned"), "{refused}");
    tensor.unpin().unwrap();
    let cast = tensor.cast(tierfs_client::Dtype::F16).unwrap();
    cast.pin().unwrap();
    assert_eq!(cast.attribute("pin").unwrap(), "1");
    unpin(&cast).unwrap();
    assert_eq!(cast.set_tier("q8", Consent::Given).unwrap_err().kind(), ErrorKind::Refused);
    // Of a directory, the job is queued.
    pin(fixture.path("")).unwrap();
    wait_until("the pins of the collection", || tensor.attribute("pin").unwrap() == "1");
    fixture.check();
}

#[test]
fn evictions_drop_pages_or_bytes() {
    let (fixture, tensor) = with_tensor();
    let before: Vec<f32> = tensor.read().unwrap();
    tensor.evict(Evict::Cache).unwrap();
    assert_eq!(tensor.read::<f32>().unwrap(), before);
    for evict in [Evict::Stored, Evict::Discard(Consent::AsSet)] {
        let refused = tensor.evict(evict).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{evict:?}: {refused}");
    }
    assert_eq!(tensor.read::<f32>().unwrap(), before);
    evict(&tensor, Evict::Discard(Consent::Given)).unwrap();
    assert_eq!((tensor.tier().unwrap(), tensor.error().unwrap()), ("absent".to_owned(), None));
    let absent = tensor.read::<f32>().unwrap_err();
    assert!(absent.kind() == ErrorKind::Absent && absent.to_string().contains("discarded"), "{absent}");
    // SAFETY: nothing is mapped, since the file does not open.
    assert_eq!(unsafe { tensor.map() }.unwrap_err().kind(), ErrorKind::Absent);
    fixture.check();
}
