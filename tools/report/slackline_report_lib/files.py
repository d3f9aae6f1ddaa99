"""Files of the report, which replace those of an earlier one."""

import os
import pathlib


def write_text(path: pathlib.Path, text: str) -> None:
    """So that a reader finds the old file or the new one, never half of one."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: pathlib.Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)
