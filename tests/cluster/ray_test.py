"""`slackline run --on ray`, on a real Ray cluster of nodes at loopback addresses.

Usage: python -m pytest ray_test.py, with a Python that has Ray (build/venv-cluster), the
package of the build in PYTHONPATH, and its programs in SLACKLINE_BIN_DIR.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

ray_clusters = pytest.importorskip("ray.cluster_utils")

BIN = pathlib.Path(os.environ["SLACKLINE_BIN_DIR"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
NODES = 3
PROCESSORS = 8  # Of each node, as Ray counts them.
RUN_MAX = 300  # Seconds after which a run hangs.

JOB = """
job: "small"
server { count: 2 }
worker { count: 4 conditions { step_ms: %d } }
model { mlp { hidden: 32 } }
data {
  teacher_student {
    features: 16 classes: 4 train_examples: 8000 test_examples: 1000
  }
  batch_size: 20
}
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
train { epochs: %d seed: 1 }
limits { shard_kib: 1 lease_ms: 5000 }
"""


class Nodes:
    """A head without processors, and nodes that can die."""

    def __init__(self, network="127.0.0"):
        self.network = network
        self.small = {"object_store_memory": 80 << 20}
        self.cluster = ray_clusters.Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "node_ip_address": f"{network}.2",
                "include_dashboard": False,
                # A node that is gone refuses connections, and is noticed in two seconds, not in 15.
                "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 4},
                **self.small,
            },
        )
        self.address = self.cluster.address
        self.last = 2
        self.alive = {}
        self.fill()

    def fill(self):
        """Nodes at new addresses in place of those that died."""
        while len(self.alive) < NODES:
            self.last += 1
            host = f"{self.network}.{self.last}"
            self.alive[host] = self.cluster.add_node(
                wait=False, num_cpus=PROCESSORS, node_ip_address=host, **self.small
            )
        self.cluster.wait_for_nodes()
        return sorted(self.alive, key=lambda host: int(host.rsplit(".")[-1]))

    def kill(self, host):
        self.cluster.remove_node(self.alive.pop(host), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes():
    # One cluster for all: it takes seconds.
    cluster = Nodes()
    yield cluster
    cluster.cluster.shutdown()


class Run:
    """`slackline run`, with its folder at tmp_path/NAME and what it says in NAME.log."""

    def __init__(self, tmp_path, name, nodes, config, *arguments):
        self.folder = tmp_path / name
        self.log = tmp_path / f"{name}.log"
        # So the command lines of all processes name the test.
        bin_folder = tmp_path / "bin"
        if not bin_folder.exists():
            bin_folder.symlink_to(BIN)
        on = []
        if nodes is not None:
            on = ["--on", "ray", f"--set=launch.ray.address={nodes.address}"]
            on += [f"--set=launch.ray.python={sys.executable}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [bin_folder / "slackline", "run", config, *on, "--out", self.folder, *arguments],
                stdout=log,
                stderr=log,
            )

    def output(self):
        return self.log.read_text()

    def until_says(self, pattern):
        end = time.monotonic() + RUN_MAX
        while not re.search(pattern, self.output()):
            assert self.process.poll() is None and time.monotonic() < end, self.output()
            time.sleep(0.05)

    def until_it_trains(self, records=1):
        """Until a step of this run is in the records, which come from the hosts."""
        end = time.monotonic() + RUN_MAX
        metrics = self.folder / "metrics.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < records:
            assert self.process.poll() is None and time.monotonic() < end, self.output()
            time.sleep(0.05)

    def ends(self, code):
        assert self.process.wait(RUN_MAX) == code, self.output()
        return self.output()

    def model(self):
        return json.loads((self.folder / "summary.json").read_text())["model_sha256"]

    def hosts(self):
        return re.search(r"\nhosts: (.*) \(ray\)", self.output())[1].split(", ")


def write(tmp_path, name, text):
    path = tmp_path / f"{name}.textproto"
    path.write_text(text)
    return path


def model_of_processes_here(tmp_path, text):
    here = Run(tmp_path, "here", None, write(tmp_path, "here", text.replace("count", 'host: "127.0.0.1" count')))
    here.ends(0)
    return here.model()


def processes_of(tmp_path):
    """Those whose command lines name the folder of the test, by their ids."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{tmp_path}/" in line:
            found[int(folder.name)] = line
    return found


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path):
    yield
    end = time.monotonic() + 15
    while (left := processes_of(tmp_path)) and time.monotonic() < end:
        time.sleep(0.1)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left


def expect_all_is_given_back(nodes):
    """No actor, no placement group: the cluster has all that it had."""
    looked = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ray, sys, time\n"
            "ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)\n"
            "end = time.monotonic() + 30\n"
            "def cpus(kind):\n"
            "    return kind().get('CPU', 0)\n"
            "while cpus(ray.available_resources) < cpus(ray.cluster_resources):\n"
            "    assert time.monotonic() < end, ray.available_resources()\n"
            "    time.sleep(0.1)\n"
            "groups = ray.util.placement_group_table().values()\n"
            "assert all(group['state'] == 'REMOVED' for group in groups), groups\n",
            nodes.address,
        ],
        capture_output=True,
        text=True,
    )
    assert looked.returncode == 0, looked.stdout + looked.stderr


def test_trains_the_model_of_processes_here_and_brings_its_files_back(tmp_path, nodes):
    hosts = nodes.fill()
    text = JOB % (0, 3)
    # On hosts that share nothing with this machine the folder has another name.
    there = f'launch {{ runs_dir: "{tmp_path}/there" }}\n'
    run = Run(tmp_path, "run", nodes, write(tmp_path, "job", text + there), "--nodes", "2")
    output = run.ends(0)
    assert run.model() == model_of_processes_here(tmp_path, text)
    used = run.hosts()
    assert len(set(used)) == 2 and set(used) <= set(hosts), output
    for name in ("logs/server-1.log", "logs/worker-3.log", "metrics.jsonl", "model.safetensors"):
        assert (run.folder / name).exists(), name
    # The same command again knows that it has been done, and asks Ray for nothing.
    again = Run(tmp_path, "run", nodes, tmp_path / "job.textproto", "--nodes", "2")
    assert "nothing is begun" in again.ends(0)


def test_ctrl_c_ends_all_and_leaves_nothing(tmp_path, nodes):
    nodes.fill()
    run = Run(tmp_path, "run", nodes, write(tmp_path, "job", JOB % (0, 1000)), "--nodes", "3")
    run.until_it_trains()
    # A job for which there is no room waits, and says so.
    other = write(tmp_path, "other", JOB % (0, 3))
    waits = Run(tmp_path, "waits", nodes, other)
    # One that no node will ever hold is refused.
    large = Run(tmp_path, "large", nodes, other, "--set=worker[0].count=7")
    assert (
        "the job asks for 1 node with 9 CPUs, and the nodes of this cluster are: "
        "1 with 0 CPUs; 3 with 8 CPUs" in large.ends(1)
    )
    waits.until_says("waits for Ray to give 1 node with 6 CPUs, for .* in the whole cluster 15 CPUs")
    waits.process.send_signal(signal.SIGINT)
    assert "interrupted by the user before the job was started" in waits.ends(130)
    run.process.send_signal(signal.SIGINT)
    run.ends(130)
    assert (run.folder / "model.safetensors").exists()
    expect_all_is_given_back(nodes)


def test_a_node_that_dies_with_a_server_costs_nothing_with_replicas(tmp_path, nodes):
    first, second, _ = nodes.fill()
    text = JOB % (10, 3)
    config = write(tmp_path, "job", text + "replicas: 1\n")
    run = Run(tmp_path, "run", nodes, config, f"--hosts={first}:4,{second}:1", "--restart-servers=0")
    run.until_it_trains()
    nodes.kill(second)
    assert "server 1 (pid " in run.ends(0)
    assert run.model() == model_of_processes_here(tmp_path, JOB % (0, 3))


def test_a_job_that_loses_a_node_goes_on_from_its_checkpoint_on_another(tmp_path, nodes):
    nodes.fill()
    text = JOB % (10, 3) + "checkpoint { every_steps: 50 on_server_loss: RESTORE }\n"
    run = Run(tmp_path, "run", nodes, write(tmp_path, "job", text), "--nodes", "2")
    run.until_it_trains(2)
    before = run.hosts()
    nodes.kill(before[1])
    output = run.ends(0)
    assert "restoring the job" in output and "the job goes on elsewhere" in output
    assert run.model() == model_of_processes_here(tmp_path, JOB % (0, 3))


def test_a_cluster_that_goes_away_is_named_and_no_process_is_blamed(tmp_path):
    # Not that of the other tests; its nodes are at other addresses.
    cluster = Nodes("127.0.1")
    try:
        text = JOB % (10, 1000) + "checkpoint { every_steps: 50 on_server_loss: RESTORE }\n"
        run = Run(tmp_path, "run", cluster, write(tmp_path, "job", text), "--nodes", "2")
        run.until_it_trains()
    finally:
        cluster.cluster.shutdown()
    output = run.ends(1)
    why = f"the Ray cluster at {cluster.address} is gone: "
    assert re.search(r"\nslackline run: the job failed \(logs: .*\): " + why, output), output
    assert f"`ray status --address={cluster.address}` says whether it is there" in output
    assert "restoring the job" not in output, output
    page = (run.folder / "failure.txt").read_text()
    assert f"SERVER_LOST: {why}" in page and "What to do: begin the cluster again" in page, page


def test_launch_carries_a_function_to_the_nodes_and_its_results_back(tmp_path, nodes, monkeypatch):
    import slackline

    nodes.fill()
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    def train(rate):
        import torch

        job = slackline.join()
        net = job.model(torch.nn.Linear(4, 2))
        optimizer = job.optimizer(net, slackline.Adam(lr=rate))
        for (x,) in job.loader(torch.utils.data.TensorDataset(torch.ones(200, 4)), 10):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return job.rank, job.world_size

    assert slackline.launch(train, 0.01, workers=2, on="ray", nodes=2) == [(0, 2), (1, 2)]
    with pytest.raises(ValueError, match="are carried to other hosts"):
        slackline.launch(train, os.urandom(1 << 20), on="ray")


def test_commands_of_the_page_run(tmp_path, nodes):
    nodes.fill()
    (tmp_path / "examples").symlink_to(SOURCE / "examples")
    page = (SOURCE / "docs/manual/clusters.md").read_text()
    commands = re.findall(r"^slackline (?:run|doctor) examples/.* --on ray.*$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {command} --set train.epochs=1 --set launch.ray.python={sys.executable}"],
            cwd=tmp_path,
            env={**os.environ, "RAY_ADDRESS": nodes.address, "PATH": f"{BIN}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
