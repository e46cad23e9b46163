//! Containers and batches, and the indexes of both.

use support::Random;

use super::{count, letters, name, size};

pub fn npy(random: &mut Random) -> Vec<u8> {
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

pub fn safetensors(random: &mut Random) -> Vec<u8> {
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

pub fn gguf(random: &mut Random) -> Vec<u8> {
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

pub fn cgeb(random: &mut Random) -> Vec<u8> {
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

/// The index of a sharded model, perhaps with several maps of weights.
pub fn shard_index(random: &mut Random) -> Vec<u8> {
    let quoted = |random: &mut Random| match random.below(20) {
        0 => format!("\"{}\"", "\\u00e9".repeat(count(random))),
        1 => format!("\"{}\"", name(random)),
        _ => format!("\"{}\"", letters(random, 1 + random.0 as usize % 5)),
    };
    let mut entries = Vec::new();
    for _ in 0..1 + random.below(3) {
        let same = quoted(random);
        let few = random.below(2) == 0;
        let weights: Vec<String> = (0..count(random).min(4000))
            .map(|place| {
                let file = if few { same.clone() } else { quoted(random) };
                format!("\"{place}{}:{file}", quoted(random).trim_start_matches('"'))
            })
            .collect();
        entries.push(format!("\"weight_map\":{{{}}}", weights.join(",")));
        let deep = random.below(140);
        entries.push(format!("\"metadata\":{}1{}", "[".repeat(deep), "]".repeat(deep)));
    }
    format!("{{{}}}", entries.join(",")).into_bytes()
}

/// An index of an embedding batch. Some say another number of records than they have.
pub fn cgei(random: &mut Random) -> Vec<u8> {
    let many = count(random);
    let said = if random.below(5) == 0 { size(random) } else { many as u64 };
    let mut out = [&b"CGEI\0\x01\0\0"[..], &said.to_be_bytes(), &random.next().to_be_bytes()].concat();
    for place in 0..many as u64 {
        let offset = if random.below(5000) == 0 { size(random) } else { place * 4096 };
        out.extend(offset.to_be_bytes());
    }
    out
}
