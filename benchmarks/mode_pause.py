#!/usr/bin/env python3
"""How long do the workers stand still when the mode changes?

For each hidden size one job with four workers that changes between bsp and
allreduce (or between the modes of --between) again and again, by a schedule; the
data are generated. Prints the median and spread of the pause (the longest of any
worker, from the coordinator's records in modes.jsonl), and what of it went into
connecting and into moving parameters and optimizer state. Finished runs in --out
are kept and not repeated. Standard library only.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH = 64  # Examples per worker and step.
SERVERS = 2
BRANCHES = {"bsp": "bsp {}", "asp": "asp {}", "allreduce": "allreduce {}"}


def finished(out):
    """Whether this run is there already: then it is not made again."""
    path = out / "summary.json"
    return path.exists() and json.loads(path.read_text())["state"] == "FINISHED"


def branch(mode):
    if mode.startswith("ssp:"):
        return f"ssp {{ staleness: {int(mode[4:])} }}"
    return BRANCHES[mode]


def config_text(args, hidden):
    """A job of changes + 1 phases, each of them args.steps steps long."""
    modes = args.between.split(",")
    phases = []
    for i in range(args.changes + 1):
        # One epoch is one phase, by the number of training examples below.
        end = f" until_epoch: {i + 1}" if i < args.changes else ""
        phases.append(f"  phase {{ {branch(modes[i % 2])}{end} }}")
    examples = args.steps * BATCH * args.workers
    return "\n".join([
        f'job: "mode-pause-{hidden.replace(",", "-")}"',
        f'server {{ host: "127.0.0.1" count: {SERVERS} }}',
        f'worker {{ host: "127.0.0.1" count: {args.workers} }}',
        f"model {{ mlp {{ hidden: [{hidden}] }} }}",
        f"data {{ teacher_student {{ train_examples: {examples} test_examples: 100 }} "
        f"batch_size: {BATCH} }}",
        f"optimizer {{ {args.optimizer} {{ learning_rate: 0.001 }} }}",
        "sync {", *phases, "}",
        # Evaluated once, after the last change.
        f"train {{ epochs: {args.changes + 1} eval_every_epochs: {args.changes + 2} }}", ""])


def run(args, hidden):
    """The records of the changes, and the bytes of parameters."""
    out = args.out / hidden.replace(",", "-")
    if not finished(out):
        args.out.mkdir(parents=True, exist_ok=True)
        config = args.out / f"{out.name}.textproto"
        config.write_text(config_text(args, hidden))
        command = [args.bin_dir / "slackline", "run", config, "--out", out, "--no-progress"]
        for assignment in args.set:
            command += ["--set", assignment]
        print(f"hidden {hidden} ...", file=sys.stderr, flush=True)
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"hidden {hidden} failed:\n{done.stderr[-2000:]}")
    widths = [784, *map(int, hidden.split(",")), 10]
    parameters = sum(a * b + b for a, b in zip(widths, widths[1:]))
    return [json.loads(line) for line in (out / "modes.jsonl").read_text().splitlines()], 4 * parameters


def spread(micros):
    values = [value / 1000 for value in micros]
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", action="append", help="widths of hidden layers, as in 512,512; may be "
                        "repeated; default: 512,512 1024,1024 2048,2048 4096,4096")
    parser.add_argument("--between", default="bsp,allreduce", help="two modes; default: %(default)s")
    parser.add_argument("--changes", type=int, default=10, help="in each job; default: %(default)s")
    parser.add_argument("--steps", type=int, default=10, help="between two changes; default: %(default)s")
    parser.add_argument("--workers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--optimizer", default="momentum",
                        help="sgd has no state, momentum as much as parameters, adam twice as much; "
                        "default: %(default)s")
    parser.add_argument("--set", action="append", default=[], help="as for slackline run")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/mode_pause"),
                        help="folder for the runs; default: %(default)s")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--smoke", action="store_true", help="one small net, two changes; keeps nothing")
    args = parser.parse_args()
    if not args.smoke:
        return report(args)
    args.hidden, args.changes = ["16"], 2
    with tempfile.TemporaryDirectory() as folder:
        args.out = pathlib.Path(folder)
        report(args)


def report(args):
    hidden_sizes = args.hidden or ["512,512", "1024,1024", "2048,2048", "4096,4096"]

    print(f"{args.workers} workers, {SERVERS} servers, {args.optimizer}, {args.changes} changes in each job; "
          "ms, median (min to max)")
    print()
    print("| hidden | parameters | change | times | pause | connecting | moving | moved in all |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for hidden in hidden_sizes:
        records, parameter_bytes = run(args, hidden)
        if len(records) != args.changes:
            sys.exit(f"hidden {hidden}: modes.jsonl has {len(records)} changes, the schedule {args.changes}; "
                     f"{args.out / hidden.replace(',', '-')}/logs says why")
        kinds = {}
        for record in records:
            kinds.setdefault((record["from"], record["to"]), []).append(record)
        for (before, after), changes in kinds.items():
            moved = statistics.median(change["bytes"] for change in changes)
            print(f"| {hidden} | {parameter_bytes / 1e6:.1f} MB | {before} to {after} | {len(changes)} "
                  f"| {spread([c['pause_micros'] for c in changes])} "
                  f"| {spread([c['connect_micros'] for c in changes])} "
                  f"| {spread([c['transfer_micros'] for c in changes])} | {moved / 1e6:.1f} MB |")


if __name__ == "__main__":
    main()
