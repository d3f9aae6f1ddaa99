"""A whole job from one call, for example in a notebook."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from typing import Any, Callable, List, Optional, Union

from slackline import _core
from slackline._tensors import devices
from slackline._start import programs

# What is carried to other hosts, in words of a command: the kernel takes 128 KiB for each.
_CARRIED_BYTES_MAX = 256 << 10
_WORD_BYTES = 96 << 10
# Finds this package as it is found here, if Python itself does not find it there.
_CARRIED_MAIN = (
    "import json, sys; sys.path += [p for p in json.loads(sys.argv[1]) if p not in sys.path]; "
    "from slackline._start import launched; launched.run_carried(sys.argv[2:])"
)


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
    on: Optional[str] = None,
    nodes: Optional[int] = None,
    insecure: bool = False,
) -> List[Any]:
    """Runs ``function(*args)`` in each worker of a job, on this machine or on others.

    ``function`` begins with ``slackline.join()``. It is carried over by cloudpickle,
    where that is installed, else by pickle, for which it has to be importable. What
    the job prints appears here.

    Args:
        workers, servers, mode, seed: of the job, unless ``cluster`` says them.
        device: likewise ("cpu", or the config's); with "cuda" each worker has a GPU, which is ``Job.device``.
        cluster: path of a config, in place of these.
        out: folder of the run; default: one that is gone after the call.
        data_dir: for ``Job.data_dir``.
        on: "ray", "ray://HOST:PORT", "ssh" or "slurm", as ``slackline run --on``: the processes are
            started there (docs/manual/clusters.md); default: here. On the hosts this Python has to be where
            it is here, with Slackline. The function and its arguments go there with the job, so they have to be
            small (256 KiB). With "ray" the cluster is that of ``ray.init()``, if that was called here.
        nodes: of Ray or Slurm.
        insecure: the job does without a key, on a network that you trust (docs/manual/security.md).

    Returns what the function returned, by rank; None for a worker that was lost.
    Raises JobError if the job fails (JobSuspended if it can go on from a checkpoint), ValueError for a function that cannot be carried
    over.
    """
    of_device = devices.in_config(device, "launch()")
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
    elsewhere = on not in (None, "here")
    on_flags = _flags_of(on, nodes, insecure)
    folder = tempfile.mkdtemp(prefix="slackline-")
    run_folder = os.fspath(out) if out is not None else os.path.join(folder, "run")
    try:
        if cluster is None:
            cluster = os.path.join(folder, "cluster.textproto")
            with open(cluster, "w") as file:
                # Elsewhere the hosts are those that the engine gives.
                host = "" if elsewhere else 'host: "127.0.0.1" '
                file.write(
                    'job: "notebook"\n'
                    f"server {{ {host}count: {int(servers)} }}\n"
                    f"worker {{ {host}count: {int(workers)}{of_device} }}\n"
                    f"train {{ seed: {int(seed)} }}\n"
                )
            mode_flags = ["--mode", mode]
        else:
            mode_flags = []
        pickled = pickler.dumps((function, args))
        command = [
            programs.find("slackline"),
            "run",
            os.fspath(cluster),
            *mode_flags,
            *on_flags,
            "--out",
            run_folder,
        ]
        if data_dir is not None:
            command += ["--data-dir", os.fspath(data_dir)]
        if elsewhere:
            results = run_folder  # Files that are written there come back.
            command += ["--", sys.executable, "-c", _CARRIED_MAIN, *_carried(function, pickled)]
        else:
            results = folder
            with open(os.path.join(folder, "function"), "wb") as file:
                file.write(pickled)
            command += ["--", sys.executable, "-m", "slackline._start.launched", folder]
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        _run(command, environment)
        return _results(results)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _flags_of(on: Optional[str], nodes: Optional[int], insecure: bool) -> List[str]:
    flags = []
    if on is not None and on.startswith("ray"):
        flags += ["--on", "ray"]
        address = on if on != "ray" else _address_of_ray()
        if address is not None:
            flags += ["--set", f"launch.ray.address={address}"]
        if importlib.util.find_spec("ray") is not None:
            flags += ["--set", f"launch.ray.python={sys.executable}"]
    elif on is not None:
        flags += ["--on", on]
    if nodes is not None:
        flags += ["--nodes", str(int(nodes))]
    if insecure:
        flags += ["--set", "insecure=true"]
    return flags


def _address_of_ray() -> Optional[str]:
    """Of the cluster to which this program is connected already."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return ray.get_runtime_context().gcs_address


def _carried(function: Callable[..., Any], pickled: bytes) -> List[str]:
    """Words of a command, from which launched.run_carried() has the function."""
    text = base64.b64encode(zlib.compress(pickled)).decode()
    if len(text) > _CARRIED_BYTES_MAX:
        raise ValueError(
            f"launch(): {function.__name__} and its arguments take {len(text)} bytes, and at most "
            f"{_CARRIED_BYTES_MAX} are carried to other hosts; let it read large values from a file that all "
            "hosts have"
        )
    words = [text[i : i + _WORD_BYTES] for i in range(0, len(text), _WORD_BYTES)]
    return [json.dumps([path for path in sys.path if path]), *words]


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


def result_file(rank: int, world_size: int) -> str:
    """The name of the file with what the function has returned in a worker."""
    return f"result-{rank}-of-{world_size}"


def _results(folder: str) -> List[Any]:
    """By rank; None of a worker that has left no file. Each file says how many workers there are."""
    results: List[Any] = []
    for name in os.listdir(folder):
        found = re.fullmatch(r"result-(\d+)-of-(\d+)", name)
        if found is None:
            continue
        rank, world_size = map(int, found.groups())
        results = results or [None] * world_size
        with open(os.path.join(folder, name), "rb") as file:
            results[rank] = pickle.load(file)
    return results
