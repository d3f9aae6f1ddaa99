#!/usr/bin/env python3
"""What does it cost to watch a job?

Jobs of an MLP (784-512-512-10, 64 examples a step, generated data) with two workers and
two servers, in turn: as they are; watched, by the page of `slackline open` with a
browser's requests every second, and by whoever reads /metrics of every process every
second (Prometheus asks every 15 s as it comes); and traced, with `slackline trace` all
the time. Phases and alarms are in all of them: bench_phases has what these take.

Prints the median over the rounds of a worker's steps per second between its first and
its last record, and of how much longer a step takes than beside it in the same round,
with the median absolute deviation. Standard library only.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKERS, SERVERS, BATCH = 2, 2, 64
VARIANTS = ("as it is", "watched", "traced")


def config_text(args, watched):
    # A port of its own for each process: servers first.
    health = f"health {{ port: {args.port} }}" if watched else ""
    return f"""job: "watching"
server {{ host: "127.0.0.1" count: {SERVERS} }}
worker {{ host: "127.0.0.1" count: {WORKERS} }}
model {{ mlp {{ hidden: {args.hidden} hidden: {args.hidden} }} }}
data {{ teacher_student {{ features: 784 classes: 10 train_examples: {args.steps * BATCH * WORKERS} test_examples: 100 }}
  batch_size: {BATCH} }}
sync {{ {args.mode} {{}} }}
optimizer {{ sgd {{ learning_rate: 0.01 }} }}
train {{ epochs: 1 seed: 1 }}
{health}
"""


def fetch(url):
    """The number of bytes that came; 0 if nobody answers, as before and after a job."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return len(answer.read())
    except OSError:
        return 0


class Watcher:
    """Asks for what a browser and Prometheus ask for, until it is left."""

    def __init__(self, args, config):
        self.urls = [f"http://127.0.0.1:{args.port + i}/metrics" for i in range(SERVERS + WORKERS)]
        self.bytes = 0
        self.page = subprocess.Popen([args.bin_dir / "slackline", "open", config], stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self):
        address = re.search(r"http://\S+", self.page.stdout.readline() or "")
        urls = self.urls + ([address[0].rstrip("/") + "/now"] if address else [])
        while not self.over.wait(1):
            self.bytes += sum(map(fetch, urls))

    def end(self):
        self.over.set()
        self.page.terminate()
        self.thread.join()
        self.page.wait()


def trace_all(args, folder, over):
    """One recording after the other."""
    number = 0
    while not over.is_set():
        number += 1
        subprocess.run([args.bin_dir / "slackline", "trace", folder, "--seconds", "5", "--out", folder / f"{number}.pftrace"],
                       capture_output=True)
        over.wait(0.1)


def rate(args, folder, variant):
    """Steps per second of worker 0."""
    config = folder / "job.textproto"
    config.write_text(config_text(args, variant == "watched"))
    out = folder / "run"
    job = subprocess.Popen([args.bin_dir / "slackline", "run", config, "--out", out, "--no-progress"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while job.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
    watcher, over = None, threading.Event()
    tracer = threading.Thread(target=trace_all, args=(args, out, over))
    if variant == "watched":
        watcher = Watcher(args, out)
    elif variant == "traced":
        tracer.start()
    said = job.communicate()[1]
    over.set()
    if watcher is not None:
        watcher.end()
        if watcher.bytes == 0:
            sys.exit("watching.py: nothing came of /metrics or of the page")
    if tracer.ident is not None:
        tracer.join()
    if job.returncode != 0:
        sys.exit(f"watching.py: the job has failed:\n{said}")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    own = [r for r in records if r["kind"] == "train" and r["rank"] == 0]
    if len(own) < 2:
        sys.exit(f"watching.py: {len(own)} records of training; more --steps are needed")
    return (own[-1]["step"] - own[0]["step"]) / (own[-1]["seconds"] - own[0]["seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="of each worker; default: %(default)s")
    parser.add_argument("--hidden", type=int, default=512, help="width of both hidden layers; default: %(default)s")
    parser.add_argument("--mode", default="bsp", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--port", type=int, default=9170, help="first of the ports of /metrics; default: %(default)s")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--smoke", action="store_true", help="one round of a small job")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.hidden, args.rounds = 300, 32, 1
    rates = {variant: [] for variant in VARIANTS}
    for number in range(args.rounds):
        for variant in VARIANTS[number % 3:] + VARIANTS[:number % 3]:
            with tempfile.TemporaryDirectory() as folder:
                rates[variant].append(rate(args, pathlib.Path(folder), variant))
    print(f"{WORKERS} workers, {SERVERS} servers, {args.mode}, {args.steps} steps, {args.rounds} rounds; median +- MAD")
    print()
    print("| | steps/s | a step takes longer by |")
    print("| --- | --- | --- |")
    for variant in VARIANTS:
        values = rates[variant]
        more = [100 * (plain / value - 1) for plain, value in zip(rates[VARIANTS[0]], values)]
        middle = statistics.median(more)
        spread = statistics.median(abs(value - middle) for value in more)
        longer = "" if variant == VARIANTS[0] else f"{middle:.2f} % +- {spread:.2f}"
        print(f"| {variant} | {statistics.median(values):.2f} | {longer} |", flush=True)


if __name__ == "__main__":
    main()
