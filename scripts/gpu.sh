#!/usr/bin/env bash
# Reads files into the memory of a GPU by every route, compares them there, and prints a table for docs/BENCHMARKS.md: a file
# outside tierfs; exact and encoded tensors, their containers, an embedding batch and forms, plain and pinned; the same by
# `cp` to /dev/null; and by InstantTensor and fastsafetensors, where Python has them. Takes at most 8 minutes with the
# build, and no network once the crates are fetched.
#
#   scripts/gpu.sh > table.md
#
# GPU_BYTES: size of the tensor (1 GiB). GPU_FOLDER: place of the store (target/); cuFile is fast on a local NVMe disk.
# GPU_SECONDS: the time it may take (480). GPU_PYTHON: the Python with the loaders (python3).
# TIERFS: an existing binary with the feature cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
root=$PWD

bytes=${GPU_BYTES:-$((1 << 30))}
seconds=${GPU_SECONDS:-480}
python=${GPU_PYTHON:-python3}
tierfs=${TIERFS:-$root/target/release/tierfs}

say() { echo "$*" >&2; }
fail() {
    say "gpu.sh: $*"
    exit 1
}
# Runs a command in the time that is left.
in_time() {
    local left=$((seconds - SECONDS))
    [ "$left" -gt 0 ] || fail "$seconds seconds are over; set GPU_SECONDS, or a smaller GPU_BYTES"
    timeout "$left" "$@"
}

if [ -z "${TIERFS:-}" ]; then
    # Before the build, which takes minutes.
    if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
        fail "there is no NVIDIA GPU here: /dev/nvidiactl does not exist; install NVIDIA's driver, in a container use --gpus all"
    fi
    in_time cargo build --release --locked --quiet --features cuda ||
        fail "the build failed, or took all of $seconds seconds; set TIERFS to a binary with the feature cuda"
fi

mkdir -p "${GPU_FOLDER:-target}"
work=$(mktemp -d "$(realpath "${GPU_FOLDER:-target}")/gpu.XXXXXX")
finish() {
    status=$?
    trap - EXIT
    if grep -qs " $work/mnt " /proc/self/mountinfo; then
        "$tierfs" umount --lazy "$work/mnt" >&2 || umount -l "$work/mnt"
    fi
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "looking for a device" > "$work/probe"
probe=$(in_time "$tierfs" gpu-read "$work/probe" 2>&1) || fail "nothing can be read into a GPU here: $probe"

# A tensor of random bf16 below 2: the top bit of each exponent is cleared.
in_time python3 - "$work/model.safetensors" "$bytes" <<'END'
import json, os, struct, sys

path, count = sys.argv[1], int(sys.argv[2]) // 2
header = json.dumps({"w": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}}).encode()
header += b" " * (-len(header) % 8)
clear = bytes(value & 0xBF for value in range(256))
with open(path, "wb") as out:
    out.write(struct.pack("<Q", len(header)) + header)
    while count:
        part = bytearray(os.urandom(2 * min(count, 1 << 23)))
        part[1::2] = part[1::2].translate(clear)
        out.write(part)
        count -= len(part) // 2
END

{
    in_time "$tierfs" init "$work/store"
    in_time "$tierfs" import "$work/store" demo/exact "$work/model.safetensors" tests/golden/batch.cgeb
    in_time "$tierfs" import "$work/store" demo/q8 "$work/model.safetensors" --tier q8:all
    in_time "$tierfs" import "$work/store" demo/pinned "$work/model.safetensors" tests/golden/batch.cgeb --tier q8:all
    mkdir "$work/mnt"
    "$tierfs" mount "$work/store" "$work/mnt"
    cd "$work/mnt"
    in_time "$tierfs" pin demo/pinned/w demo/pinned/batch.cgeb demo/pinned/.as/safetensors/w.safetensors \
        demo/pinned/.as/bf16/model.safetensors
} >&2

files=(
    "$work/model.safetensors"
    demo/exact/w demo/exact/model.safetensors demo/exact/batch.cgeb demo/exact/.as/f16/w demo/exact/.as/npy/w.npy
    demo/q8/w demo/q8/model.safetensors demo/q8/.as/bf16/model.safetensors
    demo/pinned/w demo/pinned/batch.cgeb demo/pinned/.as/safetensors/w.safetensors demo/pinned/.as/bf16/model.safetensors
)
say "== every file by its best route, compared on the device"
in_time "$tierfs" gpu-read --verify "${files[@]}" >&2
say "== unaligned parts by each route"
part=(--verify --offset 123 --len "$((bytes / 3 + 1))")
in_time "$tierfs" gpu-read "${part[@]}" --route host demo/exact/w demo/q8/w demo/pinned/w >&2
in_time "$tierfs" gpu-read "${part[@]}" demo/exact/w demo/pinned/w >&2

# A row of reads by `cp`: bytes a second of the first and of the best of five.
by_cp() {
    local size start took first="" best=""
    size=$(stat -L -c %s "$1")
    for _ in 1 2 3 4 5; do
        start=${EPOCHREALTIME/[.,]/}
        in_time cp "$1" /dev/null
        took=$((${EPOCHREALTIME/[.,]/} - start))
        [ "$took" -gt 0 ] || took=1
        first=${first:-$took}
        if [ -z "$best" ] || [ "$took" -lt "$best" ]; then best=$took; fi
    done
    awk -v f="$1" -v n="$size" -v first="$first" -v best="$best" \
        'BEGIN { printf "| %s | %d | cp to /dev/null | %.2f | %.2f | | host |\n", f, n, n / first / 1000, n / best / 1000 }'
}

{
    echo "$(uname -r), $(nproc) cores, $(stat -f -c %T "$work"); GB/s of the first and of the best of five reads, from the page cache where it is used"
    echo
    echo "| file | bytes | route | first GB/s | best GB/s | | device |"
    echo "|---|---|---|---|---|---|---|"
    in_time "$tierfs" gpu-read --verify --bench "${files[@]}"
    for file in "${files[@]}"; do
        by_cp "$file"
    done
    in_time "$python" "$root/scripts/gpu_loaders.py" \
        "$work/model.safetensors" demo/exact/model.safetensors demo/q8/.as/bf16/model.safetensors || {
        [ $? != 3 ] || fail "a loader has other bytes on the device"
        say "the loaders stopped"
    }
} | sed "s,$work/,,g"
