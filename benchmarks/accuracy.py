#!/usr/bin/env python3
"""How accurate is a config in each mode, over several seeds?

Runs `slackline run CONFIG` for every mode and seed, one after the other, and
prints a table with mean and spread (smallest to largest) of the final test
accuracy, train and test loss, and the median speed. Finished runs in --out are
kept and not repeated. Standard library only.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys


def finished(out):
    """Whether this run is there already: then it is not made again."""
    path = out / "summary.json"
    return path.exists() and json.loads(path.read_text())["state"] == "FINISHED"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--modes", default="bsp,ssp:3,asp,allreduce")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", help="as for slackline run")
    parser.add_argument("--data-dir", help="as for slackline run")
    parser.add_argument("--set", action="append", default=[], help="as for slackline run")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the runs")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--smoke", action="store_true", help="one seed, a few steps")
    args = parser.parse_args()
    if args.smoke:
        args.seeds = "1"
        args.set.append("train.max_steps=20")

    rows = []
    for mode in args.modes.split(","):
        summaries = []
        for seed in args.seeds.split(","):
            out = args.out / f"{args.config.stem}-{mode.replace(':', '-')}-seed{seed}"
            if not finished(out):
                command = [args.bin_dir / "slackline", "run", args.config, "--mode", mode,
                           "--seed", seed, "--out", out]
                for flag, value in (("--epochs", args.epochs), ("--data-dir", args.data_dir)):
                    if value is not None:
                        command += [flag, value]
                for assignment in args.set:
                    command += ["--set", assignment]
                print(f"{mode}, seed {seed} ...", file=sys.stderr, flush=True)
                done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
                if done.returncode != 0:
                    sys.exit(f"{mode}, seed {seed} failed:\n{done.stderr[-2000:]}")
            summaries.append(json.loads((out / "summary.json").read_text()))
        rows.append((mode, summaries))

    print(f"{args.config.name}, seeds {args.seeds}; data: {rows[0][1][0]['data']}")
    print()
    print("| mode | test accuracy, mean (min to max) | train loss, mean (min to max) | test loss, mean "
          "| examples/s, median | lead max, clocks |")
    print("| --- | --- | --- | --- | --- | --- |")
    for mode, summaries in rows:
        accuracy = [100 * s["test_accuracy"] for s in summaries]
        train = [s["train_loss"] for s in summaries]
        test = [s["test_loss"] for s in summaries]
        speed = statistics.median(s["examples_per_second"] for s in summaries)
        lead = max(s["lead"]["max"] for s in summaries)
        print(f"| {mode} | {statistics.mean(accuracy):.2f} % ({min(accuracy):.2f} to {max(accuracy):.2f}) "
              f"| {statistics.mean(train):.6f} ({min(train):.6f} to {max(train):.6f}) "
              f"| {statistics.mean(test):.4f} | {speed:,.0f} | {lead} |")


if __name__ == "__main__":
    main()
