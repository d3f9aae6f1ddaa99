#!/usr/bin/env python3
"""Is a job whose workers are Python scripts as fast as one of slackline_worker, and as DistributedDataParallel?
What does elastic sampling cost?

The MLP 784-512-512-10 with momentum (or another --net), 64 examples per worker and step, one compute thread each, one server,
everything on this machine; in BSP, SSP(3) and by all-reduce. "worker" is slackline_worker's built-in model,
"script" the one below through the package slackline, "elastic" the same with job.loader(elastic=True), "waiting"
with job.model(overlap=False), whose steps begin when all parameters have come, "ddp"
the ranks of compare_ddp.py, with the PyTorch of the same Python. The time counts from the end of the warm-up
to the last step. Rounds alternate; ratios are the script's over the other's, round by round. Expected: 1
against the worker, because the same LibTorch computes and what Python adds is about 0.1 ms to a step of 10 ms;
the targets are 0.9 against the worker and 1.0 against DDP. A little above 1 against elastic sampling, which
asks the coordinator in each step, over servers while the parameters are on their way. 1 against
waiting on one host; above it over a link on which the parameters take long (--set
'worker[0].conditions.link.bandwidth_mbit=500'), where forward goes on meanwhile.

Then, in this process alone: what the package adds to a step of a script that is left without communication
and arithmetic, in microseconds, for 10 and for 200 parameters.

The Python needs PyTorch and the package: --python, default the one that runs this.

stdout: one JSON line per comparison. stderr: the same as a table.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import compare_ddp as peer

NETS = {
    "mlp": f"""
    torch.nn.Linear({peer.FEATURES}, {peer.HIDDEN}), torch.nn.ReLU(),
    torch.nn.Linear({peer.HIDDEN}, {peer.HIDDEN}), torch.nn.ReLU(), torch.nn.Linear({peer.HIDDEN}, {peer.CLASSES})""",
    # Nearly all of the arithmetic is in the first layers, and of the bytes in a late one.
    "cnn": f"""
    torch.nn.Unflatten(1, (1, 28, 28)), torch.nn.Conv2d(1, 20, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(20, 50, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(800, 500), torch.nn.ReLU(), torch.nn.Linear(500, {peer.CLASSES})""",
}

SCRIPT = f"""
import torch
from torch.nn import functional as F
import slackline

job = slackline.join()
if job.data_dir:
    import pathlib, sys
    sys.path.insert(0, {str(pathlib.Path(__file__).parent.resolve())!r})
    import compare_ddp as peer
    folder = pathlib.Path(job.data_dir) / "mnist"
    inputs = torch.from_numpy(peer.load_idx(peer.find_idx(folder, "train-images-idx3-ubyte")).copy())
    inputs = inputs.reshape(-1, {peer.FEATURES}).float() / 255
    labels = torch.from_numpy(peer.load_idx(peer.find_idx(folder, "train-labels-idx1-ubyte")).copy()).long()
else:
    inputs = torch.randn({peer.EXAMPLES}, {peer.FEATURES})
    labels = torch.randint({peer.CLASSES}, ({peer.EXAMPLES},))
net = job.model(torch.nn.Sequential(NET), overlap=OVERLAP)
opt = job.optimizer(net)
for epoch in job.epochs():
    for x, y in job.loader(torch.utils.data.TensorDataset(inputs, labels), batch_size={peer.BATCH}, elastic=ELASTIC):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
"""

# The time of a step in which nothing is computed, sent or applied, less that of
# setting the gradients, and of a DataLoader's batch.
LAYER = """
import sys, time
import torch
import slackline

tables, steps, warmup = int(sys.argv[1]), int(sys.argv[2]), 100
net = torch.nn.Module()
net.rows = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(16)) for _ in range(tables)])
data = torch.utils.data.TensorDataset(torch.zeros(steps + warmup, 1))
parameters, gradients = list(net.parameters()), [torch.zeros(16) for _ in range(tables)]

def timed(batches, end):
    for i, _ in enumerate(batches):
        if i == warmup:
            start = time.perf_counter()
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
        end()
    return (time.perf_counter() - start) / steps * 1e6

def forget():
    for parameter in parameters:
        parameter.grad = None

job = slackline.join()
job.model(net)
opt = job.optimizer(net, slackline.SGD(lr=0.1))
world = job._world
def skip(gradients, options, skipped):
    world._worker.finish_step([None for _ in gradients], options)
    return True
world.finish_step = skip
rows = [torch.tensor([i]) for i in range(steps + warmup)]
plain = timed((data.tensors[0][row] for row in rows), forget)
print(timed(job.loader(data, batch_size=1), opt.step) - plain)
"""


def spread(samples):
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def compare(args, mode, ranks):
    systems = [system for system in args.systems.split(",") if system != "ddp" or mode == "allreduce"]
    speeds = {system: [] for system in systems}
    for _ in range(args.rounds):
        for system in systems:
            with tempfile.TemporaryDirectory(prefix="python-speed-") as folder:
                folder = pathlib.Path(folder)
                script = folder / "script.py"
                script.write_text(
                    SCRIPT.replace("NET", NETS[args.net])
                    .replace("ELASTIC", str(system == "elastic"))
                    .replace("OVERLAP", "False" if system == "waiting" else "None"))
                if system == "ddp":
                    result = peer.run_ddp(args, ranks, False, folder)
                else:
                    result = peer.run_ours(args, ranks, folder, mode, None if system == "worker" else script)
            speeds[system].append(result["steps_per_second"])
    line = {"benchmark": "python_speed", "net": args.net, "mode": mode, "workers": ranks, "steps": args.steps,
            "warmup": args.warmup, "rounds": args.rounds, "seed": args.seed,
            "data": "mnist" if args.data_dir else "generated"}
    for system, samples in speeds.items():
        line[system] = {"steps_per_second": spread(samples)}
        text = ""
        if system != "script":
            ratios = spread([mine / theirs for mine, theirs in zip(speeds["script"], samples)])
            line[system]["script_ratio"] = ratios
            text = f"{ratios['median']:8.3f} ({ratios['min']:.3f} to {ratios['max']:.3f})"
        print(f"{mode:>10} {ranks:8} {system:>8} {statistics.median(samples):9.1f} {text}", file=sys.stderr)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="bsp,ssp:3,allreduce", help="default: %(default)s")
    parser.add_argument("--systems", default="script,worker,elastic,ddp",
                        help="some of these; script is always one (default: %(default)s)")
    parser.add_argument("--net", choices=NETS, default="mlp",
                        help="cnn: a LeNet of 430,000 parameters, not with worker and ddp (default: %(default)s)")
    parser.add_argument("--ranks", default="2", help="numbers of workers (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="timed, of each round (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=30, help="steps before that (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each system (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-dir", type=pathlib.Path, help="folder with mnist/; default: generated data")
    parser.add_argument("--set", action="append", default=[], help="as for slackline run")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch and the package")
    parser.add_argument("--timeout-seconds", type=float, default=120, help="of one round (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="one mode, one round, few steps")
    args = parser.parse_args()
    unknown = set(args.systems.split(",")) - {"script", "worker", "elastic", "waiting", "ddp"}
    if unknown or "script" not in args.systems.split(","):
        parser.error(
            f"--systems: {args.systems}; script, and some of worker, elastic, waiting and ddp, are required")
    if args.net != "mlp" and {"worker", "ddp"} & set(args.systems.split(",")):
        parser.error(f"--systems: {args.systems}; with --net {args.net} only script, elastic and waiting")
    if args.smoke:
        args.modes, args.rounds, args.steps, args.warmup = "allreduce", 1, 60, 5
        args.systems += ",waiting"
    found = subprocess.run([args.python, "-c", "import slackline, torch; print(torch.__version__)"],
                           capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"{args.python} has no PyTorch or no package slackline; name one with --python, or set "
                 f"PYTHONPATH=build/release/python\n{found.stderr[-500:]}")
    common = {"torch": found.stdout.strip(), "cpu": peer.cpu_model()}

    print(f"{'mode':>10} {'workers':>8} {'system':>8} {'steps/s':>9} script/it", file=sys.stderr)
    for mode in args.modes.split(","):
        for ranks in map(int, args.ranks.split(",")):
            print(json.dumps({**compare(args, mode, ranks), **common}), flush=True)
    for tables in (10, 200):
        samples = []
        for _ in range(args.rounds):
            done = subprocess.run([args.python, "-c", LAYER, str(tables), str(10 * args.steps)],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"the step without communication failed:\n{done.stderr[-2000:]}")
            samples.append(float(done.stdout))
        print(f"{tables} tables: the package adds {statistics.median(samples):.1f} us to a step", file=sys.stderr)
        print(json.dumps({"benchmark": "python_layer", "tables": tables, "steps": 10 * args.steps,
                          "added_us": spread(samples), **common}), flush=True)


if __name__ == "__main__":
    main()
