"""Scripts in processes of their own: a process has one place in a job."""

import atexit
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap
from typing import Any, Dict, List, Optional

BIN = pathlib.Path(os.environ["SLACKLINE_BIN_DIR"])
# Seconds after which a process is taken for one that hangs. None is to be fast.
HANGS = 1000
_WARM = pathlib.Path(__file__).resolve().parent / "warm.py"
_warm_socket: List[str] = []


def python() -> List[str]:
    """What starts a script as Python does, but for the import of PyTorch (warm.py)."""
    if not _warm_socket:
        folder = tempfile.TemporaryDirectory()
        path = str(pathlib.Path(folder.name) / "socket")
        # Its environment is that of each script, later; what PyTorch reads while it is
        # imported is that of this process.
        server = subprocess.Popen(
            [sys.executable, str(_WARM), "serve", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"

        def stop() -> None:
            server.communicate()
            folder.cleanup()

        atexit.register(stop)
        _warm_socket.append(path)
    return [sys.executable, "-I", "-S", str(_WARM), "run", *_warm_socket]


def held_port() -> socket.socket:
    """A socket whose port no other process is given until it is closed.

    Whoever binds to it by number, as servers do with SO_REUSEADDR, may listen there meanwhile.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


# A small job that every test can change: three classes of points, three layers.
POINTS = """
import sys
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
import slackline

def points(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centers = torch.tensor([[2.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 2.0, 0]])
    return TensorDataset(centers[labels] + torch.randn(count, 4, generator=generator), labels)

def right(net, data):
    return (net(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean()

def make():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))

train_set, test_set = points(1200, 1), points(300, 2)
"""

LOOP = """
for epoch in job.epochs(2):
    for x, y in job.loader(train_set, batch_size=20):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(lambda net: right(net, test_set))
"""

USUAL = (
    POINTS
    + """
job = slackline.join()
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
"""
    + LOOP
)


class Ended:
    """A process that has ended."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output

    def succeeded(self) -> "Ended":
        assert self.code == 0, self.output
        return self


def run_alone(folder: pathlib.Path, script: str, *args: str, env: Dict[str, str] = {}) -> Ended:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    return run([*python(), str(path), *args], folder, env)


def run(command: List[str], folder: pathlib.Path, env: Dict[str, str] = {}, timeout: int = HANGS) -> Ended:
    process = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return Ended(process.returncode, process.stdout)


class Run(Ended):
    """A job that has ended, and its folder."""

    def __init__(self, ended: Ended, folder: pathlib.Path) -> None:
        super().__init__(ended.code, ended.output)
        self.folder = folder

    @property
    def summary(self) -> Dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def records(self, kind: str) -> List[Dict[str, Any]]:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def log(self, rank: int) -> str:
        return (self.folder / "logs" / f"worker-{rank}.log").read_text()


CONFIG = """
job: "script"
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: 2 }
train { seed: 1 }
"""


def run_job(
    folder: pathlib.Path,
    script: str,
    *flags: str,
    args: List[str] = [],
    config: str = CONFIG,
    name: Optional[str] = None,
) -> Run:
    """`slackline run` of a script."""
    name = name or "run"
    (folder / f"{name}.py").write_text(textwrap.dedent(script))
    (folder / f"{name}.textproto").write_text(config)
    ended = run(
        [str(BIN / "slackline"), "run", f"{name}.textproto", "--out", str(folder / name), *flags]
        + ["--", *python(), f"{name}.py", *args],
        folder,
    )
    return Run(ended, folder / name)
