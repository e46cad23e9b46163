//! One embedding of all-MiniLM-L6-v2, of a model on a mount: `client FOLDER TEXT` prints its numbers as JSON, and the tiers
//! of the weights on standard error. tierfs-client reads the weights, in whatever tier they are.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use half::{bf16, f16};
use tierfs_client::{Dtype, ErrorKind, tensors};
use tierfs_loader_candle::{arguments, embedding};

fn main() -> Result<(), Box<dyn Error>> {
    let [folder, text] = arguments("client")?;
    let folder = Path::new(&folder);
    let (mut weights, mut tiers) = (HashMap::new(), BTreeSet::new());
    for (name, tensor) in tensors(folder.join("model.safetensors"))? {
        match tensor.tier() {
            Ok(tier) => drop(tiers.insert(tier)),
            Err(error) if error.kind() == ErrorKind::NoAttribute => drop(tiers.insert("a form".to_owned())),
            Err(error) => return Err(error.into()),
        }
        // SAFETY: nobody writes to the model or moves it while this program runs.
        let mapping = unsafe { tensor.map()? };
        let shape = tensor.shape();
        let loaded = match tensor.dtype() {
            Dtype::F32 => Tensor::from_slice(mapping.as_slice::<f32>()?, shape, &Device::Cpu)?,
            Dtype::F16 => Tensor::from_slice(mapping.as_slice::<f16>()?, shape, &Device::Cpu)?,
            Dtype::Bf16 => Tensor::from_slice(mapping.as_slice::<bf16>()?, shape, &Device::Cpu)?,
            Dtype::I64 => Tensor::from_slice(mapping.as_slice::<i64>()?, shape, &Device::Cpu)?,
            other => return Err(format!("{name} is {other}").into()),
        };
        weights.insert(name, loaded);
    }
    eprintln!("{} tensors in {}", weights.len(), Vec::from_iter(tiers).join(", "));
    let weights = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
    println!("{}", serde_json::to_string(&embedding(folder, weights, &text)?)?);
    Ok(())
}
