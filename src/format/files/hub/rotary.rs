//! Factors by which Llama 3 stretches the frequencies of rotary positions.

use serde_json::Value;

use super::config::Config;
use crate::model::Result;

/// The most factors: half the width of a head.
const FACTORS_MAX: u32 = 1 << 16;

/// The factors of a model, one for each frequency; `None` for a model that has none. Frequencies are f32, as those of the
/// converter.
pub(super) fn factors(config: &Config) -> Result<Option<Vec<f32>>> {
    let parameters = &config.positions.full;
    let kind = parameters.get("rope_type").and_then(Value::as_str);
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("llama3")) {
        return Ok(None);
    }
    let number = |key: &str, assumed: f64| parameters.get(key).and_then(Value::as_f64).unwrap_or(assumed);
    let head = config.needed(&["head_dim"])?.min(2 * FACTORS_MAX);
    let base = number("rope_theta", 10000.0);
    let (factor, low, high) =
        (number("factor", 8.0), number("low_freq_factor", 1.0), number("high_freq_factor", 4.0));
    let original = number("original_max_position_embeddings", 8192.0);
    let (longest, shortest) = ((original / low) as f32, (original / high) as f32);
    let of = |at: u32| {
        let frequency = 1.0 / base.powf(f64::from(at as f32 / head as f32)) as f32;
        let length = (2.0 * std::f64::consts::PI) as f32 / frequency;
        if length < shortest {
            1.0
        } else if length > longest {
            factor as f32
        } else {
            let smooth = (original as f32 / length - low as f32) / (high - low) as f32;
            1.0 / ((1.0 - smooth) / factor as f32 + smooth)
        }
    };
    Ok(Some((0..head).step_by(2).map(of).collect()))
}
