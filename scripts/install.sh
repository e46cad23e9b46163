#!/usr/bin/env bash
# Installs target/release/tierfs (built by `make build`), manual pages, completions, the helper of mount(8) and a systemd
# unit.
#
#   scripts/install.sh            installs
#   scripts/install.sh --remove   removes these files; /etc/tierfs stays
#
# PREFIX: target directory (/usr/local). DESTDIR: staging root, for packages. SBIN: directory of helpers of mount(8)
# (/sbin). PROGRAM: the binary (target/release/tierfs).
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
sbin=${SBIN:-/sbin}
root=${DESTDIR:-}
program=${PROGRAM:-target/release/tierfs}
bin=$root$prefix/bin
man=$root$prefix/share/man/man1
bash_completions=$root$prefix/share/bash-completion/completions
zsh_completions=$root$prefix/share/zsh/site-functions
fish_completions=$root$prefix/share/fish/vendor_completions.d
units=$root$prefix/lib/systemd/system

case ${1:-} in
'') ;;
--remove)
    rm -f "$bin/tierfs" "$root$sbin/mount.tierfs" "$man/tierfs.1" "$man"/tierfs-*.1 "$bash_completions/tierfs" \
        "$zsh_completions/_tierfs" "$fish_completions/tierfs.fish" "$units/tierfs@.service"
    exit 0
    ;;
*)
    echo "usage: scripts/install.sh [--remove]" >&2
    exit 2
    ;;
esac
if [ ! -x "$program" ]; then
    echo "install: $program does not exist; run make build first" >&2
    exit 1
fi

install -d "$bin" "$root$sbin" "$man" "$bash_completions" "$zsh_completions" "$fish_completions" "$units"
install -m 0755 "$program" "$bin/tierfs"
ln -sfn "$prefix/bin/tierfs" "$root$sbin/mount.tierfs"
"$program" man "$man"
"$program" completions bash >"$bash_completions/tierfs"
"$program" completions zsh >"$zsh_completions/_tierfs"
"$program" completions fish >"$fish_completions/tierfs.fish"
sed "s|@PREFIX@|$prefix|" scripts/tierfs@.service >"$units/tierfs@.service"
echo "install: installed $bin/tierfs, manual pages, completions, mount.tierfs and the systemd unit"
