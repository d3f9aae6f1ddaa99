"""How a script finds its place: the config of a run, or a world of one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Optional, Union

from slackline import _core
from slackline._tensors import devices
from slackline._job import Job
from slackline._loop import worlds
from slackline._start import torchrun

# As `slackline run` sets them (docs/manual/own-models.md).
_CLUSTER, _INDEX, _OUT, _DATA_DIR, _KEY = (
    "SLACKLINE_CLUSTER",
    "SLACKLINE_INDEX",
    "SLACKLINE_OUT",
    "SLACKLINE_DATA_DIR",
    "SLACKLINE_KEY",
)
_joined: Optional[Job] = None


def join(
    cluster: Union[None, str, "os.PathLike[str]"] = None,
    index: Union[None, int, str] = None,
    *,
    mode: str = "",
    servers: int = 1,
    out: Optional[str] = None,
    data_dir: Optional[str] = None,
    seed: bool = True,
    device: Optional[str] = None,
    health_port: Optional[int] = None,
    key: Union[None, str, "os.PathLike[str]"] = None,
    on_error: str = "stop job",
) -> Job:
    """Takes this process's place in a job. Nothing is sent before the first batch.

    The first of these that is there says which place: the arguments ``cluster`` and
    ``index``; ``slackline run`` (and ``slackline.launch()``), through the environment;
    torchrun, through the environment. Else the process is a world of one: the same
    training in this process alone, without servers and without a config.

    Args:
        cluster: path of the config. Under torchrun it has no server, worker and
            coordinator, and may be left out.
        index: which of its workers this is, from 0; or "auto" ("auto+4"): the number
            that the engine gives, as ``--index=auto`` of slackline_worker. Not under torchrun.
        mode: as for ``--mode``, for example "ssp:3"; under ``slackline run`` that is the
            one to say it. Default: the config's, else "bsp". A world of one has none,
            and says so.
        servers: how many servers the first host runs under torchrun.
        out: folder for the trained model.
        data_dir: folder of data sets, for ``Job.data_dir``.
        seed: seeds ``random``, NumPy and PyTorch: equally on all workers now, so that
            they build equal models, and differently from the first batch on.
        device: under torchrun: "cuda" gives each worker a GPU of its host, which is
            ``Job.device``; "cpu", the default, gives none. Worker 0's counts. Else the config says it.
        health_port: GET /healthz and /readyz are answered at this port of the config's
            health.host, as with ``--health-port`` of slackline_worker; 0: any free one.
            Default: as the config's health block says, else none.
        key: file with the job's key, or with what a worker holds of it, as with ``--key`` of
            slackline_worker. Default: as ``slackline run`` says, else the user's own
            (``slackline keys``). Under torchrun a user's or a job's key, since the job's
            servers need it, too; on several hosts the same on each, and without it
            the job is ``insecure: true`` there.
        on_error: what an error of this script ends: "stop job", or "leave job", in which
            the others go on if the mode allows it.

    Raises ValueError naming what is wrong with the config.
    """
    global _joined
    if on_error not in ("stop job", "leave job"):
        raise ValueError(
            f"slackline.join(): on_error is '{on_error}'; 'stop job' or 'leave job' is required"
        )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "slackline.join(): this process was started by the script (spawn or forkserver, for example of a "
            "DataLoader's workers) and reads the script once more; put what trains under "
            'if __name__ == "__main__":'
        )
    if _joined is not None:
        raise RuntimeError("slackline.join() was called before; a process has one place in a job")
    key_file = os.fspath(key) if key is not None else os.environ.get(_KEY, "")
    world = _world(cluster, index, mode, servers, out, data_dir, device, health_port, key_file)
    _joined = Job(world, seed, on_error == "stop job")
    return _joined


def _world(
    cluster: Union[None, str, "os.PathLike[str]"],
    index: Union[None, int, str],
    mode: str,
    servers: int,
    out: Optional[str],
    data_dir: Optional[str],
    device: Optional[str],
    health_port: Optional[int],
    key_file: str,
) -> worlds.World:
    config = os.fspath(cluster) if cluster is not None else os.environ.get(_CLUSTER, "")
    started_by_run = cluster is None and bool(config)
    if started_by_run and mode:
        raise ValueError(
            f"slackline.join(): mode is '{mode}', and 'slackline run' says the mode, too; leave it "
            "out here"
        )
    under_torchrun = index is None and not started_by_run and torchrun.is_here(os.environ)
    if device is not None and not under_torchrun:
        raise ValueError(
            f"slackline.join(): device is '{device}', and that is for torchrun; in a config it is "
            "worker { device: CUDA }, and launch() takes it"
        )
    if under_torchrun:
        of_device = devices.in_config(device or "cpu", "slackline.join()")
        path, rank = torchrun.join(config or None, mode, servers, of_device, key_file)
        return worlds.Joined(path, rank, out or "", data_dir or "", mode, health_port, key_file)
    if not config:
        if index is not None:
            raise ValueError(f"slackline.join(): index {index} of which config? Give cluster, too")
        if mode:
            print(f"slackline: alone, mode='{mode}' has no effect", file=sys.stderr, flush=True)
        world = worlds.Alone()
        world.out = out or ""
        world.data_dir = data_dir or ""
        return world
    place = index if index is not None else os.environ.get(_INDEX, "")
    if place == "":
        raise ValueError(f"slackline.join(): which worker of {config} is this? Give index, from 0")
    return worlds.Joined(
        config,
        _place(place),
        out if out is not None else os.environ.get(_OUT, ""),
        data_dir if data_dir is not None else os.environ.get(_DATA_DIR, ""),
        mode,
        health_port,
        key_file,
    )


def _place(index: Union[int, str]) -> int:
    try:
        found = _core.engine_index(str(index))
    except ValueError as error:
        raise ValueError(f"slackline.join(): index: {error}") from None
    if found is None:
        try:
            return int(index)
        except ValueError:
            raise ValueError(
                f"slackline.join(): index is {index!r}; a number from 0, 'auto', or 'auto+N' is required"
            ) from None
    number, said_by = found
    print(f"slackline: index '{index}': this is worker {number}, by {said_by}", file=sys.stderr, flush=True)
    return int(number)


def joined() -> Optional[Job]:
    """The job of this process, if it has joined one."""
    return _joined
