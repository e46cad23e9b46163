//! One embedding of all-MiniLM-L6-v2, of a model directory: `tierfs-loader-candle FOLDER TEXT` prints its numbers as JSON.
//! candle maps the weights; the program knows nothing of tierfs.

use std::error::Error;
use std::path::Path;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use tierfs_loader_candle::{arguments, embedding};

fn main() -> Result<(), Box<dyn Error>> {
    let [folder, text] = arguments("tierfs-loader-candle")?;
    let folder = Path::new(&folder);
    let weights = [folder.join("model.safetensors")];
    // SAFETY: the file is not written while this program runs.
    let weights = unsafe { VarBuilder::from_mmaped_safetensors(&weights, DType::F32, &Device::Cpu)? };
    println!("{}", serde_json::to_string(&embedding(folder, weights, &text)?)?);
    Ok(())
}
