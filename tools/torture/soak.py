"""Does a long job stay flat?

One job of many small steps: while it trains, shards move, the mode changes,
checkpoints are taken, and workers and servers other than worker 0 and server 0 are
killed and started again. Ends with a table of what those two, `slackline run` and the
folder of the run have at a tenth of the steps and at the end: memory, descriptors,
threads, and bytes of each kind of file. Standard library only.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import faults

JOB = """
job: "soak"
replicas: 1
server {{ host: "127.0.0.1" count: 3 }}
worker {{ host: "127.0.0.1" count: 3 }}
model {{ mlp {{ hidden: 16 }} }}
data {{
  teacher_student {{ features: 16 classes: 4 train_examples: 4000 test_examples: 400 }}
  batch_size: 4
}}
optimizer {{ momentum {{ learning_rate: 0.05 momentum: 0.9 }} }}
train {{ max_steps: {steps} epochs: 100000 seed: 1 eval_every_epochs: 50 }}
checkpoint {{ every_seconds: 20 keep: 3 on_server_loss: RESTORE }}
limits {{ shard_kib: 1 lease_ms: 2000 }}
"""
MODES = ("ssp:2", "bsp", "asp", "dssp:1:4", "allreduce")


def command(args, *words):
    return [str(args.bin_dir / "slackline")] + [str(w) for w in words]


def of_process(pid):
    """Resident MiB, descriptors, threads; None: it is gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if "VmRSS" not in values:
        return None
    return {"mib": int(values["VmRSS"].split()[0]) / 1024, "descriptors": descriptors,
            "threads": int(values["Threads"])}


def of_folder(folder):
    """Bytes and files, by kind: the name without numbers."""
    kinds = {}
    for path in folder.rglob("*"):
        try:
            if not path.is_file():
                continue
            size = path.stat().st_size
        except OSError:
            continue
        parts = path.relative_to(folder).parts
        kind = parts[0] + "/" if len(parts) > 1 else parts[0]
        at = kinds.setdefault(kind, {"bytes": 0, "files": 0})
        at["bytes"] += size
        at["files"] += 1
    return kinds


class Soak:
    def __init__(self, args):
        self.args = args
        self.rng = random.Random(args.seed)
        self.out = args.out / "run"
        self.config = args.out / "job.textproto"
        self.done = {}      # Commands and kills, by name: done, refused.
        self.refusals = []  # What was said.
        self.mode = MODES[0]
        self.samples = []

    def run(self):
        args = self.args
        args.out.mkdir(parents=True)
        self.config.write_text(JOB.format(steps=args.steps))
        with open(args.out / "run.log", "wb") as log:
            process = subprocess.Popen(
                command(args, "run", self.config, "--mode", MODES[0], "--out", self.out,
                        "--no-progress", "--restart-workers", 1000, "--restart-servers",
                        1000), stdout=log, stderr=subprocess.STDOUT)
        begun = time.monotonic()
        try:
            self.follow(process, begun)
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        self.seconds = time.monotonic() - begun
        return code

    def follow(self, process, begun):
        next_act = begun + 10
        shown = 0
        while process.poll() is None:
            time.sleep(1)
            step = self.step()
            if step is None:
                continue
            here = {(role, index): pid for role, index, pid in
                    faults.processes_of(self.args.out) if role in ("server", "worker", "run")}
            sample = {"step": step, "seconds": time.monotonic() - begun, "processes": {
                f"{role} {index}" if index >= 0 else role: of_process(pid)
                for (role, index), pid in here.items()}, "files": of_folder(self.out)}
            self.samples.append(sample)
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                print(f"{step} of {self.args.steps} steps, {sample['seconds']:.0f} s, "
                      f"{sum(d for d, _ in self.done.values())} acts", file=sys.stderr, flush=True)
            if time.monotonic() >= next_act and step < 0.97 * self.args.steps:
                next_act = time.monotonic() + self.args.every
                self.act(here)

    def step(self):
        done = subprocess.run(command(self.args, "status", self.out, "--json"),
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            status = json.loads(done.stdout)
        except ValueError:
            return None
        clocks = [w.get("clock", 0) for w in status.get("worker", [])]
        return max(clocks) if clocks else None

    def other_mode(self):
        self.mode = self.rng.choice([m for m in MODES if m != self.mode])
        return self.mode

    def act(self, here):
        kind = self.rng.choice(("move", "mode", "checkpoint", "kill worker", "kill server"))
        if kind.startswith("kill"):
            index = self.rng.choice((1, 2))
            pid = here.get((kind[5:], index))
            ok = pid is not None and faults.send(pid, signal.SIGKILL)
        else:
            if kind == "move":
                words = [kind, self.out, self.rng.randrange(4), "--to", self.rng.randrange(3)]
            elif kind == "mode":
                words = [kind, "set", self.out, self.other_mode()]
            else:
                words = [kind, self.out]
            try:
                asked = subprocess.run(command(self.args, *words), stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, timeout=30)
                ok = asked.returncode == 0
                if not ok:
                    self.refusals.append(asked.stdout.decode(errors="replace").strip())
            except subprocess.TimeoutExpired:
                ok = False
                self.refusals.append(f"{kind}: no answer within 30 s")
        done, refused = self.done.get(kind, (0, 0))
        self.done[kind] = (done + ok, refused + (not ok))

    # ---- What is said of it ---------------------------------------------------

    def at(self, share):
        """Of the samples around this share of the steps the largest values: one alone may be of a
        moment in which something goes on."""
        middle = share * self.samples[-1]["step"]
        width = 0.05 * self.samples[-1]["step"]
        near = [s for s in self.samples if abs(s["step"] - middle) <= width] or \
            [min(self.samples, key=lambda s: abs(s["step"] - middle))]
        values = {}
        for sample in near:
            for name, of in sample["processes"].items():
                if name not in ("server 0", "worker 0", "run") or of is None:
                    continue
                for what, value in of.items():
                    key = f"{name}, {what}"
                    values[key] = max(values.get(key, 0), value)
            for name, of in sample["files"].items():
                for what, value in of.items():
                    key = f"{name}, {what}"
                    values[key] = max(values.get(key, 0), value)
        return values

    def table(self):
        early, middle, late = self.at(0.1), self.at(0.5), self.at(0.97)
        lines = [f"{'':34} {'a tenth':>12} {'half':>12} {'the end':>12}"]
        for key in sorted(set(early) | set(late)):
            lines.append(f"{key:34} {early.get(key, 0):12.0f} {middle.get(key, 0):12.0f} "
                         f"{late.get(key, 0):12.0f}")
        acts = ", ".join(f"{k} {d}+{r}" for k, (d, r) in sorted(self.done.items()))
        lines.append(f"{self.samples[-1]['step']} steps in {self.seconds:.0f} s; done and refused: "
                     f"{acts}")
        return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="soak.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--steps", type=int, default=1000000, help="default: %(default)s")
    parser.add_argument("--every", type=float, default=3, metavar="SECONDS",
                        help="between two of the things that befall it; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn; default: %(default)s")
    parser.add_argument("--out", type=pathlib.Path,
                        help="a folder that is new; default: a temporary one, which is removed if "
                             "the job ends well")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=here / "build/release/bin",
                        help="default: %(default)s")
    args = parser.parse_args()
    if args.steps < 1000:
        parser.error(f"--steps: {args.steps} is too few to say anything; 1000 or more")
    if args.out and args.out.exists():
        parser.error(f"--out: {args.out} is there already; name a folder that is new")
    temporary = None if args.out else pathlib.Path(tempfile.mkdtemp(prefix="slackline-soak-"))
    args.out = (args.out or temporary / "soak").resolve()
    soak = Soak(args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = soak.run()
    except KeyboardInterrupt:
        print(f"soak.sh: stopped; what there is: {args.out}", file=sys.stderr)
        return 130
    if not soak.samples:
        print(f"soak.sh: the job did not run: see {args.out}/run.log", file=sys.stderr)
        return 1
    print(soak.table())
    (args.out / "soak.json").write_text(json.dumps(
        {"samples": soak.samples, "done": soak.done, "refusals": soak.refusals}))
    if code != 0:
        print(f"soak.sh: slackline run ended with exit code {code}: see {args.out}/run.log",
              file=sys.stderr)
        return 1
    if temporary:
        shutil.rmtree(temporary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
