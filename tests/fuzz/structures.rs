//! Files of each format with hostile structure: shared and repeated parts, depth, long names, many small parts, archives
//! in archives, huge declared sizes. Chance damage makes none of these. Reading a file must take work and memory in
//! proportion to its bytes.

use std::io;
use std::sync::Arc;

use support::{Random, allocated_bytes, held, scale};
use tierfs::format::budget::{Budget, STEPS_MIN, STEPS_PER_BYTE};
use tierfs::format::files::{ReadAt, npz, onnx, torch};
use tierfs::ingest::recognize;
use tierfs::store::disk::File;

/// Files of each format.
const FILES: usize = 200;

/// Memory that a reader may have at once, and may allocate in all, for each byte of the file.
const HELD_PER_BYTE: u64 = 256;
const ALLOCATED_PER_BYTE: u64 = 1024;

/// The same for the shortest file: the longest prefixes that are read, and texts of errors.
const BYTES_MIN: u64 = 2 << 20;

/// A file in memory.
struct Source(Vec<u8>);

impl File for Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let found = self.0.get(offset as usize..).unwrap_or_default();
        let len = found.len().min(buffer.len());
        buffer[..len].copy_from_slice(&found[..len]);
        Ok(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

type Parse = fn(&mut ReadAt<'_>, u64, &mut Budget);

fn parse_torch(read: &mut ReadAt<'_>, len: u64, budget: &mut Budget) {
    drop(torch::parse(read, len, budget));
}

fn parse_npz(read: &mut ReadAt<'_>, len: u64, budget: &mut Budget) {
    drop(npz::parse(read, len, budget));
}

fn parse_onnx(read: &mut ReadAt<'_>, len: u64, budget: &mut Budget) {
    drop(onnx::parse(read, len, budget));
}

fn check(format: &str, number: usize, bytes: Vec<u8>, parse: Option<Parse>) {
    let len = bytes.len() as u64;
    let about = || format!("{format} {number}, {len} bytes");
    if let Some(parse) = parse {
        let mut budget = Budget::default();
        let mut read = |out: &mut [u8], at: u64| {
            out.copy_from_slice(&bytes[at as usize..][..out.len()]);
            Ok(())
        };
        parse(&mut read, len, &mut budget);
        assert!(budget.read() <= 2 * len + (1 << 17), "{}: reads {} bytes", about(), budget.read());
        let most = STEPS_MIN + STEPS_PER_BYTE * len;
        assert!(budget.spent() <= 10 * most, "{}: {} steps", about(), budget.spent());
    }
    let source: Arc<dyn File> = Arc::new(Source(bytes));
    let name = format!("x.{format}");
    let mut most = 0;
    let all = allocated_bytes(|| most = held(|| drop(recognize(&source, name.as_bytes()))).2);
    let most = most as u64;
    assert!(most <= HELD_PER_BYTE * len + BYTES_MIN, "{}: holds {most} bytes", about());
    assert!(all <= ALLOCATED_PER_BYTE * len + BYTES_MIN, "{}: allocates {all} bytes", about());
}

fn run(format: &str, make: fn(&mut Random) -> Vec<u8>, parse: Option<Parse>) {
    for number in 0..FILES * scale() as usize {
        let mut random = Random(number as u64);
        check(format, number, make(&mut random), parse);
    }
}

#[test]
fn checkpoints_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("pt", checkpoint, Some(parse_torch));
}

#[test]
fn numpy_archives_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("npz", arrays, Some(parse_npz));
}

#[test]
fn onnx_models_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("onnx", model, Some(parse_onnx));
}

#[test]
fn safetensors_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("safetensors", safetensors, None);
}

#[test]
fn gguf_files_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("gguf", gguf, None);
}

#[test]
fn npy_files_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("npy", npy, None);
}

#[test]
fn embedding_batches_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("cgeb", cgeb, None);
}

/// A count: mostly small, now and then large.
fn count(random: &mut Random) -> usize {
    match random.below(8) {
        0 => random.below(20_000),
        1 | 2 => random.below(300),
        _ => random.below(8),
    }
}

fn letters(random: &mut Random, len: usize) -> String {
    (0..len).map(|_| char::from(b"abc/."[random.below(5)])).collect()
}

fn name(random: &mut Random) -> String {
    let len = if random.below(10) == 0 { random.below(6000) } else { 1 + random.below(12) };
    letters(random, len)
}

fn size(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => u64::MAX,
        1 => 1 << random.below(63),
        _ => random.below(9) as u64,
    }
}

fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let size = (data.len() as u32).to_le_bytes();
        let fields = [&[0; 12], &size[..], &size, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        directory.extend([&b"PK\x01\x02\0\0\0\0"[..], &fields, &[0; 10]].concat());
        directory.extend((bytes.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        bytes.extend([&b"PK\x03\x04\0\0"[..], &fields, name.as_bytes(), data].concat());
    }
    let (start, count) = (bytes.len() as u32, (entries.len() as u16).to_le_bytes());
    bytes.extend(&directory);
    bytes.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count].concat());
    bytes.extend([(directory.len() as u32).to_le_bytes(), start.to_le_bytes()].concat());
    bytes.extend([0; 2]);
    bytes
}

/// A pickle: values that are kept, and containers, calls and tensors of those.
struct Pickle<'a> {
    random: &'a mut Random,
    bytes: Vec<u8>,
    kept: u32,
}

impl Pickle<'_> {
    fn text(&mut self, text: &str) {
        self.bytes.push(b'X');
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn recall(&mut self) {
        let place = if self.kept == 0 { 0 } else { self.random.below(self.kept as usize) as u32 };
        self.bytes.push(b'j');
        self.bytes.extend(place.to_le_bytes());
    }

    fn keep(&mut self) {
        self.bytes.push(b'r');
        self.bytes.extend(self.kept.to_le_bytes());
        self.kept += 1;
    }

    /// Items that are `width` values each, one of them repeated.
    fn items(&mut self, width: usize, depth: u32) {
        self.bytes.push(b'(');
        for _ in 0..self.random.below(4) {
            (0..width).for_each(|place| if place + 1 < width { self.key() } else { self.value(depth + 1) });
        }
        let begin = self.bytes.len();
        for place in 0..width {
            if place + 1 < width && self.random.below(2) == 0 { self.key() } else { self.recall() }
        }
        let item = self.bytes[begin..].to_vec();
        let times = count(self.random).min(200_000 / item.len());
        (0..times).for_each(|_| self.bytes.extend(&item));
    }

    fn key(&mut self) {
        match self.random.below(4) {
            0 => self.recall(),
            1 => self.bytes.extend([b'K', self.random.below(256) as u8]),
            _ => {
                let name = name(self.random);
                self.text(&name);
            }
        }
    }

    fn tensor(&mut self) {
        self.bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        self.text("storage");
        self.bytes.extend(b"ctorch\nFloatStorage\n");
        let key = if self.random.below(9) == 0 { name(self.random) } else { "0".to_owned() };
        self.text(&key);
        self.text("cpu");
        let flags: &[u8] = if self.random.below(5) == 0 { b"\x89NN" } else { b"\x89N" };
        let size = self.random.below(4) as u8;
        self.bytes.extend(
            [&b"M\0\x04tQK"[..], &[self.random.below(16) as u8, b'K', size][..], b"\x85K\x01\x85", flags]
                .concat(),
        );
        self.bytes.extend(b"tR");
    }

    fn value(&mut self, depth: u32) {
        match self.random.below(if depth > 70 { 4 } else { 14 }) {
            0 => self.bytes.push(b'N'),
            1 | 2 => self.tensor(),
            3 => self.recall(),
            4..=6 => {
                self.bytes.push(b']');
                if self.random.below(9) == 0 {
                    self.keep();
                }
                self.items(1, depth);
                self.bytes.push(b'e');
            }
            7..=9 => {
                self.bytes.push(b'}');
                self.items(2, depth);
                self.bytes.push(b'u');
            }
            10 => {
                self.items(1, depth);
                self.bytes.push(b't');
            }
            11 => {
                let called: [&[u8]; 4] = [
                    b"ccollections\nOrderedDict\n",
                    b"cm\nClass\n",
                    b"ctorch._utils\n_rebuild_parameter_with_state\n",
                    b"ctorch._tensor\n_rebuild_from_type_v2\n",
                ];
                self.bytes.extend(called[self.random.below(4)]);
                self.items(1, depth);
                self.bytes.extend(b"tR");
            }
            12 => {
                self.value(depth + 1);
                let times = self.random.below(100);
                self.bytes.extend(b"\x85".repeat(times));
            }
            _ => {
                let name = name(self.random);
                self.text(&name);
            }
        }
        if self.random.below(3) > 0 {
            self.keep();
        }
    }
}

fn checkpoint(random: &mut Random) -> Vec<u8> {
    let mut pickle = Pickle { random, bytes: b"\x80\x02".to_vec(), kept: 0 };
    pickle.tensor();
    pickle.keep();
    // Values that the last one is made of.
    for _ in 0..pickle.random.below(6) {
        pickle.value(0);
        pickle.bytes.push(b'0');
        if pickle.bytes.len() > 300_000 {
            break;
        }
    }
    pickle.bytes.push(b'}');
    pickle.items(2, 0);
    pickle.bytes.extend(b"u.");
    let pickle = pickle.bytes;
    zip(&[("x/data.pkl".to_owned(), pickle), ("x/data/0".to_owned(), vec![7; 4096])])
}

fn numpy(random: &mut Random) -> Vec<u8> {
    let sizes: Vec<String> = (0..random.below(12)).map(|_| size(random).to_string()).collect();
    let shape = match random.below(4) {
        0 => "(3,)".to_owned(),
        1 => format!("({},)", "1,".repeat(count(random)).trim_end_matches(',')),
        _ => format!("({},)", sizes.join(",")),
    };
    let spaces = " ".repeat(random.below(200));
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}{spaces}\n");
    let long = random.below(9) == 0;
    let len = if long { random.next() as u32 } else { text.len() as u32 };
    [&b"\x93NUMPY\x02\x00"[..], &len.to_le_bytes(), text.as_bytes(), &[1; 12]].concat()
}

fn arrays(random: &mut Random) -> Vec<u8> {
    let mut entries: Vec<(String, Vec<u8>)> = Vec::new();
    let inner = zip(&[("w.npy".to_owned(), numpy(random))]);
    let many = random.below(3000);
    for place in 0..many {
        let data = match random.below(5) {
            0 => inner.clone(),
            1 => Vec::new(),
            _ if many > 100 => b"\x93NUMPY\x01\0\0\0".to_vec(),
            _ => numpy(random),
        };
        let long = random.below(40) == 0;
        let prefix = if long { name(random) } else { String::new() };
        entries.push((format!("{prefix}{place}.npy"), data));
    }
    zip(&entries)
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    [&varint(number << 3 | 2)[..], &varint(bytes.len() as u64), bytes].concat()
}

fn initializer(random: &mut Random) -> Vec<u8> {
    let mut parts = vec![field(8, name(random).as_bytes()), vec![16, 1]];
    match random.below(4) {
        0 => parts.push(field(1, &varint(size(random)).repeat(count(random)))),
        1 => parts.push([8, 1].repeat(count(random))),
        _ => parts.push(vec![8, 2]),
    }
    for _ in 0..random.below(3) {
        let location = field(13, &[field(1, b"location"), field(2, name(random).as_bytes())].concat());
        parts.push([&location[..], &[112, 1]].concat());
    }
    parts.push(field(9, &[0; 8]));
    if random.below(20) == 0 {
        // A length past the end of the message.
        parts.push([&[74_u8][..], &varint(size(random))].concat());
    }
    parts.concat()
}

fn graph(random: &mut Random, depth: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..random.below(4) {
        let one = initializer(random);
        let times = count(random).min(100_000 / one.len().max(1));
        out.extend(field(if random.below(9) == 0 { 15 } else { 5 }, &one).repeat(times));
    }
    for _ in 0..random.below(3) {
        let inside = if depth < 60 { graph(random, depth + 1) } else { Vec::new() };
        let kind = [5, 6, 11, 22][random.below(4)];
        let node =
            [field(2, name(random).as_bytes()), field(4, b"Constant"), field(5, &field(kind, &inside))]
                .concat();
        if out.len() < 300_000 {
            out.extend(field(1, &node));
        }
    }
    out
}

fn model(random: &mut Random) -> Vec<u8> {
    let mut inside = graph(random, 0);
    // Deep alone.
    for _ in 0..random.below(3) * random.below(100) {
        inside = field(1, &field(5, &field(6, &inside)));
    }
    field(7, &inside)
}

fn safetensors(random: &mut Random) -> Vec<u8> {
    let mut entries = Vec::new();
    let many = count(random);
    for place in 0..many {
        let key = if random.below(50) == 0 { name(random) } else { letters(random, 3) };
        let key = format!("{key}{place}");
        let shape = if random.below(50) == 0 { "0,".repeat(count(random)) } else { "0,".to_owned() };
        let odd = match random.below(30) {
            0 => format!(",\"odd\":{}1{}", "[".repeat(random.below(120)), "]".repeat(random.below(120))),
            1 => format!(",\"odd\":\"{}\"", "\\u00e9".repeat(count(random))),
            _ => String::new(),
        };
        let shape = shape.trim_end_matches(',');
        entries
            .push(format!("\"{key}\":{{\"dtype\":\"F32\",\"shape\":[{shape}],\"data_offsets\":[0,0]{odd}}}"));
    }
    if random.below(3) == 0 {
        let texts: Vec<String> = (0..count(random)).map(|place| format!("\"{place}\":\"\"")).collect();
        entries.push(format!("\"__metadata__\":{{{}}}", texts.join(",")));
    }
    let json = format!("{{{}}}", entries.join(","));
    let len = if random.below(20) == 0 { size(random) } else { json.len() as u64 };
    [&len.to_le_bytes()[..], json.as_bytes()].concat()
}

fn gguf(random: &mut Random) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let (tensors, metadata) = (random.below(3000), count(random));
    let mut out =
        [&b"GGUF\x03\0\0\0"[..], &(tensors as u64).to_le_bytes(), &(metadata as u64).to_le_bytes()].concat();
    for place in 0..metadata {
        out.extend(text(&place.to_string()));
        match random.below(4) {
            0 => out.extend([&[8, 0, 0, 0][..], &text(&name(random))].concat()),
            1 => {
                // Arrays of arrays, many of them empty.
                let items = count(random).min(200);
                out.extend([&[9, 0, 0, 0, 9, 0, 0, 0][..], &(items as u64).to_le_bytes()].concat());
                (0..items).for_each(|_| out.extend([&[8, 0, 0, 0][..], &0_u64.to_le_bytes()].concat()));
            }
            2 if random.below(40) == 0 => {
                out.extend([&[9, 0, 0, 0, 10, 0, 0, 0][..], &size(random).to_le_bytes()].concat())
            }
            _ => out.extend([0, 0, 0, 0, 1]),
        }
    }
    for place in 0..tensors {
        let long = random.below(50) == 0;
        let prefix = if long { name(random) } else { String::new() };
        out.extend(text(&format!("{prefix}{place}")));
        let sizes: Vec<u8> = (0..1 + random.below(2)).flat_map(|_| 0_u64.to_le_bytes()).collect();
        out.extend([&(sizes.len() as u32 / 8).to_le_bytes()[..], &sizes, &[0; 12]].concat());
    }
    out.extend([0; 64]);
    out
}

fn npy(random: &mut Random) -> Vec<u8> {
    numpy(random)
}

fn cgeb(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..1 + count(random) / 10 {
        let sizes = [random.below(4) as u64, size(random), random.below(3) as u64, random.below(3) as u64];
        out.extend(
            [
                &b"CGEB\0\x02\0\x01"[..],
                &(sizes[0] as u32).to_be_bytes(),
                &[sizes[2] as u8, sizes[3] as u8, 0, 0],
            ]
            .concat(),
        );
        (0..4).for_each(|place| out.extend(sizes[place].to_be_bytes()));
        let rest = random.below(80);
        out.extend(random.bytes(rest));
    }
    out
}
