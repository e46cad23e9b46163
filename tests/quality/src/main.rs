//! Values in a type of ggml: `tierfs-quality TYPE IN OUT` reads f32, quantizes rows of 256 with candle's port of ggml's encoders, and
//! writes the dequantized f32.

use std::error::Error;
use std::fs;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

/// Elements of a block of the types with two levels of scales.
const ROW: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, from, to] = words.as_slice() else { return Err("usage: tierfs-quality TYPE IN OUT".into()) };
    let dtype = match name.as_str() {
        "Q8_0" => GgmlDType::Q8_0,
        "Q5_K" => GgmlDType::Q5K,
        "Q4_K" => GgmlDType::Q4K,
        "Q3_K" => GgmlDType::Q3K,
        _ => return Err(format!("{name}: Q8_0, Q5_K, Q4_K or Q3_K").into()),
    };
    let values: Vec<f32> = fs::read(from)?.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let rows = values.len() / ROW;
    let tensor = Tensor::from_vec(values, (rows, ROW), &Device::Cpu)?;
    let read = QTensor::quantize(&tensor, dtype)?.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    fs::write(to, read.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
