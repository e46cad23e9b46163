//! Finds the weights of quantized models that can be decoded, and the tensors that each consists of.
//!
//! All layouts are matrices of codes with a table of scales:
//!
//! | layout | codes | scale of row r, column c | zero point |
//! |---|---|---|---|
//! | FP8, INT8 | w f8 or i8 \[rows, columns\] | one, one a row, or one a block of rows and columns | w_zero_point |
//! | compressed-tensors, packed | w_packed i32, lowest bits first | w_scale \[rows, groups\], by w_g_idx\[c\] | w_zero_point, packed by rows |
//! | NVFP4 | w_packed or w u8, two e2m1 a byte | w_scale \[rows, columns / 16\] / w_global_scale, or * w_scale_2 | |
//! | MXFP4 | w_packed u8, two e2m1 a byte | a power of two, \[rows, columns / 32\] | |
//! | MXFP4 of gpt-oss | w_blocks u8 \[rows, columns / 32, 16\] | w_scales, powers of two; shown as \[columns, rows\] | |
//! | GPTQ | w.qweight i32 \[in * bits / 32, out\] | w.scales \[groups, out\], by w.g_idx\[r\]; shown as \[out, in\] | w.qzeros, packed by columns |
//! | AWQ | w.qweight i32 \[in, out / 8\], in an order of its own | w.scales \[groups, out\]; shown as \[out, in\] | w.qzeros, packed alike |
//! | bitsandbytes | w u8, two codes a byte, the upper first; w i8 | w.absmax for each block; w.SCB / 127 a row | |
//! | HQQ | w.W_q, parts of the matrix in the bits of a byte | w.scale for each group of rows or columns | w.zero, a float |
//!
//! Sources: the decoders of compressed-tensors, AutoGPTQ, AutoAWQ, bitsandbytes and HQQ, and of
//! <https://github.com/huggingface/transformers> for FP8 and gpt-oss.

use crate::format::files::quantization_config::Config;
use crate::format::files::safetensors::weight_state::{hqq_state, quant_state, sizes_of};
use crate::model::{Dtype, Shape};

/// The numbers that codes stand for, and how they lie.
#[derive(Clone, PartialEq, Debug)]
pub enum Codes {
    /// Floats of 8 bits with 3 of the mantissa.
    E4m3,
    /// Floats of 8 bits with 2 of the mantissa.
    E5m2,
    /// Signed bytes.
    I8,
    /// Unsigned bytes, each the number plus 128.
    Byte,
    /// Four bits, the lower half of a byte first, each the number plus 8.
    Int4,
    /// Four bits, the lower half first.
    E2m1,
    /// Four bits, the upper half first, with the numbers of a table.
    Table(Box<[f32; 16]>),
    /// Integers in words of 32 bits. A word has those of consecutive rows, the lowest first.
    Words {
        /// Bits of a code.
        bits: u32,
    },
    /// Integers of four bits in words, in the order of AWQ.
    Awq,
    /// Integers. A part of the matrix lies in the upper bits of words, the next part below.
    Parts {
        /// Bits of a code.
        bits: u32,
        /// Bytes of a word: 1 or 4.
        word_bytes: u64,
    },
}

/// How zero points are stored.
#[derive(Clone, PartialEq, Debug)]
pub enum Zeros {
    /// As numbers, one for each scale.
    Plain,
    /// In words of 32 bits, of consecutive columns.
    Columns {
        /// Bits of a zero point.
        bits: u32,
        /// Is added to each.
        added: u8,
    },
    /// The same in the order of AWQ.
    Awq,
    /// In words of 32 bits, of consecutive rows, each the number plus half of the range.
    Rows {
        /// Bits of a zero point.
        bits: u32,
    },
}

/// How scales are stored.
#[derive(Clone, PartialEq, Debug)]
pub enum Scales {
    /// As numbers.
    Plain,
    /// Bytes that are powers of two.
    Powers,
    /// Divided by the number in another tensor.
    Divided(String),
    /// Multiplied by the number in another tensor.
    Multiplied(String),
    /// Bytes with the numbers of a table of 256 floats.
    Nested {
        /// The tensor of the table.
        table: String,
        /// The tensor of the scales of scales.
        scales: String,
        /// Scales of each of them.
        block: u64,
        /// Is added to each scale.
        offset: f32,
    },
}

/// Which row of a table belongs to a row of the matrix, or which column to a column.
#[derive(Clone, PartialEq, Debug)]
pub enum Group {
    /// As many rows, or columns, each.
    Of(u64),
    /// The numbers in a tensor.
    Listed(String),
}

/// A weight that is stored as codes.
#[derive(Clone, PartialEq, Debug)]
pub struct Weight {
    /// The name under which it is shown.
    pub name: String,
    /// The shape in which it is shown.
    pub shape: Shape,
    /// The tensor of the codes.
    pub codes_name: String,
    /// The tensor of the scales.
    pub scales_name: String,
    /// The tensor of the zero points.
    pub zeros_name: Option<String>,
    /// How the codes are stored.
    pub codes: Codes,
    /// How the scales are stored.
    pub scales: Scales,
    /// How the zero points are stored.
    pub zeros: Zeros,
    /// Matrices that follow each other.
    pub matrices: u64,
    /// Rows of each, as it is stored.
    pub rows: u64,
    /// Columns of each, as it is stored.
    pub columns: u64,
    /// Whether the matrices are shown with rows and columns exchanged.
    pub is_transposed: bool,
    /// The row of the tables that belongs to a row.
    pub row_group: Group,
    /// The column of the tables that belongs to a column.
    pub column_group: Group,
    /// Columns of a table.
    pub table_columns: u64,
    /// Rows of a table that belong to a matrix. None if all matrices have one number.
    pub table_rows: u64,
    /// A divisor of all values.
    pub divisor: f32,
    /// All tensors that it consists of, and those beside it that only a program that multiplies codes needs.
    pub parts: Vec<String>,
}

/// The treatment of a tensor by a form.
#[derive(Clone, PartialEq, Debug)]
pub enum Role {
    /// It belongs to no codes.
    Plain,
    /// It has the codes of a weight.
    Weight(Box<Weight>),
    /// It belongs to the codes of a weight that is shown.
    Hidden,
    /// It belongs to codes that are not decoded.
    Stored,
}

/// Most rows of a matrix that is shown with rows and columns exchanged. Some columns of it are in memory at once.
const EXCHANGED_ROWS_MAX: u64 = 1 << 20;

/// The suffixes of codes that are shown under another name, each with the suffix of that name.
pub const RENAMED: [(&str, &str); 4] =
    [(".qweight", ".weight"), ("_packed", ""), (".W_q", ".weight"), ("_blocks", "")];

/// Suffixes of tensors that belong to codes, and of those codes.
const COMPANIONS: [(&str, &[&str]); 31] = [
    ("_scale", &["_packed", ""]),
    ("_scale_inv", &[""]),
    ("_scale_2", &[""]),
    ("_global_scale", &["_packed", ""]),
    ("_zero_point", &["_packed", ""]),
    ("_g_idx", &["_packed", ""]),
    ("_shape", &["_packed", ""]),
    ("_scales", &["_blocks"]),
    (".qzeros", &[".qweight"]),
    (".scales", &[".qweight", ".weight"]),
    (".g_idx", &[".qweight"]),
    (".SCB", &[".weight"]),
    (".weight_format", &[".weight"]),
    (".absmax", &[""]),
    (".quant_map", &[""]),
    (".nested_absmax", &[""]),
    (".nested_quant_map", &[""]),
    (".quant_state.bitsandbytes__nf4", &[""]),
    (".quant_state.bitsandbytes__fp4", &[""]),
    (".input_scale", &[".weight", ".weight_packed"]),
    (".input_global_scale", &[".weight_packed", ".weight"]),
    (".input_zero_point", &[".weight", ".weight_packed"]),
    (".activation_scale", &[".weight"]),
    (".scale", &[".W_q", ".weight"]),
    (".zero", &[".W_q"]),
    (".s", &[".B", ".B_24"]),
    (".codebooks", &[".codes"]),
    ("_weight_scale", &["_weight_qdata"]),
    (":scale", &[":qdata"]),
    (".q_scale", &[".q_weight"]),
    (".biases", &[".weight"]),
];

/// Tensors that HQQ keeps beside codes.
const HQQ_STATE: [&str; 19] = [
    "nbits",
    "group_size",
    "shape",
    "axis",
    "packing",
    "unpack_view_dtype",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
    "offload_meta",
    "scale",
    "zero",
    "encoded_state_dict",
    "meta",
];

/// The tensors of a model, and how to read those that say how others lie.
pub struct Tensors<'a> {
    /// The type and the shape of a tensor.
    pub all: &'a dyn Fn(&str) -> Option<(Dtype, Shape)>,
    /// The bytes of a small tensor.
    pub read: &'a dyn Fn(&str) -> Option<Vec<u8>>,
    /// The model's configuration, which most tensors do not need.
    pub config: &'a dyn Fn() -> &'a Config,
}

impl Tensors<'_> {
    /// The role of a tensor.
    pub fn role(&self, name: &str) -> Role {
        let Some((dtype, shape)) = (self.all)(name) else { return Role::Plain };
        if let Some(weight) = self.weight(name, dtype, shape.dimensions()) {
            return Role::Weight(Box::new(weight));
        }
        if self.has_codes(name, dtype, &shape) {
            return Role::Stored;
        }
        for main in mains(name) {
            let Some((dtype, shape)) = (self.all)(&main) else { continue };
            match self.weight(&main, dtype, shape.dimensions()) {
                Some(weight) if weight.parts.iter().any(|part| part == name) => return Role::Hidden,
                _ if self.has_codes(&main, dtype, &shape) => return Role::Stored,
                _ => {}
            }
        }
        Role::Plain
    }

    /// Whether a tensor has codes, by its name, its type, the tensors beside it, or the model's configuration: the shard that
    /// has its scales may be missing.
    fn has_codes(&self, name: &str, dtype: Dtype, shape: &Shape) -> bool {
        // bitsandbytes can keep its codes in the bytes of floats.
        let is_column = matches!(shape.dimensions(), [_, 1]);
        is_codes(name, dtype)
            || self.has_scale(name, dtype)
            || self.lacks_scale(name, dtype, shape)
            || is_column && bitsandbytes_states(name).iter().any(|state| self.find(state).is_some())
    }

    /// Whether a tensor of 8-bit floats or integers has scales beside it. Without them its values are its codes.
    fn has_scale(&self, name: &str, dtype: Dtype) -> bool {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let scales = [format!("{name}_scale_inv"), format!("{name}_scale"), format!("{stem}.scale")];
        matches!(dtype, Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::I8)
            && !name.ends_with("_scale")
            && scales.iter().any(|scale| scale != name && self.find(scale).is_some())
    }

    /// Whether a tensor is a matrix of 8-bit floats that are codes by the model's configuration alone.
    fn lacks_scale(&self, name: &str, dtype: Dtype, shape: &Shape) -> bool {
        matches!(dtype, Dtype::F8E4M3 | Dtype::F8E5M2)
            && name.ends_with(".weight")
            && shape.dimensions().len() > 1
            && (self.config)().is_quantized
    }

    fn find(&self, name: &str) -> Option<(Dtype, Vec<u64>)> {
        (self.all)(name).map(|(dtype, shape)| (dtype, shape.dimensions().to_vec()))
    }

    /// The weight whose codes a tensor has, if they can be decoded.
    fn weight(&self, name: &str, dtype: Dtype, sizes: &[u64]) -> Option<Weight> {
        let found = match dtype {
            Dtype::I32 if name.ends_with(".qweight") => self.words(name, sizes),
            Dtype::I32 if name.ends_with("_packed") => self.packed(name, sizes),
            Dtype::U8 | Dtype::F4 if name.ends_with("_packed") => self.packed_fp4(name, dtype, sizes),
            Dtype::U8 if name.ends_with("_blocks") => self.blocks(name, sizes),
            Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::I8 => self.bytes(name, dtype, sizes),
            Dtype::U8 | Dtype::I32 if name.ends_with(".W_q") => self.hqq(name, dtype, sizes),
            Dtype::U8 => self.bitsandbytes(name, sizes).or_else(|| self.packed_fp4(name, dtype, sizes)),
            _ => None,
        }?;
        // A tensor that has the name already stays.
        let is_free = found.name == name || (self.all)(&found.name).is_none();
        // Nor do two codes have one name.
        let others = RENAMED.iter().filter_map(|(codes, shown)| {
            let stem = found.name.strip_suffix(shown)?;
            Some(format!("{stem}{codes}")).filter(|other| other != name)
        });
        let is_free = is_free && others.into_iter().all(|other| (self.all)(&other).is_none());
        (found.is_sound() && is_free).then_some(found)
    }

    /// A weight with a scale for each block of rows and columns.
    fn blocked(&self, name: &str, codes: Codes, sizes: &[u64], scales_name: String) -> Option<Weight> {
        let (rows, columns, matrices) = match sizes {
            [columns] => (1, *columns, 1),
            [before @ .., rows, columns] => {
                (*rows, *columns, before.iter().try_fold(1_u64, |all, size| all.checked_mul(*size))?)
            }
            [] => return None,
        };
        let config = (self.config)();
        let (dtype, scale) = self.find(&scales_name)?;
        let scales = match dtype {
            _ if config.is_mixed => return None,
            Dtype::U8 if matches!(codes, Codes::E4m3 | Codes::E5m2 | Codes::E2m1) => Scales::Powers,
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E8M0 | Dtype::F64 => {
                Scales::Plain
            }
            _ => return None,
        };
        let (table_rows, table_columns) = match scale.as_slice() {
            all if all.iter().product::<u64>() == 1 => (0, 1),
            [all] if matrices > 1 && *all == matrices => (1, 1),
            [all] if *all == rows && matrices == 1 => (rows, 1),
            // Of several matrices, with a number of dimensions of its own, a table could be read in two ways.
            [..] if sizes.len() > 2 && scale.len() != sizes.len() => return None,
            [before @ .., rows, columns] if before.iter().product::<u64>() == matrices => (*rows, *columns),
            _ => return None,
        };
        // Floats have a scale for each block of rows and columns, integers for each group of one axis.
        let block = config.weight_block;
        let (known_rows, known_columns, is_partial) = match codes {
            Codes::E4m3 | Codes::E5m2 | Codes::I8 => {
                (block.map(|block| block[0]), block.map(|block| block[1]).or(config.group), true)
            }
            // The rows are those of GPTQ and AWQ, which group the inputs.
            Codes::Awq => (config.group, None, false),
            _ => (None, config.group, false),
        };
        let row_group = block_size(rows, table_rows.max(1), known_rows, is_partial)?;
        let column_group = block_size(columns, table_columns, known_columns, is_partial)?;
        if scales == Scales::Powers && column_group != 32 {
            return None;
        }
        Some(Weight {
            name: name.to_owned(),
            shape: Shape::new(sizes)?,
            codes_name: name.to_owned(),
            scales_name,
            zeros_name: None,
            codes,
            scales,
            zeros: Zeros::Plain,
            matrices,
            rows,
            columns,
            is_transposed: false,
            row_group: Group::Of(row_group),
            column_group: Group::Of(column_group),
            table_columns,
            table_rows,
            divisor: 1.0,
            parts: Vec::new(),
        })
    }

    /// Adds the tensors beside a weight.
    fn with_parts(&self, weight: Weight, base: &str, suffixes: &[&str]) -> Weight {
        let beside = suffixes.iter().map(|suffix| format!("{base}{suffix}"));
        let own = [weight.codes_name.clone(), weight.scales_name.clone()];
        let parts = own.into_iter().chain(weight.zeros_name.clone()).chain(beside).collect();
        Weight { parts, ..weight }
    }

    fn bytes(&self, name: &str, dtype: Dtype, sizes: &[u64]) -> Option<Weight> {
        let codes = match dtype {
            Dtype::F8E4M3 => Codes::E4m3,
            Dtype::F8E5M2 => Codes::E5m2,
            _ => Codes::I8,
        };
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let inputs = [".input_scale", ".input_zero_point", ".activation_scale"];
        let by_rows = format!("{stem}.SCB");
        if dtype == Dtype::I8 && name.ends_with(".weight") && self.find(&by_rows).is_some() {
            let format = format!("{stem}.weight_format");
            if self.find(&format).is_some()
                && (self.read)(&format).is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0))
            {
                return None;
            }
            let weight = self.blocked(name, codes, sizes, by_rows)?;
            return Some(self.with_parts(Weight { divisor: 127.0, ..weight }, stem, &[".weight_format"]));
        }
        let candidates = [format!("{name}_scale_inv"), format!("{name}_scale"), format!("{stem}.scale")];
        let mut known = candidates.into_iter().filter(|scale| scale != name && self.find(scale).is_some());
        let scale = known.next()?;
        if known.next().is_some() || self.find(&format!("{name}_scale_2")).is_some() {
            return None;
        }
        let weight = self.blocked(name, codes, sizes, scale)?;
        let zeros = format!("{name}_zero_point");
        let weight = match self.find(&zeros) {
            Some((_, zeros)) if zeros.iter().product::<u64>() != weight.table_numbers()? => return None,
            Some((Dtype::I8 | Dtype::U8 | Dtype::I32 | Dtype::F32 | Dtype::F16 | Dtype::Bf16, _)) => {
                Weight { zeros_name: Some(zeros), ..weight }
            }
            Some(_) => return None,
            None => weight,
        };
        let weight = self.with_parts(weight, stem, &inputs);
        Some(weight)
    }

    fn packed(&self, name: &str, sizes: &[u64]) -> Option<Weight> {
        let base = name.strip_suffix("_packed")?;
        let [rows, words] = sizes else { return None };
        let shape_name = format!("{base}_shape");
        let shown = self.find(&shape_name).map(|(dtype, _)| sizes_of(dtype, &(self.read)(&shape_name)?));
        let columns = match shown {
            Some(Some(shown)) if shown.first() == Some(rows) => *shown.get(1)?,
            Some(_) => return None,
            None => words.checked_mul(32 / (self.config)().bits.unwrap_or(4).max(1))?,
        };
        let fits = |bits: &u64| columns.div_ceil(32 / bits) == *words;
        let bits = (self.config)().bits.filter(fits).or_else(|| [4, 8].into_iter().find(fits))?;
        let codes = match bits {
            4 => Codes::Int4,
            8 => Codes::Byte,
            _ => return None,
        };
        let weight = self.blocked(base, codes, &[*rows, columns], format!("{base}_scale"))?;
        let mut weight = Weight { codes_name: name.to_owned(), ..weight };
        let zeros = format!("{base}_zero_point");
        match self.find(&zeros) {
            Some((Dtype::I32, sizes)) if sizes == [rows.div_ceil(32 / bits), weight.table_columns] => {
                weight.zeros = Zeros::Rows { bits: bits as u32 };
                weight.zeros_name = Some(zeros);
            }
            Some((Dtype::I8, sizes)) if sizes.iter().product::<u64>() == weight.table_numbers()? => {
                weight.zeros_name = Some(zeros);
            }
            Some(_) => return None,
            None => {}
        }
        let listed = format!("{base}_g_idx");
        if let Some((dtype, sizes)) = self.find(&listed).filter(|(_, sizes)| !sizes.contains(&0)) {
            if dtype != Dtype::I32 || sizes != [columns] {
                return None;
            }
            let bytes = (self.read)(&listed)?;
            let mut numbers = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
            // A list of -1 says that there is no order.
            if !numbers.clone().all(|number| number == -1) {
                if numbers.any(|number| number < 0) {
                    return None;
                }
                weight.column_group = Group::Listed(listed);
            }
        }
        let stem = base.strip_suffix(".weight").unwrap_or(base);
        let beside = ["_shape", "_g_idx"].map(|suffix| format!("{base}{suffix}"));
        let mut weight = self.with_parts(weight, stem, &[".input_scale", ".input_zero_point"]);
        weight.parts.extend(beside);
        Some(weight)
    }

    fn packed_fp4(&self, name: &str, dtype: Dtype, sizes: &[u64]) -> Option<Weight> {
        let base = name.strip_suffix("_packed").unwrap_or(name);
        let (columns, before) = sizes.split_last()?;
        let columns = if dtype == Dtype::F4 { *columns } else { columns.checked_mul(2)? };
        if !columns.is_multiple_of(2) {
            return None;
        }
        let scale = format!("{base}_scale");
        let (scale_dtype, scales) = self.find(&scale)?;
        let groups = *scales.last()?;
        let group = columns.checked_div(groups).filter(|group| group * groups == columns)?;
        let shown: Vec<u64> = before.iter().copied().chain([columns]).collect();
        let weight = self.blocked(base, Codes::E2m1, &shown, scale)?;
        let is_one = |name: &str| {
            self.find(name)
                .is_some_and(|(dtype, sizes)| dtype == Dtype::F32 && sizes.iter().product::<u64>() == 1)
        };
        let (divided, multiplied) = (format!("{base}_global_scale"), format!("{base}_scale_2"));
        let scales = match (scale_dtype, group) {
            (Dtype::F8E4M3, 16) if is_one(&divided) => Scales::Divided(divided),
            (Dtype::F8E4M3, 16) if is_one(&multiplied) => Scales::Multiplied(multiplied),
            (Dtype::U8 | Dtype::F8E8M0, 32) => Scales::Powers,
            _ => return None,
        };
        let column_group = Group::Of(group);
        let weight = Weight { codes_name: name.to_owned(), scales, column_group, ..weight };
        let stem = base.strip_suffix(".weight").unwrap_or(base);
        let mut weight = self.with_parts(weight, stem, &[".input_scale", ".input_global_scale"]);
        weight.parts.extend(["_global_scale", "_scale_2"].map(|suffix| format!("{base}{suffix}")));
        Some(weight)
    }

    fn blocks(&self, name: &str, sizes: &[u64]) -> Option<Weight> {
        let base = name.strip_suffix("_blocks")?;
        let [before @ .., rows, groups, 16] = sizes else { return None };
        let scales = format!("{base}_scales");
        let (dtype, scale_sizes) = self.find(&scales)?;
        if !matches!(dtype, Dtype::U8 | Dtype::F8E8M0) || scale_sizes != [before, &[*rows, *groups]].concat()
        {
            return None;
        }
        let columns = groups.checked_mul(32)?;
        let stored: Vec<u64> = before.iter().copied().chain([*rows, columns]).collect();
        let weight = self.blocked(base, Codes::E2m1, &stored, scales)?;
        let shown: Vec<u64> = before.iter().copied().chain([columns, *rows]).collect();
        let weight = Weight {
            shape: Shape::new(&shown)?,
            codes_name: name.to_owned(),
            scales: Scales::Powers,
            column_group: Group::Of(32),
            is_transposed: true,
            ..weight
        };
        Some(self.with_parts(weight, base, &[]))
    }

    fn words(&self, name: &str, sizes: &[u64]) -> Option<Weight> {
        let base = name.strip_suffix(".qweight")?;
        let [word_rows, word_columns] = sizes else { return None };
        let (scales_name, zeros_name) = (format!("{base}.scales"), format!("{base}.qzeros"));
        let (_, scale_sizes) = self.find(&scales_name)?;
        let (zeros_dtype, zeros_sizes) = self.find(&zeros_name)?;
        let ([groups, out], [zero_rows, zero_words]) = (scale_sizes.as_slice(), zeros_sizes.as_slice())
        else {
            return None;
        };
        let bits = zero_words.checked_mul(32)?.checked_div(*out)?;
        if zeros_dtype != Dtype::I32
            || zero_rows != groups
            || ![2, 4, 8].contains(&bits)
            || *zero_words != out.div_ceil(32 / bits)
        {
            return None;
        }
        let is_awq = word_columns != out;
        let inner = if is_awq { *word_rows } else { word_rows.checked_mul(32 / bits)? };
        if is_awq && (bits != 4 || word_columns != zero_words) || *groups == 0 {
            return None;
        }
        let weight = self.blocked(name, Codes::Awq, &[inner, *out], scales_name)?;
        let listed = format!("{base}.g_idx");
        let list = self.find(&listed).filter(|(_, sizes)| !sizes.contains(&0));
        let is_listed = list.is_some();
        if list.is_some_and(|(dtype, sizes)| dtype != Dtype::I32 || sizes != [inner]) {
            return None;
        }
        let added = u8::from(!(self.config)().has_whole_zeros);
        let weight = Weight {
            name: format!("{base}.weight"),
            shape: Shape::new(&[*out, inner])?,
            zeros_name: Some(zeros_name),
            codes: if is_awq { Codes::Awq } else { Codes::Words { bits: bits as u32 } },
            zeros: if is_awq { Zeros::Awq } else { Zeros::Columns { bits: bits as u32, added } },
            is_transposed: true,
            row_group: if is_listed && !is_awq { Group::Listed(listed) } else { weight.row_group.clone() },
            column_group: Group::Of(1),
            table_columns: *out,
            table_rows: *groups,
            ..weight
        };
        Some(self.with_parts(weight, base, &[".g_idx"]))
    }

    fn bitsandbytes(&self, name: &str, sizes: &[u64]) -> Option<Weight> {
        let states = bitsandbytes_states(name);
        let state_name = states.iter().find(|kind| self.find(kind).is_some())?;
        let state = quant_state(&(self.read)(state_name)?)?;
        let shape = Shape::new(&state.shape)?;
        let table = (self.read)(&format!("{name}.quant_map"))?;
        let mut numbers = Box::new([0.0; 16]);
        for (number, bytes) in numbers.iter_mut().zip(table.as_chunks().0) {
            *number = f32::from_le_bytes(*bytes);
        }
        let (elements, block) = (shape.elements(), state.block);
        let blocks = elements.div_ceil(block.max(1));
        let (absmax, nested) = (format!("{name}.absmax"), format!("{name}.nested_absmax"));
        let (dtype, absmax_sizes) = self.find(&absmax)?;
        let scales = match (dtype, state.nested) {
            (Dtype::F32, None) => Scales::Plain,
            (Dtype::U8, Some((block, offset))) => {
                let floats = |name: &str| {
                    let (dtype, sizes) = self.find(name)?;
                    (dtype == Dtype::F32).then(|| sizes.iter().product::<u64>())
                };
                let map = floats(&format!("{name}.nested_quant_map"));
                if block == 0 || floats(&nested) != Some(blocks.div_ceil(block)) || map != Some(256) {
                    return None;
                }
                Scales::Nested { table: format!("{name}.nested_quant_map"), scales: nested, block, offset }
            }
            _ => return None,
        };
        let is_whole = table.len() == 64
            && block > 0
            && elements.div_ceil(2) == sizes.iter().product::<u64>()
            && absmax_sizes.iter().product::<u64>() == blocks;
        let weight = Weight {
            name: name.to_owned(),
            shape,
            codes_name: name.to_owned(),
            scales_name: absmax,
            zeros_name: None,
            codes: Codes::Table(numbers),
            scales,
            zeros: Zeros::Plain,
            matrices: 1,
            rows: 1,
            columns: elements,
            is_transposed: false,
            row_group: Group::Of(1),
            column_group: Group::Of(block),
            table_columns: blocks,
            table_rows: 1,
            divisor: 1.0,
            parts: Vec::new(),
        };
        let beside = [
            ".quant_map",
            ".nested_absmax",
            ".nested_quant_map",
            ".quant_state.bitsandbytes__nf4",
            ".quant_state.bitsandbytes__fp4",
        ];
        is_whole.then(|| self.with_parts(weight, name, &beside))
    }

    fn hqq(&self, name: &str, dtype: Dtype, sizes: &[u64]) -> Option<Weight> {
        let base = name.strip_suffix(".W_q")?;
        let (scales_name, zeros_name) = (format!("{base}.scale"), format!("{base}.zero"));
        let number = |key: &str| {
            let name = format!("{base}.{key}");
            let (dtype, _) = self.find(&name)?;
            Some((dtype, (self.read)(&name)?))
        };
        let state = hqq_state(number)?;
        let shape = Shape::new(&state.shape)?;
        let word_bytes = dtype.bytes();
        let parts = 8 * word_bytes / state.bits.max(1);
        let stored: u64 = sizes.iter().product();
        let elements = shape.elements();
        let (scale_dtype, scale_sizes) = self.find(&scales_name)?;
        let (zero_dtype, zero_sizes) = self.find(&zeros_name)?;
        let is_float = |dtype| matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
        let groups: u64 = scale_sizes.iter().product();
        let group = elements.checked_div(groups)?;
        let (rows, columns, column_group, row_group) = match state.axis {
            1 => (1, elements, group, 1),
            0 => (group, groups, 1, group),
            _ => return None,
        };
        // Words that have three bits of ten numbers leave two bits free.
        let is_known = matches!((state.bits, dtype), (1 | 2 | 4 | 8, Dtype::U8) | (3, Dtype::I32));
        if !is_known
            || stored.checked_mul(parts)? < elements
            || group.checked_mul(groups)? != elements
            || zero_sizes != scale_sizes
            || !is_float(scale_dtype)
            || !is_float(zero_dtype)
        {
            return None;
        }
        let weight = Weight {
            name: format!("{base}.weight"),
            shape,
            codes_name: name.to_owned(),
            scales_name,
            zeros_name: Some(zeros_name),
            codes: Codes::Parts { bits: state.bits as u32, word_bytes },
            scales: Scales::Plain,
            zeros: Zeros::Plain,
            matrices: 1,
            rows,
            columns,
            is_transposed: false,
            row_group: Group::Of(row_group),
            column_group: Group::Of(column_group),
            table_columns: groups,
            table_rows: 1,
            divisor: 1.0,
            parts: Vec::new(),
        };
        let beside: Vec<String> = HQQ_STATE.into_iter().map(|key| format!(".{key}")).collect();
        let beside: Vec<&str> = beside.iter().map(String::as_str).collect();
        Some(self.with_parts(weight, base, &beside))
    }
}

impl Weight {
    /// The numbers of its tables.
    fn table_numbers(&self) -> Option<u64> {
        match self.table_rows {
            0 => Some(1),
            rows => self.matrices.checked_mul(rows)?.checked_mul(self.table_columns),
        }
    }

    /// Whether it has values, as many as its shape.
    fn is_sound(&self) -> bool {
        let stored = self.matrices.checked_mul(self.rows).and_then(|rows| rows.checked_mul(self.columns));
        let are_few = !self.is_transposed || self.rows <= EXCHANGED_ROWS_MAX;
        stored == Some(self.shape.elements())
            && self.shape.elements() > 0
            && self.table_columns > 0
            && are_few
    }
}

/// The rows of a block, of which a table has `count` for `all`: the known number, or the only one that comes into question.
/// A part of a block may be at the end if the number is known, or if `is_partial`.
fn block_size(all: u64, count: u64, known: Option<u64>, is_partial: bool) -> Option<u64> {
    let fits = |size: &u64| *size > 0 && all.div_ceil(*size) == count;
    if count < 2 {
        return (count == 1).then_some(all.max(1));
    }
    if let Some(known) = known.filter(fits) {
        return Some(known);
    }
    let exact = Some(all / count).filter(|exact| exact.checked_mul(count) == Some(all));
    let mut usual =
        [128, 64, 32, 16, 256, 512, 1024].into_iter().filter(fits).filter(|usual| Some(*usual) != exact);
    match exact {
        Some(exact) if !is_partial || exact.is_power_of_two() || usual.next().is_none() => Some(exact),
        None if is_partial => usual.next().filter(|_| usual.next().is_none()),
        _ => None,
    }
}

/// Whether a tensor has codes by its name and type, whether or not they can be decoded.
fn is_codes(name: &str, dtype: Dtype) -> bool {
    let is_integer = !matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Bool);
    let suffixes = [
        ".weight",
        ".qweight",
        "_packed",
        "_blocks",
        ".W_q",
        ".B",
        ".B_24",
        ".codes",
        "_qdata",
        ":qdata",
        ".q_weight",
    ];
    let is_float8 = matches!(dtype, Dtype::F8E4M3 | Dtype::F8E5M2);
    is_integer && !is_float8 && suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// The names of the states that bitsandbytes keeps beside codes of four bits.
fn bitsandbytes_states(name: &str) -> [String; 2] {
    ["nf4", "fp4"].map(|kind| format!("{name}.quant_state.bitsandbytes__{kind}"))
}

/// The tensors to whose codes a tensor may belong.
fn mains(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (suffix, mains) in COMPANIONS {
        if let Some(base) = name.strip_suffix(suffix) {
            found.extend(mains.iter().map(|main| format!("{base}{main}")));
        }
    }
    if let Some((base, _)) = name.rsplit_once('.').filter(|(_, last)| HQQ_STATE.contains(last)) {
        found.push(format!("{base}.W_q"));
    }
    found
}
