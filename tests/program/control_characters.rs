//! Names with control characters, which no command may print as they are.

use std::fs;
use std::path::Path;

use support::{Place, Random, npy_file, safetensors_file, shell_output};

/// Sets the title of a terminal, erases it, moves its cursor, and has a C1 control character.
const NAME: &str = "h\u{1b}]0;pwned\u{7}\u{1b}[2J\r\u{7f}\u{9b}1A";
/// The same for bash.
const QUOTED: &str = "$'h\\e]0;pwned\\a\\e[2J\\r\\x7f\\xc2\\x9b1A'";

/// The commands; `@` stands for the name. Some of them fail, and say of what.
const COMMANDS: &str = "\
tierfs init store
tierfs import store t/c in
tierfs import store t/c in
tierfs import store t/c in --json
tierfs import store t/c in --checksum --dry-run
tierfs import store t/d in/@.npy --tier q8:all
tierfs import store t/@ in
tierfs import store t/c missing-@
tierfs import store t/c in/@.npy --tier @
tierfs import store t/c in --manifest @
tierfs import in/@.npy t/c in
tierfs ls store
tierfs ls store t/c
tierfs ls store t/c/@.npy
tierfs ls store t/c --json
tierfs ls store t/c --tensors
tierfs ls store t/c/@
tierfs ls --@
tierfs @
tierfs stat store t/c/@.npy
tierfs stat store t/c/@.safetensors --json
tierfs stat store t/c/@-missing
tierfs get store t/c/@.npy
tierfs du store t/c
tierfs du store t/c --json
tierfs fsck store
tierfs scrub store
tierfs events store
tierfs events store t/c/@.npy
tierfs events store --since @
tierfs events store --verify
tierfs report store -o report.html
TIERFS_COMPLETE=bash _CLAP_COMPLETE_INDEX=3 _CLAP_COMPLETE_COMP_TYPE=9 _CLAP_COMPLETE_SPACE=true tierfs -- tierfs ls store t/c/h
tierfs completions bash
tierfs man
tierfs help import
tierfs doctor
tierfs bench mnt/t/c/@-missing
mkdir mnt mnt-@ bucket mounted cache
tierfs mount store mnt --read-only=@
tierfs mount store mnt-@-missing
tierfs mount --takeover mnt-@-missing
TIERFS_LOG=debug tierfs mount store mnt --log log
tierfs ls mnt/t/c
tierfs ls mnt/t/c --tensors --json
tierfs stat mnt/t/c/@.npy
tierfs diff mnt/t/c/@.npy mnt/t/d/@.npy
tierfs diff mnt/t/c/@.safetensors mnt/t/c/@.npy
tierfs tier q8 mnt/t/c/@.npy
tierfs tier q8 mnt/t/c --json
tierfs tier q8:all mnt/t/c/@.npy mnt/t/c/@.txt --lossy
tierfs evict mnt/t/c/@.npy mnt/t/c/@
tierfs pack mnt/t/c/@.safetensors mnt/t/c/@-missing
tierfs unpack mnt/t/c/@.safetensors
tierfs pin mnt/t/c/@.npy mnt/t/c/@.txt
tierfs tier q5 mnt/t/c/@.npy
tierfs unpin mnt/t/c/@.npy
tierfs set dtype=@ mnt/t/c/@.txt
tierfs set @=1 mnt/t/c/@.txt
tierfs get mnt/t/c/@.npy
tierfs verify mnt/t/c/@.npy mnt/t/c/@.txt
tierfs join mnt/t/c/joined-@ mnt/t/c/@.txt mnt/t/c/@-missing
tierfs join mnt/t/c/joined-@ mnt/t/c/@.txt --json
tierfs prefetch mnt/t/c/@.npy mnt/t/c/@-missing
tierfs jobs mnt
tierfs jobs mnt --json
tierfs cancel 1 mnt
tierfs status mnt
tierfs status mnt-@
tierfs top --once mnt
tierfs report mnt -o other.html
tierfs compact mnt
tierfs gpu-read mnt/t/c/@.npy
tierfs export mnt t/c exported
tierfs cgeb show mnt/t/c/@.npy
tierfs cgeb verify in/@.txt
tierfs cgeb write in/@.npy @.cgeb
tierfs csi --endpoint @ --node-id n
tierfs umount mnt
tierfs umount mnt-@
cp in/@.npy saved; for file in store/t/c/data/*; do printf '\\xff' | dd of=$file bs=1 seek=50000 conv=notrunc status=none; done
tierfs scrub store
tierfs scrub store --json
tierfs fsck store
tierfs import store t/c in --checksum
tierfs export store t/c/@.npy exported-@
tierfs push store t/c file://$PWD/bucket --create
tierfs index file://$PWD/in file://$PWD/bucket --as t/@
tierfs push store t/c file://$PWD/bucket --json
tierfs push store t/c file://$PWD/bucket-@
tierfs ls file://$PWD/bucket t/c
tierfs log store t/c
tierfs log file://$PWD/bucket t/c
tierfs log file://$PWD/bucket
tierfs tag file://$PWD/bucket t/c @
tierfs tag file://$PWD/bucket t/c
tierfs push file://$PWD/bucket t/c --revert @
tierfs clone file://$PWD/bucket t/c other
tierfs clone file://$PWD/bucket t/@ other
tierfs pull other t/c
tierfs gc file://$PWD/bucket
tierfs cache cache-@
tierfs cache cache --list
tierfs mv store t/c t/@
tierfs mv store t/c t/e
tierfs rm store t/@
tierfs rm store t/e
";

fn escaped(text: &str) -> String {
    text.chars().filter(|character| character.is_control() && !"\n\t".contains(*character)).collect()
}

#[test]
fn no_command_prints_the_control_characters_of_names() {
    let place = Place::new();
    let (header, data) = (
        serde_json::json!({ NAME: { "dtype": "F32", "shape": [20_000], "data_offsets": [0, 80_000] } }),
        Random(43).floats(20_000),
    );
    let files = [
        (format!("in/{NAME}.safetensors"), safetensors_file(&header.to_string(), &data)),
        (format!("in/{NAME}.npy"), npy_file(&Random(44).floats(20_000))),
        (format!("in/{NAME}/{NAME}.npy"), npy_file(&data)),
        (format!("in/{NAME}.txt"), b"text".to_vec()),
        // The message about its fault names a tensor.
        (
            format!("in/bad-{NAME}.safetensors"),
            safetensors_file(&header.to_string().replace("80000", "79999"), &data),
        ),
    ];
    files.iter().for_each(|(name, bytes)| drop(place.write(name, bytes)));
    let directory = place.path("");
    let (mut told, mut names) = (String::new(), 0);
    for line in COMMANDS.lines() {
        let (_, output) = shell_output(&directory, &line.replace('@', QUOTED));
        if !escaped(&output).is_empty() {
            told.push_str(&format!("{line}: {output:?}\n"));
        }
        names += usize::from(output.contains("h\\x1b]0;pwned\\x07"));
    }
    let log = fs::read_to_string(place.path("log")).unwrap();
    shell_output(&directory, "tierfs umount --lazy mnt");
    assert!(told.is_empty(), "{told}");
    assert!(escaped(&log).is_empty(), "{log:?}");
    // Most commands name a file.
    assert!(names > 30, "only {names} commands have printed the name");
    every_command_is_run(&directory);
}

/// A new subcommand needs a line above.
fn every_command_is_run(directory: &Path) {
    let (_, help) = shell_output(directory, "tierfs --help");
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let named = commands
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    for name in named {
        assert!(COMMANDS.contains(&format!("tierfs {name}")), "{name}");
    }
}
