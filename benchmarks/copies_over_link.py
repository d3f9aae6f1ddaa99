#!/usr/bin/env python3
"""What do copies of shards cost behind a link?

Two network namespaces with the link of tun_link between them; in each a server and
half of the workers, so every worker pushes half of its gradients over the link, and
each server copies its half of the model to the other one. For each rate and mode jobs
without copies and with them.

Columns:
  steps/s        of one worker
  of the link    of those that a link of this rate would allow, if nothing but
                 gradients, parameters and copies went over it, all the time and in
                 both directions: with W workers W P / 4 each way for the gradients
                 of a step, as much for the parameters, and for copies P / 2 in BSP,
                 where the sum of a clock is enough, and W P / 2 in ASP
  copies/useful  bytes that servers sent to copies, of those that copies need:
                 P for a clock in BSP, P for each push in ASP
  carried        bytes on the link in its busier direction, of those above
P: bytes of the parameters. A row is the median of --repeats jobs (min to max).
Needs root, network namespaces and TUN devices; says so and ends with 77 without.
Standard library only.
"""
import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEATURES, CLASSES, BATCH = 64, 4, 20
EXIT_NOT_POSSIBLE = 77


def parameter_bytes(hidden):
    return 4 * (FEATURES * hidden + hidden + hidden * CLASSES + CLASSES)


def config_text(args, mode, replicas):
    return f"""job: "copies-over-link"
insecure: true
coordinator {{ port: 7700 }}
server {{ host: "10.77.0.1" }}
server {{ host: "10.77.0.2" }}
worker {{ host: "10.77.0.1" count: {args.workers // 2} }}
worker {{ host: "10.77.0.2" count: {args.workers // 2} }}
model {{ mlp {{ hidden: {args.hidden} }} }}
data {{ teacher_student {{ features: {FEATURES} classes: {CLASSES}
  train_examples: {args.steps * BATCH * args.workers} test_examples: 100 }} batch_size: {BATCH} }}
replicas: {replicas}
sync {{ {mode} {{}} }}
optimizer {{ momentum {{ learning_rate: 0.01 momentum: 0.9 }} }}
train {{ epochs: 1 seed: 1 }}
limits {{ lease_ms: 10000 shard_kib: {args.shard_kib} }}
"""


class Link:
    """The two namespaces, as long as it lives."""

    def __init__(self, args, mbit):
        command = [args.tun_link, f"--bandwidth-mbit={mbit}", f"--latency-ms={args.latency_ms}",
                   "--loss=0", f"--queue-ms={args.queue_ms}"]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        if not first:
            if self.process.wait() == EXIT_NOT_POSSIBLE:
                print("copies_over_link.py: this machine allows no namespaces or has no TUN devices", file=sys.stderr)
            sys.exit(self.process.returncode or 1)
        self.ends = json.loads(first)

    def start(self, end, words, log):
        return subprocess.Popen(["nsenter", f"--net={self.ends[end]}", *map(str, words)], stdout=log, stderr=log)

    def carried(self):
        self.process.send_signal(signal.SIGTERM)
        counts = json.loads(self.process.stdout.read().splitlines()[-1])
        self.process.wait()
        return max(counts["a_to_b"]["bytes"], counts["b_to_a"]["bytes"])


def run(args, folder, mbit, mode, replicas):
    """Steps per second, and bytes: to copies, and in the busier direction."""
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    config = out / "job.textproto"
    config.write_text(config_text(args, mode, replicas))
    link = Link(args, mbit)
    members = []
    try:
        workers = [("worker", "ab"[2 * i // args.workers], i) for i in range(args.workers)]
        for program, end, index in [("server", "a", 0), ("server", "b", 1), *workers]:
            with open(out / f"{program}-{index}.log", "w") as log:
                members.append(link.start(end, [
                    args.bin_dir / f"slackline_{program}", f"--cluster={config}", f"--index={index}",
                    f"--out={out / 'run'}"], log))
        codes = [member.wait(timeout=args.timeout) for member in members]
    finally:
        for member in members:
            if member.poll() is None:
                member.kill()
        carried = link.carried()
    if any(codes):
        sys.exit(f"the job has failed, {codes}: {out}/*.log say why")
    summary = json.loads((out / "run" / "summary.json").read_text())
    return {
        "rate": summary["steps"] / summary["wall_seconds"], "steps": summary["steps"], "carried": carried,
        "copied": summary.get("bytes_to_followers", 0), "resent": summary.get("bytes_to_followers_resent", 0),
    }


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def row(args, folder, mbit, mode, replicas):
    size = parameter_bytes(args.hidden)
    pushes = args.workers if mode == "asp" else 1  # Of a clock, that copies need.
    per_step = args.workers * size / 2 + (pushes * size / 2 if replicas else 0)
    runs = [run(args, folder, mbit, mode, replicas) for _ in range(args.repeats)]
    useful = [r["steps"] * size * pushes for r in runs]
    copies = spread([r["copied"] / u for r, u in zip(runs, useful)], 3) if replicas else "-"
    print(f"| {mbit} | {mode} | {replicas} | {spread([r['rate'] for r in runs], 2)} "
          f"| {spread([r['rate'] * per_step * 8 / 1e6 / mbit for r in runs], 3)} | {copies} "
          f"| {spread([r['carried'] / (r['steps'] * per_step) for r in runs], 3)} "
          f"| {max(r['resent'] for r in runs)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, action="append", help="of the link; may be repeated; default: 100, 1000")
    parser.add_argument("--modes", default="bsp,asp", help="default: %(default)s")
    parser.add_argument("--hidden", type=int, default=3600,
                        help="width of the hidden layer, 276 bytes of parameters each; default: %(default)s, 1 MB")
    parser.add_argument("--steps", type=int, default=60, help="of each job; default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="an even number; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--shard-kib", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--latency-ms", type=int, default=1, help="of one way; default: %(default)s")
    parser.add_argument("--queue-ms", type=int, default=200, help="longest queue of the link; default: %(default)s")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a job; default: %(default)s")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--smoke", action="store_true", help="one small job of each kind")
    args = parser.parse_args()
    args.tun_link = args.bin_dir / "tun_link"
    if args.smoke:
        args.mbit, args.hidden, args.steps, args.repeats = [100], 100, 5, 1
    print(f"{args.workers} workers, 2 servers, {parameter_bytes(args.hidden) / 1e6:.2f} MB of parameters, shards of "
          f"{args.shard_kib} KiB, {args.latency_ms} ms each way, {args.steps} steps; median of {args.repeats} (min to max)")
    print()
    print("| Mbit/s | mode | copies | steps/s | of the link | copies/useful | carried | resent |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for mbit in args.mbit or [100, 1000]:
            for mode in args.modes.split(","):
                for replicas in (0, 1):
                    row(args, folder, mbit, mode, replicas)


if __name__ == "__main__":
    main()
