"""Where the programs of Slackline are."""

from __future__ import annotations

import os
import shutil


def find(name: str) -> str:
    """Path of a program: the package's own, else the one in PATH.

    Raises FileNotFoundError if there is neither.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = os.path.join(package, "bin", name)
    if os.access(own, os.X_OK):
        return own
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            f"{name} is neither in {os.path.dirname(own)} nor in PATH; install the wheel, or put the "
            "folder of a build's programs into PATH"
        )
    return found
