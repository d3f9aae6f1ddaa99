"""A whole job from one call, for example in a notebook."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, Callable, List, Optional, Union

from slackline import _core, _device, _programs


def launch(
    function: Callable[..., Any],
    *args: Any,
    workers: int = 2,
    servers: int = 1,
    mode: str = "bsp",
    cluster: Union[None, str, "os.PathLike[str]"] = None,
    out: Union[None, str, "os.PathLike[str]"] = None,
    data_dir: Union[None, str, "os.PathLike[str]"] = None,
    seed: int = 1,
    device: str = "cpu",
) -> List[Any]:
    """Runs ``function(*args)`` in each worker of a job on this machine.

    ``function`` begins with ``slackline.join()``. It is carried over by cloudpickle,
    where that is installed, else by pickle, for which it has to be importable. What
    the job prints appears here.

    Args:
        workers, servers, mode, seed: of the job, unless ``cluster`` says them.
        device: likewise ("cpu", or the config's); with "cuda" each worker has a GPU, which is ``Job.device``.
        cluster: path of a config, in place of these.
        out: folder of the run; default: one that is gone after the call.
        data_dir: for ``Job.data_dir``.

    Returns what the function returned, by rank; None for a worker that was lost.
    Raises JobError if the job fails (JobSuspended if it can go on from a checkpoint), ValueError for a function that cannot be carried
    over.
    """
    of_device = _device.in_config(device, "launch()")
    if of_device and cluster is not None:
        raise ValueError(
            f"launch(): device is '{device}', and the config says it: worker {{ device: CUDA }}"
        )
    try:
        import cloudpickle as pickler
    except ImportError:
        if function.__module__ == "__main__":
            raise ValueError(
                f"launch(): {function.__name__} is defined in the script or notebook itself; install "
                "cloudpickle (pip install cloudpickle), or put the function into a module"
            ) from None
        pickler = pickle
    folder = tempfile.mkdtemp(prefix="slackline-")
    try:
        if cluster is None:
            cluster = os.path.join(folder, "cluster.textproto")
            with open(cluster, "w") as file:
                file.write(
                    'job: "notebook"\n'
                    f'server {{ host: "127.0.0.1" count: {int(servers)} }}\n'
                    f'worker {{ host: "127.0.0.1" count: {int(workers)}{of_device} }}\n'
                    f"train {{ seed: {int(seed)} }}\n"
                )
            mode_flags = ["--mode", mode]
        else:
            mode_flags = []
        with open(os.path.join(folder, "function"), "wb") as file:
            pickler.dump((function, args), file)
        command = [
            _programs.find("slackline"),
            "run",
            os.fspath(cluster),
            *mode_flags,
            "--out",
            os.fspath(out) if out is not None else os.path.join(folder, "run"),
        ]
        if data_dir is not None:
            command += ["--data-dir", os.fspath(data_dir)]
        command += ["--", sys.executable, "-m", "slackline._launched", folder]
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        _run(command, environment)
        return [_result(folder, rank) for rank in range(_ranks(folder))]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: List[str], environment: "dict[str, str]") -> None:
    """Prints what the program says. Raises JobError with why, if the program fails: its last line
    that begins with its name, and what comes behind that."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    last = ""
    why = ""
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
            if line.startswith("slackline run: "):
                why = line
            elif why:
                why += line
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        for line in process.stdout:
            print(line, end="", flush=True)
        process.wait()
        raise
    code = process.wait()
    if code == _core.exit_code_suspended:
        raise _core.JobSuspended(last)
    if code != 0:
        raise _core.JobError(why.strip() or last)


def _ranks(folder: str) -> int:
    ranks = [int(name.split("-")[1]) for name in os.listdir(folder) if name.startswith("result-")]
    return max(ranks, default=-1) + 1


def _result(folder: str, rank: int) -> Any:
    path = os.path.join(folder, f"result-{rank}")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return pickle.load(file)
