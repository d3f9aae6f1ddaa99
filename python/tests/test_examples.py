"""The scripts of examples/python, and those of the documents, as a reader runs them."""

import importlib.util
import os
import pathlib
import re
import sys

import pytest
from support import BIN, Run, python, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples/python/own_program.textproto"

# Of each script: the last accuracy has to be above this, or the last test loss below it.
EXAMPLES = {
    "mnist.py": {"accuracy": 0.9},
    "resnet.py": {"accuracy": 0.3},
    "gpu.py": {"accuracy": 0.6},
    "transformer.py": {"accuracy": 0.2},
    "factorisation.py": {"loss": 0.9},
    "with_ignite.py": {"accuracy": 0.9},
    "gan.py": {"accuracy": 0.5},
    "fine_tune.py": {"accuracy": 0.9},
    "mixed_precision.py": {"accuracy": 0.9},
}

# Alone PyTorch takes all cores, and its threads spin where others need these, too.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def command_of(name, interpreter=(sys.executable,)):
    if name == "with_ignite.py" and importlib.util.find_spec("ignite") is None:
        pytest.skip("PyTorch-Ignite is not installed: pip install pytorch-ignite")
    script = ROOT / "examples/python" / name
    return [*interpreter, str(script)] + (["--small"] if "--small" in script.read_text() else [])


def assert_good(name, figures):
    for figure, bound in EXAMPLES[name].items():
        if figure == "accuracy":
            assert figures[figure] > bound
        else:
            assert figures[figure] < bound


@pytest.mark.parametrize("name", EXAMPLES)
def test_alone(tmp_path, name):
    ended = run(command_of(name), tmp_path, ONE_THREAD).succeeded()
    figures = {
        figure: float(value)
        for figure, value in re.findall(r"test (\w+) ([\d.e+-]+)", ended.output)  # The last one stays.
    }
    assert_good(name, figures)
    assert (tmp_path / name.replace(".py", ".safetensors")).exists()


@pytest.mark.parametrize("name", EXAMPLES)
def test_in_a_job(tmp_path, name):
    flags = ["--epochs", "1"] if name == "mnist.py" else []
    ended = run(
        [str(BIN / "slackline"), "run", str(CONFIG), "--out", "run", *flags, "--"] + command_of(name, python()),
        tmp_path,
    ).succeeded()
    summary = Run(ended, tmp_path / "run").summary
    assert_good(name, {figure: summary[f"test_{figure}"] for figure in EXAMPLES[name]})
    assert (tmp_path / name.replace(".py", ".safetensors")).exists()


def test_fine_tuning_goes_on_from_a_file_of_another_script_and_of_a_run_before(tmp_path):
    # Layers as they come, which is what fine_tune.py has at first, too.
    make = f"import sys; sys.path.insert(0, {str(ROOT / 'examples/python')!r}); import torch, slackline\n" + (
        "from torch import nn\n"
        "net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))\n"
        "slackline.save(net.state_dict(), 'mnist.safetensors')"
    )
    run([sys.executable, "-c", make], tmp_path).succeeded()
    again = [*command_of("fine_tune.py"), "--from", "mnist.safetensors"]
    assert "goes on" not in run(again, tmp_path, ONE_THREAD).succeeded().output
    start = [str(BIN / "slackline"), "run", str(CONFIG), "--out", "run", "--mode", "allreduce", "--"]
    run([*start, *again], tmp_path).succeeded()
    assert "goes on after epoch 1" in (tmp_path / "run/logs/worker-0.log").read_text()
    first = run([sys.executable, "-c", "import slackline; before, after = (slackline.load(name) for name in "
                 "('mnist.safetensors', 'fine_tune.safetensors')); assert (before['0.weight'] == after['0.weight']).all()"], tmp_path)
    first.succeeded()


def test_ignite_that_is_absent_is_said(tmp_path):
    if importlib.util.find_spec("ignite") is not None:
        pytest.skip("PyTorch-Ignite is installed")
    ended = run([sys.executable, str(ROOT / "examples/python/with_ignite.py")], tmp_path)
    assert ended.code == 2
    assert "pip install pytorch-ignite" in ended.output


def blocks(document, language):
    """The blocks of a document in a language. That of a whole script imports slackline."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


SCRIPTS = [
    block
    for document in ("docs/manual/python.md", "docs/manual/sampling.md")
    for block in blocks(document, "python")
    if "import slackline" in block
]


def test_the_documents_have_scripts():
    assert len(SCRIPTS) >= 4


def test_tensorboard_files_as_the_document_makes_them(tmp_path):
    (block,) = [block for block in blocks("docs/manual/python.md", "sh") if "slackline report" in block]
    commands, shown = block.strip().rsplit("\n", 1)
    assert shown == "tensorboard --logdir runs"  # It is no part of this, and never ends.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{sys.prefix}/bin:{BIN}:{os.environ['PATH']}"
    ended = run(["bash", "-euxc", commands], tmp_path, {"PATH": path}).succeeded()
    assert ended.output.strip().endswith("runs/mnist/tensorboard")
    (events,) = (tmp_path / "runs/mnist/tensorboard").iterdir()
    data = events.read_bytes()
    assert data.count(b"train/loss") > 5 and data.count(b"test/accuracy") == 1


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_script_of_a_document(tmp_path, number):
    launches = "launch(" in SCRIPTS[number]
    if launches and importlib.util.find_spec("cloudpickle") is None:
        pytest.skip("cloudpickle is not installed: pip install cloudpickle")
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[number])
    run([sys.executable, str(script)], tmp_path, ONE_THREAD).succeeded()
    if launches:
        return
    flags = ["run", str(CONFIG), "--out", "run"]
    run([str(BIN / "slackline"), *flags, "--", sys.executable, str(script)], tmp_path).succeeded()
