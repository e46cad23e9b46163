#!/usr/bin/env bash
# Test suites of others on a real mount: fsx (random reads, writes, truncations, mappings of one file) on a plain file and
# on tensors, and pjdfstest (POSIX calls) against the list of what is expected to fail. Installs both, pinned, below
# target/tools. As root. Usage: scripts/suites.sh [FSX_OPERATIONS]
set -euo pipefail
cd "$(dirname "$0")/.."

operations=${1:-20000}
tools=$PWD/target/tools
expected=tests/suites/pjdfstest-expected.txt

cargo build --locked --quiet
tierfs=$PWD/target/debug/tierfs
install() {
    [ -x "$tools/bin/$1" ] || cargo install --quiet --locked --root "$tools" --version "$2" "$1"
}
install fsx 0.3.2
install pjdfstest 0.2.2

place=$(mktemp -d)
chmod 755 "$place"
mkdir "$place/mnt"
clean() {
    umount -l "$place/mnt" 2>/dev/null || true
    rm -rf "$place"
}
trap clean EXIT

"$tierfs" mount "$place/store" "$place/mnt" --create --allow-other
collection=$place/mnt/suites/fsx
mkdir -p "$collection"
seed=1
for dtype in plain f32 bf16 u8; do
    file=$collection/$dtype
    truncate -s 65536 "$file"
    [ "$dtype" = plain ] || setfattr -n user.tierfs.dtype -v "$dtype" "$file"
    echo "fsx: $operations operations on a file of type $dtype, seed $seed"
    timeout 900 "$tools/bin/fsx" -q -N "$operations" -S "$seed" "$file"
    seed=$((seed + 1))
done

echo "pjdfstest"
mkdir "$place/mnt/suites/pjdfstest"
log=$place/pjdfstest.log
# It fails when a test does; which may fail is decided here.
timeout 900 "$tools/bin/pjdfstest" -c tests/suites/pjdfstest.toml -p "$place/mnt/suites/pjdfstest" >"$log" 2>&1 || true
count() { grep -cE " $1\$" "$log" || true; }
echo "pjdfstest: $(count ok) passed, $(count FAILED) failed"
[ "$(count ok)" -ge 150 ] || { tail -20 "$log"; echo "pjdfstest did not run to its end"; exit 1; }
unexpected=$(grep -E ' FAILED$' "$log" | awk '{ print $1 }' | grep -vE '::(fifo|socket|char|block)$' |
    grep -vxFf <(grep -vE '^(#|$)' "$expected") || true)
if [ -n "$unexpected" ]; then
    printf 'these were not expected to fail:\n%s\n' "$unexpected"
    exit 1
fi

"$tierfs" umount "$place/mnt"
"$tierfs" fsck "$place/store"
echo "ok"
