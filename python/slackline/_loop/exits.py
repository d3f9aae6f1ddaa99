"""How a script ends, and what the job hears of it: errors, signals, the end of the process."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from typing import Any

import torch

from slackline import _core
from slackline._loop.step_loop import StepLoop
from slackline._loop.words import shortened
from slackline._loop.worlds import Alone, World

# Whose lines are not what a user asks for who looks where an error came from.
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_NOT_THE_SCRIPT = (_PACKAGE, os.path.dirname(torch.__file__), "<")


class Exits:
    """Watches the process from now on."""

    def __init__(self, world: World, loop: StepLoop, error_ends_job: bool) -> None:
        self._world = world
        self._loop = loop
        self._place = loop.place
        self._error_ends_job = error_ends_job
        self._pid = os.getpid()
        self._failed = False
        self._ended_by_signal = False
        self._sigterm_came = False  # The first one has come, in a job with checkpoints.
        self._exit = ""  # How the script has called sys.exit(), for people.
        self._said_last = ""  # An error of the script after the end.
        atexit.register(self._at_exit)
        self._watch_errors()
        self._watch_signals()

    def _watch_errors(self) -> None:
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_uncaught
        leave = sys.exit

        def noted(status: Any = None) -> None:
            # What Python prints of it goes by without the job.
            caller = sys._getframe(1)
            place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
            self._exit = f" (sys.exit({status!r}) at {place})"
            if self._place.finished and status not in (None, 0):
                self._say_after_end(f"sys.exit({status!r}) ({place})")
            leave(status)

        sys.exit = noted  # type: ignore[assignment]

    def _on_uncaught(self, kind: Any, error: Any, trace: Any) -> None:
        self.on_error(kind, error, trace)
        if issubclass(kind, _core.JobSuspended):
            print(f"slackline: the job is suspended: {error}", file=sys.stderr)
            _at_last.code = _core.exit_code_suspended
        elif issubclass(kind, _core.JobError):
            print(f"slackline: error: {error}", file=sys.stderr)
        else:
            self._previous_hook(kind, error, trace)
            if self._said_last:  # The last line of a log is what `slackline run` repeats.
                self._say_after_end(self._said_last)

    def on_error(self, kind: Any, error: Any, trace: Any) -> None:
        """The script ends with an error: the first one is told to the job."""
        if self._failed or os.getpid() != self._pid:
            return
        self._failed = True
        if issubclass(kind, KeyboardInterrupt):
            self._world.interrupt(f"worker {self._world.rank} was interrupted by SIGINT")
        elif not issubclass(kind, _core.JobError):
            frames = traceback.extract_tb(trace)
            own = [f for f in frames if not f.filename.startswith(_NOT_THE_SCRIPT)]
            where = own[-1] if own else (frames[-1] if frames else None)
            place = f" ({os.path.basename(where.filename)}:{where.lineno})" if where else ""
            said = traceback.format_exception_only(kind, error)[-1].strip()
            whole = "".join(traceback.format_exception(kind, error, trace))
            if self._place.finished:
                self._said_last = f"{said}{place}"
            else:
                self._world.fail(shortened(f"{said}{place}"), shortened(whole), self._error_ends_job)

    def _say_after_end(self, what: str) -> None:
        """For the last line of `slackline run`: the job itself has ended well."""
        if not isinstance(self._world, Alone):
            print(f"slackline: error: worker {self._world.rank}: {what}", file=sys.stderr, flush=True)

    def _watch_signals(self) -> None:
        """Has a signal end a wait for the others, which Python's own handlers cannot.

        In a job with checkpoints the first SIGTERM asks for one, after which the job ends,
        and the script goes on until then; unless the script has a handler of its own.
        """
        alone = isinstance(self._world, Alone)
        if alone or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        if before != -1:  # Somebody else's, for example an event loop's.
            signal.set_wakeup_fd(before)
            os.close(read_end)
            os.close(write_end)
            return
        os.register_at_fork(after_in_child=_forget_wakeup)

        def watch() -> None:
            first = True
            while True:
                for number in os.read(read_end, 64):
                    if number not in (signal.SIGINT, signal.SIGTERM):
                        continue
                    reason = f"worker {self._world.rank} was interrupted by {signal.Signals(number).name}"
                    ours = signal.getsignal(signal.SIGTERM) == self._on_sigterm
                    if first and number == signal.SIGTERM and ours and self._may_suspend():
                        self._world.suspend(reason)
                    else:
                        self._world.interrupt(reason)
                    first = False

        threading.Thread(target=watch, name="slackline-signals", daemon=True).start()

    def _may_suspend(self) -> bool:
        return self._world.may_suspend and not (self._place.over or self._place.finished or self._failed)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        # The thread of _watch_signals() has asked for a checkpoint.
        if not self._sigterm_came and self._may_suspend():
            self._sigterm_came = True
            return
        self._ended_by_signal = True
        sys.exit(128 + number)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        try:
            if not (self._place.begun or self._failed or self._ended_by_signal):
                ended = f"its script ended before its first batch{shortened(self._exit)}"
                self._world.fail(ended, "", self._error_ends_job)
            if self._place.begun and not self._place.finished and not self._failed:
                if self._place.over or self._loop.is_over():
                    self._loop.finish()
                else:
                    early = (
                        f"its script ended after {self._place.steps_done} of {self._place.steps_total} "
                        f"steps; iterate job.epochs() to its end{shortened(self._exit)}"
                    )
                    print(f"slackline: error: worker {self._world.rank}: {early}", file=sys.stderr)
                    self._world.fail(early, "", self._error_ends_job)
                    _at_last.code = 1
        except Exception as error:
            _at_last.code = 1
            self._on_uncaught(type(error), error, error.__traceback__)
        finally:
            self._loop.evaluations.wait_a_little()
            self._world.close()


class _AtLast:
    """Ends the process with this code, if that is only found out when it ends."""

    code = 0

    def __call__(self) -> None:
        if self.code != 0:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


# Registered before all of a script's, so called after them.
_at_last = _AtLast()
atexit.register(_at_last)


def _forget_wakeup() -> None:
    try:
        signal.set_wakeup_fd(-1)
    except ValueError:  # Not the main thread.
        pass
