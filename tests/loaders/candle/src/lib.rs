//! One embedding of all-MiniLM-L6-v2 by candle, for programs that find the weights in different ways.

use std::error::Error;
use std::path::Path;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use tokenizers::Tokenizer;

/// Embeds a text with the weights of a model, whose configuration and tokenizer are in a folder: the mean of the last layer,
/// of length 1.
pub fn embedding(folder: &Path, weights: VarBuilder, text: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let mut tokenizer =
        Tokenizer::from_file(folder.join("tokenizer.json")).map_err(|error| error.to_string())?;
    tokenizer.with_padding(None);
    let encoded = tokenizer.encode(text, true).map_err(|error| error.to_string())?;
    let model = BertModel::load(weights, &config)?;
    let tokens = Tensor::new(encoded.get_ids(), &Device::Cpu)?.unsqueeze(0)?;
    let mask = Tensor::new(encoded.get_attention_mask(), &Device::Cpu)?.unsqueeze(0)?;
    let out = model.forward(&tokens, &tokens.zeros_like()?, Some(&mask))?;
    let mean = out.mean(1)?.squeeze(0)?;
    let length = mean.sqr()?.sum_all()?.sqrt()?;
    Ok(mean.broadcast_div(&length)?.to_vec1()?)
}

/// The folder and the text in the arguments of a program, or its usage.
pub fn arguments(program: &str) -> Result<[String; 2], String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    arguments.try_into().map_err(|_| format!("usage: {program} FOLDER TEXT"))
}
