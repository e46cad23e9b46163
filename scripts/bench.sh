#!/usr/bin/env bash
# Measures tierfs against what its users would have otherwise, and writes the table to docs/BENCHMARKS.md. As root.
#
#   scripts/bench.sh                 every row and every plot, about 15 minutes from a fresh clone on 2 cores
#   scripts/bench.sh codec index     the rows whose names begin so; --list shows all
#   scripts/bench.sh --quick         small sizes and few rounds: to see that it runs
#
# Figures are ratios of things measured in turn. Answers are checked first: it fails where one is wrong, never on a
# time. Only a whole run changes docs/; the rows of every run are in target/bench/rows.jsonl, the table in
# target/bench/table.md. Needs up to 8 GiB under target/bench, and gives them back.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/setup.sh bench
export CARGO_NET_OFFLINE=true
cargo build --release --locked
cargo build --release --locked --manifest-path tests/bench/Cargo.toml --target-dir target

# What an end by a signal leaves mounted is found by its path.
work=$PWD/target/bench/work
unmount_leftovers() {
    local mount_point
    while read -r mount_point; do
        mount_point=$(printf '%b' "$mount_point") # the kernel writes a space as \040
        echo "left mounted, unmounting: $mount_point" >&2
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
# In the background and waited for, so that a signal to this script is acted on at once.
timeout --kill-after=20 1200 target/release/tierfs-bench "$@" </dev/null &
child=$!
trap 'kill -TERM "$child" 2>/dev/null; exit 130' INT
trap 'kill -TERM "$child" 2>/dev/null; exit 143' TERM
wait "$child"
