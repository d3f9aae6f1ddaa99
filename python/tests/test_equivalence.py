"""A script trains what slackline_worker's built-in model trains."""

import os

import pytest
import torch
from support import BIN, run, run_job

import slackline

DATA = os.environ.get("SLACKLINE_TEST_DATA_DIR", "")
BUILT_IN = """
job: "built-in"
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: 2 }
model { mlp { hidden: [64, 32] } }
data {
  idx { folder: "mnist" }
  batch_size: 32
  normalisation { given { mean: 0.1307 deviation: 0.3081 } }
}
optimizer { momentum { learning_rate: 0.05 momentum: 0.9 } }
train { seed: 3 max_steps: 100 }
"""
CONFIG = """
job: "script"
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: 2 }
optimizer { momentum { learning_rate: 0.05 momentum: 0.9 } }
train { seed: 3 max_steps: 100 }
"""
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from data import accuracy, mnist
import torch
from torch import nn
import slackline

job = slackline.join()
train_set, test_set = mnist(job.data_dir)
net = nn.Sequential(
    nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
net.load_state_dict(slackline.load("initial.safetensors"))
job.model(net)
opt = job.optimizer(net)
for epoch in job.epochs():
    for x, y in job.loader(train_set, batch_size=32):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(lambda net: accuracy(net, test_set))
"""


def built_in(folder, name, *flags):
    (folder / "built_in.textproto").write_text(BUILT_IN)
    run([str(BIN / "slackline"), "run", "built_in.textproto", "--out", name, "--data-dir", DATA, *flags],
        folder).succeeded()
    return slackline.load(folder / name / "model.safetensors")


@pytest.mark.skipif(not DATA, reason="no folder of real data: tools/test.sh --data-dir")
@pytest.mark.skipif(not (BIN / "slackline_worker").exists(), reason="this build has no slackline_worker")
def test_the_script_and_the_built_in_model_agree_after_100_steps_of_bsp(tmp_path):
    # A rate so small that no value changes shows where the built-in model begins.
    initial = built_in(
        tmp_path, "initial", "--set", "train.max_steps=1",
        "--set", "optimizer.momentum.learning_rate=1e-30")
    trained = built_in(tmp_path, "trained")
    # Both have the layers in the same order: mlp.0.weight, mlp.0.bias, ...
    names = [f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")]
    slackline.save(dict(zip(names, initial.values())), tmp_path / "initial.safetensors")

    examples = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "python")
    job = run_job(tmp_path, SCRIPT, "--data-dir", DATA, args=[examples], config=CONFIG)
    job.succeeded()
    ours = slackline.load(job.folder / "model.safetensors")
    for name, theirs in zip(names, trained.values()):
        distance = (ours[name] - theirs).norm() / theirs.norm()
        assert distance < 1e-5, (name, distance)
    assert job.summary["test_accuracy"] > 0.85
