"""The commands of an installed wheel: they become the programs in slackline/bin.

Outside the package, because importing that loads PyTorch, which takes seconds.
"""

import os
import sys
from typing import NoReturn


def _run(program: str) -> NoReturn:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slackline", "bin", program)
    os.execv(path, [path, *sys.argv[1:]])


def slackline() -> NoReturn:
    _run("slackline")


def slackline_server() -> NoReturn:
    _run("slackline_server")
