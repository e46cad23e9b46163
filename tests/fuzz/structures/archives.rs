//! PyTorch checkpoints, NumPy archives and ONNX models.

use support::Random;
use support::protobuf::{field, varint};

use super::containers::npy;
use super::{count, name, size};
use crate::targets::archives::zip;

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

pub fn checkpoint(random: &mut Random) -> Vec<u8> {
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
    zip(&[("x/data.pkl", &pickle), ("x/data/0", &[7; 4096])])
}

pub fn arrays(random: &mut Random) -> Vec<u8> {
    let mut entries: Vec<(String, Vec<u8>)> = Vec::new();
    let inner = zip(&[("w.npy", &npy(random))]);
    let many = random.below(3000);
    for place in 0..many {
        let data = match random.below(5) {
            0 => inner.clone(),
            1 => Vec::new(),
            _ if many > 100 => b"\x93NUMPY\x01\0\0\0".to_vec(),
            _ => npy(random),
        };
        let long = random.below(40) == 0;
        let prefix = if long { name(random) } else { String::new() };
        entries.push((format!("{prefix}{place}.npy"), data));
    }
    let entries: Vec<_> = entries.iter().map(|(name, data): &(String, Vec<u8>)| (&**name, &**data)).collect();
    zip(&entries)
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

pub fn model(random: &mut Random) -> Vec<u8> {
    let mut inside = graph(random, 0);
    // Deep alone.
    for _ in 0..random.below(3) * random.below(100) {
        inside = field(1, &field(5, &field(6, &inside)));
    }
    field(7, &inside)
}
