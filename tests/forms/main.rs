//! `.as`: the same bytes in other forms, on real mounts, against the libraries that own the formats and against moves.
//! They need /dev/fuse and the files that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod adapters;
mod changes;
mod checkpoints;
mod compressed;
mod content;
mod experts;
mod export;
mod gguf;
mod gguf_model;
mod gguf_quantized;
mod listing;
mod merged;
mod move_preview;
mod paths;
mod pinned;
mod quantized;
mod ranks;
mod rows;
mod two_models;
mod weights;

use std::path::Path;

/// A place with a folder of tensors of every type.
pub fn with_many_types() -> (support::Place, std::path::PathBuf) {
    let place = support::Place::new();
    let folder = place.path("model");
    std::fs::create_dir(&folder).unwrap();
    many_types(&folder);
    (place, folder)
}

/// Makes `FOLDER/model.safetensors` with tensors of every type that NumPy and ml_dtypes have: some without elements,
/// some without dimensions, some below directories. Makes `FOLDER/sub/array.npy` too.
fn many_types(folder: &Path) {
    const SCRIPT: &str = r#"
import os, sys
import ml_dtypes, numpy as np
from safetensors.numpy import save_file
rng = np.random.default_rng(7)
floats = rng.standard_normal(70000) * 10.0 ** rng.integers(-9, 9, 70000)
floats[:8] = [0.0, -0.0, np.inf, -np.inf, 65504, 65520, 1e-8, 6e-5]
types = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": ml_dtypes.bfloat16, "f8a": ml_dtypes.float8_e4m3fn,
         "f8b": ml_dtypes.float8_e5m2, "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "u8": "u1", "u16": "<u2",
         "u32": "<u4", "u64": "<u8", "bool": "?"}
with np.errstate(all="ignore"):
    tensors = {f"deep/er/{name}": floats.astype(type) for name, type in types.items()}
    tensors |= {f"matrix.{name}": floats[:69972].astype(type).reshape(84, 833) for name, type in types.items()}
tensors["scalar"] = np.array(1.5, "<f4")
tensors["nothing"] = np.zeros((0, 5), "<f2")
tensors["cube"] = floats[:60000].astype("<f4").reshape(3, 200, 100)
os.makedirs(f"{sys.argv[1]}/sub")
save_file(tensors, f"{sys.argv[1]}/model.safetensors", metadata={"format": "np", "it's": "a \"model\""})
np.save(f"{sys.argv[1]}/sub/array.npy", floats[:6000].astype("<f8").reshape(60, 100))
"#;
    support::python_line(SCRIPT, [folder]);
}
