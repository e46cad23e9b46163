//! `tierfs cgeb`: writes, shows and verifies embedding batches.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::output::{complain, json_text, print};
use crate::format::budget::Budget;
use crate::format::files::cgeb::{
    AuxEncoding, BatchWriter, CgebError, ContentHash, HEADER_BYTES, Header, Layout, NewRecord, Record,
};
use crate::format::files::cgei::Index;
use crate::format::files::npy;
use crate::ingest::check_batch;
use crate::model::{Dtype, Error, Result};
use crate::store::disk::File as Source;
use crate::store::disk::files::open_source;

/// Largest record that `show --record` prints.
const RECORD_BYTES_MAX: u64 = 1 << 30;

/// Write, show and verify embedding batches (.cgeb) and their indexes (.cgei)
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  tierfs cgeb write vectors.npy -o table.cgeb
  tierfs cgeb write vectors.npy --weights w.npy --selected s.npy --aux one.json two.json -o table.cgeb
  tierfs cgeb show table.cgeb --record 7 --json
  tierfs cgeb verify table.cgeb")]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Write(Write),
    Show(Show),
    Verify(Verify),
}

/// Write a batch from a NumPy file, with its index next to it
#[derive(ClapArgs)]
#[command(after_help = "Example: tierfs cgeb write vectors.npy --weights weights.npy -o table.cgeb")]
struct Write {
    /// The vectors: an array [N, D] of f32
    vectors: PathBuf,
    /// The batch to write; its index has the suffix .cgei
    #[arg(short, long)]
    output: PathBuf,
    /// The weights: an array [N, E] of f32
    #[arg(long)]
    weights: Option<PathBuf>,
    /// The selected experts: an array [N, K] of u8
    #[arg(long)]
    selected: Option<PathBuf>,
    /// Version of the record format; version 1 has big-endian floats and no hash
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    version: u8,
    /// Write big-endian floats in version 2
    #[arg(long)]
    big_endian: bool,
    /// Auxiliary data: one file for each record, in order
    #[arg(long, num_args = 1.., value_name = "FILE")]
    aux: Vec<PathBuf>,
    /// Encoding of the auxiliary data
    #[arg(long, default_value = "raw", value_parser = ["raw", "lz4", "zstd"])]
    aux_encoding: String,
}

/// Show the header of each record, or the whole of one record
#[derive(ClapArgs)]
#[command(after_help = "Example: tierfs cgeb show table.cgeb --record 7")]
struct Show {
    file: PathBuf,
    /// Show only this record, with its values; the first is 0
    #[arg(long)]
    record: Option<u64>,
    /// Print JSON, one line per record
    #[arg(long)]
    json: bool,
}

/// Verify all hashes of a batch and, if present, its index; exit with 3 on corruption
#[derive(ClapArgs)]
#[command(after_help = "Example: tierfs cgeb verify table.cgeb")]
struct Verify {
    file: PathBuf,
}

impl Args {
    pub(super) fn run(self) -> Result<Outcome> {
        match self.action {
            Action::Write(write) => write.run(),
            Action::Show(show) => show.run(),
            Action::Verify(verify) => verify.run(),
        }
    }
}

/// A NumPy file that is read row by row.
struct Matrix {
    source: Arc<dyn Source>,
    start: u64,
    rows: u64,
    row_bytes: u64,
    name: PathBuf,
}

impl Matrix {
    fn open(path: &Path, dtype: Dtype) -> Result<Matrix> {
        Matrix::open_at(path, dtype).map_err(|error| error.at(path.display()))
    }

    fn open_at(path: &Path, dtype: Dtype) -> Result<Matrix> {
        let source = open(path)?;
        let bytes = source.len().map_err(|error| Error::io("getting its size", error))?;
        let mut prefix = vec![0; bytes.min(npy::PREFIX_BYTES_MAX) as usize];
        source.read_exact_at(&mut prefix, 0).map_err(|error| Error::io("reading it", error))?;
        let header = npy::parse(&prefix, bytes, &mut Budget::default())?;
        let [rows, columns] = header.shape.dimensions() else {
            return Err(Error::invalid("not a two-dimensional array"));
        };
        if header.dtype != dtype || !header.is_plain() {
            return Err(Error::invalid(format!("not a C-contiguous little-endian array of {dtype}")));
        }
        let row_bytes = columns.checked_mul(dtype.bytes()).filter(|bytes| *bytes <= RECORD_BYTES_MAX);
        let row_bytes = row_bytes.ok_or_else(|| Error::invalid("rows are longer than 1 GiB"))?;
        Ok(Matrix { source, start: header.data_start, rows: *rows, row_bytes, name: path.to_owned() })
    }

    fn row(&self, number: u64, out: &mut Vec<u8>) -> Result<()> {
        out.resize(self.row_bytes as usize, 0);
        let read = self.source.read_exact_at(out, self.start + number * self.row_bytes);
        read.map_err(|error| Error::io(self.name.display(), error))
    }
}

impl Write {
    fn run(self) -> Result<Outcome> {
        let vectors = Matrix::open(&self.vectors, Dtype::F32)?;
        let open =
            |path: &Option<PathBuf>, dtype| path.as_deref().map(|path| Matrix::open(path, dtype)).transpose();
        let (weights, selected) = (open(&self.weights, Dtype::F32)?, open(&self.selected, Dtype::U8)?);
        let mut others = [&weights, &selected].into_iter().flatten();
        if let Some(other) = others.find(|other| other.rows != vectors.rows) {
            let name = other.name.display();
            return Err(Error::invalid(format!(
                "{name} has {} rows, but the vectors have {}",
                other.rows, vectors.rows
            )));
        }
        if !self.aux.is_empty() && self.aux.len() as u64 != vectors.rows {
            let (files, rows) = (self.aux.len(), vectors.rows);
            return Err(Error::invalid(format!("--aux names {files} files for {rows} records")));
        }
        let layout = match (self.version, self.big_endian) {
            (1, _) => Layout::One,
            (_, true) => Layout::TwoBig,
            (_, false) => Layout::TwoLittle,
        };
        let index_path = index_of(&self.output)?;
        let failed = |error| Error::io(self.output.display(), error);
        let mut writer = BatchWriter::new(BufWriter::new(File::create(&self.output).map_err(failed)?));
        let (mut row, mut weight, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..vectors.rows {
            vectors.row(number, &mut row)?;
            weights.iter().try_for_each(|weights| weights.row(number, &mut weight))?;
            selected.iter().try_for_each(|selected| selected.row(number, &mut chosen))?;
            let aux = match self.aux.get(number as usize) {
                Some(path) => fs::read(path).map_err(|error| Error::io(path.display(), error))?,
                None => Vec::new(),
            };
            let aux_encoding = match (self.aux_encoding.as_str(), aux.is_empty()) {
                ("lz4", false) => AuxEncoding::Lz4,
                ("zstd", false) => AuxEncoding::Zstandard,
                _ => AuxEncoding::Raw,
            };
            let aux = aux_encoding.encode(&aux)?;
            writer.push(&NewRecord {
                layout,
                vector: &floats(&row),
                weights: &floats(&weight),
                selected: &chosen,
                aux: &aux,
                aux_encoding,
                pipeline_latency_us: 0,
                own_hash: (layout == Layout::One).then_some(0),
            })?;
        }
        let (_, index) = writer.finish()?;
        fs::write(&index_path, index.write()?).map_err(|error| Error::io(index_path.display(), error))?;
        print(&format!("{}: {} records; {}\n", self.output.display(), vectors.rows, index_path.display()))?;
        Ok(Outcome::Succeeded)
    }
}

impl Show {
    fn run(self) -> Result<Outcome> {
        let source = open(&self.file)?;
        let shown = show(&source, self.record, self.json);
        shown.map_err(|error| error.at(self.file.display())).map(|()| Outcome::Succeeded)
    }
}

fn show(source: &Arc<dyn Source>, only: Option<u64>, is_json: bool) -> Result<()> {
    let bytes = source.len().map_err(|error| Error::io("getting its size", error))?;
    let (mut at, mut number) = (0, 0_u64);
    while at < bytes {
        let wrong = |error: CgebError| Error::from(error).at(format!("record {number} at byte {at}"));
        let mut head = vec![0; (bytes - at).min(HEADER_BYTES as u64) as usize];
        source.read_exact_at(&mut head, at).map_err(|error| Error::io("reading it", error))?;
        let header = Header::parse(&head).map_err(wrong)?;
        if only.is_none_or(|only| only == number) {
            let mut value = described(&header, number, at);
            if only.is_some() {
                let len = header.record_bytes().min(bytes - at);
                if len > RECORD_BYTES_MAX {
                    return Err(Error::invalid(format!(
                        "record {number} has {len} bytes, which is too large to show"
                    )));
                }
                let mut whole = vec![0; len as usize];
                source.read_exact_at(&mut whole, at).map_err(|error| Error::io("reading it", error))?;
                let record = Record::borrow(&whole).map_err(wrong)?;
                if let Value::Object(map) = &mut value {
                    map.insert("vector".into(), record.vector.iter().map(f64::from).collect());
                    map.insert("weights".into(), record.weights.iter().map(f64::from).collect());
                    map.insert("selected".into(), record.selected.into());
                    map.insert("hash_matches".into(), record.verify().is_ok().into());
                }
            }
            print_record(&value, is_json)?;
        }
        if only == Some(number) {
            return Ok(());
        }
        at = header.stride().and_then(|stride| at.checked_add(stride)).unwrap_or(u64::MAX);
        number += 1;
    }
    match only {
        Some(only) => Err(Error::invalid(format!("no record {only}: the batch has {number} records"))),
        None => Ok(()),
    }
}

fn described(header: &Header, number: u64, at: u64) -> Value {
    let (ContentHash::Own(hash) | ContentHash::OfPayload(hash)) = header.content_hash;
    json!({
        "record": number,
        "offset": at,
        "version": header.version(),
        "little_endian": header.layout == Layout::TwoLittle,
        "dimension": header.dimension,
        "experts": header.experts,
        "top_k": header.top_k,
        "content_hash": format!("{hash:016x}"),
        "hash_covers_payload": matches!(header.content_hash, ContentHash::OfPayload(_)),
        "pipeline_latency_us": header.pipeline_latency_us,
        "aux_bytes": header.aux_length,
        "aux_encoding": match header.aux_encoding {
            AuxEncoding::Raw => "raw",
            AuxEncoding::Lz4 => "lz4",
            AuxEncoding::Zstandard => "zstd",
        },
    })
}

fn print_record(value: &Value, is_json: bool) -> Result<()> {
    let Some(map) = value.as_object().filter(|_| !is_json) else {
        return print(&format!("{}\n", json_text(&value.to_string())));
    };
    let fields: Vec<String> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
    print(&format!("{}\n", fields.join(" ")))
}

impl Verify {
    fn run(self) -> Result<Outcome> {
        let source = open(&self.file)?;
        let (runs, data_hash) = match check_batch(&source) {
            Ok(checked) => checked,
            Err(error) => {
                complain(&format!("{}: {error}", self.file.display()));
                return Ok(Outcome::Corrupt);
            }
        };
        let path = index_of(&self.file)?;
        let beside = match fs::read(&path) {
            Ok(bytes) => {
                let offsets = || (0..runs.records()).map_while(|number| runs.offset(number));
                let checked = Index::parse(&bytes).and_then(|index| {
                    index.verify(data_hash)?;
                    Ok(index.offsets.iter().copied().eq(offsets()))
                });
                match checked {
                    Ok(true) => "its index agrees",
                    Ok(false) => {
                        complain(&format!(
                            "{}: the offsets of the index do not match the records",
                            path.display()
                        ));
                        return Ok(Outcome::Corrupt);
                    }
                    Err(error) => {
                        complain(&format!("{}: {error}", path.display()));
                        return Ok(Outcome::Corrupt);
                    }
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "it has no index",
            Err(error) => return Err(Error::io(path.display(), error)),
        };
        print(&format!("{}: ok, {} records; {beside}\n", self.file.display(), runs.records()))?;
        Ok(Outcome::Succeeded)
    }
}

fn open(path: &Path) -> Result<Arc<dyn Source>> {
    open_source(path).map_err(|error| Error::io(path.display(), error))
}

fn index_of(batch: &Path) -> Result<PathBuf> {
    match batch.extension() {
        Some(suffix) if suffix == "cgeb" => Ok(batch.with_extension("cgei")),
        _ => Err(Error::invalid(format!("{} does not have the suffix .cgeb", batch.display()))),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}
