//! Configurations of adapters, and the names of their tensors.

use tierfs::format::files::adapter_config::{AdapterConfig, AdapterPart, part_of};
use tierfs::model::ErrorKind;

#[test]
fn tensors_have_the_names_that_peft_writes() {
    for (name, module, part) in [
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj", AdapterPart::A),
        ("model.layers.0.mlp.up_proj.lora_B.default.weight", "model.layers.0.mlp.up_proj", AdapterPart::B),
        ("h.0.c_attn.lora_B.bias", "h.0.c_attn", AdapterPart::Bias),
        ("model.embed_tokens.lora_embedding_A", "model.embed_tokens", AdapterPart::EmbeddingA),
        ("model.embed_tokens.lora_embedding_B.default", "model.embed_tokens", AdapterPart::EmbeddingB),
        ("model.embed_tokens.base_layer.weight", "model.embed_tokens.weight", AdapterPart::Whole),
        ("lm_head.weight", "lm_head.weight", AdapterPart::Whole),
        ("lm_head.modules_to_save.default.weight", "lm_head.weight", AdapterPart::Whole),
        ("score.modules_to_save.bias", "score.bias", AdapterPart::Whole),
    ] {
        let found = part_of(&format!("base_model.model.{name}")).unwrap();
        assert_eq!(found, (module.to_owned(), part), "{name}");
    }
    for name in [
        "model.q.lora_A.weight",
        "base_model.model.q.lora_magnitude_vector",
        "base_model.model.q.lora_C.weight",
        "base_model.model.q.lora_A.one.two.weight",
        "base_model.model.e.token_adapter.trainable_tokens_delta",
        "base_model.model.weight",
    ] {
        assert_eq!(part_of(name).map_err(|error| error.kind()), Err(ErrorKind::NotSupported), "{name}");
    }
}

#[test]
fn scales_follow_alpha_rank_and_patterns() {
    let json =
        br#"{"peft_type": "LORA", "lora_alpha": 32, "alpha_pattern": {"q_proj": 8, "^model.k_proj": 4}}"#;
    let config = AdapterConfig::parse(json).unwrap();
    for (module, scale) in [
        ("a.q_proj", 0.5),
        ("q_proj", 0.5),
        ("aq_proj", 2.0),
        ("model.k_proj", 0.25),
        ("a.model.k_proj", 2.0),
    ] {
        assert_eq!(config.scale(module, 16).unwrap(), scale, "{module}");
    }
    let json = br#"{"peft_type": "LORA", "lora_alpha": 32, "use_rslora": true, "use_dora": false}"#;
    assert_eq!(AdapterConfig::parse(json).unwrap().scale("a", 16).unwrap(), 8.0);
    let json = br#"{"peft_type": "LORA", "alpha_pattern": {"q": 8, "a.q": 4}}"#;
    let config = AdapterConfig::parse(json).unwrap();
    assert_eq!(config.scale("b.a.q", 2).map_err(|error| error.kind()), Err(ErrorKind::NotSupported));
    assert_eq!(config.scale("b.q", 2).unwrap(), 4.0);
}

#[test]
fn other_kinds_are_refused_by_name() {
    for (fields, named) in [
        (r#""peft_type": "LOHA""#, "LOHA"),
        (r#""peft_type": "LORA", "use_dora": true"#, "DoRA"),
        (r#""peft_type": "LORA", "target_parameters": ["experts.w"]"#, "target_parameters"),
        (r#""peft_type": "LORA", "layer_replication": [[0, 4]]"#, "layer_replication"),
        (r#""peft_type": "LORA", "init_lora_weights": "pissa_niter_4""#, "pissa_niter_4"),
        (r#""peft_type": "LORA", "alpha_pattern": {"(q|k)": 3}"#, "(q|k)"),
        (r#""peft_type": "LORA", "use_something": 1"#, "use_something"),
    ] {
        let error = AdapterConfig::parse(format!("{{{fields}}}").as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{fields}");
        assert!(error.to_string().contains(named), "{fields}: {error}");
    }
    for json in ["", "[]", "{}", r#"{"peft_type": "LORA", "lora_alpha": "8"}"#] {
        let kind = AdapterConfig::parse(json.as_bytes()).map_err(|error| error.kind()).err();
        assert_eq!(kind, Some(ErrorKind::Invalid), "{json}");
    }
}

#[test]
fn fields_of_other_types_and_numbers_that_json_lacks_are_refused_with_a_reason() {
    for (fields, reason) in [
        (r#""fan_in_fan_out": "true""#, "fan_in_fan_out as a string; it must be true or false"),
        (r#""use_rslora": 1"#, "use_rslora as a number"),
        (r#""lora_bias": []"#, "lora_bias as a list"),
        (r#""alpha_pattern": [["q", 8]]"#, "alpha_pattern as a list; it must be an object"),
        (r#""rank_pattern": 3"#, "rank_pattern as a number"),
        (r#""init_lora_weights": 3"#, "init_lora_weights as a number; it must be true or false or a string"),
        (r#""target_modules": {}"#, "target_modules as an object"),
        (r#""r": "16""#, "r as a string; it must be a number"),
        (r#""peft_type": 1"#, "peft_type as a number"),
        (r#""lora_alpha": null"#, "lora_alpha"),
        (r#""lora_alpha": 1e300"#, "lora_alpha that is not a number of f32"),
        (r#""alpha_pattern": {"q": "8"}"#, "alpha that is not a number"),
        (r#""lora_alpha": NaN"#, "NaN or Infinity, which JSON lacks"),
        (r#""note": "a \"quoted\" word", "lora_dropout": -Infinity"#, "NaN or Infinity"),
        (r#""note": "NaN", "lora_alpha": }"#, "is not JSON: expected value at line 1"),
    ] {
        let error =
            AdapterConfig::parse(format!(r#"{{"peft_type": "LORA", {fields}}}"#).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{fields}");
        assert!(error.to_string().contains(reason), "{fields}: {error}");
    }
    let nulls = r#"{"peft_type": "LORA", "alpha_pattern": null, "use_rslora": null, "target_modules": null}"#;
    AdapterConfig::parse(nulls.as_bytes()).unwrap();
}

#[test]
fn a_refusal_quotes_the_beginning_of_a_field() {
    let long = "x".repeat(3000);
    let name = format!("base_model.model.q.lora_{long}");
    let of_field =
        |fields: &str| AdapterConfig::parse(format!("{{{fields}}}").as_bytes()).map(drop).unwrap_err();
    for error in [
        of_field(&format!(r#""peft_type": "{long}""#)),
        of_field(&format!(r#""peft_type": "LORA", "use_{long}": 1"#)),
        of_field(&format!(r#""peft_type": "LORA", "init_lora_weights": "{long}""#)),
        of_field(&format!(r#""peft_type": "LORA", "alpha_pattern": {{"({long})": 3}}"#)),
        part_of(&name).map(drop).unwrap_err(),
        part_of(&format!("{name}.lora_magnitude_vector")).map(drop).unwrap_err(),
    ] {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{text}");
        assert!(text.contains("xxx") && text.len() < 500, "{} bytes", text.len());
    }
}

#[test]
fn the_comparison_of_patterns_with_names_is_bounded() {
    let config = |patterns: usize| {
        let patterns: Vec<String> = (0..patterns).map(|at| format!("\"layers.{at}.q_proj\": {at}")).collect();
        let json = format!("{{\"peft_type\": \"LORA\", \"alpha_pattern\": {{{}}}}}", patterns.join(","));
        AdapterConfig::parse(json.as_bytes()).unwrap()
    };
    config(2000).check_patterns(2000).unwrap();
    let error = config(30_000).check_patterns(5000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("30000 patterns for 5000 modules"), "{error}");
}
