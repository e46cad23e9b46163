#!/usr/bin/env bash
# Fuzzes each target of tests/fuzz. Failing inputs are written to target/fuzz/artifacts: fix the bug and add the file to
# tests/fuzz/corpus, which make test replays.
#
#   scripts/fuzz.sh            all targets, FUZZ_SECONDS (60) each
#   scripts/fuzz.sh log npy    only these
#
# Each run continues with the inputs that earlier runs left in target/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/target/tools/bin:$HOME/.cargo/bin:$PATH"

targets=("$@")
[ $# != 0 ] || mapfile -t targets < <(cd tests/fuzz/programs && basename -s .rs ./*.rs)
seconds=${FUZZ_SECONDS:-60}
# The stable compiler has no sanitizers.
options=(--fuzz-dir tests/fuzz --target-dir target/fuzz --sanitizer none)

scripts/setup.sh suites
cargo fuzz build "${options[@]}"
programs=target/fuzz/$(rustc -vV | sed -n 's/^host: //p')/release
mkdir -p target/fuzz/artifacts
failed=()
for target in "${targets[@]}"; do
    mkdir -p "target/fuzz/corpus/$target"
    log=target/fuzz/$target.log
    # An input that takes 10 s or 1 GiB of memory fails too.
    timeout --kill-after=10 $((seconds + 120)) "$programs/$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
        -rss_limit_mb=1024 -artifact_prefix="target/fuzz/artifacts/$target-" \
        "target/fuzz/corpus/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1 || {
        tail -n 40 "$log"
        echo "fuzz: $target failed"
        failed+=("$target")
        continue
    }
    echo "fuzz: $target: $(grep -oE 'Done [0-9]+ runs in [0-9]+ second' "$log")s"
done
[ ${#failed[@]} = 0 ]
