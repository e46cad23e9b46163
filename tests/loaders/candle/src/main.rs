//! One embedding of all-MiniLM-L6-v2, of a model directory: `tierfs-loader-candle FOLDER TEXT` prints its numbers as JSON. The
//! weights are mapped.

use std::error::Error;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use tokenizers::Tokenizer;

fn embedding(folder: &Path, text: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let mut tokenizer =
        Tokenizer::from_file(folder.join("tokenizer.json")).map_err(|error| error.to_string())?;
    tokenizer.with_padding(None);
    let encoded = tokenizer.encode(text, true).map_err(|error| error.to_string())?;
    let weights = [folder.join("model.safetensors")];
    // SAFETY: the file is not written while this program runs.
    let weights = unsafe { VarBuilder::from_mmaped_safetensors(&weights, DType::F32, &Device::Cpu)? };
    let model = BertModel::load(weights, &config)?;
    let tokens = Tensor::new(encoded.get_ids(), &Device::Cpu)?.unsqueeze(0)?;
    let mask = Tensor::new(encoded.get_attention_mask(), &Device::Cpu)?.unsqueeze(0)?;
    let out = model.forward(&tokens, &tokens.zeros_like()?, Some(&mask))?;
    let mean = out.mean(1)?.squeeze(0)?;
    let length = mean.sqr()?.sum_all()?.sqrt()?;
    Ok(mean.broadcast_div(&length)?.to_vec1()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, text] = arguments.as_slice() else {
        return Err("usage: tierfs-loader-candle FOLDER TEXT".into());
    };
    println!("{}", serde_json::to_string(&embedding(Path::new(folder), text)?)?);
    Ok(())
}
