"""Puts the program, its manual pages and completions into the wheel.

The environment of the build may have
    PROGRAM: the program; without it, `cargo build --release` makes it
    HOST_PROGRAM: the same program for this machine, which writes manual pages and completions (PROGRAM)
    PLATFORM: tags of the systems on which the program runs, joined by dots; without it, that of this machine
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETIONS = {
    "bash": "bash-completion/completions/tierfs",
    "zsh": "zsh/site-functions/_tierfs",
    "fish": "fish/vendor_completions.d/tierfs.fish",
}


class Hook(BuildHookInterface[Any]):
    """Adds files to the wheel, and names its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatchling calls this before it writes the wheel."""
        root = Path(self.root).parent.parent
        if "PROGRAM" not in os.environ:
            subprocess.run(["cargo", "build", "--release", "--locked", "--bin", "tierfs"], cwd=root, check=True)
        program = Path(os.environ.get("PROGRAM", root / "target/release/tierfs")).absolute()
        host_program = Path(os.environ.get("HOST_PROGRAM", program)).absolute()
        share = root / "target/wheel/share"
        shutil.rmtree(share, ignore_errors=True)
        subprocess.run([host_program, "man", share / "man"], stdout=subprocess.DEVNULL, check=True)
        for shell, path in COMPLETIONS.items():
            text = subprocess.run([host_program, "completions", shell], stdout=subprocess.PIPE, check=True).stdout
            (share / path).parent.mkdir(parents=True, exist_ok=True)
            (share / path).write_bytes(text)
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = "py3-none-" + os.environ.get("PLATFORM", machine)
        build_data["pure_python"] = False
        build_data["shared_scripts"] = {str(program): "tierfs"}
        build_data["shared_data"] = {str(share): "share"}
