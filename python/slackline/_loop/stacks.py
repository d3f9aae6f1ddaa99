"""Where the script is, for ``slackline status --stacks``."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import sys
import sysconfig

from slackline import _core


def show(worker: "_core.Worker") -> None:
    """Has Python write its threads' stacks into a memfd when a signal comes.

    The handler needs no GIL, so it shows a main thread, too, that holds it in C. Processes that
    are forked, such as a DataLoader's, have signal and memfd, too. Nothing runs while nobody asks.
    """
    number = _core.free_signal()
    if number is None:
        _say_none("all real-time signals of this process are taken")
        return
    try:
        descriptor = os.memfd_create("slackline-stacks")
        # Whoever writes: behind what is there.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    except OSError as error:
        _say_none(str(error))
        return
    worker.show_stacks(number, descriptor, _libraries())


def _libraries() -> "list[str]":
    """Folders whose code is not the script's; those of installed packages are known by their names."""
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    folders.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return sorted(folder for folder in folders if folder)


def _say_none(why: str) -> None:
    print(
        f"slackline: `slackline status --stacks` will not show where this script is: {why}",
        file=sys.stderr,
        flush=True,
    )
