#!/usr/bin/env bash
# Builds a Python wheel: the program, its manual pages and completions, and the package in src/python.
#
#   scripts/wheel.sh DIRECTORY   replaces DIRECTORY by one with the wheel of PROGRAM; src/python/wheel_hook.py has more
#                                variables
#   scripts/wheel.sh check       the program of the tests; checks types, installs the wheel into a new virtual environment, runs the
#                                Python snippet of README.md and tests/python/package.py there, and uninstalls it
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
root=$PWD

case ${1:-} in
'' | -*)
    echo "usage: scripts/wheel.sh DIRECTORY|check" >&2
    exit 2
    ;;
check)
    # The program that the tests have built.
    cargo test --locked --quiet --no-run -p tierfs -p tierfs-client --test program
    export PROGRAM=$root/target/debug/tierfs
    wheels=$root/target/wheel/checked
    ;;
*) wheels=$(realpath --no-symlinks "$1") ;;
esac
rm -rf "$wheels"
(cd src/python && "$root/target/venv/bin/python" -m hatchling build --target wheel --directory "$wheels" >/dev/null)
wheel=$(echo "$wheels"/tierfs-*.whl)
echo "wheel: built $wheel"
[ "$1" = check ] || exit 0

(cd src/python && "$root/target/venv/bin/python" -m mypy --cache-dir "$root/target/wheel/mypy" -p tierfs)
place=$(mktemp -d)
trap 'rm -rf --one-file-system "$place"' EXIT
python3 -m venv "$place/venv"
python=$place/venv/bin/python
"$python" -m pip install --quiet --no-index --no-deps --disable-pip-version-check "$wheel"
for installed in bin/tierfs share/man/man1/tierfs.1 share/bash-completion/completions/tierfs \
    share/zsh/site-functions/_tierfs share/fish/vendor_completions.d/tierfs.fish; do
    [ -s "$place/venv/$installed" ] || {
        echo "wheel: $installed is missing" >&2
        exit 1
    }
done
# The new environment has no packages; NumPy is that of the tests.
PYTHONPATH=$(target/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1
mkdir "$place/snippet"
ln -s "$root/target/models/minilm" "$place/snippet/minilm"
awk '/^```python/ { inside = 1; next } /^```/ { inside = 0 } inside' README.md >"$place/snippet/snippet.py"
[ -s "$place/snippet/snippet.py" ] || {
    echo "wheel: README.md has no Python snippet" >&2
    exit 1
}
(cd "$place/snippet" && MYPYPATH=$root/src/python "$root/target/venv/bin/python" -m mypy --strict --config-file "$root/src/python/pyproject.toml" --cache-dir "$root/target/wheel/mypy" snippet.py)
(cd "$place/snippet" && "$python" snippet.py >printed && awk '/^```text/ { inside = 1; next } /^```/ { inside = 0 } inside' "$root/README.md" | diff - printed)
(cd "$place" && "$python" "$root/tests/python/package.py")
"$python" -m pip uninstall --quiet --yes tierfs
[ ! -e "$place/venv/bin/tierfs" ] && [ ! -e "$place/venv/share/man/man1/tierfs.1" ]
echo "wheel: installed, checked and removed"
