"""Which module of the package stands on which: without circles, so that each can be read alone."""

import ast
import graphlib
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "slackline"
# Modules with none but those that they import themselves: without what slackline/__init__.py has imported before.
ALONE = """
import importlib.util, sys, types
import torch
folders = importlib.util.find_spec("slackline").submodule_search_locations
for name in sys.argv[1:]:
    for loaded in [module for module in sys.modules if module.split(".")[0] == "slackline"]:
        if loaded != "slackline._core":
            del sys.modules[loaded]
    package = sys.modules["slackline"] = types.ModuleType("slackline")
    package.__path__ = folders
    importlib.import_module(name)
    print(name)
"""


def modules():
    """Files by module."""
    files = {}
    for path in sorted(FOLDER.rglob("*.py")):
        name = ".".join(["slackline", *path.relative_to(FOLDER).with_suffix("").parts])
        files[name.removesuffix(".__init__")] = path
    return files


def imports(path, known):
    """What a module imports anywhere in it, also in functions and for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                of_module = f"{node.module}.{alias.name}"
                yield of_module if of_module in known else node.module


def test_no_module_imports_itself_by_way_of_others():
    files = modules()
    known = {*files, "slackline._core"}
    graph = {name: known.intersection(imports(path, known)) for name, path in files.items()}
    assert "slackline._loop.step_loop" in graph["slackline._data.loader"]
    graphlib.TopologicalSorter(graph).prepare()  # Raises CycleError, which names the circle.


def test_each_module_can_be_imported_alone():
    names = [name for name in modules() if name != "slackline"]
    command = [sys.executable, "-W", "error", "-c", ALONE, *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.stdout.split() == names
