#!/usr/bin/env bash
# Imports a real model exactly, in q8 and in q3, mounts the store and reads a tensor of each, as a terminal session.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
root=$PWD

scripts/setup.sh demo
echo "building: cargo build --release (some minutes the first time)"
CARGO_NET_OFFLINE=true cargo build --release --locked --quiet

model=$root/target/models/minilm
if [ ! -e "$model/model.safetensors" ]; then
    model=$root/target/models/stand-in
    echo "note: the real model could not be downloaded; this session uses random weights of the same shapes"
fi
tensor=encoder.layer.0.intermediate.dense.weight

work=$(mktemp -d)
finish() {
    status=$?
    trap - EXIT
    cd "$root"
    if grep -qs " $work/mnt " /proc/self/mountinfo; then
        tierfs umount --lazy "$work/mnt" || fusermount3 -u -z "$work/mnt" || umount -l "$work/mnt"
    fi
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Short names make the session read as typed by hand.
ln -s "$model" "$work/minilm"
ln -s "$root/scripts/compare.py" "$work/compare.py"
mkdir "$work/bin"
ln -s "$root/target/release/tierfs" "$work/bin/tierfs"
PATH="$work/bin:$root/target/venv/bin:$PATH"
cd "$work"

run() {
    printf '\n$ %s\n' "$1"
    timeout --kill-after=10 300 bash -euo pipefail -c "$1"
}

run "tierfs init store"
run "tierfs import store demo/minilm minilm"
run "tierfs import store demo/minilm-q8 minilm/model.safetensors --tier q8:all"
run "tierfs import store demo/minilm-q3 minilm/model.safetensors --tier q3:all"
run "mkdir mnt && tierfs mount store mnt"
run "ls mnt/demo"
run "ls -lh mnt/demo/minilm"
run "ls -lh mnt/demo/minilm/.tensors | sed -n 1,12p"
run "cmp minilm/model.safetensors mnt/demo/minilm/model.safetensors && echo identical"
run "python compare.py minilm/model.safetensors mnt/demo/minilm $tensor --exact"
run "python compare.py minilm/model.safetensors mnt/demo/minilm-q8 $tensor --bits 8"
run "python compare.py minilm/model.safetensors mnt/demo/minilm-q3 $tensor --bits 3"
run "du -sh mnt/demo/*"
run "tierfs umount mnt"
