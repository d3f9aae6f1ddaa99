#!/usr/bin/env python3
"""Do jobs survive what befalls real processes?

In each round a small job runs with checkpoints while its processes are killed,
stopped and started again, its disk fills up, checkpoints are damaged, shards
move and the mode changes. In half of the rounds with several servers shards have
copies, and the loss of a server must not take the job back. The job has to come
to its end, with the model of an undisturbed run where its mode promises that,
with counters that agree, and leaving no process and no half of a checkpoint
behind. What is done is drawn from --seed and the number of the round, so --seed S
--round N with the same --modes, --faults, --on-server-loss, --replicas and --etcd
does it again; at which step it meets the job is up to the machine. Standard
library only.
"""
import argparse
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import faults
import results
import rounds

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="torture.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn; default: 1")
    parser.add_argument("--rounds", type=int,
                        help="so many; default: 10, or with --seconds no bound")
    parser.add_argument("--seconds", type=float,
                        help="no round is begun after so many seconds")
    parser.add_argument("--round", type=int, help="only the round of this number")
    parser.add_argument("--modes", default=",".join(rounds.MODES),
                        help="the rounds take turns with them; default: %(default)s")
    parser.add_argument("--faults", default=",".join(faults.KINDS),
                        help="only of these kinds, and with copies losses of servers; default: "
                        "%(default)s")
    parser.add_argument("--on-server-loss", choices=("both", "restore", "fail"), default="both",
                        help="who brings a job back that has lost a server: `slackline run` "
                        "(restore), or this program with --resume (fail); default: both, by turns "
                        "that are drawn")
    parser.add_argument("--replicas", choices=("both", "0", "1"), default="both",
                        help="copies of each shard, in rounds with more than one server; with "
                        "them the job has to bear the loss of any server, server 0 with the "
                        "coordinator included, without going back; default: both, by turns that "
                        "are drawn")
    parser.add_argument("--etcd", action="store_true",
                        help="rounds with copies keep the coordinator's state in an etcd, which "
                        "this program starts: any server goes on as the coordinator")
    parser.add_argument("--patience-seconds", type=float, default=60,
                        help="a job that does not get on for so long hangs; default: 60")
    parser.add_argument("--out", type=pathlib.Path,
                        help="new or empty folder for torture.json and the files of rounds that "
                        "failed; default: a temporary one, which goes if none does")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin",
                        help="folder of slackline and its servers and workers; default: "
                        "build/release/bin")
    parser.add_argument("--data-dir", type=pathlib.Path,
                        help="train on MNIST in DATA_DIR/mnist; default: on data that the job "
                        "makes itself")
    parser.add_argument("--keep", action="store_true", help="the files of all rounds stay")
    args = parser.parse_args(argv)
    args.modes = args.modes.split(",")
    for mode in args.modes:
        if mode not in rounds.MODES:
            parser.error(f"--modes: '{mode}' is none; choose from {', '.join(rounds.MODES)}")
    args.faults = args.faults.split(",")
    for kind in args.faults:
        if kind not in faults.KINDS:
            parser.error(f"--faults: '{kind}' is none; choose from {', '.join(faults.KINDS)}")
    if not set(args.faults) & set(faults.KEEPS_BITS):
        parser.error("--faults: some rounds bear only those after which the model has the same "
                     f"bits; add one of {', '.join(faults.KEEPS_BITS)}")
    if args.round is not None and (args.rounds or args.seconds):
        parser.error("--round: is one round; leave out --rounds and --seconds")
    if args.out and args.out.exists() and any(args.out.iterdir()):
        parser.error(f"--out: {args.out} is not empty; name another folder")
    for program in ("slackline", "slackline_server", "slackline_worker"):
        if not (args.bin_dir / program).exists():
            parser.error(f"--bin-dir: {args.bin_dir / program} is missing; build it first "
                         "(cmake --build --preset release)")
    if args.etcd and not shutil.which("etcd"):
        parser.error("--etcd: etcd is not installed; tools/setup.sh does it")
    if args.rounds is None and args.seconds is None:
        args.rounds = 10
    return args


def numbers(args):
    """The rounds to do, until the time is over."""
    if args.round is not None:
        yield args.round
        return
    begun = time.monotonic()
    number = 1
    while ((args.rounds is None or number <= args.rounds) and
           (args.seconds is None or time.monotonic() - begun < args.seconds)):
        yield number
        number += 1


def interrupt(*_):
    raise KeyboardInterrupt


def main(argv):
    args = parse(argv)
    signal.signal(signal.SIGTERM, interrupt)
    temporary = args.out is None
    out = pathlib.Path(tempfile.mkdtemp(prefix="slackline-torture-")) if temporary else args.out
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    disk, why_no_disk = faults.make_disk(out / "disk")
    if disk is None:
        print(f"SKIPPED: full disks: {why_no_disk}; the folder of the checkpoints is put out of "
              "the way instead", flush=True)
    etcd = faults.Etcd(out / "etcd") if args.etcd else None
    outcomes = []
    undisturbed = rounds.Undisturbed(args, out / "undisturbed")
    interrupted = False
    try:
        for number in numbers(args):
            outcome = rounds.Round(args, number, out / f"round-{number}", disk, etcd,
                                   undisturbed).run()
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
            for failure in outcome.failures:
                print(f"  FAILED: {failure}", flush=True)
            if not outcome.failures and not args.keep:
                shutil.rmtree(outcome.folder, ignore_errors=True)
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted", flush=True)
    finally:
        rounds.kill_all_below(out)
        if disk is not None:
            disk.remove()
        if etcd is not None:
            etcd.remove()
        if not args.keep:
            shutil.rmtree(out / "undisturbed", ignore_errors=True)
    failed = [o for o in outcomes if o.failures]
    document = results.document(args.seed, outcomes)
    (out / "torture.json").write_text(json.dumps(document, indent=2) + "\n")
    print()
    print(results.table(document))
    for outcome in failed:
        flags = (f"--modes {','.join(args.modes)} --faults '{','.join(args.faults)}' --on-server-loss {args.on_server_loss} "
                 f"--replicas {args.replicas}{' --etcd' if args.etcd else ''}")
        print(f"round {outcome.number} failed: tools/torture.sh --seed {args.seed} --round "
              f"{outcome.number} {flags}; its files: {outcome.folder}")
    if temporary and not failed and not args.keep:
        shutil.rmtree(out, ignore_errors=True)
    else:
        print(f"all of this as JSON: {out}/torture.json")
    if interrupted:
        return 130
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
