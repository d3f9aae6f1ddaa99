"""Jobs whose processes are forked from this one, which has imported PyTorch and slackline already.

A test of a few steps then takes a fraction of a second and not five. Only for tests in which
nothing has computed with PyTorch before in this process: its threads are not in a child.
"""

import atexit
import os
import pathlib
import signal
import subprocess
import time
from typing import Callable, Dict, List

import as_script
import slackline  # noqa: F401
import torch  # noqa: F401
from support import BIN, Ended, held_port

try:
    import torch._dynamo  # noqa: F401  Optimizers of a newer PyTorch import it, for a second.
except ImportError:
    pass

_CONFIG = """
job: "forked"
coordinator {{ host: "127.0.0.1" port: {port} }}
server {{ host: "127.0.0.1" }}
worker {{ host: "127.0.0.1" count: {workers} }}
train {{ seed: 1 }}
limits {{ lease_ms: 5000 start_timeout_ms: 60000 wait_timeout_ms: 60000 }}
"""
_SECONDS_MAX = 120


def _child(script: pathlib.Path, log: pathlib.Path, env: Dict[str, str]) -> None:
    """The rest of this process is the script."""
    try:
        atexit._clear()
        with open(log, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(script.parent)
        os.environ.update(env)
        as_script.become([str(script)])
    finally:
        os._exit(1)


def _fork(script: pathlib.Path, log: pathlib.Path, env: Dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        _child(script, log, env)
    return pid


def _wait(pids: List[int], logs: List[pathlib.Path], stop: Callable[[bool], None]) -> List[Ended]:
    deadline = time.monotonic() + _SECONDS_MAX
    codes: Dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid in pids:
                if pid not in codes:
                    os.kill(pid, signal.SIGKILL)
                    codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with open(logs[pids.index(pid)], "a") as log:
                        log.write(f"\nkilled after {_SECONDS_MAX} s")
        time.sleep(0.002)
    stop(any(codes.values()))
    return [Ended(codes[pid], log.read_text(errors="replace")) for pid, log in zip(pids, logs)]


def alone(folder: pathlib.Path, script: str, env: Dict[str, str] = {}) -> Ended:
    """A script in a process of its own."""
    path = folder / "script.py"
    path.write_text(script)
    log = folder / "alone.log"
    return _wait([_fork(path, log, env)], [log], lambda failed: None)[0]


def job(folder: pathlib.Path, script: str, mode: str, workers: int = 2, env: Dict[str, str] = {}) -> List[Ended]:
    """A job of a server and so many workers, which run the script. By rank."""
    path = folder / "script.py"
    path.write_text(script)
    place = held_port()
    config = folder / "job.textproto"
    config.write_text(_CONFIG.format(port=place.getsockname()[1], workers=workers))
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            [str(BIN / "slackline_server"), "--cluster", str(config), "--index", "0", "--mode", mode],
            cwd=folder, stdout=log, stderr=log,
        )

    def stop(failed: bool) -> None:
        try:
            server.wait(timeout=0 if failed else 60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        place.close()

    logs = [folder / f"worker-{rank}.log" for rank in range(workers)]
    pids = [
        _fork(path, logs[rank], {**env, "JOB_CONFIG": str(config), "JOB_INDEX": str(rank), "JOB_MODE": mode})
        for rank in range(workers)
    ]
    return _wait(pids, logs, stop)
