#!/usr/bin/env python3
"""Does the policy choose well when one worker is slow?

Trains on MNIST (without a network: its generated stand-in) with one of four
workers made --slowdown times slower: in each fixed mode and in auto, for each
seed, alternating, so that whatever else the machine does meets all of them.
Prints a table with wall time, accuracy and changes of the mode, and how much
time auto took compared with the best fixed mode. Finished runs in --out are kept
and not repeated. Standard library only.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

MODES = ["bsp", "ssp:3", "asp", "allreduce", "auto"]
ROOT = pathlib.Path(__file__).resolve().parent.parent


def finished(out):
    """Whether this run is there already: then it is not made again."""
    path = out / "summary.json"
    return path.exists() and json.loads(path.read_text())["state"] == "FINISHED"


def run(args, mode, seed):
    """The summary of one run, and its changes of the mode."""
    out = args.out / f"{mode.replace(':', '-')}-seed{seed}"
    if not finished(out):
        command = [args.bin_dir / "slackline", "run", args.config, "--mode", mode, "--seed", seed,
                   "--out", out, "--no-progress"]
        for flag, value in (("--epochs", args.epochs), ("--data-dir", args.data_dir)):
            if value is not None:
                command += [flag, value]
        for assignment in [f"worker[1].slowdown={args.slowdown}", *args.set]:
            command += ["--set", assignment]
        print(f"{mode}, seed {seed} ...", file=sys.stderr, flush=True)
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{mode}, seed {seed} failed:\n{done.stderr[-2000:]}")
    changes = [json.loads(line) for line in (out / "modes.jsonl").read_text().splitlines()]
    return json.loads((out / "summary.json").read_text()), changes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "examples/mnist_auto.textproto",
                        help="its second worker block is the slow one; default: %(default)s")
    parser.add_argument("--slowdown", default="3", help="default: %(default)s; 1: all are even")
    parser.add_argument("--modes", default=",".join(MODES), help="default: %(default)s")
    parser.add_argument("--seeds", default="1,2,3", help="default: %(default)s")
    parser.add_argument("--epochs", help="as for slackline run")
    parser.add_argument("--data-dir", help="as for slackline run")
    parser.add_argument("--set", action="append", default=[], help="as for slackline run")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/mode_auto"),
                        help="folder for the runs; default: %(default)s")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--smoke", action="store_true", help="one seed, a few steps of generated data; keeps nothing")
    args = parser.parse_args()
    if not args.smoke:
        return report(args)
    args.seeds = "1"
    args.set += ["data.teacher_student.train_examples=5120", "data.teacher_student.test_examples=100",
                 "train.epochs=1", "schedule.warmup_steps=0", "model.mlp.hidden=16"]
    with tempfile.TemporaryDirectory() as folder:
        args.out = pathlib.Path(folder)
        report(args)


def report(args):
    modes = args.modes.split(",")

    runs = {mode: [] for mode in modes}
    for i, seed in enumerate(args.seeds.split(",")):
        # Forwards and backwards, so that no mode is always first.
        for mode in modes if i % 2 == 0 else reversed(modes):
            runs[mode].append(run(args, mode, seed))

    seconds = {mode: [summary["wall_seconds"] for summary, _ in runs[mode]] for mode in modes}
    print(f"{args.config.name}, one of 4 workers {args.slowdown} times slower, seeds {args.seeds}; "
          f"data: {runs[modes[0]][0][0]['data']}")
    print()
    print("| mode | wall seconds, median (min to max) | test accuracy, mean (min to max) "
          "| changes of the mode |")
    print("| --- | --- | --- | --- |")
    for mode in modes:
        accuracy = [100 * summary["test_accuracy"] for summary, _ in runs[mode]]
        changes = [len(changes) for _, changes in runs[mode]]
        print(f"| {mode} | {statistics.median(seconds[mode]):.1f} ({min(seconds[mode]):.1f} to "
              f"{max(seconds[mode]):.1f}) | {statistics.mean(accuracy):.2f} % ({min(accuracy):.2f} to "
              f"{max(accuracy):.2f}) | {', '.join(map(str, changes))} |")

    fixed = [mode for mode in modes if mode != "auto"]
    if "auto" in modes and fixed:
        best = min(fixed, key=lambda mode: statistics.median(seconds[mode]))
        ratio = statistics.median(seconds["auto"]) / statistics.median(seconds[best])
        print()
        print(f"auto took {ratio:.3f} times as long as the best fixed mode, {best}. What it did:")
        for (_, changes), seed in zip(runs["auto"], args.seeds.split(",")):
            for change in changes:
                print(f"- seed {seed}, {change['seconds']:.1f} s: {change['from']} to {change['to']} at "
                      f"step {change['from_clock']}, pause {change['pause_micros'] / 1000:.1f} ms: "
                      f"{change['reason']}")
            if not changes:
                print(f"- seed {seed}: nothing")


if __name__ == "__main__":
    main()
