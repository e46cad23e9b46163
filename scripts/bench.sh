#!/usr/bin/env bash
# Measures tierfs against the alternatives. Writes the tables in tests/bench/results and the headline of docs/BENCHMARKS.md.
# Needs root.
#
#   scripts/bench.sh                 every row and every plot, about 15 minutes from a fresh clone on 2 cores
#   scripts/bench.sh codec index     rows with these prefixes; --list prints all names
#   scripts/bench.sh scale [100]     stores of up to 1,000 collections, a million tensors and 100 million blocks, 6 minutes
#   scripts/bench.sh --quick         small sizes and few rounds, to check that everything runs
#
# Figures are ratios of interleaved measurements. Answers are checked first: a wrong one fails the run, a time never
# does. Only a whole run changes docs/. A run of all rows of a table in tests/bench/results (remote, mount-uring, or all
# others) writes that table. Every run writes its rows to target/bench/rows.jsonl and a table to target/bench/table.md. It
# needs up to 8 GiB under target/bench and frees them.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/setup.sh bench
export CARGO_NET_OFFLINE=true
cargo build --release --locked
cargo build --release --locked --manifest-path tests/bench/Cargo.toml --target-dir target

# Mounts that a signal left behind are found by their path.
work=$PWD/target/bench/work
unmount_leftovers() {
    local mount_point
    while read -r mount_point; do
        mount_point=$(printf '%b' "$mount_point") # the kernel writes a space as \040
        echo "unmounting leftover $mount_point" >&2
        fusermount3 -u -z "$mount_point" 2>/dev/null || umount -l "$mount_point" || true
    done < <(awk -v under="$work/" 'index($5, under) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
}

finish() {
    local status=$?
    trap - EXIT
    unmount_leftovers
    rm -rf --one-file-system "$work" || true
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

unmount_leftovers
# The shell handles a signal at once only while it waits for a background job.
timeout --kill-after=20 3000 target/release/tierfs-bench "$@" </dev/null &
child=$!
trap 'kill -TERM "$child" 2>/dev/null; exit 130' INT
trap 'kill -TERM "$child" 2>/dev/null; exit 143' TERM
wait "$child"
