"""A place in a job whose processes torchrun has started.

torchrun says who is who; the first worker's host runs the servers, which are
started here. All processes agree over torchrun's own store.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import List, Mapping, Optional, Tuple

import torch.distributed as distributed

from slackline import _core
from slackline._start import programs

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PR_SET_PDEATHSIG = 1


def is_here(environment: Mapping[str, str]) -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in environment and all(v in environment for v in _VARIABLES)


def join(config: Optional[str], mode: str, servers: int, of_device: str, key: str) -> Tuple[str, int]:
    """The path of this job's config, and the rank of this process.

    ``config`` is a config without the blocks server, worker and coordinator, which
    torchrun's processes make; or none. Raises ValueError if it has them. ``of_device``
    is of devices.in_config(). ``key`` is a file with the job's key, the same on all hosts;
    empty: the user's on one host, none on several.
    """
    given = ""
    if config is not None:
        with open(config) as file:
            given = file.read()
        for block in _core.config_fields(given, config):
            if block in ("server", "worker", "coordinator"):
                raise ValueError(
                    f"{config}: {block}: torchrun says which processes there are; leave out server, "
                    "worker and coordinator"
                )
    store, rank, world_size = next(iter(distributed.rendezvous("env://")))
    # torchrun may start all workers once more, with the same store.
    prefix = f"slackline/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store.set(f"{prefix}/host/{rank}", _own_address(os.environ["MASTER_ADDR"]))
    folder = tempfile.mkdtemp(prefix="slackline-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "cluster.textproto")
    if rank == 0:
        hosts = [store.get(f"{prefix}/host/{r}").decode() for r in range(world_size)]
        if len(set(hosts)) == 1:
            hosts = ["::1" if ":" in hosts[0] else "127.0.0.1"] * len(hosts)
        place = _reserve_port(hosts[0])
        atexit.register(place.close)  # Server 0 takes it meanwhile.
        text = _config(given, servers, hosts, place.getsockname()[1], of_device, bool(key))
    else:
        text = store.get(f"{prefix}/config").decode()
    with open(path, "w") as file:
        file.write(text)
    if rank == 0:
        _start_servers(path, mode, servers, key)
        store.set(f"{prefix}/config", text)
    # A process that has the store keeps it until all have read what they need.
    store.add(f"{prefix}/read", 1)
    while rank == 0 and store.add(f"{prefix}/read", 0) < world_size:
        time.sleep(0.01)
    return path, rank


def _own_address(master: str) -> str:
    """The address of this host on the way to the master; of loopback if that is this host."""
    found = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)
    # IPv4 where there is both: servers without an address of their own take that, too.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _reserve_port(host: str) -> socket.socket:
    """A socket that holds a free port of this host until it is closed, for a server of its.

    It does not listen, and SO_REUSEADDR is set, as it is where the server binds: so that may listen
    there, and nobody else is given the port by the system.
    """
    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind((host, 0))
    return place


def _config(given: str, servers: int, hosts: List[str], port: int, of_device: str, has_key: bool) -> str:
    lines = [given or 'job: "torchrun"']
    lines.append(f'coordinator {{ host: "{hosts[0]}" port: {port} }}')
    lines.append(f'server {{ host: "{hosts[0]}" count: {servers} }}')
    for host, ranks in itertools.groupby(hosts):
        lines.append(f'worker {{ host: "{host}" count: {len(list(ranks))}{of_device} }}')
    if len(set(hosts)) > 1 and not has_key:
        print(
            "slackline: processes of several hosts talk without encryption, as torchrun's do; with "
            "slackline.join(key=FILE), a file that is the same on all hosts, they do not",
            file=sys.stderr,
        )
        lines.append("insecure: true")
    return "\n".join(lines) + "\n"


def _start_servers(path: str, mode: str, servers: int, key: str) -> None:
    program = programs.find("slackline_server")
    started = []
    for index in range(servers):
        command = [program, "--cluster", path, "--index", str(index)]
        if mode:
            command += ["--mode", mode]
        if key:
            command += ["--key", key]
        with open(os.path.join(os.path.dirname(path), f"server-{index}.log"), "wb") as log:
            # Ctrl-C is for the workers; the servers end with them.
            started.append(
                subprocess.Popen(
                    command,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            )
    atexit.register(_end, started)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(started: "List[subprocess.Popen[bytes]]") -> None:
    for process in started:
        for stop in (lambda: None, process.terminate, process.kill):
            stop()
            try:
                process.wait(timeout=10)
                break
            except subprocess.TimeoutExpired:
                continue
