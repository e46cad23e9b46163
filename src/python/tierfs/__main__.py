"""`python -m tierfs` is the program."""

import os
import sys

from ._program import program

os.execv(program(), ["tierfs", *sys.argv[1:]])
