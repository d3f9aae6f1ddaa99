"""`slackline track`: sends the records of a run, or of an experiment with its runs, to
trackers, while it goes on or afterwards.

What has been sent is in track.json in the folder of the run, for each tracker, so the
same command again sends what is new. Killed between sending and noting that, it sends
one part again.
"""

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import pathlib
import re
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

from . import figures, files, load, tensorboard, trackers

DESCRIPTION = """\
Sends the records of a run to experiment trackers: config, commit, hashes, losses,
accuracy, throughput, staleness and waiting. Of a run that goes on it follows the
files until that has ended; Ctrl-C ends the following, a second one at once. Of an experiment, the folder of
`slackline compare` or `ablate`, it sends every run as a child of one for the whole.

TO is one of these; docs/manual/tracking.md says where each keeps what:

  mlflow[:PLACE]       a folder, or the address of a server
  wandb[:FOLDER]       with a folder offline, for `wandb sync` later
  tensorboard[:FOLDER] event files; needs no package

The same command again sends what is new.

Exit status: 0 all is sent; 1 a tracker has failed; 2 wrong usage, or its package is
missing."""

STATE = "track.json"
LOOK_SECONDS = 2.0
RETRY_SECONDS = 30.0  # Of a tracker that has failed.
# Who has written no record for so long is not waited for.
SILENT_SECONDS = 60.0
# A folder in which nothing has been written for so long is named.
QUIET_SECONDS = 60.0
# A tracker that has not answered for so long is named.
HANGS_SECONDS = 60.0
# `slackline run` waits for 30 s, and is to hear which tracker has not answered.
REST_SECONDS = 25.0
# A tracker that has ended has so long for the end of its thread.
JOIN_SECONDS = 1.0
THREAD_NAME = "slackline-tracker"


class Result(NamedTuple):
    code: int  # The exit status.
    gave_up: bool = False  # The thread of a tracker that has not answered is still there.


def main(arguments: list[str]) -> Result:
    parser = argparse.ArgumentParser(
        prog="slackline_track.py",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", type=pathlib.Path, help="of a run or of an experiment")
    parser.add_argument("--to", action="append", required=True, help="the tracker; may be repeated")
    parser.add_argument("--project", help="there; default: the job or the experiment")
    parser.add_argument("--model", action="store_true", help="also send the model's file")
    parser.add_argument("--no-follow", action="store_true", help="send what is there now")
    # For `slackline run`: whether --to is right, or usable here, too; and a run that begins in
    # the folder, also more than once, until the end of the standard input says that it is over.
    parser.add_argument("--check", choices=["names", "packages"], help=argparse.SUPPRESS)
    parser.add_argument("--until-told", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    try:
        trackers.check_names(asked.to)
        if asked.check == "names":
            return Result(0)
        for to in asked.to:
            trackers.check_package(to)
        if asked.check:
            return Result(0)
    except trackers.TrackError as error:
        _complain(str(error))
        return Result(2)
    folder: pathlib.Path = asked.folder
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        _complain(f"{folder} cannot be read: {error.strerror}; give a folder that you may read and write")
        return Result(1)
    try:
        return _track(asked, lock)
    finally:
        os.close(lock)


def _track(asked: argparse.Namespace, lock: int) -> Result:
    folder: pathlib.Path = asked.folder
    try:
        # Two at a time would send everything twice.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        begun = asked.until_told or _has_records(folder)
    except BlockingIOError:
        _complain(f"{folder}: another slackline track sends from there, for `slackline run --track` until the run ends")
        return Result(1)
    except OSError as error:
        _complain(f"{folder} cannot be read: {error.strerror}; give a folder that you may read and write")
        return Result(1)
    if not begun:
        _complain(
            f"{folder} has no metrics.jsonl and no experiment.json; give the folder that `slackline run`, "
            "`compare` or `ablate` has written"
        )
        return Result(1)
    told = _Told(asked.until_told)
    if asked.no_follow:
        told.tell()
    lock = threading.Lock()
    ways = [_Way(asked, to, lock) for to in asked.to]
    return _follow(ways, told, _Silence(folder), asked.until_told)


class _Told:
    """That no more is to be waited for: by Ctrl-C, SIGTERM, or the end of the standard input."""

    def __init__(self, by_input: bool) -> None:
        read, self._write = os.pipe()
        self._signs = [read, sys.stdin.fileno()] if by_input else [read]
        self._news, self._tell_news = os.pipe()
        self.signals = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: Any) -> None:
        self.signals += 1
        self.tell()

    def tell(self) -> None:
        os.write(self._write, b"x")

    def wake(self) -> None:
        """Any thread: something has happened, wait() returns."""
        os.write(self._tell_news, b"x")

    def wait(self, seconds: float) -> bool:
        return bool({*self._select(self._signs, seconds)} & {*self._signs})

    def wait_for_news(self, seconds: float) -> None:
        self._select([], seconds)

    def _select(self, signs: list[int], seconds: float) -> list[int]:
        ready = select.select([*signs, self._news], [], [], seconds)[0]
        if self._news in ready:
            os.read(self._news, 64)
        return ready


def _complain(text: str) -> None:
    print(f"slackline_track: {trackers.without_secrets(text)}", file=sys.stderr, flush=True)


class _Silence:
    """Of a folder whose run or experiment is not over: when nothing has been written there for long."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._mark: object = None
        self._since = time.monotonic()
        self._said = False

    def look(self) -> bool:
        """Whether nothing comes any more, since whoever wrote it is gone. Says it, or that there is silence."""
        if _is_over(self._folder):
            return False  # A tracker still has to answer, and nobody else.
        mark = self._written()
        if mark != self._mark:
            self._mark, self._since, self._said = mark, time.monotonic(), False
        if time.monotonic() < self._since + QUIET_SECONDS:
            return False
        gone = _coordinator_gone(self._folder)
        if gone:
            _complain(
                f"{self._folder}: nothing has been written for {QUIET_SECONDS:.0f} s, there is no summary.json, and {gone}; "
                "its state is unknown, and the following ends"
            )
        elif not self._said:
            _complain(
                f"{self._folder}: nothing has been written for {QUIET_SECONDS:.0f} s; it is followed on, since its processes "
                "may be at work; Ctrl-C ends the following"
            )
        self._said = True
        return bool(gone)

    def _written(self) -> object:
        files_there = [*_there(self._folder, "metrics.jsonl", "experiment.json", "summary.json", "runs.txt")]
        files_there += self._folder.glob("runs/*/metrics.jsonl")
        found = []
        for path in files_there:
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.append((path, stat.st_mtime_ns, stat.st_size))
        return found


def _is_over(folder: pathlib.Path) -> bool:
    if not _is_experiment(folder):
        return (folder / "summary.json").exists()
    try:
        runs = load.read_object(folder / "experiment.json").get("runs") or []
    except (OSError, load.LoadError):  # Its tracker says so.
        return False
    return all(entry.get("state") != load.TO_DO for entry in runs)


def _coordinator_gone(folder: pathlib.Path) -> str:
    """Completes "it is known, since ..."; empty if nobody knows: it may be on another host."""
    with contextlib.suppress(OSError, OverflowError), open(folder / "coordinator.state.lock", "rb") as lock:
        holder = re.fullmatch(rb"process (\d+) of host (.+)", lock.read(1000).strip())
        if holder is None or holder[2] != os.fsencode(socket.gethostname()):
            return ""
        config = folder / "cluster.textproto"
        if config.exists() and os.fstat(lock.fileno()).st_mtime_ns < config.stat().st_mtime_ns:
            return ""  # Of a run before: a config is written before its coordinator starts.
        try:
            os.kill(int(holder[1]), 0)
        except ProcessLookupError:
            # A process of another container has no number here, and still has the lock.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return f"the process of its coordinator, {int(holder[1])}, is gone"
    return ""


class _Way(threading.Thread):
    """To one tracker, in a thread of its own, so that one that hangs holds up no other. What
    fails there is said once, and tried again."""

    def __init__(self, asked: argparse.Namespace, to: str, lock: threading.Lock) -> None:
        super().__init__(name=f"{THREAD_NAME} {to}", daemon=True)
        self._asked, self._to, self._lock = asked, to, lock
        self._last = threading.Event()
        self._lost = False
        self._on_end: Optional[Callable[[], None]] = None
        self._looks_since: Optional[float] = None
        self._hang_said = False
        self._source: Optional[Union[_Run, _Experiment]] = None
        self._retry_at = 0.0
        self.failed = ""  # The last look, with these words.
        self.left_as_lost = False  # Its run was not over at the last look, and nobody knows how it has ended.
        self.ended = False  # Looks no more.

    def begin(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self.start()

    def run(self) -> None:
        assert self._on_end is not None
        try:
            while True:
                last = self._last.is_set()
                self._looks_since = time.monotonic()
                over = self.look(last)
                self._looks_since = None
                if last or (over and not self._asked.until_told):
                    break
                self._last.wait(LOOK_SECONDS)
        finally:
            self.ended = True
            self._on_end()

    def look_last(self, lost: bool) -> None:
        """Once more, and then no more. ``lost``: nobody knows how the run has ended."""
        self._lost = lost
        self._last.set()

    def say_if_it_hangs(self) -> None:
        since = self._looks_since
        if since is None:
            self._hang_said = False
        elif not self._hang_said and time.monotonic() >= since + HANGS_SECONDS:
            self._hang_said = True
            _complain(f"{self._to}: has not answered for {HANGS_SECONDS:.0f} s; the other trackers do not wait for it")

    def give_up(self) -> None:
        self.failed = f"{self._to}: has not answered, and is not waited for"
        _complain(self.failed)

    def look(self, last: bool) -> bool:
        """Whether all is sent that will ever be."""
        if not last and time.monotonic() < self._retry_at:
            return False
        try:
            if self._source is None:
                if not _has_records(self._asked.folder):
                    return False
                self._source = _source(self._asked, self._to, self._lock)
            over = self._source.look(last)
            if last and self._lost and not over:
                self._source.lose()
                self.left_as_lost = True
            elif last:
                self._source.leave()
            self.failed = ""
            return over
        except BaseException as error:  # Of whatever kind its package has; SystemExit is for this thread alone.
            lines = str(error).strip().splitlines() or [""]
            text = f"{self._to}: {type(error).__name__}: {lines[0][:500]}"
            if not self.failed:
                _complain(text + ("" if last else f"; tried again every {RETRY_SECONDS:.0f} s"))
            self.failed = text
            self._retry_at = time.monotonic() + RETRY_SECONDS
            # Begins again at what track.json says has been sent.
            source, self._source = self._source, None
            if source is not None:
                with contextlib.suppress(BaseException):
                    source.leave()
            return False


def _follow(ways: list[_Way], told: _Told, silence: _Silence, until_told: bool) -> Result:
    lost = False
    is_told = told.wait(0)
    # A Ctrl-C may be the wish to end; another one ends it at once.
    signals = min(told.signals, 1)
    if is_told:
        for way in ways:
            way.look_last(lost)
    for way in ways:
        way.begin(told.wake)
    while not is_told and not lost and not all(way.ended for way in ways):
        is_told = told.wait(LOOK_SECONDS)
        signals = min(told.signals, 1)
        for way in ways:
            way.say_if_it_hangs()
        # Whoever began the run says when it is over.
        lost = not is_told and not until_told and not all(way.ended for way in ways) and silence.look()
    for way in ways:
        way.look_last(lost)
    give_up_at = time.monotonic() + (REST_SECONDS if until_told or lost else math.inf)
    while not all(way.ended for way in ways) and told.signals <= signals and time.monotonic() < give_up_at:
        told.wait_for_news(0.2)
        for way in ways:
            way.say_if_it_hangs()
    for way in ways:
        if way.ended:
            way.join(JOIN_SECONDS)
        else:
            way.give_up()
    failed = any(way.failed or way.left_as_lost for way in ways)
    return Result(1 if failed else 0, any(way.is_alive() for way in ways))


def _is_experiment(folder: pathlib.Path) -> bool:
    return (folder / "experiment.json").exists()


def _has_records(folder: pathlib.Path) -> bool:
    return _is_experiment(folder) or (folder / "metrics.jsonl").exists()


def _source(asked: argparse.Namespace, to: str, lock: threading.Lock) -> "Union[_Run, _Experiment]":
    options = _Options(trackers.make(to), trackers.key_of(to), lock, asked.project, asked.model, asked.until_told)
    if _is_experiment(asked.folder):
        return _Experiment(asked.folder, options)
    return _Run(asked.folder, options)


@dataclasses.dataclass(frozen=True)
class _Options:
    tracker: trackers.Tracker
    key: str  # Of its part in track.json,
    lock: threading.Lock  # which the threads of other trackers write, too.
    project: Optional[str]
    model: bool
    until_told: bool


class _Sent:
    """What the tracker has of the run in a folder."""

    def __init__(self, folder: pathlib.Path, options: "_Options", run: str) -> None:
        self._path, self._key, self._lock = folder / STATE, options.key, options.lock
        known = _state_of(self._path).get(self._key, {})
        # Another run may have been in this folder.
        self.of: dict[str, Any] = known if known.get("run") == run else {"run": run}

    def save(self) -> None:
        # Another tracker's part may have changed meanwhile.
        with self._lock:
            state = {**_state_of(self._path), self._key: self.of}
            files.write_text(self._path, json.dumps(state, indent=2) + "\n")


def _state_of(path: pathlib.Path) -> dict:
    return load.read_object(path) if path.exists() else {}


class _Run:
    def __init__(
        self, folder: pathlib.Path, options: _Options, parent: Optional[str] = None, group: str = "",
        tags: Optional[dict[str, str]] = None,
    ) -> None:  # fmt: skip
        self._folder, self._options = folder, options
        self._parent, self._group, self._tags = parent, group, tags or {}
        self._id: Optional[str] = None
        self._forget(None)

    def _forget(self, run: Optional[str]) -> None:
        self._run = run
        self._bytes = 0  # Of metrics.jsonl that have been read.
        self._lines = 0
        self._steps: dict[int, list[load.Record]] = collections.defaultdict(list)
        self._last_of: dict[int, load.Record] = {}  # By rank.
        self._now = 0.0  # The largest time of a record.

    def look(self, last: bool) -> bool:
        if not self._has_begun():
            return False
        run = run_of(self._folder)
        if run != self._run:
            self.leave()
            self._forget(run)
            self._sent = _Sent(self._folder, self._options, run)
        summary = self._summary()
        if self._id is None and self._sent.of.get("end") == summary.get("ended_at", ""):
            return True  # Nothing is new since the end was sent.
        new = list(self._read())
        for record in new:
            self._last_of[record.rank] = record
            self._now = max(self._now, load.number(record.seconds) or 0.0)
            if record.kind == "train":
                self._steps[record.step].append(record)
        if self._id is None:
            self._id = _begin(self._options.tracker, self._beginning(), self._sent)
        self._send("eval", [figures.of_evaluation(record) for record in new if record.kind == "eval"])
        over = bool(summary)
        self._send("train", [figures.of_step(self._steps.pop(step)) for step in self._complete(over or last)])
        if over:
            self._options.tracker.end(self._id, self._end(summary))
            self._id = None
            self._sent.of["end"] = summary.get("ended_at", "")
            self._sent.save()
        return over

    def leave(self) -> None:
        if self._id is not None:
            self._options.tracker.end(self._id, None)
            self._id = None

    def lose(self) -> None:
        """Nobody knows how it has ended."""
        if self._id is not None:
            self._options.tracker.end(self._id, self._end({"state": "unknown"}))
            self._id = None

    def fail(self) -> None:
        """It has ended, and left no summary."""
        if self._id is not None:
            self._options.tracker.end(self._id, self._end({}))
            self._id = None

    def _has_begun(self) -> bool:
        if not (self._folder / "metrics.jsonl").exists():
            return False
        if not self._options.until_told:
            return True
        # Else what is there is of the run before.
        runs, config = self._folder / "runs.txt", self._folder / "cluster.textproto"
        return runs.exists() and runs.stat().st_mtime_ns >= config.stat().st_mtime_ns

    def _read(self) -> Iterator[load.Record]:
        """The whole lines that are new."""
        path = self._folder / "metrics.jsonl"
        if path.stat().st_size < self._bytes:  # A run that goes on has dropped some.
            self._forget(self._run)
        with open(path, "rb") as file:
            file.seek(self._bytes)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        for line in data.splitlines():
            self._lines += 1
            yield load.record_of(line.decode(errors="replace"), f"{path}:{self._lines}")
        self._bytes += len(data)

    def _complete(self, all_of_them: bool) -> list[int]:
        """The steps that every worker who still writes has come to."""
        if all_of_them or not self._steps:
            return sorted(self._steps)
        workers = sum(int(n) for key, n in self._config().items() if _is_worker_count(key))
        silent = self._now - SILENT_SECONDS
        reached = []
        for rank in {*range(workers), *self._last_of}:
            last = self._last_of.get(rank)
            if (last.seconds if last else 0.0) >= silent:
                reached.append(last.step if last else -1)
        bound = min(reached, default=-1)
        return sorted(step for step in self._steps if step <= bound)

    def _send(self, kind: str, found: list[figures.Figures]) -> None:
        """What is behind the last step that was sent."""
        new = [of for of in found if of.step > self._sent.of.get(kind, -1) and of.values]
        if not new:
            return
        assert self._id is not None
        self._options.tracker.log(self._id, new)
        self._sent.of[kind] = max(of.step for of in new)
        self._sent.save()

    def _config(self) -> dict[str, str]:
        return flat((self._folder / "cluster.textproto").read_text(encoding="utf-8", errors="replace"))

    def _summary(self) -> dict:
        path = self._folder / "summary.json"
        return load.read_object(path) if path.exists() else {}

    def _beginning(self) -> trackers.Beginning:
        config = self._config()
        return trackers.Beginning(
            name=_text_of(self._folder.absolute().name),
            project=self._options.project or self._group or config.get("job", "slackline"),
            folder=self._folder,
            started=_started(self._folder),
            parent=self._parent,
            group=self._group,
            config=config,
            tags={"slackline.run": self._run or "", "slackline.folder": _text_of(self._folder.absolute()), **self._tags},
        )

    def _end(self, summary: dict) -> trackers.End:
        found: dict[str, float] = {}
        tags: dict[str, str] = {}
        for name, value in _leaves(summary):
            if isinstance(value, str):
                tags[f"slackline.{name}"] = value[:5000]
            elif not isinstance(value, bool) and isinstance(value, (int, float)):
                found[f"summary/{name}"] = float(value)
        model = self._folder / "model.safetensors"
        return trackers.End(
            finished=summary.get("state") == "FINISHED",
            figures=found,
            tags={name: value for name, value in tags.items() if value},
            files=_there(self._folder, "cluster.textproto", "summary.json", "failure.txt"),
            model=model if self._options.model and model.exists() else None,
        )


class _Experiment:
    """A run for the whole, and its runs as children of it."""

    def __init__(self, folder: pathlib.Path, options: _Options) -> None:
        self._folder, self._options = folder, options
        self._id: Optional[str] = None
        self._runs: dict[str, _Run] = {}
        self._over: set[str] = set()
        self._ended = False

    def look(self, last: bool) -> bool:
        if self._ended and not last:  # Only a report is still to come.
            return True
        state = load.read_object(self._folder / "experiment.json")
        name = str(state.get("name") or _text_of(self._folder.absolute().name))
        if self._id is None:
            self._sent = _Sent(self._folder, self._options, name)
            if self._sent.of.get("end") == self._mark():
                self._ended = True
                return True
            self._id = _begin(self._options.tracker, self._beginning(name, state), self._sent)
        axes = {of.get("name"): of.get("axes") or {} for of in state.get("variants") or []}
        to_do = 0
        for entry in state.get("runs") or []:
            folder = str(entry.get("folder") or "")
            ended = entry.get("state") != load.TO_DO
            to_do += not ended
            if not folder or (folder in self._over and not last):
                continue
            if folder not in self._runs:
                variant = str(entry.get("variant"))
                tags = {"slackline.variant": variant, "slackline.seed": str(entry.get("seed"))}
                tags.update({f"slackline.axis.{key}": str(of) for key, of in axes.get(variant, {}).items()})
                options = dataclasses.replace(self._options, until_told=False)
                self._runs[folder] = _Run(self._folder / folder, options, self._id, name, tags)
            # One that has failed at its start has left no summary.
            if self._runs[folder].look(last or ended) or ended:
                self._runs.pop(folder).fail()
                self._over.add(folder)
        if to_do > 0:
            return False
        mark = self._mark()
        self._options.tracker.end(self._id, self._end(state))
        self._id = None
        self._ended = True
        self._sent.of["end"] = mark
        self._sent.save()
        return True

    def _mark(self) -> str:
        """Of what its end says: another one if that has changed."""
        sums = hashlib.sha256()
        for path in _there(self._folder, "experiment.json", "report.html"):
            sums.update(path.read_bytes())
        return sums.hexdigest()

    def lose(self) -> None:
        self.leave()  # Whoever makes its runs may begin again.

    def leave(self) -> None:
        for run in self._runs.values():
            run.leave()
        if self._id is not None:
            self._options.tracker.end(self._id, None)
            self._id = None

    def _beginning(self, name: str, state: dict) -> trackers.Beginning:
        tags = {key: state.get(key) for key in ("title", "baseline", "command", "commit")}
        tags["question"] = " ".join(str(line) for line in state.get("question") or [])
        return trackers.Beginning(
            name=name,
            project=self._options.project or name,
            folder=self._folder,
            started=(self._folder / "experiment.textproto").stat().st_mtime,
            parent=None,
            group=name,
            config={},
            tags={f"slackline.{key}": str(value) for key, value in tags.items() if value},
        )

    def _end(self, state: dict) -> trackers.End:
        states = [entry.get("state") for entry in state.get("runs") or []]
        return trackers.End(
            finished=all(of == load.FINISHED for of in states),
            figures={"runs": float(len(states)), "runs_finished": float(states.count(load.FINISHED))},
            tags={},
            files=_there(
                self._folder, "experiment.textproto", "experiment.json", "report.html", "data/results.csv"
            ),
            model=None,
        )


def _begin(tracker: trackers.Tracker, run: trackers.Beginning, sent: _Sent) -> str:
    """Its id there. What fails half way goes on with the same one."""
    sent.save()  # If that cannot be written, no run is made there.
    made = tracker.begin(run, sent.of.get("id"))
    sent.of["id"] = made
    sent.save()
    if not sent.of.get("described"):
        tracker.describe(made, run)
        sent.of["described"] = True
        sent.save()
    return made


def _text_of(path: Union[pathlib.Path, str]) -> str:
    """Names of files may be of any bytes; trackers take UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def run_of(folder: pathlib.Path) -> str:
    """Which run's records a folder has: of runs that go on from each other the first one's
    number, or the folder's own where there is none."""
    path = folder / "runs.txt"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return lines[0] if lines else ""


def flat(text: str) -> dict[str, str]:
    """The fields of cluster.textproto, which has one in a line, by their paths:
    "optimizer.momentum.learning_rate". Of those that repeat the second one is "worker.1.count"."""
    found: dict[str, str] = {}
    path: list[str] = []
    seen: collections.Counter[str] = collections.Counter()

    def unique(name: str) -> str:
        whole = ".".join([*path, name])
        seen[whole] += 1
        return name if seen[whole] == 1 else f"{name}.{seen[whole] - 1}"

    for line in text.splitlines():
        line = line.strip()
        if line.endswith("{"):
            path.append(unique(line[:-1].strip()))
        elif line == "}" and path:
            path.pop()
        elif line and not line.startswith("#"):
            name, _, value = line.partition(":")
            found[".".join([*path, unique(name)])] = value.strip().strip('"')
    return found


def _is_worker_count(key: str) -> bool:
    parts = key.split(".")
    return parts[0] == "worker" and parts[-1] == "count" and len(parts) <= 3


def _started(folder: pathlib.Path) -> float:
    """When its command began, as the files say it."""
    own = folder / "run.json"
    if own.exists():
        return tensorboard.unix_seconds(load.read_object(own).get("started"))
    return (folder / "cluster.textproto").stat().st_mtime


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their paths, "worker.0.steps"; not those of lists of numbers, which the file has."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, (dict, str)):
                yield from _leaves(inner, f"{path}.{index}")
    else:
        yield path, math.nan if value is None else value


def _there(folder: pathlib.Path, *names: str) -> list[pathlib.Path]:
    return [folder / name for name in names if os.path.exists(folder / name)]
