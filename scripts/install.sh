#!/usr/bin/env bash
# Installs target/release/tierfs (built by `make build`), manual pages, documents, completions, the helper of mount(8) and
# a systemd unit. A user who is not root installs below a PREFIX of their own, without the last two.
#
#   scripts/install.sh            installs, and names what it left out
#   scripts/install.sh --remove   removes these files, and below a prefix of one's own the directories that are empty then;
#                                 /etc/tierfs stays
#
# PREFIX: target directory (/usr/local). DESTDIR: staging root, for packages. SBIN: directory of helpers of mount(8)
# (/sbin). PROGRAM: the binary (target/release/tierfs). HOST_PROGRAM: the same program for this machine, which writes pages
# and completions (PROGRAM).
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
sbin=${SBIN:-/sbin}
root=${DESTDIR:-}
program=${PROGRAM:-target/release/tierfs}
host_program=${HOST_PROGRAM:-$program}
bin=$root$prefix/bin
man=$root$prefix/share/man
documents=$root$prefix/share/doc/tierfs
bash_completions=$root$prefix/share/bash-completion/completions
zsh_completions=$root$prefix/share/zsh/site-functions
fish_completions=$root$prefix/share/fish/vendor_completions.d
units=$root$prefix/lib/systemd/system
helper=$root$sbin/mount.tierfs

# The helper and the unit are the system's: only root can use them, or a package that is being staged.
is_for_system() { [ "$(id -u)" = 0 ] || [ -n "$root" ] || [ -n "${SBIN:-}" ]; }

case ${1:-} in
'') ;;
--remove)
    rm -f "$bin/tierfs" "$man/man1/tierfs.1" "$man"/man1/tierfs-*.1 "$man"/man7/tierfs-*.7 "$bash_completions/tierfs" \
        "$zsh_completions/_tierfs" "$fish_completions/tierfs.fish"
    rm -rf "$documents"
    if is_for_system; then
        case $(readlink "$helper" || true) in
        '') ;;
        "$prefix/bin/tierfs" | "$bin/tierfs") rm -f "$helper" ;;
        *) echo "install: left $helper, which belongs to another installation" ;;
        esac
        rm -f "$units/tierfs@.service"
    fi
    # Below a prefix of the user's own nobody else has made these directories. The system's may be empty by design.
    case $prefix in
    /usr | /usr/local) ;;
    *)
        for made in "$bin" "$man"/man1 "$man"/man7 "$documents" "$bash_completions" "$zsh_completions" "$fish_completions" "$units"; do
            below=${made#"$root$prefix"/}
            [ ! -d "$made" ] && [ ! -d "${made%/*}" ] || (cd "$root$prefix" && mkdir -p "$below" && rmdir -p --ignore-fail-on-non-empty "$below")
        done
        ;;
    esac
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

install -d "$bin" "$man" "$documents"/docs/{manual,plots} "$bash_completions" "$zsh_completions" "$fish_completions"
install -m 0755 "$program" "$bin/tierfs"
"$host_program" man "$man"
# As in the source, so that the links between the documents work.
install -m 0644 README.md LICENSE-APACHE LICENSE-MIT "$documents"
install -m 0644 docs/*.md "$documents/docs"
install -m 0644 docs/manual/*.md "$documents/docs/manual"
install -m 0644 docs/plots/* "$documents/docs/plots"
"$host_program" completions bash >"$bash_completions/tierfs"
"$host_program" completions zsh >"$zsh_completions/_tierfs"
"$host_program" completions fish >"$fish_completions/tierfs.fish"
echo "install: installed $bin/tierfs, manual pages, completions, and the documents in $documents"
if is_for_system; then
    install -d "$root$sbin" "$units"
    ln -sfn "$prefix/bin/tierfs" "$helper"
    sed "s|@PREFIX@|$prefix|" scripts/tierfs@.service >"$units/tierfs@.service"
    echo "install: installed $helper and $units/tierfs@.service"
else
    echo "install: left out, because they need root: $sbin/mount.tierfs (mount -t tierfs and /etc/fstab) and the systemd" \
        "unit tierfs@.service"
    case :$PATH: in
    *":$bin:"*) ;;
    *) echo "install: $bin is not in PATH" ;;
    esac
fi
