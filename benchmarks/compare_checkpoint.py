#!/usr/bin/env python3
"""What does a checkpoint cost a training loop of PyTorch, and how long does it take to the disk?

bench_checkpoint asks the same of a job of ours: give it the same size (--mib of parameters and --optimizer
sgd make a checkpoint of that size) and compare the two on one machine, one after the other.

One process, one loop. A step is a fixed number of small matrix products, chosen so that they take --step-ms
on an idle machine, and an update of every element of the state, as an optimizer makes it. The state is
--mb megabytes of float32 on the CPU: parameters, and whatever else is to be kept. Systems:

  save           torch.save() of the state to a file, flushed and synced, in the loop
  async          torch.distributed.checkpoint.async_save(), whose files are synced, too: the loop goes on when
                 the state has been copied
  async-process  the same, with a process of its own for the writing

The last two are skipped aloud where PyTorch has them not. A checkpoint is begun at the start of a step, so
what the call takes is part of that step. A step counts as beside a checkpoint if any of it lies between the
beginning and the moment at which all of it is on the disk. Expected: a step with "save" is longer by a write
of the whole state, one with "async" by a copy of it in memory (plain_write and plain_copy measure the two
by themselves, in the same process).

The last checkpoint of each system is read again and compared with what the state was when it was begun.

This script needs only the standard library; what it starts needs a Python with PyTorch: --python, default the
one that runs this, else /usr/bin/python3.

stdout: one JSON line per size and system. stderr: the same as a table.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import compare_ddp as peer

SYSTEMS = ("save", "async", "async-process")
TENSOR_BYTES = 4 << 20  # Of a tensor of the state; the last one is smaller.
WRITE_BYTES = 1 << 20


# ---- The loop, in a process of its own


class Skipped(Exception):
    """This PyTorch cannot do it; says why."""


def sync_folder(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Save:
    """torch.save() in the loop: it is on the disk when begin() returns."""

    def __init__(self, torch, folder):
        self.torch, self.path = torch, folder / "state.pt"

    def begin(self, state):
        partial = self.path.with_suffix(".partial")
        with open(partial, "wb") as file:
            self.torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path)
        sync_folder(self.path.parent)
        self.done = time.perf_counter()

    def done_at(self):
        return self.done

    def read(self, state):
        return self.torch.load(self.path)

    def close(self):
        pass


class Async:
    """async_save(), with a thread or a process that writes."""

    def __init__(self, torch, folder, process):
        try:
            import torch.distributed.checkpoint as dcp
            self.save = dcp.async_save
        except (ImportError, AttributeError):
            raise Skipped(f"PyTorch {torch.__version__} has no torch.distributed.checkpoint.async_save") from None
        self.options = {}
        if process:
            try:
                from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
                self.options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
            except ImportError:
                raise Skipped(f"async_save of PyTorch {torch.__version__} has no process of its own") from None
        self.dcp, self.folder, self.count, self.future = dcp, folder, 0, None
        # async_save() wants a group, and is a group of one.
        if process:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        self.torch = torch

    def path(self):
        return self.folder / f"step-{self.count}"

    def begin(self, state):
        shutil.rmtree(self.path(), ignore_errors=True)
        self.count += 1
        writer = self.dcp.FileSystemWriter(self.path(), sync_files=True)
        future = self.save(state, storage_writer=writer, **self.options)
        # Newer ones also tell when the copy is there, which is of no use here.
        self.future = getattr(future, "upload_completion", future)
        self.done = None
        self.future.add_done_callback(self.on_done)

    def on_done(self, future):
        if future.exception() is None:
            sync_folder(self.path())
        self.done = time.perf_counter()

    def done_at(self):
        if self.done is not None:
            self.future.result()  # Raises what went wrong.
        return self.done

    def read(self, state):
        there = {name: self.torch.zeros_like(tensor) for name, tensor in state.items()}
        self.dcp.load(there, storage_reader=self.dcp.FileSystemReader(self.path()))
        return there

    def close(self):
        self.torch.distributed.destroy_process_group()


def state_of(torch, megabytes):
    left, state = int(megabytes * 1e6) // 4, {}
    while left > 0:
        count = min(left, TENSOR_BYTES // 4)
        state[f"tensor{len(state)}"] = torch.rand(count)
        left -= count
    return state


def products_in(torch, milliseconds):
    """How many products of these matrices take so long, and the matrices."""
    a, b = torch.rand(128, 128), torch.rand(128, 128)
    count, best = 50, math.inf
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(count):
            torch.mm(a, b)
        best = min(best, (time.perf_counter() - begin) / count)
    return max(1, round(milliseconds / 1000 / best)), a, b


def plain_write(folder, size):
    block = b"x" * WRITE_BYTES
    path = folder / "plain"
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for at in range(0, size, WRITE_BYTES):
            file.write(block[:min(WRITE_BYTES, size - at)])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    path.unlink()
    return seconds


def loop(args):
    """Prints what the steps took, as JSON."""
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    folder = args.folder
    state = state_of(torch, args.mb)
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    try:
        system = Save(torch, folder) if args.system == "save" else Async(
            torch, folder, args.system == "async-process")
    except Skipped as why:
        print(json.dumps({"skipped": str(why), "torch": torch.__version__}))
        return
    products, a, b = products_in(torch, args.step_ms)

    def compute():
        for _ in range(products):
            torch.mm(a, b)
        for tensor in state.values():
            tensor.mul_(0.9999)

    without, beside, calls, seconds = [], [], [], []

    def quiet_steps(samples):
        for _ in range(args.between):
            begin = time.perf_counter()
            compute()
            samples.append(time.perf_counter() - begin)

    def checkpoint(samples):
        """Steps from its beginning until it is there; what the call took, what all of it took."""
        begin = step_begin = time.perf_counter()
        system.begin(state)
        call = time.perf_counter() - begin
        while True:
            compute()
            now = time.perf_counter()
            samples.append(now - step_begin)
            if system.done_at() is not None:
                return call, system.done_at() - begin
            step_begin = now

    quiet_steps([])  # Warming up: caches, and what a first checkpoint sets up.
    checkpoint([])
    for _ in range(args.checkpoints):
        quiet_steps(without)
        expected = None
        if len(seconds) == args.checkpoints - 1:
            expected = {name: tensor.clone() for name, tensor in state.items()}
        call, took = checkpoint(beside)
        calls.append(call)
        seconds.append(took)
    there = system.read(state)
    wrong = sum(int((there[name] != tensor).sum()) for name, tensor in expected.items())
    system.close()
    target = [torch.empty_like(tensor) for tensor in state.values()]
    copies = []
    for _ in range(args.checkpoints):
        begin = time.perf_counter()
        for to, tensor in zip(target, state.values()):
            to.copy_(tensor)
        copies.append(time.perf_counter() - begin)
    print(json.dumps({
        "torch": torch.__version__, "bytes": size, "without": without, "beside": beside, "calls": calls,
        "seconds": seconds, "wrong": wrong, "plain_copy": copies,
        "plain_write": [plain_write(folder, size) for _ in range(args.checkpoints)]}))


# ---- What is measured, and told


def percentile(samples, percent):
    """The smallest sample that at least so many percent do not exceed, as in report.h."""
    ordered = sorted(samples)
    return ordered[min(len(ordered), max(1, math.ceil(percent / 100 * len(ordered)))) - 1]


def percentiles_ms(samples):
    return {"p50": percentile(samples, 50) * 1000, "p99": percentile(samples, 99) * 1000,
            "max": max(samples) * 1000, "count": len(samples)}


def spread(samples):
    median = statistics.median(samples)
    return {"median": median, "mad": statistics.median(abs(s - median) for s in samples), "min": min(samples),
            "max": max(samples)}


def measure(args, mb, system):
    with tempfile.TemporaryDirectory(prefix="compare-checkpoint-", dir=args.folder) as folder:
        command = [args.python, __file__, "--system", system, "--mb", mb, "--folder", folder, "--step-ms",
                   args.step_ms, "--between", args.between, "--checkpoints", args.checkpoints, "--threads",
                   args.threads, "--seed", args.seed]
        try:
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                                  env={**os.environ, **peer.THREAD_SETTINGS, "GLOO_SOCKET_IFNAME": "lo"},
                                  timeout=args.timeout_seconds)
        except subprocess.TimeoutExpired:
            sys.exit(f"{system} with {mb} MB: not done within {args.timeout_seconds} s (--timeout-seconds)")
    if done.returncode != 0:
        sys.exit(f"{system} with {mb} MB failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def report(args, mb, system, found):
    line = {"benchmark": "compare_checkpoint", "mb": mb, "system": system, "step_ms": args.step_ms,
            "threads": args.threads, "between": args.between, "checkpoints": args.checkpoints, "seed": args.seed}
    if "skipped" in found:
        print(f"{mb:6.0f} {system:>13}  skipped: {found['skipped']}", file=sys.stderr)
        line["skipped"] = found["skipped"]
    else:
        line.update({
            "checkpoint_megabytes": found["bytes"] / 1e6,
            "checkpoint_seconds": spread(found["seconds"]),
            "call_seconds": spread(found["calls"]),
            "plain_write_seconds": spread(found["plain_write"]),
            "plain_copy_seconds": spread(found["plain_copy"]),
            "step_ms_without": percentiles_ms(found["without"]),
            "step_ms_beside": percentiles_ms(found["beside"]),
            "wrong_elements": found["wrong"]})
        without, beside = line["step_ms_without"], line["step_ms_beside"]
        print(f"{mb:6.0f} {system:>13} {without['p50']:9.1f} {without['p99']:8.1f} {without['max']:8.1f} "
              f"{beside['p50']:9.1f} {beside['p99']:8.1f} {beside['max']:8.1f} "
              f"{line['call_seconds']['median'] * 1000:9.1f} {line['checkpoint_seconds']['median']:9.2f} "
              f"{line['plain_write_seconds']['median']:9.2f}  {'read back' if found['wrong'] == 0 else 'READ WRONG'}",
              file=sys.stderr)
    print(json.dumps({**line, "torch": found["torch"], "cpu": peer.cpu_model()}), flush=True)
    if found.get("wrong"):
        sys.exit(f"{system} with {mb} MB: {found['wrong']} elements are not what they were")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", default="100,200", help="sizes of the state (default: %(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="(default: %(default)s)")
    parser.add_argument("--step-ms", type=float, default=100, help="of computing in a step (default: %(default)s)")
    parser.add_argument("--between", type=int, default=20,
                        help="steps between two checkpoints (default: %(default)s)")
    parser.add_argument("--checkpoints", type=int, default=8, help="of each system and size (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="that compute (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path,
                        help="where checkpoints are written; default: the system's folder for temporary files")
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--timeout-seconds", type=float, default=300, help="of one system (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="2 MB, 2 checkpoints, short steps")
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.system is not None:
        args.mb = float(args.mb)
        loop(args)
        return
    if args.smoke:
        args.mb, args.checkpoints, args.between, args.step_ms = "2", 2, 5, 2
    unknown = set(args.systems.split(",")) - set(SYSTEMS)
    if unknown:
        sys.exit(f"--systems: {', '.join(sorted(unknown))} is none of {', '.join(SYSTEMS)}")
    if args.checkpoints < 1 or args.between < 1:
        sys.exit("--checkpoints, --between: at least 1 is required")
    args.python = peer.find_python([args.python] if args.python else [sys.executable, "/usr/bin/python3"])
    print(f"{'MB':>6} {'system':>13} {'step p50':>9} {'p99':>8} {'max':>8} {'beside p50':>10} {'p99':>7} {'max':>8} "
          f"{'call ms':>9} {'to disk s':>9} {'plain s':>9}", file=sys.stderr)
    for mb in [float(size) for size in args.mb.split(",")]:
        for system in args.systems.split(","):
            report(args, mb, system, measure(args, mb, system))


if __name__ == "__main__":
    main()
