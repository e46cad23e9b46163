#!/usr/bin/env bash
# Reads an exact tensor, a q8 tensor, their containers, an embedding batch and forms of a real mount into the memory of a
# GPU, compares them there, and prints rows for tests/bench/results. Needs a GPU, and no network once the crates are
# fetched.
#
#   scripts/gpu.sh [FORM...]
#
# FORM: files below the collection demo/exact (.as/f16/w .as/npy/w.npy).
# GPU_BYTES: size of the tensor (1 GiB). GPU_FOLDER: place of the store (target/); cuFile is fast on a local NVMe disk.
# TIERFS: an existing binary with the feature cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
root=$PWD

bytes=${GPU_BYTES:-$((1 << 30))}
tierfs=${TIERFS:-$root/target/release/tierfs}
if [ -z "${TIERFS:-}" ]; then
    cargo build --release --locked --quiet --features cuda
fi

mkdir -p "${GPU_FOLDER:-target}"
work=$(mktemp -d "$(realpath "${GPU_FOLDER:-target}")/gpu.XXXXXX")
finish() {
    status=$?
    trap - EXIT
    if grep -qs " $work/mnt " /proc/self/mountinfo; then
        "$tierfs" umount --lazy "$work/mnt" || umount -l "$work/mnt"
    fi
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A tensor of random bf16 below 2: the top bit of each exponent is cleared.
python3 - "$work/model.safetensors" "$bytes" <<'END'
import json, os, struct, sys

path, count = sys.argv[1], int(sys.argv[2]) // 2
header = json.dumps({"w": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}}).encode()
clear = bytes(value & 0xBF for value in range(256))
with open(path, "wb") as out:
    out.write(struct.pack("<Q", len(header)) + header)
    while count:
        part = bytearray(os.urandom(2 * min(count, 1 << 23)))
        part[1::2] = part[1::2].translate(clear)
        out.write(part)
        count -= len(part) // 2
END

"$tierfs" init "$work/store"
"$tierfs" import "$work/store" demo/exact "$work/model.safetensors" tests/golden/batch.cgeb
"$tierfs" import "$work/store" demo/q8 "$work/model.safetensors" --tier q8:all
mkdir "$work/mnt"
"$tierfs" mount "$work/store" "$work/mnt"

files=(demo/exact/w demo/exact/model.safetensors demo/exact/batch.cgeb demo/q8/w demo/q8/model.safetensors)
[ $# != 0 ] || set -- .as/f16/w .as/npy/w.npy
for form in "$@"; do
    if [ -e "$work/mnt/demo/exact/$form" ]; then
        files+=("demo/exact/$form")
    else
        echo "skipped: demo/exact/$form does not exist"
    fi
done

cd "$work/mnt"
echo "== every file, compared on the device"
"$tierfs" gpu-read --verify "${files[@]}"
echo "== an unaligned part, through the host"
"$tierfs" gpu-read --verify --route host --offset 12345 --len 33554433 demo/exact/w demo/q8/w
echo "== the same part, by cuFile where possible"
"$tierfs" gpu-read --verify --offset 12345 --len 33554433 demo/exact/w
echo
echo "== tests/bench/results ($(uname -r), $(nproc) cores, $(stat -f -c %T "$work"))"
echo "| file | bytes | route | first GB/s | best GB/s | | device |"
echo "|---|---|---|---|---|---|---|"
"$tierfs" gpu-read --verify --bench "${files[@]}"
