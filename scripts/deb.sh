#!/usr/bin/env bash
# Builds a Debian package with cargo-deb: program, manual pages, documents, completions, mount.tierfs and the unit.
#
#   scripts/deb.sh          target/debian/tierfs_*.deb
#   scripts/deb.sh check    also installs it below a temporary root, uses it and removes it, as root
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PWD/target/tools/bin:$PATH"

case ${1:-} in
'' | check) ;;
*)
    echo "usage: scripts/deb.sh [check]" >&2
    exit 2
    ;;
esac
scripts/setup.sh packages
# PROGRAM: a binary other than the release build.
program=${PROGRAM:-target/release/tierfs}
[ -n "${PROGRAM:-}" ] || cargo build --release --locked --quiet
stage=$PWD/target/deb/root
rm -rf target/deb target/debian
PROGRAM=$program DESTDIR=$stage PREFIX=/usr SBIN=/usr/sbin scripts/install.sh >/dev/null
cargo deb --quiet --no-build --no-strip
package=$(echo target/debian/tierfs_*.deb)
echo "deb: built $package"
[ "${1:-}" = check ] || exit 0

# A root without a system: dpkg has a database of its own there and does not check dependencies.
place=$(mktemp -d)
trap 'rm -rf --one-file-system "$place"' EXIT
mkdir -p "$place"/var/lib/dpkg/{info,updates,triggers}
touch "$place/var/lib/dpkg/status"
dpkg --root="$place" --force-depends --install "$package" >/dev/null 2>&1
(cd "$stage" && find . ! -type d | sort) >target/deb/staged
# cargo-deb compresses pages and documents, and adds the copyright.
(cd "$place" && find . -path ./var -prune -o ! -type d -print | grep -v '^./usr/share/doc/tierfs/copyright$' |
    sed 's/\.gz$//' | sort) >target/deb/installed
diff target/deb/staged target/deb/installed
"$place/usr/bin/tierfs" --version
"$place/usr/bin/tierfs" init "$place/store" >/dev/null
[ "$place/usr/sbin/mount.tierfs" -ef "$place/usr/bin/tierfs" ]
rm -r "$place/store"
dpkg --root="$place" --purge tierfs >/dev/null 2>&1
left=$(find "$place" -path "$place/var" -prune -o ! -type d -print)
[ -z "$left" ] || {
    echo "deb: removing the package left $left" >&2
    exit 1
}
echo "deb: installed, used and removed"
