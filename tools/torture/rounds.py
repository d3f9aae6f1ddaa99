"""One round: a job, what befalls it, and what has to be true afterwards."""
import dataclasses
import json
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import faults

MODES = {"bsp": "bsp", "ssp": "ssp:2", "asp": "asp", "backup": "backup:1", "dssp": "dssp:1:4",
         "allreduce": "allreduce"}
EXACT_MODES = ("bsp", "allreduce")
LEASE = 2.0
LOOK_EVERY = 0.15
# Of a cluster that has grown.
SERVERS_MAX = 6
WORKERS_MAX = 8
# A command of a user may wait for what is under way, but not beyond the job.
COMMAND_PATIENCE = 20
# Copies that are lost are made again within so many seconds, where there is room for them.
COPIES_PATIENCE = 15
SUSPENDED = 75  # Exit code.
ROUND_MAX = 400

JOB = """job: "torture"
server {{ host: "127.0.0.1" count: {servers} threads: {threads} }}
worker {{ host: "127.0.0.1" count: {workers} conditions {{ step_ms: {step_ms} }} }}
model {{ mlp {{ hidden: 32 }} }}
data {{
  {data}
  batch_size: 20
}}
optimizer {{ momentum {{ learning_rate: 0.05 momentum: 0.9 }} }}
train {{ epochs: 1000 max_steps: {steps} seed: 1 eval_every_epochs: 1000 }}
limits {{
  shard_kib: 1 lease_ms: {lease_ms} start_timeout_ms: 30000 wait_timeout_ms: 40000
  stall_timeout_ms: 15000
}}
"""
MADE_DATA = ("teacher_student { features: 16 classes: 4 train_examples: 4000 "
             "test_examples: 500 }")


def kill_all_below(folder):
    """For as long as there are any: those that are killed may have started others."""
    for _ in range(50):
        found = [pid for role, _, pid in faults.processes_of(folder)]
        if not found:
            return
        for pid in found:
            faults.send(pid, signal.SIGKILL)
        time.sleep(0.1)


@dataclasses.dataclass
class Outcome:
    number: int
    mode: str
    shape: str
    folder: pathlib.Path
    seconds: float = 0
    faults: list = dataclasses.field(default_factory=list)    # What was done, in order.
    kills: dict = dataclasses.field(default_factory=dict)     # By role.
    stops: int = 0
    suspended: int = 0
    damaged: int = 0
    full_disks: int = 0
    commands: dict = dataclasses.field(default_factory=dict)  # By name: done, refused.
    restores: int = 0   # By `slackline run`,
    resumes: int = 0    # and by --resume.
    anew: list = dataclasses.field(default_factory=list)      # Steps, of each of both.
    recovery: list = dataclasses.field(default_factory=list)  # (kind, seconds).
    compared: bool = False  # With an undisturbed run.
    workers_removed: int = 0
    clusters: int = 0   # Times that it went on with other servers or workers.
    survived: int = 0   # Servers that were lost while all shards had copies.
    failures: list = dataclasses.field(default_factory=list)

    def line(self):
        slowest = max((s for _, s in self.recovery), default=0)
        what = ", ".join(self.faults) or "nothing"
        return (f"round {self.number}: {self.mode}, {self.shape}: {what}; "
                f"{self.survived} lost and survived by copies, {self.restores} restored, "
                f"{self.resumes} resumed, {sum(self.anew)} steps anew, recovered within "
                f"{slowest:.1f} s; {self.seconds:.0f} s, "
                f"{'FAILED' if self.failures else 'same bits' if self.compared else 'well'}")


@dataclasses.dataclass
class Loss:
    kind: str
    at: float
    life: str       # View.run then.
    members: set    # Incarnations of those who were lost.
    clock: int      # The largest that is known from before.
    survived: bool  # By copies: the job is not to go back.


class Failed(Exception):
    """What must not be."""


class Undisturbed:
    """Hashes of models of runs that nobody disturbs, each made once."""

    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.hashes = {}

    def sha256(self, key, text, mode):
        if key not in self.hashes:
            folder = self.folder / "-".join(str(k) for k in key).replace(":", "-")
            folder.mkdir(parents=True)
            config = folder / "job.textproto"
            config.write_text(text)
            done = subprocess.run(
                command(self.args, "run", config, "--mode", mode, "--out", folder / "run",
                        "--no-progress") + data_flags(self.args),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
            if done.returncode != 0:
                raise Failed(f"an undisturbed run failed, in {folder}: "
                             f"{done.stdout.decode(errors='replace')}")
            summary = json.loads((folder / "run/summary.json").read_text())
            self.hashes[key] = summary["model_sha256"]
        return self.hashes[key]


def command(args, *words):
    return [str(args.bin_dir / "slackline")] + [str(w) for w in words]


def data_flags(args):
    return ["--data-dir", str(args.data_dir)] if args.data_dir else []


class Drawn:
    """What luck has given a round. Servers and workers may be others when it goes on."""

    def __init__(self, args, number):
        rng = random.Random(f"{args.seed}/{number}")
        self.mode_name = args.modes[(number - 1) % len(args.modes)]
        self.mode = MODES[self.mode_name]
        self.servers = rng.randint(1, 3)
        self.threads = rng.randint(1, 2)
        self.workers = rng.randint(2, 4)
        self.steps = rng.choice((500, 800))
        self.restarts = rng.choice((0, 3))
        self.gentle = rng.random() < 0.6 and self.mode_name in EXACT_MODES
        restores = rng.random() < 0.7
        self.restores = {"both": restores, "restore": True, "fail": False}[args.on_server_loss]
        self.plan = faults.draw(rng, self.mode, args.faults, self.gentle, LEASE)
        # Drawn apart, so that the rest is as without.
        of_copies = random.Random(f"{args.seed}/{number}/replicas")
        copies = of_copies.random() < 0.5
        self.replicas = int({"both": copies, "1": True, "0": False}[args.replicas] and
                            self.servers > 1)
        if self.replicas:
            faults.add_server_losses(of_copies, self.plan, self.mode, LEASE)
            faults.add_coordinator_losses(random.Random(f"{args.seed}/{number}/coordinator"),
                                          self.plan, self.mode, LEASE)
        faults.add_other_clusters(random.Random(f"{args.seed}/{number}/clusters"), self.plan,
                                  self.gentle)


class Life:
    """One `slackline run` of a round."""

    def __init__(self, log, process):
        self.process = process
        self.log = log
        self.log_read = 0
        self.ran = False           # It was seen to train.
        self.killed = False        # By us,
        self.suspended = False     # or asked to end after a checkpoint.
        self.harmed = False        # Something that may end a job has been done to it,
        self.excused = False       # and it has not recovered from it yet.


class Round:
    def __init__(self, args, number, folder, disk, etcd, undisturbed):
        self.args = args
        self.number = number
        self.folder = folder
        self.undisturbed = undisturbed
        self.drawn = Drawn(args, number)
        self.etcd = etcd if self.drawn.replicas else None
        self.out = folder / "run"
        wants_disk = any(f.kind == "disk full" for f in self.drawn.plan)
        self.disk = disk if wants_disk else None
        self.root = disk.folder / "checkpoints" if self.disk else self.out / "checkpoints"
        self.config = folder / "job.textproto"
        self.job = self.job_text()
        self.outcome = Outcome(
            number, self.drawn.mode,
            f"{self.drawn.servers}x{self.drawn.threads} servers"
            f"{' with copies' if self.drawn.replicas else ''}"
            f"{' and etcd' if self.etcd else ''}, "
            f"{self.drawn.workers} workers", folder)
        self.lives = 0
        self.life = None           # The Life of the moment.
        # Of the job.
        self.mode_changed = False  # Or may have.
        self.workers_changed = False
        self.damaged = set()       # Checkpoints; another one may come to have the same name.
        self.workers_most = self.drawn.workers
        self.clock = -1            # The largest of a worker that was seen.
        self.furthest = -1
        self.progressed_at = 0.0
        self.waiting = []          # Losses after which it has not gone on yet.
        self.view_run = ""         # View.run, as last seen,
        self.members = {}          # and (role, index) to incarnation.
        self.host = 0              # The server with the coordinator.
        self.complete = False      # All shards had their copies then.
        self.shards = 0            # The most that were seen, with copies;
        self.servers_lost = 0      # and so often a server was killed or stopped beyond its lease.
        self.users = []            # [(name, process, log)].

    def job_text(self):
        data = "idx { }" if self.args.data_dir else MADE_DATA
        return JOB.format(servers=self.drawn.servers, threads=self.drawn.threads,
                          workers=self.drawn.workers, steps=self.drawn.steps,
                          lease_ms=int(LEASE * 1000), step_ms=8, data=data)

    # ---- The round ----------------------------------------------------------

    def run(self):
        begun = time.monotonic()
        self.begun = begun
        self.folder.mkdir()
        self.write_config()
        try:
            if self.disk:
                self.disk.clear()
            self.start(resume=False)
            for fault in self.drawn.plan:
                if not self.befall(fault):
                    break
            self.await_end()
            self.check()
        except Failed as failure:
            self.outcome.failures.append(str(failure))
            self.keep_what_explains()
        finally:
            kill_all_below(self.folder)
            if self.disk:
                self.disk.empty()
                if self.outcome.failures and self.root.is_dir():
                    shutil.copytree(self.root, self.folder / "checkpoints-of-disk")
                self.disk.clear()
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    def write_config(self):
        text = self.job_text()
        text += f"replicas: {self.drawn.replicas}\n" if self.drawn.replicas else ""
        text += (f"checkpoint {{ every_steps: 20 keep: 4 on_server_loss: "
                 f"{'RESTORE' if self.drawn.restores else 'FAIL'}")
        text += f' folder: "{self.root}" }}\n' if self.disk else " }\n"
        if self.etcd:
            text += f'coordinator {{ etcd {{ endpoint: "{self.etcd.url}" prefix: '
            text += f'"/slackline/torture/{self.number}" }} }}\n'
            # A lease in etcd is of 10 s at least, and two coordinators may die in a row.
            text = text.replace("wait_timeout_ms: 40000", "wait_timeout_ms: 80000")
            text = text.replace("stall_timeout_ms: 15000", "stall_timeout_ms: 40000")
        self.config.write_text(text)

    def keep_what_explains(self):
        (self.folder / "stacks.txt").write_text(faults.stacks(self.folder))
        (self.folder / "plan.txt").write_text(
            "".join(f"{fault}\n" for fault in self.drawn.plan) + "\ndone:\n" +
            "".join(f"{what}\n" for what in self.outcome.faults))

    # ---- The job ------------------------------------------------------------

    def start(self, resume):
        self.lives += 1
        words = ["run", self.config, "--mode", self.drawn.mode, "--out", self.out, "--no-progress",
                 "--restart-workers", self.drawn.restarts]
        if self.drawn.replicas:
            words += ["--restart-servers", 100]
        if resume:
            words += ["--resume", self.root]
        log = self.folder / f"run-{self.lives}.log"
        with open(log, "wb") as file:
            self.life = Life(log, subprocess.Popen(
                command(self.args, *words) + data_flags(self.args), stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT))
        self.complete = False
        self.progressed_at = time.monotonic()

    def output(self):
        return self.life.log.read_text(errors="replace")

    def look(self):
        """Takes in how far the job is. Raises if it hangs. True while `slackline run` lives."""
        now = time.monotonic()
        time.sleep(LOOK_EVERY)
        try:
            done = subprocess.run(
                command(self.args, "status", self.out, "--json", "--timeout-ms", 500),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=30)
        except subprocess.TimeoutExpired as late:
            raise Failed("`slackline status --timeout-ms 500` has not ended within 30 s") from late
        if done.returncode in (0, 3, 4, 5, 75):  # How the job stands.
            self.take_in(json.loads(done.stdout))
        for line in self.output()[self.life.log_read:].splitlines():
            self.take_in_line(line)
        self.life.log_read = len(self.output())
        now = time.monotonic()
        if now - self.progressed_at > self.args.patience_seconds:
            raise Failed(f"no progress for {self.args.patience_seconds:.0f} s; the largest clock "
                         f"is {self.clock}")
        if now - self.begun > ROUND_MAX:
            raise Failed(f"not at its end after {ROUND_MAX} s")
        return self.life.process.poll() is None

    def take_in(self, status):
        clocks = [w["clock"] for w in status.get("worker", []) if w["alive"]]
        if not clocks or status["view"]["state"] != "RUNNING":
            return
        clock = max(clocks)
        view = status["view"]
        if (clock, view["run"]) != (self.clock, self.view_run):
            self.progressed_at = time.monotonic()
        self.view_run = view["run"]
        self.members = {("server", s["index"]): s["incarnation"] for s in view["server"]}
        self.members.update({("worker", w["rank"]): w["incarnation"] for w in view["worker"]})
        self.host = status["coordinator_server"]
        copies = status.get("redundancy")
        self.shards = max(self.shards, copies["shards"] if copies else 0)
        self.complete = bool(copies) and copies["complete"] == copies["shards"] > 0
        if clock > 0:
            self.life.ran = True
        self.clock = clock
        self.furthest = max(self.furthest, clock)
        self.recovered(clock)

    def wait_for_recovery(self, kind, victims, survived=False):
        self.servers_lost += sum(v[0] == "server" for v in victims)
        self.waiting.append(Loss(kind=kind, at=time.monotonic(), life=self.view_run,
                                 members={self.members.get(v[:2]) for v in victims},
                                 clock=self.furthest, survived=survived))

    def is_pending(self, loss):
        """The job has not noticed it yet."""
        return loss.life == self.view_run and bool(loss.members & set(self.members.values()))

    def bears_a_loss(self):
        """Of any server, without going back: what the view says of copies on servers that are gone
        already does not count."""
        return self.complete and not any(self.is_pending(loss) for loss in self.waiting)

    def harm(self):
        self.life.harmed = self.life.excused = True

    def recovered(self, clock):
        """A step beyond all that were done before the loss, without those who were lost."""
        now = time.monotonic()
        still = []
        for loss in self.waiting:
            if self.is_pending(loss):
                loss.clock = max(loss.clock, clock)
                unknown = now - loss.at < 30
            else:
                unknown = clock <= loss.clock
                if not unknown:
                    self.outcome.recovery.append((loss.kind, now - loss.at))
                    self.outcome.survived += loss.survived and loss.life == self.view_run
            if unknown:
                still.append(loss)
        if self.waiting and not still:
            self.life.excused = False
        self.waiting = still

    def take_in_line(self, line):
        found = re.match(r"restoring the job: .* ([0-9]+) steps? (?:is|are) done anew", line)
        if found:
            if self.drawn.replicas and not self.life.excused:
                raise Failed(f"the job went back although its shards had copies: {line}")
            self.outcome.restores += 1
            self.outcome.anew.append(int(found.group(1)))
            self.progressed_at = time.monotonic()

    # ---- What befalls it ----------------------------------------------------

    def befall(self, fault):
        """False: the job was over before."""
        while not self.life.ran or (fault.waits and self.waiting):
            if not self.go_on():
                return False
        # A server that was drained may have been the only one that had room for copies.
        until = time.monotonic() + COPIES_PATIENCE
        waits = fault.waits and self.drawn.replicas
        while waits and not self.complete and time.monotonic() < until:
            if not self.go_on():
                return False
        until = time.monotonic() + fault.after
        while time.monotonic() < until:
            if not self.go_on():
                return False
        here = faults.processes_of(self.folder)
        act = getattr(self, "_" + fault.kind.replace(" ", "_"))
        what = act(fault, here)
        if what:
            self.outcome.faults.append(what)
        return True

    def go_on(self):
        """Looks, and has a job that was brought down by us go on. False if it has ended well."""
        if self.look():
            return True
        code = self.life.process.returncode
        if not self.life.killed and code == 0:
            return False
        text = self.output()
        if not self.life.killed and not (self.life.suspended and code in (1, SUSPENDED)):
            if code != 1:
                raise Failed(f"`slackline run` ended with exit code {code}: {tail(text)}")
            no_progress = "in a row without a newer checkpoint" in text
            blameless = not self.life.excused if self.drawn.replicas else not self.life.harmed
            if blameless or (self.drawn.restores and self.life.ran and not no_progress):
                raise Failed(f"`slackline run` failed: {tail(text)}")
        self.resume("")
        return True

    def resume(self, damage, where=0.0):
        """Nothing of the job is to be left; then it goes on by hand."""
        self.await_none_left()
        there = [c for c in faults.checkpoints_in(self.root)
                 if (c, c.stat().st_ino) not in self.damaged]
        before = max(self.clock, 0)
        if not there:
            self.outcome.anew.append(before)
            self.outcome.resumes += 1
            if self.out.exists():
                self.out.rename(self.folder / f"run-{self.lives}-without-checkpoint")
            self.start(resume=False)
            return
        harmed = None
        if damage and len(there) >= 2:
            harmed = there[0]
            self.outcome.faults.append(faults.damage(harmed, damage, where).replace(
                f"{self.root}/", ""))
            self.outcome.damaged += 1
            self.damaged.add((harmed, harmed.stat().st_ino))
        self.start(resume=True)
        self.outcome.resumes += 1
        while "goes on from step" not in self.output():
            if self.life.process.poll() is not None:
                raise Failed(f"--resume failed: {tail(self.output())}")
            if time.monotonic() - self.progressed_at > 30:
                raise Failed("--resume has not found its checkpoint within 30 s")
            time.sleep(0.02)
        text = self.output()
        taken = re.search(r"goes on from step ([0-9]+) of (\S+)", text)
        expected = there[1] if harmed else there[0]
        if pathlib.Path(taken.group(2)) != expected:
            raise Failed(f"--resume went on from {taken.group(2)}, not from {expected}: {text}")
        if harmed and ("passed over" not in text or str(harmed) not in text):
            raise Failed(f"--resume did not say that {harmed} is damaged: {text}")
        self.outcome.anew.append(max(0, before - int(taken.group(1))))

    def await_none_left(self):
        until = time.monotonic() + 15
        while True:
            left = [p for p in faults.processes_of(self.folder) if p[0] in ("server", "worker")]
            if not left:
                return
            if time.monotonic() > until:
                raise Failed(f"`slackline run` has ended, and these are left: {left}")
            time.sleep(0.05)

    def _kill(self, victims, kind, survived=False):
        """All at once."""
        killed = [v for v in victims if faults.send(v[2], signal.SIGKILL)]
        for role, index, _ in killed:
            role = "server 0" if (role, index) == ("server", 0) else role
            self.outcome.kills[role] = self.outcome.kills.get(role, 0) + 1
        if killed:
            self.wait_for_recovery(kind, killed, survived)
        return killed

    def _of(self, here, role, who, without=()):
        those = [p for p in here if p[0] == role and p[1] not in without]
        return those[int(who * len(those))] if those else None

    def _kill_server(self, fault, here):
        if not self.drawn.replicas:
            return self._kill_one(self._of(here, "server", fault.who))
        victim = self._of(here, "server", fault.who, without=(0,))
        if victim is None or not self.bears_a_loss():
            return self._kill_one(victim)
        name = f"server {victim[1]}"
        killed = self._kill([victim], "server with copies", survived=True)
        return f"{name} killed, which has copies" if killed else ""

    def _kill_server_0(self, fault, here):
        victim = next((p for p in here if p[:2] == ("server", 0)), None)
        if victim is None or not self.bears_a_loss():
            return self._kill_one(victim)
        killed = self._kill([victim], "server 0 with copies", survived=True)
        return "server 0 killed, which has copies" if killed else ""

    def _kill_worker(self, fault, here):
        return self._kill_one(self._of(here, "worker", fault.who))

    def _kill_one(self, victim):
        if victim is None:
            return ""
        self.harm()  # Of workers it may be the last one.
        role = "server 0" if victim[:2] == ("server", 0) else victim[0]
        return f"{victim[0]} {victim[1]} killed" if self._kill([victim], role) else ""

    def _kill_all_workers(self, fault, here):
        self.harm()
        workers = [p for p in here if p[0] == "worker"]
        return "all workers killed" if self._kill(workers, "all workers") else ""

    def _kill_everything(self, fault, here):
        if self.life.process.poll() is not None:
            return ""
        self.life.killed = True
        members = [p for p in here if p[0] in ("server", "worker")]
        self._kill([("run", -1, self.life.process.pid)] + members, "everything")
        self.life.process.wait()
        self.outcome.faults.append("everything killed")
        workers = self.drawn.workers
        self.change_cluster(fault)
        self.resume(fault.damage, fault.where)
        # An epoch has as many steps fewer as there are workers more.
        for of in self.waiting:
            of.clock = of.clock * workers // self.drawn.workers
        self.clock = self.clock * workers // self.drawn.workers
        self.furthest = self.furthest * workers // self.drawn.workers
        return ""

    def change_cluster(self, fault):
        # A job with copies has at least two servers, and one of these modes two workers.
        servers = min(max(1 + self.drawn.replicas, int(self.drawn.servers * fault.servers)),
                      SERVERS_MAX)
        workers = min(max(2, int(self.drawn.workers * fault.workers)), WORKERS_MAX)
        # With fewer an epoch has more steps, and the job may be beyond its last one.
        if self.furthest * self.drawn.workers >= self.drawn.steps * workers * 0.9:
            workers = self.drawn.workers
        if (servers, workers) == (self.drawn.servers, self.drawn.workers):
            return
        self.workers_changed |= workers != self.drawn.workers
        self.drawn.servers, self.drawn.workers = servers, workers
        self.workers_most = max(self.workers_most, workers)
        self.write_config()
        self.outcome.clusters += 1
        self.outcome.faults.append(f"goes on with {servers} servers and {workers} workers")

    def _suspend(self, fault, here):
        """As machines are taken away: SIGTERM, to `slackline run` or a member."""
        here = [p for p in here if p[0] in ("server", "worker")]
        here.append(("run", -1, self.life.process.pid))
        role, index, pid = here[int(fault.who * len(here))]
        if not faults.send(pid, signal.SIGTERM):
            return ""
        self.life.suspended = True
        self.outcome.suspended += 1
        # Such a server is drained, mostly, and nobody is lost.
        drained = role == "server" and index != self.host
        self.wait_for_recovery("SIGTERM", [] if drained else [p for p in here if p[0] != "run"])
        return f"SIGTERM to {role if role == 'run' else f'{role} {index}'}"

    def _stop(self, victim, fault):
        if victim is None or not faults.send(victim[2], signal.SIGSTOP):
            return ""
        self.outcome.stops += 1
        kind = f"{'server 0' if victim[:2] == ('server', 0) else victim[0]} stopped"
        if fault.seconds > LEASE:
            # Who stops the coordinator stops the time of leases, and loses nobody.
            lost = [] if victim[:2] == ("server", self.host) else [victim]
            survived = bool(lost) and victim[0] == "server" and self.bears_a_loss()
            if survived:
                kind += ", with copies"
            else:
                self.harm()
            self.wait_for_recovery(kind, lost, survived)
        until = time.monotonic() + fault.seconds
        try:
            while time.monotonic() < until and self.life.process.poll() is None:
                time.sleep(0.02)
        finally:
            faults.send(victim[2], signal.SIGCONT)
        return f"{victim[0]} {victim[1]} stopped for {fault.seconds:.1f} s"

    def _stop_server(self, fault, here):
        return self._stop(self._of(here, "server", fault.who, without=(0,)), fault)

    def _stop_server_0(self, fault, here):
        return self._stop(next((p for p in here if p[:2] == ("server", 0)), None), fault)

    def _stop_worker(self, fault, here):
        return self._stop(self._of(here, "worker", fault.who), fault)

    def _stop_worker_for_long(self, fault, here):
        # The last one would end the job, and `slackline run` restores only what was killed.
        if self.drawn.restores and sum(p[0] == "worker" for p in here) < 2:
            return ""
        return self._stop(self._of(here, "worker", fault.who), fault)

    def _disk_full(self, fault, here):
        disk = self.disk or faults.NoFolder(self.root)
        disk.fill()
        self.outcome.full_disks += 1
        try:
            until = time.monotonic() + max(fault.seconds, LEASE)
            over = False
            while time.monotonic() < until and not over:
                over = not self.look()
        finally:
            disk.empty()
        return "disk full"

    def _checkpoint(self, fault, here):
        return self.user("checkpoint", self.out, "--deadline-ms", 10000)

    def _move(self, fault, here):
        if self.drawn.servers == 1:
            return ""
        return self.user("move", self.out, "0-1", "--to", int(fault.who * self.drawn.servers))

    def _drain(self, fault, here):
        if self.drawn.servers == 1:
            return ""
        self.life.harmed = True  # Who is about to leave may be killed; copies bear that.
        return self.user("drain", self.out, 1 + int(fault.who * (self.drawn.servers - 1)))

    def _change_mode(self, fault, here):
        self.mode_changed = True
        return self.user("mode", "set", self.out, fault.mode)

    def user(self, *words):
        name = " ".join(str(w) for w in words if w != self.out)
        log = self.folder / f"user-{len(self.users)}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(command(self.args, *words), stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=subprocess.STDOUT)
        self.users.append((str(words[0]), name, process, log))
        return name

    # ---- Its end ------------------------------------------------------------

    def await_end(self):
        while self.go_on():
            pass
        until = time.monotonic() + COMMAND_PATIENCE
        for word, name, process, log in self.users:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired as late:
                raise Failed(f"`slackline {name}` has not ended {COMMAND_PATIENCE} s after the "
                             f"job: {tail(log.read_text(errors='replace'))}") from late
            done = self.outcome.commands.setdefault(word, [0, 0])
            done[process.returncode != 0] += 1
            if process.returncode < 0 or process.returncode > 2:
                raise Failed(f"`slackline {name}` ended with {process.returncode}: "
                             f"{tail(log.read_text(errors='replace'))}")

    def check(self):
        self.await_none_left()
        summary = json.loads((self.out / "summary.json").read_text())
        if summary["state"] != "FINISHED" or summary["steps"] != self.drawn.steps:
            raise Failed(f"exit code 0, and the summary says {summary['state']} after "
                         f"{summary['steps']} of {self.drawn.steps} steps")
        if not (self.out / "model.safetensors").exists():
            raise Failed("there is no model.safetensors")
        sums = [summary[name] for name in ("applied", "held", "dropped", "nonfinite", "oversized")]
        # Of a server that has died what it said last counts, and then it may have held a gradient
        # of each worker for each shard.
        unsure = self.servers_lost * self.shards * self.workers_most
        if abs(summary["pushes"] - sum(sums)) > unsure:
            raise Failed(f"pushes {summary['pushes']} are not applied + held + dropped + nonfinite "
                         f"+ oversized = {' + '.join(map(str, sums))}")
        partial = ([p.name for p in self.root.iterdir() if p.name.startswith(".partial-")]
                   if self.root.is_dir() else [])
        if partial:
            raise Failed(f"left in {self.root}: {', '.join(partial)}")
        # What the coordinator says of each worker that leaves before it is done.
        removed = sum(len(re.findall(r"warning: coordinator: worker [0-9]+ \(pid",
                                     log.read_text(errors="replace")))
                      for log in self.out.glob("logs/server-0*.log"))
        self.outcome.workers_removed = removed
        self.check_records(removed)
        if (self.drawn.mode_name not in EXACT_MODES or removed or self.mode_changed or
                self.workers_changed):
            return
        key = (self.drawn.mode, self.drawn.workers, self.drawn.steps)
        expected = self.undisturbed.sha256(key, self.job, self.drawn.mode)
        if summary["model_sha256"] != expected:
            raise Failed(f"the model is {summary['model_sha256']}, and that of an undisturbed run "
                         f"{expected}")
        self.outcome.compared = True

    def check_records(self, removed):
        """Of each worker, and of the evaluations, every step at most once and in order, unless
        workers have come back, who may do steps once more, or there were other workers, whose
        steps have other numbers."""
        last = {}
        for line in (self.out / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            of = record["kind"], record["rank"] if record["kind"] == "train" else 0
            if record["step"] <= last.get(of, -1) and not removed and not self.workers_changed:
                raise Failed(f"metrics.jsonl: step {record['step']} of {of} comes after "
                             f"{last[of]}")
            last[of] = record["step"]


def tail(text):
    return " | ".join(text.strip().splitlines()[-4:])[-900:]
