#!/usr/bin/env python3
"""Are our steps by all-reduce as fast as those of PyTorch DistributedDataParallel?

Both train the MLP 784-512-512-10 with momentum, 64 examples per rank and step, by processes on this
machine that all-reduce over Gloo on loopback, one compute thread each. Ours are the real binaries
(`slackline run --mode allreduce`); DDP's ranks are processes of this script. Each step of either picks
its minibatch from data in memory by a shuffled index, computes, reduces and applies. The time counts
from the end of the warm-up to the last step: no start-up, no evaluation. Rounds alternate.

Expected: the same 2.7 MB of gradients go round the same ring, and the same LibTorch computes where both
come from one package, so what differs is what each does around that.

DDP runs as it is out of the box ("ddp") and with gradient_as_bucket_view, which saves it a copy
("ddp-view"). Ratios are ours over theirs, round by round; the target is a median of at least 1.

This script needs only the standard library; DDP's ranks need a Python with PyTorch: --python, default
the one that runs this, else /usr/bin/python3. Where there is none:

    sudo apt-get install python3-torch      # Debian, Ubuntu
    python3 -m pip install torch            # elsewhere; then give --python

stdout: one JSON line per number of ranks. stderr: the same as a table.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

FEATURES, HIDDEN, CLASSES, BATCH, EXAMPLES = 784, 512, 10, 64, 60000
RATE, MOMENTUM = 0.05, 0.9
THREAD_SETTINGS = {name: "1" for name in (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
# An OpenBLAS that is older than the processor takes kernels without AVX. Slackline makes it
# choose again (common/blas); here it does so for DDP, too.
if {"avx2", "fma"} <= set(pathlib.Path("/proc/cpuinfo").read_text().split()):
    THREAD_SETTINGS["OPENBLAS_CORETYPE"] = os.environ.get("OPENBLAS_CORETYPE", "Haswell")


# ---- One rank of DDP, in a process of its own


def load_idx(path):
    import gzip

    import numpy
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        header = file.read(4)
        shape = [int.from_bytes(file.read(4), "big") for _ in range(header[3])]
        return numpy.frombuffer(file.read(), dtype=numpy.uint8).reshape(shape)


def find_idx(folder, name):
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.exists():
            return candidate
    sys.exit(f"{folder / name}: there is no such file, plain or .gz")


def ddp_rank(args):
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    distributed.init_process_group("gloo", init_method=f"file://{args.rendezvous}", rank=args.ddp_rank,
                                   world_size=args.world_size)
    if args.data_dir:
        folder = args.data_dir / "mnist"
        inputs = torch.from_numpy(load_idx(find_idx(folder, "train-images-idx3-ubyte")).copy())
        inputs = inputs.reshape(-1, FEATURES).float() / 255
        labels = torch.from_numpy(load_idx(find_idx(folder, "train-labels-idx1-ubyte")).copy()).long()
    else:
        inputs = torch.randn(EXAMPLES, FEATURES)
        labels = torch.randint(CLASSES, (EXAMPLES,))
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES))
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=args.bucket_view)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    order = torch.randperm(len(inputs))[args.ddp_rank::args.world_size]

    def step(clock):
        start = clock * BATCH % (len(order) - BATCH)
        rows = order[start:start + BATCH]
        optimizer.zero_grad(set_to_none=not args.bucket_view)
        loss = torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        return loss.item()  # As ours, which reports it with every step.

    for clock in range(args.warmup):
        first = step(clock)
    distributed.barrier()
    start = time.monotonic()
    for clock in range(args.warmup, args.warmup + args.steps):
        last = step(clock)
    distributed.barrier()
    seconds = time.monotonic() - start
    if args.ddp_rank == 0:
        print(json.dumps({"steps_per_second": args.steps / seconds, "loss": [first, last],
                          "torch": torch.__version__}))


# ---- The rounds


def run_ddp(args, world_size, bucket_view, folder):
    command = [args.python, __file__, "--world-size", world_size, "--steps", args.steps, "--warmup", args.warmup,
               "--seed", args.seed, "--rendezvous", folder / "rendezvous"]
    if bucket_view:
        command.append("--bucket-view")
    if args.data_dir:
        command += ["--data-dir", args.data_dir]
    environment = {**os.environ, **THREAD_SETTINGS, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([str(part) for part in [*command, "--ddp-rank", rank]], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(world_size)]
    outputs = []
    try:
        for rank in ranks:
            outputs.append(rank.communicate(timeout=args.timeout_seconds))
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(f"a rank of DDP failed:\n{errors[-2000:]}")
    return json.loads(outputs[0][0].splitlines()[-1])


def run_ours(args, world_size, folder, mode="allreduce", script=None):
    """Steps per second of a job: of slackline_worker, or of a script of Python that trains the same."""
    mnist = "idx { folder: 'mnist' } normalisation { given { mean: 0.1307 deviation: 0.3081 } }"
    data = mnist if args.data_dir else (
        f"teacher_student {{ features: {FEATURES} classes: {CLASSES} train_examples: {EXAMPLES} "
        "test_examples: 100 }")
    model = "" if script else (
        f"model {{ mlp {{ hidden: [{HIDDEN}, {HIDDEN}] }} }}\ndata {{ {data} batch_size: {BATCH} }}")
    steps = args.warmup + args.steps
    config = folder / "config.textproto"
    config.write_text(f"""
job: "compare-ddp"
server {{ host: "127.0.0.1" }}
worker {{ host: "127.0.0.1" count: {world_size} threads: 1 }}
{model}
optimizer {{ momentum {{ learning_rate: {RATE} momentum: {MOMENTUM} }} }}
train {{ epochs: 1000 max_steps: {steps} seed: {args.seed} eval_every_epochs: 1000 }}
""")
    out = folder / "run"
    command = [args.bin_dir / "slackline", "run", config, "--mode", mode, "--out", out, "--no-progress"]
    for assignment in args.set:
        command += ["--set", assignment]
    if args.data_dir:
        command += ["--data-dir", args.data_dir]
    if script:
        command += ["--", args.python, script]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          env={**os.environ, **THREAD_SETTINGS}, timeout=args.timeout_seconds)
    if done.returncode != 0:
        sys.exit(f"slackline run failed:\n{done.stderr[-2000:]}")
    summary = json.loads((out / "summary.json").read_text())
    # A train record has the speed of its worker since the record before.
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    records = [r for r in records if r["kind"] == "train" and r["rank"] == 0]
    counted, seconds, before = 0, 0.0, 0
    for record in records:
        count, before = record["step"] - before, record["step"]
        if record["step"] - count >= args.warmup:
            counted += count
            seconds += count * BATCH / record["examples_per_second"]
    if counted == 0:
        sys.exit(f"{args.steps} steps are too few: there is no train record after the warm-up")
    return {"steps_per_second": counted / seconds, "with_start": summary["steps"] / summary["wall_seconds"],
            "loss": [records[0]["loss"], records[-1]["loss"]]}


def find_python(candidates):
    for python in candidates:
        try:
            found = subprocess.run([python, "-c", "import torch; print(torch.distributed.is_available())"],
                                   capture_output=True, text=True)
        except FileNotFoundError:
            continue
        if found.returncode == 0 and found.stdout.split()[-1:] == ["True"]:
            return python
    sys.exit(f"no PyTorch with torch.distributed for {' or '.join(candidates)}; install it with\n"
             "    sudo apt-get install python3-torch\nor name a Python that has it with --python")


def cpu_model():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="timed, of each rank and round (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=30, help="steps before that (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each system (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-dir", type=pathlib.Path,
                        help="folder with mnist/, to train on MNIST; default: generated data")
    parser.add_argument("--set", action="append", default=[], help="as for slackline run, for ours only")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--timeout-seconds", type=float, default=120, help="of one round (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="2 ranks, one round, few steps")
    for name, kind in (("--ddp-rank", int), ("--world-size", int), ("--rendezvous", pathlib.Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--bucket-view", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ddp_rank is not None:
        ddp_rank(args)
        return
    if args.smoke:
        args.ranks, args.rounds, args.steps, args.warmup = "2", 1, 60, 5
    if not (args.bin_dir / "slackline").exists():
        sys.exit(f"{args.bin_dir}/slackline: not there; build it, or give --bin-dir")
    args.python = find_python([args.python] if args.python else [sys.executable, "/usr/bin/python3"])

    print(f"{'ranks':>5} {'system':>10} {'steps/s':>9} {'mad':>7} {'ours/it':>8}", file=sys.stderr)
    for world_size in [int(ranks) for ranks in args.ranks.split(",")]:
        speeds, losses = {}, {}
        torch_version = ""
        for _ in range(args.rounds):
            for system in ("slackline", "ddp", "ddp-view"):
                with tempfile.TemporaryDirectory(prefix="compare-ddp-") as folder:
                    folder = pathlib.Path(folder)
                    result = run_ours(args, world_size, folder) if system == "slackline" else run_ddp(
                        args, world_size, system == "ddp-view", folder)
                speeds.setdefault(system, []).append(result["steps_per_second"])
                losses[system] = result["loss"]
                torch_version = result.get("torch", torch_version)
        line = {"benchmark": "compare_ddp", "ranks": world_size, "steps": args.steps, "warmup": args.warmup,
                "rounds": args.rounds, "seed": args.seed, "data": "mnist" if args.data_dir else "generated"}
        for system, samples in speeds.items():
            median = statistics.median(samples)
            ratios = [ours / theirs for ours, theirs in zip(speeds["slackline"], samples)]
            line[system] = {
                "steps_per_second": {"median": median, "mad": statistics.median(abs(s - median) for s in samples),
                                     "min": min(samples), "max": max(samples)},
                "loss_first_last": losses[system]}
            ratio = ""
            if system != "slackline":
                line[system]["ratio"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
                ratio = f"{line[system]['ratio']['median']:8.3f}"
            print(f"{world_size:5} {system:>10} {median:9.1f} {line[system]['steps_per_second']['mad']:7.1f} {ratio}",
                  file=sys.stderr)
        print(json.dumps({**line, "torch": torch_version, "cpu": cpu_model()}), flush=True)


if __name__ == "__main__":
    main()
