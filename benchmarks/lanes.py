#!/usr/bin/env python3
"""What does a step by all-reduce take by each lane, and what was predicted?

For each link one job for each way of its gradients: all among the ranks, all by
the servers, some by the servers, and as measured; four workers and two servers on
this machine, an MLP, generated data. Prints milliseconds of a step (the slowest
worker's, from its first report of training to its last one) beside what the cost
model of docs/manual/lanes.md says of a sum, with the costs that the measured job
has found. Standard library only.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKERS = 4
SERVERS = 2
BATCH = 64  # Examples per worker and step.
WAYS = {
    "all among the ranks": [],
    "all by the servers": ["lane { servers {} }"],
    "the largest table among the ranks": ['lane { table: "mlp.0.weight" ranks {} }', "lane { servers {} }"],
    "as measured": ["lane { measured {} }"],
}


def config_text(args, link, lanes):
    conditions = f"conditions {{ link {{ bandwidth_mbit: {link} }} }}" if link else ""
    steps = args.steps if link else 10 * args.steps
    return "\n".join([
        'job: "lanes"',
        f'server {{ host: "127.0.0.1" count: {SERVERS} }}',
        f'worker {{ host: "127.0.0.1" count: {WORKERS} {conditions} }}',
        f"model {{ mlp {{ hidden: [{args.hidden}] }} }}",
        f"data {{ teacher_student {{ train_examples: {steps * BATCH * WORKERS} test_examples: 100 }} "
        f"batch_size: {BATCH} }}",
        "optimizer { sgd { learning_rate: 0.001 } }",
        "sync { allreduce {}", "collective {", *lanes, "} }",
        f"limits {{ transport: {args.transport} }}",
        "train { epochs: 1 eval_every_epochs: 2 }", ""])


def step_ms(out):
    """Of the slowest worker, between its first and its last report."""
    reports = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "train":
            reports.setdefault(record["rank"], []).append((record["step"], record["seconds"]))
    if not reports or any(len(of_rank) < 2 for of_rank in reports.values()):
        sys.exit(f"{out}: too few reports of training; give more --steps")
    times = []
    for of_rank in reports.values():
        (first, begin), (last, end) = min(of_rank), max(of_rank)
        times.append(1000 * (end - begin) / (last - first))
    return max(times)


def lanes_of(out):
    """What worker 0 says of its lanes: MB by the servers and in all, and the costs in ms for a MB, if measured."""
    log = (out / "logs" / "worker-0.log").read_text()
    found = re.search(r"servers sum the gradients of \d+ of \d+ tables, ([\d.]+) of ([\d.]+) MB", log)
    costs = re.search(r"a MB takes ([\d.]+) ms among the ranks, ([\d.]+) by the servers", log)
    return ([float(x) for x in found.groups()] if found else None,
            [float(x) for x in costs.groups()] if costs else None)


def predict(costs, by_ranks, by_servers):
    ranks, servers = costs
    link = min(servers, ranks * WORKERS / (2 * (WORKERS - 1)))
    return max(by_servers * servers, by_servers * link + by_ranks * ranks)


def run(args, folder, link, way):
    name = f"{way.replace(' ', '-')}-{link or 'none'}"
    config = folder / f"{name}.textproto"
    config.write_text(config_text(args, link, WAYS[way]))
    out = folder / name
    print(f"link {link or 'none'}, {way} ...", file=sys.stderr, flush=True)
    done = subprocess.run([str(part) for part in
                           (args.bin_dir / "slackline", "run", config, "--out", out, "--no-progress")],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="0,100,1000", help="Mbit/s of each worker, with commas; 0: no link (default: %(default)s)")
    parser.add_argument("--hidden", default="512,512", help="widths of the hidden layers (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="of each job; ten times as many without a link (default: %(default)s)")
    parser.add_argument("--transport", default="AUTO", help="as limits.transport (default: %(default)s)")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--smoke", action="store_true", help="small and short, to see that it works")
    args = parser.parse_args()
    if args.smoke:
        args.links, args.hidden, args.steps = "100", "32", 60
    print("| link of each worker, Mbit/s | way | MB by the servers | step, ms | a sum as predicted, ms |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        for link in [int(link) for link in args.links.split(",")]:
            outs = {way: run(args, pathlib.Path(temporary), link, way) for way in WAYS}
            (_, total), costs = lanes_of(outs["as measured"])
            for way, out in outs.items():
                found, _ = lanes_of(out)
                by_servers = found[0] if found else 0
                print(f"| {link or 'none'} | {way} | {by_servers:.2f} of {total:.2f} | {step_ms(out):.2f} | "
                      f"{predict(costs, total - by_servers, by_servers):.2f} |", flush=True)


if __name__ == "__main__":
    main()
