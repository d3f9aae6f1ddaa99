"""Jobs of the check: their configs, how they run and are disturbed, and what came of them.

All workers train on one GPU, which is no way to train: Slackline refuses two of one host on one GPU, and so does
NCCL. So each has a host of its own by name, an address of the loopback interface in a notation that is not taken
for one, and own_host.sh says the same to NCCL. The config is one for all, as the coordinator demands.
"""

import json
import os
import pathlib
import signal
import subprocess
import time

from processes import OutOfTime

HERE = pathlib.Path(__file__).resolve().parent
SECONDS_MAX = 80  # Of one job.
# How long a job waits for a member. Then it gives up by itself, and says why.
PATIENCE = 35
SUSPENDED = 75  # Exit code.

# What the built-in model trains: 312 steps with two workers.
TEACHER = """model { mlp { hidden: [256, 256] } }
data {
  teacher_student { features: 256 train_examples: 20000 test_examples: 2000 }
  batch_size: 64
}
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
sync { bsp {} }
"""
TRAIN = "train { epochs: 2 seed: 1 }\n"
# Slow enough to be met in its midst, and a lease that is soon over.
SLOW = "conditions { step_ms: 10 }"
SHORT_LEASE = "lease_ms: 2000"


class Failed(Exception):
    """A row that is FAIL, and why."""


class Skipped(Exception):
    """A row that is SKIP, and why."""


def config(device, workers, rest, servers=2, conditions="", limits="", patience=PATIENCE):
    """The text of a config. `rest` is what is trained, if anything."""
    gpu = " device: CUDA" if device == "CUDA" else ""
    lines = ['job: "gpu-check"', "insecure: true", f'server {{ host: "0x7f.0.0.1" count: {servers} }}']
    lines += [f'worker {{ host: "0x7f.0.0.{2 + i}"{gpu} {conditions} }}' for i in range(workers)]
    lines.append(
        f"limits {{ start_timeout_ms: {patience}000 wait_timeout_ms: {patience + 5}000 "
        f"stall_timeout_ms: {patience}000 {limits} }}"
    )
    return "\n".join(lines) + "\n" + rest


class Jobs:
    """Runs jobs below a folder. Each has a name there, and runs once."""

    def __init__(self, build, folder, commands):
        self.commands = commands
        self._build = build
        self._folder = folder
        self._python_path = build / "python"
        self._programs = folder / "bin"
        self._programs.mkdir(parents=True, exist_ok=True)
        worker = self._programs / "slackline_worker"
        if not worker.exists():
            os.symlink(build / "bin" / "slackline_server", self._programs / "slackline_server")
            worker.write_text(f"#!/bin/sh\nexec '{HERE}/own_host.sh' '{build}/bin/slackline_worker' \"$@\"\n")
            worker.chmod(0o755)

    def folder(self, name):
        return self._folder / name

    def slackline(self, *words, limit=20):
        """Of a command that prints JSON."""
        text = self.commands.output_of([self._build / "bin" / "slackline", *words], limit, errors=subprocess.DEVNULL)
        try:
            return json.loads(text)
        except ValueError:
            return None

    def start(self, name, text, *flags, script=()):
        path = self.folder(name).with_suffix(".textproto")
        path.write_text(text)
        command = [
            self._build / "bin" / "slackline",
            "run",
            path,
            "--bin-dir",
            self._programs,
            "--out",
            self.folder(name),
            "--no-progress",
            *flags,
        ]
        if script:
            command += ["--", HERE / "own_host.sh", *script]
        return self.commands.start(command, environment={"PYTHONPATH": str(self._python_path)}, cwd=self._folder)

    def wait(self, name, process, code=0):
        """The summary of a job that has to end with this exit code."""
        try:
            ended = self.commands.wait(process, SECONDS_MAX, name)
        except OutOfTime:
            self.where_it_stands(name)
            raise
        summary = self.summary(name)
        if ended != code:
            reason = (summary or {}).get("reason") or self.commands.last_line()
            raise Failed(f"{name} ended with exit code {ended}: {reason}")
        if summary is None and code == 0:
            raise Failed(f"{name} left no summary.json")
        return summary

    def run(self, name, text, *flags, script=()):
        """The summary of the job of this name, which runs now if it has not run before."""
        if self.folder(name).exists():
            summary = self.summary(name)
            if summary is None or summary["state"] != "FINISHED":
                raise Failed(f"{name} has failed before")
            return summary
        return self.wait(name, self.start(name, text, *flags, script=script))

    def summary(self, name):
        try:
            return json.loads((self.folder(name) / "summary.json").read_text())
        except (OSError, ValueError):
            return None

    def log_of(self, name, rank=0):
        try:
            return (self.folder(name) / "logs" / f"worker-{rank}.log").read_text(errors="replace")
        except OSError:
            return ""

    def where_it_stands(self, name):
        """Whoever waits for what, into the log, of a job that does not end."""
        try:
            self.commands.run([self._build / "bin" / "slackline", "status", self.folder(name)], 3)
        except OutOfTime as error:
            self.commands.say(str(error))

    def status_at(self, name, process, step):
        """What `slackline status` says when each worker has completed so many steps."""
        end = time.monotonic() + SECONDS_MAX
        while process.poll() is None and time.monotonic() < end:
            status = self.slackline("status", "--json", self.folder(name), limit=5) or {}
            workers = status.get("worker", [])
            if workers and all(int(worker.get("clock", 0)) >= step for worker in workers):
                return status
            self.commands.pause(0.2)
        raise Failed(f"{name}: not all workers came to step {step} while it ran: {self.commands.last_line()}")

    def kill(self, name, process, kind, index, step=20):
        """kill -9 of one member, kind "worker" or "server", in the midst of the job."""
        members = self.status_at(name, process, step)[kind]
        number = "rank" if kind == "worker" else "index"
        pid = next((member["pid"] for member in members if member.get(number, 0) == index), None)
        if pid is None:
            raise Failed(f"{name}: status has no {kind} {index}")
        os.kill(pid, signal.SIGKILL)
        self.commands.say(f"killed {kind} {index}, process {pid}")
