//! The configuration of an adapter, and the names of its tensors.

use tierfs::format::files::adapter_config::{AdapterConfig, part_of};

pub fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok((module, _)) = part_of(&text) {
        assert!(!module.is_empty() && module.len() <= text.len(), "{module:?}");
    }
    let Ok(config) = AdapterConfig::parse(bytes) else { return };
    for module in ["", ".", "model.layers.0.self_attn.q_proj", &*text] {
        let scales = [1, 4].map(|rank| config.scale(module, rank));
        assert_eq!(scales[0].is_ok(), scales[1].is_ok(), "{module:?}");
        if let [Ok(one), Ok(four)] = scales {
            // A root of 4 or 4 itself.
            let is_less = one.abs() >= four.abs() || one.is_nan();
            assert!(is_less, "{module:?}: {one} {four}");
        }
    }
}
