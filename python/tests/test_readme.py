"""The commands that the README shows for a script."""

import os
import pathlib
import re
import sys

from support import BIN, run

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def test_the_commands_of_the_readme_work_as_printed(tmp_path):
    section = (SOURCE / "README.md").read_text().split("## Your own PyTorch script")[1].split("\n## ")[0]
    script, commands = re.findall(r"```(?:python|sh)\n(.*?)```", section, re.DOTALL)
    # The script of the README is the example's.
    example = (SOURCE / "examples/python/mnist.py").read_text()
    loop = script[script.index("for epoch in") :]
    assert loop.strip() in example

    (tmp_path / "examples").symlink_to(SOURCE / "examples")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "release").symlink_to(BIN.parent)
    (tmp_path / "build" / "venv").symlink_to(sys.prefix)
    ended = run(["bash", "-euxc", commands], tmp_path, {"PYTHONPATH": ""}).succeeded()
    assert "slackline: epoch 5" in ended.output
    assert re.search(r"^ssp:3 .* 100.00 %", ended.output, re.MULTILINE), ended.output
    assert os.path.exists(tmp_path / "mnist.safetensors")
