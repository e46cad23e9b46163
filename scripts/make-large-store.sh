#!/usr/bin/env bash
# Makes a store with a tensor of 1,048,576 blocks: demo/large/values, 4 GiB of f32 in q3, the first of them 1, the others 0.
#
#   scripts/make-large-store.sh STORE [TIERFS]
#
# STORE must not exist; the directory needs about 600 MB of free space. TIERFS: the binary (target/release/tierfs).
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: scripts/make-large-store.sh STORE [TIERFS]" >&2
    exit 2
fi
store=$1
tierfs=${2:-$(dirname "$0")/../target/release/tierfs}
if [ -e "$store" ]; then
    echo "$store already exists" >&2
    exit 1
fi

source=$(mktemp -d "$store.source.XXXXXX")
trap 'rm -rf "$source"' EXIT
elements=$((1 << 30))
header="{'descr': '<f4', 'fortran_order': False, 'shape': ($elements,), }"
{
    printf '\x93NUMPY\x01\x00\x76\x00'
    printf '%-117s\n' "$header"
    printf '\x00\x00\x80\x3f'
} >"$source/values.npy"
# The rest is a hole: zeros that take no space.
truncate --size=$((128 + 4 * elements)) "$source/values.npy"
"$tierfs" import "$store" demo/large "$source/values.npy" --tier q3:all --encoder absmax --block-bytes 4096
