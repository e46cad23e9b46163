//! Mistakes of users, and the exact answers: the table in `tests/program/mistakes.txt`.
//!
//! A line `% COMMAND` prepares and must succeed. `$ COMMAND` is a mistake; `= CODE` and the lines up to the next empty
//! one are its exit code and its whole output. `DIR` stands for the folder of the test, and `...` in a line for any
//! text. With `TIERFS_BLESS=1` the test writes the output into the table, for review.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use support::{Place, Random, container_of, line_matches, npy_file, shell_output};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/mistakes.txt");

/// The exit code of a command and its whole output, with `DIR/` for the test's directory.
fn output(directory: &Path, command: &str) -> (i32, String) {
    let (code, text) = shell_output(directory, command);
    (code, text.replace(&directory.display().to_string(), "DIR/").replace("DIR//", "DIR/"))
}

#[test]
fn each_mistake_is_answered_with_the_reason_and_with_what_to_type() {
    let place = Place::new();
    let tensors = [("a", 200_000), ("b", 100_000), ("norm", 3000)];
    place.write("m.safetensors", container_of(&mut Random(41), &tensors));
    place.write("bare.npy", npy_file(&Random(42).floats(100_000)));
    place.write("plain.txt", b"hello");
    let directory = place.path("");
    let table = fs::read_to_string(TABLE).unwrap();
    let bless = std::env::var_os("TIERFS_BLESS").is_some();
    let (mut new, mut wrong, mut mistakes) = (String::new(), String::new(), 0);
    let mut lines = table.lines().peekable();
    while let Some(line) = lines.next() {
        writeln!(new, "{line}").unwrap();
        if let Some(command) = line.strip_prefix("% ") {
            let (code, text) = output(&directory, command);
            if code != 0 {
                writeln!(wrong, "% {command}\nexit {code}: {text}").unwrap();
            }
        }
        let Some(command) = line.strip_prefix("$ ") else { continue };
        let mut shown = Vec::new();
        while let Some(text) = lines.next_if(|next| !next.is_empty()) {
            shown.push(text);
        }
        mistakes += 1;
        let (code, text) = output(&directory, command);
        let head = format!("= {code}");
        let printed: Vec<&str> =
            std::iter::once(head.as_str()).chain(text.lines().filter(|line| !line.is_empty())).collect();
        let is_same = shown.len() == printed.len()
            && shown.iter().zip(&printed).all(|(shown, printed)| line_matches(shown, printed));
        if !is_same {
            writeln!(wrong, "$ {command}\nshown:\n{}\nprinted:\n{}", shown.join("\n"), printed.join("\n"))
                .unwrap();
        }
        for bad in
            ["os error", "Some(", "Err(", "ErrorKind", "tier0.dat", "meta.log", "/.ctl/jobs", "/.ctl/import"]
        {
            assert!(!text.contains(bad), "{command} prints {bad:?}: {text}");
        }
        let kept = if is_same { &shown } else { &printed };
        kept.iter().for_each(|text| writeln!(new, "{text}").unwrap());
    }
    for mount in ["mnt", "other", "far"] {
        output(&directory, &format!("tierfs umount --lazy {mount}"));
    }
    if bless {
        fs::write(TABLE, new).unwrap();
    }
    assert!(mistakes >= 40, "{mistakes} mistakes are few");
    assert!(wrong.is_empty(), "{wrong}");
}
