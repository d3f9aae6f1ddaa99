"""What rounds have come to, in numbers and as a table."""
import collections
import statistics


def document(seed, outcomes):
    kills, commands = collections.Counter(), {}
    recovery = collections.defaultdict(list)
    for outcome in outcomes:
        kills.update(outcome.kills)
        for name, (done, refused) in outcome.commands.items():
            counts = commands.setdefault(name, {"done": 0, "refused": 0})
            counts["done"] += done
            counts["refused"] += refused
        for kind, seconds in outcome.recovery:
            recovery[kind].append(seconds)
    anew = [steps for outcome in outcomes for steps in outcome.anew]
    return {
        "seed": seed,
        "rounds": len(outcomes),
        "rounds_by_mode": dict(collections.Counter(o.mode for o in outcomes)),
        "rounds_failed": sum(bool(o.failures) for o in outcomes),
        "compared_with_undisturbed": sum(o.compared for o in outcomes),
        "seconds": round(sum(o.seconds for o in outcomes), 1),
        "kills": dict(sorted(kills.items())),
        "stops": sum(o.stops for o in outcomes),
        "suspended": sum(o.suspended for o in outcomes),
        "full_disks": sum(o.full_disks for o in outcomes),
        "damaged_checkpoints": sum(o.damaged for o in outcomes),
        "commands": commands,
        "restores": sum(o.restores for o in outcomes),
        "resumes": sum(o.resumes for o in outcomes),
        "other_clusters": sum(o.clusters for o in outcomes),
        "survived_by_copies": sum(o.survived for o in outcomes),
        "steps_anew": sum(anew),
        "steps_anew_per_loss": round(statistics.mean(anew), 1) if anew else 0,
        "steps_anew_max": max(anew, default=0),
        "workers_removed": sum(o.workers_removed for o in outcomes),
        "seconds_to_recover": {
            kind: {"count": len(values), "p50": round(statistics.median(values), 2),
                   "max": round(max(values), 2)}
            for kind, values in sorted(recovery.items())},
        "failures": [{"round": o.number, "mode": o.mode, "faults": o.faults,
                      "folder": str(o.folder), "why": o.failures}
                     for o in outcomes if o.failures],
    }


def table(d):
    def counts(of):
        return ", ".join(f"{name} {count}" for name, count in of.items()) or "none"

    rows = [
        ("rounds", f"{d['rounds']}, of which {d['rounds_failed']} failed, in {d['seconds']:.0f} s"),
        ("by mode", counts(d["rounds_by_mode"])),
        ("models compared with those of undisturbed runs", d["compared_with_undisturbed"]),
        ("kill -9", counts(d["kills"])),
        ("processes stopped and let go", d["stops"]),
        ("SIGTERM to a process", d["suspended"]),
        ("full disks", d["full_disks"]),
        ("damaged checkpoints, all passed over" if not d["rounds_failed"] else
         "damaged checkpoints", d["damaged_checkpoints"]),
        ("commands of users, done and refused",
         ", ".join(f"{name} {c['done']}+{c['refused']}" for name, c in d["commands"].items())
         or "none"),
        ("workers that the others went on without", d["workers_removed"]),
        ("servers lost, and the job went on with copies", d["survived_by_copies"]),
        ("brought back by slackline run, by --resume", f"{d['restores']}, {d['resumes']}"),
        ("went on with other servers or workers", d["other_clusters"]),
        ("steps done anew", f"{d['steps_anew']}, {d['steps_anew_per_loss']} per loss, "
         f"at most {d['steps_anew_max']}"),
    ]
    for kind, r in d["seconds_to_recover"].items():
        rows.append((f"seconds until the next step, {kind}",
                     f"p50 {r['p50']}, max {r['max']} ({r['count']} times)"))
    width = max(len(str(name)) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
