//! Models of codes, read as models of bf16 in a form.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use half::bf16;
use tierfs::model::Tier;

use super::cached::{BUDGET, decode, drop_copies, set};
use super::{Kept, Shown, check_empty, empty};
use crate::Result;
use crate::daemon::Mounted;
use crate::place::Place;
use crate::read::{self, CALL, Pages, Through, speed};
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Random;

/// Values of a row of a weight, and rows.
const COLUMNS: u64 = 4096;
const ROWS: u64 = 4096;
/// Values with one scale.
const GROUP: u64 = 128;

/// A layout of codes and scales.
#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Fp8Blocks,
    Int4,
    Gptq,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Fp8Blocks => "fp8-blocks",
            Scheme::Int4 => "int4",
            Scheme::Gptq => "gptq",
        }
    }
}

/// The rows.
pub fn rows() -> Vec<Row> {
    let schemes = [Scheme::Fp8Blocks, Scheme::Int4, Scheme::Gptq];
    let row = |family: &str, how: &str, scheme: Scheme, prepare: fn(&Place, Scheme) -> Result<Contest>| {
        Row::new(
            format!("form-{family}.{}", scheme.name()),
            format!("sequential read of a model as bf16, {}{how}", scheme.name()),
            "empty daemon",
            "GB/s",
            Target::RatioAtLeast(0.9),
            move |place| prepare(place, scheme),
        )
    };
    let decoded = |scheme| row("decoded", ", decoded at the open", scheme, decoded);
    schemes
        .into_iter()
        .map(|scheme| row("mount", "", scheme, sequential))
        .chain(schemes.map(decoded))
        .collect()
}

/// A mounted model of codes.
struct Model {
    shown: Shown,
    /// Its form of bf16.
    file: PathBuf,
    checked: Checked,
}

fn model(
    place: &Place,
    scheme: Scheme,
    options: &[&str],
    set_up: fn(&Shown, &Path) -> Result<()>,
) -> Result<Model> {
    let weights = (place.bytes() / (ROWS * COLUMNS * 2)).max(1);
    let path = place.new_path(&format!("{}.safetensors", scheme.name()));
    let expected = make(&path, scheme, weights)?;
    let kept = Rc::new(Kept::import(place, &path, Tier::Exact, &[])?);
    std::fs::remove_file(&path)?;
    let shown = Shown::new(place, &kept, options)?;
    let file = shown.path(".as/bf16").join(path.file_name().unwrap_or_default());
    set_up(&shown, &file)?;
    let from = std::fs::metadata(&file)?.len() - weights * ROWS * COLUMNS * 2;
    let checked = Checked::digest("values of codes", read::digest(&file, from, Through::Cache)?, expected)?;
    Ok(Model { shown, file, checked })
}

fn sequential(place: &Place, scheme: Scheme) -> Result<Contest> {
    let Model { shown, file, checked } = model(place, scheme, &[], |_, _| Ok(()))?;
    let empty: Rc<Mounted> = empty(place)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Cache)?);
    Contest::new(
        checked,
        move || {
            // Named as a whole, so that the closure keeps the mount too.
            let shown = &shown;
            shown.kept.warm()?;
            speed(&file, CALL, Through::Cache, Pages::Cold)
        },
        move || speed(&empty.path("big"), CALL, Through::Cache, Pages::Cold),
    )
}

fn decoded(place: &Place, scheme: Scheme) -> Result<Contest> {
    let Model { shown, file, checked } = model(place, scheme, &BUDGET, |shown, file| {
        set(&shown.path(""), "cache", "decoded")?;
        decode(shown, file)
    })?;
    let empty: Rc<Mounted> = empty(place)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Cache)?);
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            drop_copies(&shown)?;
            speed(&file, CALL, Through::Cache, Pages::Kept)
        },
        move || speed(&empty.path("big"), CALL, Through::Cache, Pages::Cold),
    )
}

/// A tensor of a safetensors file.
struct Part {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

impl Part {
    fn new(name: String, dtype: &'static str, shape: &[u64], bytes: Vec<u8>) -> Part {
        Part { name, dtype, shape: shape.to_vec(), bytes }
    }
}

/// Writes a model of equal weights. Returns the digest of their values in bf16, by a plain loop.
fn make(path: &Path, scheme: Scheme, weights: u64) -> Result<blake3::Hash> {
    let (parts, values) = weight(scheme);
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for number in 0..weights {
        for part in &parts {
            let end = at + part.bytes.len() as u64;
            let entry =
                serde_json::json!({ "dtype": part.dtype, "shape": part.shape, "data_offsets": [at, end] });
            header.insert(format!("n{number:03}.{}", part.name), entry);
            at = end;
        }
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut hasher = blake3::Hasher::new();
    for _ in 0..weights {
        parts.iter().try_for_each(|part| file.write_all(&part.bytes))?;
        hasher.update(&values);
    }
    file.flush()?;
    Ok(hasher.finalize())
}

/// The tensors of a weight, and its values in bf16 in row-major order. Scales have few bits, so that a product of a code and
/// a scale is exact in f32.
fn weight(scheme: Scheme) -> (Vec<Part>, Vec<u8>) {
    let mut random = Random::new(9);
    let mut codes = vec![0_u8; (ROWS * COLUMNS) as usize];
    random.fill(&mut codes);
    let scales: Vec<f32> =
        (0..ROWS * COLUMNS / GROUP).map(|_| bf16::from_f32(0.01 + random.weight().abs()).to_f32()).collect();
    let groups = COLUMNS / GROUP;
    let value = |number: f32, scale: f32| bf16::from_f32(number * scale).to_le_bytes();
    let f32s = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let halves = |numbers: &[f32]| -> Vec<u8> {
        numbers.iter().flat_map(|number| half::f16::from_f32(*number).to_le_bytes()).collect()
    };
    // Eight codes of four bits a word, the first in the lowest bits.
    let word = |eight: &mut dyn Iterator<Item = u8>| {
        eight.zip(0..).fold(0_u32, |word, (code, place)| word | u32::from(code & 15) << (4 * place))
    };
    let places = || (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)));
    match scheme {
        Scheme::Fp8Blocks => {
            // Without the two codes that are not numbers.
            codes.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code = 0);
            let blocks = &scales[..(ROWS / GROUP * groups) as usize];
            let number = |code: u8| {
                let (exponent, rest) = (i32::from(code >> 3 & 15), f32::from(code & 7));
                let size = match exponent {
                    0 => rest * 2_f32.powi(-9),
                    _ => (8.0 + rest) * 2_f32.powi(exponent - 10),
                };
                if code & 0x80 == 0 { size } else { -size }
            };
            let shown = places().zip(&codes).flat_map(|((row, column), code)| {
                value(number(*code), blocks[(row / GROUP * groups + column / GROUP) as usize])
            });
            let shown = shown.collect();
            let parts = vec![
                Part::new("weight".to_owned(), "F8_E4M3", &[ROWS, COLUMNS], codes),
                Part::new("weight_scale_inv".to_owned(), "F32", &[ROWS / GROUP, groups], f32s(blocks)),
            ];
            (parts, shown)
        }
        Scheme::Int4 => {
            let shown = places().zip(&codes).flat_map(|((row, column), code)| {
                value(f32::from(code & 15) - 8.0, scales[(row * groups + column / GROUP) as usize])
            });
            let shown = shown.collect();
            let words = codes.chunks(8).map(|eight| word(&mut eight.iter().copied()));
            let shape: Vec<u8> = [ROWS, COLUMNS].iter().flat_map(|size| size.to_le_bytes()).collect();
            let bf16s = scales.iter().flat_map(|scale| bf16::from_f32(*scale).to_le_bytes()).collect();
            let parts = vec![
                Part::new(
                    "weight_packed".to_owned(),
                    "I32",
                    &[ROWS, COLUMNS / 8],
                    words.flat_map(u32::to_le_bytes).collect(),
                ),
                Part::new("weight_scale".to_owned(), "BF16", &[ROWS, groups], bf16s),
                Part::new("weight_shape".to_owned(), "I64", &[2], shape),
            ];
            (parts, shown)
        }
        Scheme::Gptq => {
            // The columns that are shown are the rows that are stored. All zero points are 8.
            let code = |input: u64, output: u64| codes[(input * ROWS + output) as usize];
            let scale = |input: u64, output: u64| scales[(input / GROUP * ROWS + output) as usize];
            let shown = places().flat_map(|(output, input)| {
                value(f32::from(code(input, output) & 15) - 8.0, scale(input, output))
            });
            let shown = shown.collect();
            let words = (0..COLUMNS / 8).flat_map(|eight| (0..ROWS).map(move |output| (eight, output)));
            let words: Vec<u8> = words
                .map(|(eight, output)| word(&mut (0..8).map(|place| code(eight * 8 + place, output))))
                .flat_map(u32::to_le_bytes)
                .collect();
            let groups_of: Vec<u8> =
                (0..COLUMNS).flat_map(|input| ((input / GROUP) as u32).to_le_bytes()).collect();
            let parts = vec![
                Part::new("qweight".to_owned(), "I32", &[COLUMNS / 8, ROWS], words),
                // One is added to each.
                Part::new(
                    "qzeros".to_owned(),
                    "I32",
                    &[groups, ROWS / 8],
                    0x7777_7777_u32.to_le_bytes().repeat((groups * ROWS / 8) as usize),
                ),
                Part::new("scales".to_owned(), "F16", &[groups, ROWS], halves(&scales)),
                Part::new("g_idx".to_owned(), "I32", &[COLUMNS], groups_of),
            ];
            (parts, shown)
        }
    }
}
