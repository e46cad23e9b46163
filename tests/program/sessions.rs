//! Types the sessions of the documents: the output of each command must equal the page.
//!
//! In a page `...` stands for any text within a line and, alone on a line, for any lines. With `TIERFS_BLESS=1`
//! differing output is written into the page, for review.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use support::{
    Place, Random, answer, line_matches, minilm, python_command, repository, shell_output, tierfs,
};

/// A container with the shapes of small layers, and a copy with some elements changed.
fn model(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let tensors =
        [("embed", 300, 256), ("layer.0.up", 512, 256), ("layer.0.down", 256, 512), ("norm", 1, 256)];
    let (mut header, mut at) = (String::new(), 0);
    for (name, rows, columns) in tensors {
        let end = at + rows * columns * 4;
        let shape = if rows == 1 { format!("[{columns}]") } else { format!("[{rows},{columns}]") };
        write!(
            header,
            "{}\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{at},{end}]}}",
            if at == 0 { "{" } else { "," }
        )
        .unwrap();
        at = end;
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    let begin = file.len();
    file.extend(random.floats(at / 4));
    let mut tuned = file.clone();
    for element in (0..at / 4).step_by(50) {
        let place = begin + element * 4;
        let value = f32::from_le_bytes(tuned[place..place + 4].try_into().unwrap());
        tuned[place..place + 4].copy_from_slice(&(value * 1.01).to_le_bytes());
    }
    (file, tuned)
}

/// The product of two thin matrices, of rank 4.
fn low_rank(random: &mut Random) -> Vec<u8> {
    let numbers = |random: &mut Random, count: usize| -> Vec<f32> {
        (0..count).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect()
    };
    let (left, right) = (numbers(random, 256 * 4), numbers(random, 4 * 256));
    let cell =
        |row: usize, column: usize| (0..4).map(|at| left[row * 4 + at] * right[at * 256 + column]).sum();
    let cells = (0..256 * 256).map(|at| -> f32 { cell(at / 256, at % 256) });
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (256, 256), }";
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(format!("{header:<117}\n").bytes());
    file.extend(cells.flat_map(f32::to_le_bytes));
    file
}

/// Whether a text equals the one in the page.
fn matches(shown: &[&str], found: &[&str]) -> bool {
    match (shown.split_first(), found.split_first()) {
        (None, None) => true,
        (Some((&"...", rest)), _) => (0..=found.len()).any(|skipped| matches(rest, &found[skipped..])),
        (Some((line, rest)), Some((text, after))) => line_matches(line, text) && matches(rest, after),
        _ => false,
    }
}

/// Types the commands of a page in a directory; there are at least `least` of them.
fn type_session(page: &str, directory: &Path, least: usize) {
    let path = repository(page);
    let text = fs::read_to_string(&path).unwrap();
    let (mut new, mut wrong, mut commands) = (String::new(), String::new(), 0);
    let mut lines = text.lines().peekable();
    let mut inside = false;
    while let Some(line) = lines.next() {
        new.push_str(line);
        new.push('\n');
        if line.starts_with("```") {
            inside = line == "```console";
        }
        let Some(command) = line.strip_prefix("$ ").filter(|_| inside) else { continue };
        let mut shown = Vec::new();
        while let Some(text) = lines.next_if(|next| !next.starts_with("$ ") && !next.starts_with("```")) {
            shown.push(text);
        }
        commands += 1;
        let (_, found) = shell_output(directory, command);
        let printed: Vec<&str> = found.lines().collect();
        let kept = if matches(&shown, &printed) { &shown } else { &printed };
        if !matches(&shown, &printed) {
            writeln!(wrong, "$ {command}\nshown:\n{}\nprinted:\n{found}", shown.join("\n")).unwrap();
        }
        kept.iter().for_each(|text| writeln!(new, "{text}").unwrap());
    }
    for mounted in ["mnt", "far"] {
        shell_output(directory, &format!("tierfs umount {mounted}"));
    }
    if std::env::var_os("TIERFS_BLESS").is_some() {
        fs::write(path, new).unwrap();
    }
    assert!(commands >= least, "{page}: {commands} commands show little");
    assert!(wrong.is_empty(), "{page}: {wrong}");
}

#[test]
fn the_session_of_the_control_page_is_reproduced() {
    let place = Place::new();
    let mut random = Random(77);
    let (base, tuned) = model(&mut random);
    place.write("base/model.safetensors", base);
    place.write("tuned/model.safetensors", tuned);
    place.write("adapter.npy", low_rank(&mut random));
    type_session("docs/CONTROL.md", &place.path(""), 30);
}

/// A directory with the model that README and GUIDE name.
fn with_model() -> Place {
    let place = Place::new();
    symlink(minilm(), place.path("minilm")).unwrap();
    place
}

#[test]
fn the_session_of_the_readme_is_reproduced() {
    let place = with_model();
    type_session("README.md", &place.path(""), 10);
    let page = fs::read_to_string(repository("README.md")).unwrap();
    let block = |kind: &str| page.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap();
    let mut program = python_command();
    program.env("PYTHONPATH", repository("src/python")).env("TIERFS", tierfs().get_program());
    let printed = answer(program.args(["-c", block("python")]).current_dir(place.path(""))).ok();
    assert_eq!(printed, block("text"));
}

#[test]
fn the_sessions_of_the_guide_are_reproduced_one_after_the_other() {
    let place = with_model();
    let make = repository("tests/loaders/make.py");
    answer(python_command().arg(make).arg("gguf").arg(place.path("gguf"))).ok();
    type_session("docs/GUIDE.md", &place.path(""), 30);
}
