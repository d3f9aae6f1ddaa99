"""What befalls a job: the plan of a round, processes, disks, and checkpoints."""
import ctypes
import dataclasses
import errno
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess

# How likely each is.
KINDS = {
    "suspend": 2, "kill server": 4, "kill server 0": 3, "kill everything": 4, "stop server": 2,
    "stop server 0": 1, "stop worker": 2, "disk full": 2, "checkpoint": 2, "move": 3, "drain": 1,
    "kill worker": 5, "kill all workers": 1, "stop worker for long": 2, "change mode": 3,
}
# After these a synchronous job has the same bits: no worker has left out a step.
KEEPS_BITS = ("suspend", "kill server", "kill server 0", "kill everything", "stop server",
              "stop server 0", "stop worker", "disk full", "checkpoint", "move", "drain")


@dataclasses.dataclass
class Fault:
    """Everything about it is drawn before the job starts."""
    kind: str
    waits: bool       # Until the job has recovered from the one before.
    after: float      # Seconds that it waits then.
    who: float        # In [0, 1): which of those who are there.
    seconds: float    # Of a stop, or of a full disk.
    damage: str       # To a checkpoint while everything is down: "", or how.
    where: float      # In [0, 1): of the damage.
    mode: str         # To change to.
    servers: float = 1  # So many times as many of these the job has if it goes on
    workers: float = 1  # after everything has died.


def draw(rng, mode, kinds, gentle, lease):
    """The faults of one round, of these kinds."""
    kinds = [k for k in kinds if not gentle or k in KEEPS_BITS]
    return [draw_one(rng, rng.choices(kinds, [KINDS[k] for k in kinds])[0], mode, lease)
            for _ in range(rng.randint(3, 6))]


def add_server_losses(rng, plan, mode, lease):
    """Of servers whose shards have copies: a loss costs such a job nothing, so there are more."""
    for _ in range(rng.randint(1, 3)):
        fault = draw_one(rng, rng.choice(("kill server", "kill server", "stop server")), mode, lease)
        plan.insert(rng.randint(0, len(plan)), fault)


def add_coordinator_losses(rng, plan, mode, lease):
    """Likewise of server 0, in some rounds twice in a row: another coordinator goes on."""
    for _ in range(rng.choice((0, 1, 1, 2))):
        plan.insert(rng.randint(0, len(plan)), draw_one(rng, "kill server 0", mode, lease))


def add_other_clusters(rng, plan, gentle):
    """Half or double the servers and workers. With other workers a job has other bits."""
    for fault in plan:
        servers, workers = rng.choice((0.5, 1, 2)), rng.choice((0.5, 1, 2))
        if fault.kind == "kill everything":
            fault.servers, fault.workers = servers, 1 if gentle else workers


def draw_one(rng, kind, mode, lease):
    # Well within a lease, or well beyond it.
    stop = rng.uniform(0.1, 0.4) if kind == "stop worker" else rng.choice(
        (rng.uniform(0.1, 0.4), rng.uniform(1.5, 3)))
    if kind == "stop worker for long":
        stop = rng.uniform(1.5, 3)
    return Fault(
        kind=kind, waits=rng.random() < 0.7, after=rng.uniform(0.05, 1), who=rng.random(),
        seconds=stop * lease, damage=rng.choice(("", "bit", "bit", "cut", "gone")),
        where=rng.random(), mode=rng.choice([m for m in (
            "bsp", "ssp:2", "asp", "backup:1", "dssp:1:4", "allreduce") if m != mode]))


# ---- Processes --------------------------------------------------------------


def processes_of(folder):
    """[(role, index, pid)] of those whose command line names something below the folder; role is
    "server", "worker", "run", or what else it is."""
    marks = f"{folder}/".encode(), f"{folder}\0".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            line = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if not any(mark in line for mark in marks):
            continue
        words = line.decode(errors="replace").split("\0")
        name = os.path.basename(words[0])
        if not name.startswith("slackline"):
            continue
        index = next((int(w[8:]) for w in words if w.startswith("--index=")), -1)
        role = {"slackline_server": "server", "slackline_worker": "worker"}.get(name)
        if role is None:
            role = "run" if "run" in words[1:2] else "command"
        found.append((role, index, int(entry)))
    return sorted(found)


def send(pid, number):
    """False if it has ended already."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def stacks(folder):
    """Where the threads of all processes of the folder are, as far as this machine says."""
    texts = []
    for role, index, pid in processes_of(folder):
        texts.append(f"==== {role} {index} (pid {pid})")
        if shutil.which("gdb"):
            try:
                done = subprocess.run(
                    ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 30"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    timeout=60)
                texts.append(done.stdout.decode(errors="replace"))
                continue
            except subprocess.TimeoutExpired:
                pass
        for thread in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
            try:
                texts.append(" ".join((thread / f).read_text().strip()
                                      for f in ("comm", "wchan", "syscall")))
            except OSError:
                pass
    return "\n".join(texts) + "\n"


# ---- etcd -------------------------------------------------------------------


class Etcd:
    """An etcd of one member, for as long as this program runs."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
            self.url, peers = (f"http://127.0.0.1:{s.getsockname()[1]}" for s in (one, other))
        with open(folder / "etcd.log", "wb") as log:
            self.process = subprocess.Popen(
                ["etcd", f"--data-dir={folder}/data", "--name=torture",
                 f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
                 f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
                 f"--initial-cluster=torture={peers}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def remove(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- Disks ------------------------------------------------------------------

NEW_MOUNTS = 0x00020000  # CLONE_NEWNS


class Disk:
    """A small file system of this program's own, which goes with it: nobody else sees the mount."""

    def __init__(self, folder):
        self.folder = folder

    def fill(self):
        with open(self.folder / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def empty(self):
        (self.folder / "filler").unlink(missing_ok=True)

    def clear(self):
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def remove(self):
        subprocess.run(["umount", "-l", str(self.folder)], check=False,
                       stderr=subprocess.DEVNULL)
        self.folder.rmdir()


def make_disk(folder):
    """A Disk, or None and why there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS) != 0:
        return None, f"no file system can be mounted ({os.strerror(ctypes.get_errno())})"
    folder.mkdir()
    for command in (["mount", "--make-rprivate", "/"],
                    ["mount", "-t", "tmpfs", "-o", "size=4m", "slackline-torture", str(folder)]):
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            why = done.stdout.decode(errors="replace").strip()
        except OSError as error:
            done, why = None, str(error)
        if done is None or done.returncode != 0:
            folder.rmdir()
            return None, f"no file system can be mounted ({why})"
    return Disk(folder), ""


class NoFolder:
    """In place of a Disk: the folder is out of the way, and nothing can be made in its place."""

    def __init__(self, checkpoints):
        self.checkpoints = checkpoints
        self.aside = checkpoints.with_name(checkpoints.name + "-aside")

    def fill(self):
        if self.checkpoints.is_dir():
            self.checkpoints.rename(self.aside)
        self.checkpoints.write_text("")

    def empty(self):
        if self.checkpoints.is_file():
            self.checkpoints.unlink()
        if self.aside.is_dir():
            self.aside.rename(self.checkpoints)


# ---- Checkpoints ------------------------------------------------------------


def sequence_of(folder):
    try:
        return int(json.loads((folder / "manifest.json").read_text())["sequence"])
    except (OSError, ValueError, KeyError):
        return -1


def checkpoints_in(root):
    """The newest first."""
    if not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if p.name.startswith("step-")), key=sequence_of,
                  reverse=True)


def damage(checkpoint, how, where):
    """Flips a bit, cuts a file off, or removes it. Says what was done."""
    rng = random.Random(where)
    file = rng.choice(sorted(checkpoint.iterdir()))
    size = file.stat().st_size
    at = rng.randrange(size)
    if how == "bit":
        with open(file, "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1 << rng.randrange(8)]))
        return f"bit of byte {at} flipped in {file}"
    if how == "cut":
        os.truncate(file, at)
        return f"{file} cut off at byte {at}"
    file.unlink()
    return f"{file} removed"
