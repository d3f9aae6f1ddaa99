#!/usr/bin/env python3
"""How long from `slackline run` to the first step, here and on other machines?

One small job (generated data, 2 servers, 2 workers), started --rounds times by each of
the --variant lines in turn: a name, a colon, and what is added to the command. Prints
per variant the median and the median absolute deviation of the seconds until the first
record of a step is in the folder of the run, and until the command has ended (20 steps,
evaluation, model), and how much later the first step is than that of the first variant,
as the median over the rounds. Records come back from other machines twice a
second, so there up to 0.5 s of it is the way back. Standard library only.

  benchmarks/start_up.py --variant "with keys:" --variant "without:--set insecure=true"
  benchmarks/start_up.py --variant here: --variant "ssh:--on ssh --hosts n1:1,n2:1"
"""
import argparse
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

JOB = """job: "start-up"
server { count: 2 }
worker { count: 2 }
model { mlp { hidden: 32 } }
data { teacher_student { features: 64 classes: 4 train_examples: 800 test_examples: 100 } batch_size: 20 }
optimizer { sgd { learning_rate: 0.1 } }
train { epochs: 1 seed: 1 }
"""
LOCAL = JOB.replace("server {", 'server { host: "127.0.0.1"').replace("worker {", 'worker { host: "127.0.0.1"')


def run_once(args, config, words, out):
    """Seconds until the first record, and until the end."""
    log = out.with_suffix(".log")
    with open(log, "wb") as said:
        begin = time.monotonic()
        process = subprocess.Popen(
            [args.bin / "slackline", "run", config, "--out", out, *words], stdout=said, stderr=said)
        first = None
        metrics = out / "metrics.jsonl"
        while process.poll() is None:
            if first is None and metrics.exists() and metrics.stat().st_size > 0:
                first = time.monotonic() - begin
            time.sleep(0.002)
        whole = time.monotonic() - begin
    if process.returncode != 0:
        sys.exit(f"start_up.py: slackline run {shlex.join(words)} has failed:\n{log.read_text()}")
    return first if first is not None else whole, whole


def text(values):
    middle = statistics.median(values)
    return f"{middle:6.2f} +- {statistics.median(abs(value - middle) for value in values):.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", action="append", metavar="NAME:FLAGS",
                        help='default: "here:" and "here, without keys:--set insecure=true"')
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    args = parser.parse_args()
    variants = []
    for variant in args.variant or ["here:", "here, without keys:--set insecure=true"]:
        name, colon, flags = variant.partition(":")
        if not colon:
            parser.error(f"--variant: '{variant}' has no colon; NAME:FLAGS is required")
        variants.append((name, shlex.split(flags)))
    firsts = {name: [] for name, _ in variants}
    wholes = {name: [] for name, _ in variants}
    with tempfile.TemporaryDirectory(prefix="slackline-start-up-") as folder:
        folder = pathlib.Path(folder)
        for name, text_of in (("local", LOCAL), ("placed", JOB)):
            (folder / f"{name}.textproto").write_text(text_of)
        for turn in range(args.rounds + 1):
            for number, (name, words) in enumerate(variants):
                config = folder / ("placed" if "--on" in words else "local")
                first, whole = run_once(args, config.with_suffix(".textproto"), words,
                                        folder / f"run-{turn}-{number}")
                if turn > 0:  # The first turn fills caches.
                    firsts[name].append(first)
                    wholes[name].append(whole)
    base = variants[0][0]
    width = max(len(name) for name, _ in variants)
    print(f"{'':{width}}  first step, s   whole command, s   later than {base}, s")
    for name, _ in variants:
        later = [own - other for own, other in zip(firsts[name], firsts[base])]
        print(f"{name:{width}}  {text(firsts[name])}  {text(wholes[name]):>16}   {text(later)}")


if __name__ == "__main__":
    main()
