"""Collectives of a worker: what waits until all workers have brought something."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from slackline import _core
from slackline._loop import collectives
from slackline._loop.place import Place
from slackline._loop.worlds import World


class Gathers:
    """Numbers the collectives at each place of the script, so that all workers mean the same one."""

    def __init__(self, world: World, place: Place) -> None:
        self._world = world
        self._place = place
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._gathered_at = (0, 0)  # Where the next collective is, and its number there.

    def step_begins(self) -> None:
        """A step that comes again has its collectives again."""
        self._gathered_at = (0, 0)

    def in_script_thread(self) -> bool:
        """Whether this is the thread, and the process, that has joined the job."""
        return threading.get_ident() == self._thread and os.getpid() == self._pid

    def gather(self, call: str, described: str, value: Any, any_thread: bool = False) -> Any:
        """What each worker has brought, by rank. Raises as ``Job.all_reduce()`` says."""
        # The backward of a GPU runs in a thread of PyTorch, for which the script's waits.
        own_thread = any_thread or threading.get_ident() == self._thread
        if not own_thread or os.getpid() != self._pid:
            raise RuntimeError(f"{call}: it is called by the script's main thread, in its own process")
        place = self._place
        if place.elastic:
            raise RuntimeError(
                f"{call}: with elastic=True workers do different steps, and would wait for each other "
                "for ever; call it before the first batch"
            )
        stopped = place.stopped_early
        if place.over and not stopped:
            raise RuntimeError(
                f"{call}: the job is over, and the other workers may be gone; call it before "
                "job.epochs() ends, for example after the last batch of each epoch"
            )
        data = collectives.pack(call, described, value)
        if len(data) > self._world.gather_bytes_max:
            raise ValueError(
                f"{call}: {len(data)} bytes; {self._world.gather_bytes_max} of each worker are allowed. "
                "Give less, or write a file"
            )
        where = self._where()
        number = self._gathered_at[1] if where == self._gathered_at[0] else 0
        brought = None if stopped else self._world.gather(where, number, data)
        self._gathered_at = (where, number + 1)
        if brought is None:
            print(
                f"slackline: {call}: the job has ended before the last step of this worker; the result is "
                "this worker's alone",
                file=sys.stderr,
                flush=True,
            )
            brought = [(self._world.rank, data)]
        return collectives.unpack(call, described, brought)

    def _where(self) -> int:
        """Where the script is, in terms that are the same for all workers."""
        place = self._place
        if not place.begun:
            return _core.place_before_all
        if place.step is not None:
            return _core.place_in_step(place.step)
        return _core.place_between_steps(place.steps_done, place.ahead, place.steps_per_epoch)
