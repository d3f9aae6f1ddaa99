"""Commands with a time limit, and nothing of theirs that outlives them.

The processes of a job lead process groups of their own, and Inductor's compilers sessions, so a kill of one
group would leave some behind. All that is started here has a mark in its environment, by which it is found.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

MARK = "SLACKLINE_GPU_CHECK"
# How long processes that are asked for their stacks have for that.
ABORT_SECONDS = 0.5


class OutOfTime(Exception):
    """A command has not ended within its time, or within the budget of the whole check."""

    def __init__(self, command, seconds, by_budget):
        super().__init__(f"{command} had not ended after {seconds:.0f} s")
        self.by_budget = by_budget


def marked(mark):
    """The processes that have the mark. Those that have ended, and wait for their parent, have no environment."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def kill_marked(mark):
    """Returns how many processes there were."""
    count = 0
    for _ in range(100):
        pids = marked(mark)
        if not pids:
            break
        count = max(count, len(pids))
        send(pids, signal.SIGKILL)
        time.sleep(0.02)
    return count


class Commands:
    """The commands of one step. Their output goes to its log, a file that is open for writing."""

    def __init__(self, log, mark, environment, limit, budget_end):
        """At budget_end, by time.monotonic(), everything ends; else after `limit` seconds."""
        self.log = log
        self._mark = mark
        self._environment = {**environment, MARK: mark, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
        self._end = time.monotonic() + limit
        self._budget_end = budget_end
        self._started = []

    def start(self, command, environment=None, cwd=None, output=None, errors=None):
        """A process whose stdout and stderr go to the log, if they are not told to go elsewhere."""
        command = [str(word) for word in command]
        if errors is None:
            self.say("+ " + " ".join(command))
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output or self.log,
            stderr=errors or self.log,
            start_new_session=True,
            env={**self._environment, **(environment or {})},
        )
        self._started.append(process)
        return process

    def wait(self, process, limit, name=""):
        """The exit code. Raises OutOfTime, and leaves the process to end()."""
        now = time.monotonic()
        end = min(now + limit, self._end, self._budget_end)
        try:
            return process.wait(max(0, end - now))
        except subprocess.TimeoutExpired:
            name = name or os.path.basename(process.args[0])
            raise OutOfTime(name, end - now, end == self._budget_end) from None

    def run(self, command, limit, **more):
        """The exit code; 127 if there is no such program."""
        try:
            process = self.start(command, **more)
        except OSError as error:
            self.say(str(error))
            return 127
        return self.wait(process, limit)

    def output_of(self, command, limit=20, **more):
        """What it writes to stdout; "" if it fails."""
        with tempfile.TemporaryFile("w+", errors="replace") as file:
            code = self.run(command, limit, output=file, **more)
            file.seek(0)
            return file.read() if code == 0 else ""

    def say(self, text):
        self.log.write(text + "\n")
        self.log.flush()

    def last_line(self):
        """What the commands have said last."""
        with open(self.log.name, errors="replace") as log:
            lines = [line.strip() for line in log if line.strip() and not line.startswith("+ ")]
        return lines[-1] if lines else "it has said nothing"

    def pause(self, seconds):
        """Sleeps. Raises OutOfTime."""
        if time.monotonic() + seconds > min(self._end, self._budget_end):
            raise OutOfTime("what was waited for", seconds, self._budget_end < self._end)
        time.sleep(seconds)

    def end(self, hung=False):
        """Ends what is left, and returns how many processes that were. Scripts that have hung say where they stand."""
        if hung:
            pids = marked(self._mark)
            below = [pid for pid in pids if parent_of(pid) in pids]
            # `slackline run` last: its workers would end with it before they have said it.
            for some in (below, [pid for pid in pids if pid not in below]):
                send(some, signal.SIGABRT)
                time.sleep(ABORT_SECONDS)
        count = kill_marked(self._mark)
        for process in self._started:
            process.wait()
        return count


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def guard(mark):
    """Starts a process that ends all marked ones when this process ends, however it ends."""
    return subprocess.Popen([sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])
