#!/usr/bin/env bash
# Packs PROGRAM for Debian with cargo-deb: program, manual pages, documents, completions, mount.tierfs and the unit.
#
#   scripts/deb.sh TARGET DIRECTORY    DIRECTORY/tierfs_*.deb of PROGRAM, a static program for a target of Rust
#
# HOST_PROGRAM: the same program for this machine, which writes pages and completions (PROGRAM).
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PWD/target/tools/bin:$PATH"

if [ $# != 2 ] || [ -z "${PROGRAM:-}" ]; then
    echo "usage: PROGRAM=FILE scripts/deb.sh TARGET DIRECTORY" >&2
    exit 2
fi
rm -rf target/deb
DESTDIR=$PWD/target/deb/root PREFIX=/usr SBIN=/usr/sbin scripts/install.sh >/dev/null
cargo deb --quiet --no-build --no-strip --target "$1" --output "$2/"
