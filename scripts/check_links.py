"""Checks the local links of Markdown files: `check_links.py FILE_OR_FOLDER...`

The target file must exist, and so must the heading of a `#anchor`. Lists broken links and exits 1.
"""
import re
import sys
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """GitHub's rule: lower case, punctuation dropped, spaces to hyphens."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(prose(path))}


def broken(path: Path) -> list[str]:
    found = []
    for target in LINK.findall(CODE.sub("", prose(path))):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists():
            found.append(f"{path}: {target}: there is no {file}")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            found.append(f"{path}: {target}: {file} has no such heading")
    return found


def main(arguments: list[str]) -> None:
    files = []
    for argument in map(Path, arguments):
        files += sorted(argument.rglob("*.md")) if argument.is_dir() else [argument]
    found = [line for file in files for line in broken(file)]
    if found:
        sys.exit("\n".join(found))
    print(f"ok: links of {len(files)} files")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
