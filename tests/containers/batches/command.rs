//! `tierfs cgeb`, against the independent writer.

use std::fs;

use crate::batches::batch::{Batch, checked};
use support::{Place, assert_same, python_line, run};

#[test]
fn the_command_writes_shows_and_verifies_the_same_batch_as_the_independent_writer() {
    let place = Place::new();
    let batch = Batch::made(&place, "src", "plain", [20, 96, 4, 2]);
    let stem = place.path("src").to_str().unwrap().to_owned();
    let save = "import numpy, sys; s = sys.argv[1]
for name, dtype, columns in [('x', '<f4', 96), ('w', '<f4', 4), ('s', 'u1', 2)]:
    numpy.save(f'{s}-{name}.npy', numpy.fromfile(f'{s}.{name}', dtype).reshape(20, columns))";
    python_line(save, [&stem]);
    let npy = |name: &str| format!("{stem}-{name}.npy");
    let out = place.path("out.cgeb");
    let write = |extra: &[&str]| {
        let (weights, selected) = (npy("w"), npy("s"));
        let fixed = ["cgeb", "write", &npy("x"), "--weights", &weights, "--selected", &selected, "-o"]
            .map(str::to_owned);
        run(fixed
            .into_iter()
            .chain([out.to_str().unwrap().to_owned()])
            .chain(extra.iter().map(|it| it.to_string())))
    };
    write(&[]).ok();
    // Every third record of the other has a hash and a latency of its own.
    let written = fs::read(&out).unwrap();
    assert_eq!(written.len(), batch.data.len());
    for record in 0..20 {
        let at = record * 4096;
        assert_same(
            &written[at + 64..at + 4096],
            &batch.data[at + 64..at + 4096],
            "a record after its header",
        );
        if record % 3 != 1 {
            assert_same(&written[at..at + 24], &batch.data[at..at + 24], "a header");
        }
    }
    assert_eq!(checked(&out, &out.with_extension("cgei")), (20, 20));
    assert!(run(["cgeb", "verify", out.to_str().unwrap()]).ok().contains("20 records; its index agrees"));
    let shown = run(["cgeb", "show", out.to_str().unwrap(), "--record", "7", "--json"]).json();
    assert_eq!(shown["offset"], 7 * 4096);
    assert_eq!(shown["vector"].as_array().unwrap().len(), 96);
    let first = f32::from_le_bytes(batch.vectors[7 * 384..][..4].try_into().unwrap());
    assert_eq!(shown["vector"][0].as_f64(), Some(f64::from(first)));
    assert_eq!(run(["cgeb", "show", out.to_str().unwrap()]).ok().lines().count(), 20);
    run(["cgeb", "show", out.to_str().unwrap(), "--record", "20"]).failed(1, &["no record 20"]);

    for options in [&["--version", "1"][..], &["--big-endian"], &["--aux-encoding", "zstd", "--aux"]] {
        let aux: Vec<String> = match options.contains(&"--aux") {
            true => (0..20)
                .map(|number| {
                    place.write(&format!("aux{number}"), "text ".repeat(number)).to_str().unwrap().to_owned()
                })
                .collect(),
            false => Vec::new(),
        };
        let all: Vec<&str> = options.iter().copied().chain(aux.iter().map(String::as_str)).collect();
        write(&all).ok();
        assert_eq!(checked(&out, &out.with_extension("cgei")).0, 20, "{options:?}");
        run(["cgeb", "verify", out.to_str().unwrap()]).ok();
    }
    let mut damaged = fs::read(&out).unwrap();
    damaged[4096 * 3 + 100] ^= 1;
    fs::write(&out, &damaged).unwrap();
    run(["cgeb", "verify", out.to_str().unwrap()]).failed(3, &["record 3", "hash"]);
    fs::write(&out, &batch.data).unwrap();
    run(["cgeb", "verify", out.to_str().unwrap()]).failed(3, &["out.cgei", "hash"]);
}
