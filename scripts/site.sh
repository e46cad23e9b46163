#!/usr/bin/env bash
# Builds a static site of the documents, with a search: target/site/index.html.
#
#   scripts/site.sh
#
# mdBook makes it (scripts/setup.sh site builds the program, a few minutes the first time). Files that pages link to
# outside of the documents are copied beside them.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/setup.sh site

source=$PWD/target/site-source
rm -rf "$source" target/site
mkdir -p "$source"
cp -a README.md LICENSE-MIT LICENSE-APACHE docs "$source"
for linked in tests/bench/results tests/loaders/candle/src/main.rs tests/loaders/candle/src/bin/client.rs; do
    mkdir -p "$source/$(dirname "$linked")"
    cp -a "$linked" "$source/$linked"
done

# The first heading of a page is its title.
title() {
    sed -n 's/^# //p' "$1" | head -n 1
}
page() { # indent, path
    printf '%s- [%s](%s)\n' "$1" "$(title "$2")" "$2"
}
{
    printf '# Summary\n\n[%s](README.md)\n\n' "$(title README.md)"
    page '' docs/GUIDE.md
    page '' docs/manual/README.md
    for name in names reading writing tiers import controls mounting forms; do
        page '  ' "docs/manual/$name.md"
    done
    for name in CONTROL REMOTE TIERS LOADERS PYTHON RUST GPU BENCHMARKS; do
        page '' "docs/$name.md"
    done
    for name in table forms remote io_uring scale experiments; do
        page '  ' "tests/bench/results/$name.md"
    done
    for name in CHANGELOG TOUR CHANGING LOCKS DECISIONS SOURCES FORMAT; do
        page '' "docs/$name.md"
    done
} >"$source/SUMMARY.md"
listed=$(grep -c '](.*\.md)' "$source/SUMMARY.md")
found=$(find README.md docs tests/bench/results -name '*.md' | wc -l)
if [ "$listed" != "$found" ]; then
    echo "site: scripts/site.sh lists $listed of $found pages" >&2
    exit 1
fi

# Sessions and layouts have lines of up to 120 letters.
cat >"$source/wide.css" <<'CSS'
:root { --content-max-width: 1000px; }
@media (max-width: 700px) {
    table { font-size: 0.85em; }
    table td, table th { padding: 3px 8px; }
    td code { overflow-wrap: anywhere; }
    pre > code { font-size: 0.75em; }
}
CSS
cat >"$source/book.toml" <<'BOOK'
[book]
title = "tierfs"
language = "en"
src = "."

[build]
build-dir = "../site"
create-missing = false

[output.html]
additional-css = ["wide.css"]
smart-punctuation = false
no-section-label = true
BOOK
target/tools/bin/mdbook build "$source"
echo "target/site/index.html"
