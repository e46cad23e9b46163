# Sourced by scripts/demo.sh and scripts/demo-remote.sh, which show terminal sessions: builds tierfs, makes the directory
# $work with the model as minilm, goes there, and defines run. A script adds what it starts to $at_end.

echo "building: cargo build --profile demo (some minutes the first time)"
CARGO_NET_OFFLINE=true cargo build --profile demo --locked --quiet

root=$PWD
model=$root/target/models/minilm
if [ ! -e "$model/model.safetensors" ]; then
    model=$root/target/models/stand-in
    echo "note: the real model could not be downloaded; this session uses random weights of the same shapes"
fi

work=$(mktemp -d)
at_end=:
finish() {
    status=$?
    trap - EXIT
    cd "$root"
    awk -v below="$work/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | while read -r mounted; do
        tierfs umount --lazy "$mounted" || fusermount3 -u -z "$mounted" || umount -l "$mounted"
    done
    $at_end
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Short names make the session read as typed by hand.
ln -s "$model" "$work/minilm"
mkdir "$work/bin"
ln -s "$root/target/demo/tierfs" "$work/bin/tierfs"
PATH="$work/bin:$root/target/venv/bin:$PATH"
cd "$work"

run() {
    printf '\n$ %s\n' "$1"
    timeout --kill-after=10 300 bash -euo pipefail -c "$1"
}
