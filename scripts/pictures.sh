#!/usr/bin/env bash
# Makes the pictures of tierfs top and tierfs report in docs/plots, from a store of the real models. Needs root.
#
#   scripts/pictures.sh [TIERFS]     TIERFS: the program, target/release/tierfs by default
#
# Needs tmux, and Chromium for the page; Debian's packages tmux and chromium have them.
set -euo pipefail
cd "$(dirname "$0")/.."

tierfs=$(realpath "${1:-target/release/tierfs}")
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$(command -v tmux)" ] || [ -z "$chromium" ]; then
    echo "pictures: install tmux and chromium, and run this again" >&2
    exit 1
fi
scripts/setup.sh demo
root=$PWD
work=$(mktemp -d /tmp/tierfs-pictures.XXXX)
finish() {
    tmux -L tierfs-pictures kill-server 2>/dev/null || true
    "$tierfs" umount --lazy "$work/mnt" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap finish EXIT

cd "$work"
model=$root/target/models/minilm
"$tierfs" init store
"$tierfs" import store acme/minilm "$model"
"$tierfs" import store acme/minilm-q5 "$model/model.safetensors" --tier q5
"$tierfs" import store acme/minilm-small "$model/model.safetensors" --tier q3:all
"$tierfs" import store speech/silero "$root/target/models/silero" --pack
mkdir mnt
"$tierfs" mount store mnt --passthrough off
# Some tensors are used more than others, in the daemon's eyes.
for round in 1 2 3 4; do
    for layer in $(seq 0 "$round"); do
        cat mnt/acme/minilm-q5/.tensors/encoder.layer."$layer".* >/dev/null
    done
    "$tierfs" set evict=cache mnt/acme/minilm-q5 >/dev/null
done
"$tierfs" scrub mnt >/dev/null

"$tierfs" report mnt -o report.html
"$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1180 --user-data-dir="$work/profile" \
    --screenshot="$root/docs/plots/report.png" "file://$work/report.html" 2>/dev/null

tmux -L tierfs-pictures -f /dev/null new-session -d -x 120 -y 36 "$tierfs top mnt --interval 0.5"
for round in $(seq 1 24); do
    head -c $((round * 3 << 20)) mnt/acme/minilm-small/model.safetensors >/dev/null
    [ "$round" != 16 ] || "$tierfs" tier q8:all mnt/acme/minilm --lossy --detach >/dev/null
    sleep 0.5
done
tmux -L tierfs-pictures capture-pane -e -p >top.txt
python3 "$root/scripts/terminal_picture.py" top.txt >"$root/docs/plots/top.svg"
tmux -L tierfs-pictures send-keys q
ls -l "$root"/docs/plots/top.svg "$root"/docs/plots/report.png
