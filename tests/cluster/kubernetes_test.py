"""`slackline run --on kubernetes --print`, without a cluster.

What it prints is checked against the schemas of JobSet and of Kubernetes, for jobs
of several shapes and for names and values that YAML could take for something else.
Then the manifests' own commands are run: each pod is a process here, with the
environment, the names and the files that Kubernetes would give it, and the job has
to end with the model of `slackline run`. What is missing is said, and skipped.

Usage: kubernetes_test.py FOLDER_OF_PROGRAMS [--data-dir DIR] [unittest's arguments]
"""

import functools
import gzip
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
DATA = None
if "--data-dir" in sys.argv:
    at = sys.argv.index("--data-dir")
    DATA = sys.argv[at + 1] or None
    del sys.argv[at : at + 2]

try:
    import yaml
except ImportError:
    yaml = None
try:
    import jsonschema
except ImportError:
    jsonschema = None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

LATEST = "1.29"  # Of the schemas that kubernetes-validate brings: pod failure policies are in it.

MODEL = """
model { mlp { hidden: 32 } }
data { teacher_student { features: 16 classes: 4 train_examples: 2000 test_examples: 200 } batch_size: 20 }
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
sync { bsp {} }
"""


def job(text: str, kubernetes: str = "", launch: str = "", model: str = MODEL, name: str = "test") -> str:
    return f"""job: "{name}" {text} {model}
launch {{ kubernetes {{ image: "registry.example/slackline:1" {kubernetes} }} {launch} }}
"""


ONE = 'server { host: "127.0.0.1" } worker { host: "127.0.0.1" count: 2 } train { epochs: 1 }'
GROUPS = """
server { host: "127.0.0.1" count: 2 threads: 2 memory_mb: 2000 }
server { host: "127.0.0.1" cpus: 8 }
worker { host: "127.0.0.1" count: 3 cpus: 2 memory_mb: 512 }
worker { host: "127.0.0.1" count: 2 threads: 4 }
train { epochs: 1 }
"""
GPUS = """
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: 4 device: CUDA memory_mb: 32000 }
train { epochs: 1 }
"""


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def enterContext(self, context):  # Of Python 3.11.
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def run_command(self, config: str, *flags: str) -> subprocess.CompletedProcess:
        path = self.folder / "job.textproto"
        path.write_text(config)
        return subprocess.run(
            [BIN / "slackline", "run", path, *flags],
            capture_output=True, text=True, timeout=120, check=False, cwd=self.folder,
        )

    def manifests(self, config: str, *flags: str) -> tuple[dict, dict]:
        if yaml is None:
            self.skipTest("no PyYAML to read manifests with: tools/setup.sh --cluster")
        done = self.run_command(config, "--print", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        documents = list(yaml.safe_load_all(done.stdout))
        kinds = [each["kind"] for each in documents]
        self.assertIn(kinds, (["ConfigMap", "JobSet"], ["ConfigMap", "Secret", "JobSet"]))
        self.secret = documents[1] if len(documents) == 3 else None
        return documents[0], documents[-1]


def jobs_of(job_set: dict) -> dict:
    return {each["name"]: each["template"]["spec"] for each in job_set["spec"]["replicatedJobs"]}


def pod_of(job_spec: dict) -> dict:
    return job_spec["template"]["spec"]


class ManifestTest(Folder):
    def check_schemas(self, config_map: dict, job_set: dict) -> None:
        if kubernetes_validate is None or jsonschema is None:
            self.skipTest("no kubernetes-validate to check manifests with: tools/setup.sh --cluster")
        kubernetes_validate.validate(config_map, LATEST, strict=True)
        if self.secret is not None:
            kubernetes_validate.validate(self.secret, LATEST, strict=True)
        for name, spec in jobs_of(job_set).items():
            as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
            kubernetes_validate.validate(as_job, LATEST, strict=True)
        if DATA is None or not (pathlib.Path(DATA) / "schemas").is_dir():
            self.skipTest("no JobSet schema to check manifests with: --data-dir with schemas/")
        schema = job_set_schema()
        jsonschema.Draft7Validator(schema).validate(job_set)
        # The check is one: a field of another name is refused.
        wrong = json.loads(json.dumps(job_set))
        wrong["spec"]["replicatedJobs"][0]["replicaz"] = 1
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(schema).validate(wrong)

    def test_one_server(self) -> None:
        config_map, job_set = self.manifests(job(ONE, 'name: "one" namespace: "team"'))
        self.assertEqual(config_map["metadata"]["name"], "one-config")
        self.assertEqual(job_set["metadata"]["namespace"], "team")
        jobs = jobs_of(job_set)
        self.assertEqual({name: spec["completions"] for name, spec in jobs.items()}, {"servers": 1, "workers": 2})
        server = pod_of(jobs["servers"])["containers"][0]
        self.assertEqual(
            server["command"],
            ["/opt/slackline/bin/slackline_server", "--cluster=/etc/slackline/cluster.textproto",
             "--index=auto", "--out=/runs/one", "--key=/etc/slackline/keys/job.key"],
        )
        self.assertEqual(server["livenessProbe"]["httpGet"], {"path": "/healthz", "port": "health"})
        self.assertEqual(server["readinessProbe"]["httpGet"]["path"], "/readyz")
        self.assertEqual(server["ports"], [{"name": "health", "containerPort": 8080}])
        text = config_map["data"]["cluster.textproto"]
        for expected in ('host: "one-servers-0-{index}.one"', 'host: "one-workers-0-{index}.one"',
                         'host: "one-servers-0-0.one"', "port: 8080", "start_timeout_ms: 600000"):
            self.assertIn(expected, text)
        self.assertNotIn("launch", text)
        self.check_schemas(config_map, job_set)

    def test_pods_get_the_keys_that_are_theirs(self) -> None:
        _, job_set = self.manifests(job(ONE, 'name: "k"'))
        self.assertEqual(self.secret["metadata"]["name"], "k-keys")
        self.assertEqual(set(self.secret["stringData"]), {"job.key", "worker.key"})
        self.assertNotIn("role:", self.secret["stringData"]["job.key"])
        self.assertIn("role: WORKER", self.secret["stringData"]["worker.key"])
        for name, file in (("servers", "job.key"), ("workers", "worker.key")):
            pod = pod_of(jobs_of(job_set)[name])
            volumes = {each["name"]: each for each in pod["volumes"]}
            self.assertEqual(volumes["keys"]["secret"]["items"], [{"key": file, "path": file}])
            self.assertEqual(volumes["keys"]["secret"]["secretName"], "k-keys")
            self.assertIn(f"--key=/etc/slackline/keys/{file}", pod["containers"][0]["command"])
        _, plain = self.manifests(job(ONE, 'name: "k"') + " insecure: true")
        self.assertIsNone(self.secret)
        self.assertNotIn("keys", json.dumps(plain))

    def test_groups_have_their_own_resources_and_numbers(self) -> None:
        config_map, job_set = self.manifests(job(GROUPS, 'name: "g"'))
        jobs = jobs_of(job_set)
        resources = {name: pod_of(spec)["containers"][0]["resources"] for name, spec in jobs.items()}
        self.assertEqual(resources["servers"],
                         {"requests": {"cpu": "2", "memory": "2000Mi"}, "limits": {"memory": "2000Mi"}})
        self.assertEqual(resources["servers-1"], {"requests": {"cpu": "8"}})
        self.assertEqual(resources["workers"]["requests"], {"cpu": "2", "memory": "512Mi"})
        self.assertEqual(resources["workers-1"]["requests"], {"cpu": "4"})
        indexes = {name: [word for word in pod_of(spec)["containers"][0]["command"] if "--index" in word][0]
                   for name, spec in jobs.items()}
        self.assertEqual(indexes, {"servers": "--index=auto", "servers-1": "--index=auto+2",
                                   "workers": "--index=auto", "workers-1": "--index=auto+3"})
        self.assertIn('host: "g-workers-1-0-{index}.g"', config_map["data"]["cluster.textproto"])
        self.check_schemas(config_map, job_set)

    def test_gpus_checkpoints_and_claims(self) -> None:
        config_map, job_set = self.manifests(
            job(GPUS + "checkpoint { every_epochs: 1 }",
                'name: "gpus" claim: "runs" data_claim: "sets" secret: "mine"', 'data_dir: "/sets"'))
        jobs = jobs_of(job_set)
        worker = pod_of(jobs["workers"])
        self.assertEqual(worker["containers"][0]["resources"]["limits"], {"memory": "32000Mi", "nvidia.com/gpu": "1"})
        self.assertEqual(worker["terminationGracePeriodSeconds"], 120)
        self.assertIn("--data-dir=/sets", worker["containers"][0]["command"])
        volumes = {each["name"]: each for each in worker["volumes"]}
        self.assertEqual(volumes["runs"]["persistentVolumeClaim"], {"claimName": "runs"})
        self.assertEqual(volumes["data"]["persistentVolumeClaim"], {"claimName": "sets", "readOnly": True})
        self.assertEqual(volumes["keys"]["secret"]["secretName"], "mine")
        self.assertIsNone(self.secret)
        self.assertIn("--restore", pod_of(jobs["servers"])["containers"][0]["command"])
        rules = jobs["servers"]["podFailurePolicy"]["rules"]
        self.assertEqual([(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in rules],
                         [("Ignore", [75]), ("Ignore", None), ("FailJob", [1, 2])])
        self.check_schemas(config_map, job_set)

    def test_a_lost_server_is_restored(self) -> None:
        _, job_set = self.manifests(
            job(ONE + " checkpoint { every_epochs: 1 on_server_loss: RESTORE }", 'name: "r" claim: "runs"'))
        rules = jobs_of(job_set)["workers"]["podFailurePolicy"]["rules"]
        self.assertEqual(rules[2]["onExitCodes"]["values"], [2])

    def test_hostile_values_arrive_as_they_are(self) -> None:
        values = ["yes", "null", "1e3", "0x1F", "a: b", "- a", "# none", "'", '"', "\\", "$(HOME)", "a\nb\n", "\t",
                  "*x", "&x", "!x", "%x", "@x", "`x`", "{}", "[]", "é", "\U0001f600", "\u2028", "\ufeff", "\x85", "\x01",
                  " lead", "trail ", "", "~", "2026-01-01", "12:30:45", "=", "<<", "---", "..."]
        config = job('server { host: "127.0.0.1" } worker { host: "127.0.0.1" } ', 'name: "h"', model="")
        flags = []
        for i, value in enumerate(values):
            escaped = "".join(f"\\{byte:03o}" for byte in value.encode())
            config = config.replace("launch {", f'launch {{ environment: "V{i}={escaped}"')
        config_map, job_set = self.manifests(config, *flags, "--", "python3", *[v for v in values if v != ""])
        container = pod_of(jobs_of(job_set)["workers"])["containers"][0]
        given = {each["name"]: each["value"] for each in container["env"]}
        for i, value in enumerate(values):
            # Kubernetes makes "$(" of "$$(".
            self.assertEqual(given[f"V{i}"].replace("$$(", "$("), value)
        self.assertEqual([word.replace("$$(", "$(") for word in container["command"]],
                         ["python3", *[v for v in values if v != ""]])
        self.assertEqual(given["SLACKLINE_INDEX"], "auto")
        self.check_schemas(config_map, job_set)

    def test_names_of_jobs_become_names_of_hosts(self) -> None:
        for name in ("My_Job.v2", "9lives", "x" * 64, "a-" * 20 + "b"):
            with self.subTest(name):
                _, job_set = self.manifests(job(ONE, name=name))
                made = job_set["metadata"]["name"]
                self.assertRegex(made, r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")
                self.assertRegex(made, r"-[0-9]{8}t[0-9]{6}z$")

    def test_what_does_not_fit_is_refused_by_name(self) -> None:
        for config, flags, expected in (
            (job(ONE, 'name: "Upper"'), [], "launch.kubernetes.name: value is 'Upper'"),
            (job(ONE, 'namespace: "a\\nb: c"'), [], "launch.kubernetes.namespace"),
            (job(ONE, 'claim: "a/b"'), [], "launch.kubernetes.claim"),
            (job(ONE, "grace_seconds: 0"), [], "launch.kubernetes.grace_seconds"),
            (job(ONE).replace('image: "registry.example/slackline:1"', ""), [], "launch.kubernetes.image: is missing"),
            (job(ONE + " checkpoint { every_epochs: 1 }"), [], "launch.kubernetes.claim: is missing"),
            (job(ONE), ["--hosts", "n1:2"], "--hosts"),
            (job(ONE), ["--out", "x"], "launch.kubernetes.name"),
            (job(ONE), ["--nodes", "2"], "--nodes, flags of Slurm"),
            (job(ONE), ["--detach"], "flags of Slurm"),
            (job(ONE.replace("count: 2", "device: CUDA gpu: 3")), [], "worker[0].gpu"),
            (job(ONE, 'data_claim: "d"'), ["--set", "launch.data_dir=/runs/x"], "launch.data_dir: value is /runs/x"),
            (job(ONE, 'data_claim: "d"'), ["--set", "launch.data_dir=/"], "launch.data_dir: value is /"),
            (job(ONE), ["--set", "launch.runs_dir=/scratch"], "launch.runs_dir: value is /scratch"),
            (job(ONE + ' checkpoint { folder: "/elsewhere" }', 'claim: "c"'), [], "checkpoint.folder: value is /elsewhere"),
            (job(ONE), ["--set", "health.host=127.0.0.1"], "health.host: value is 127.0.0.1"),
            (job(ONE), ["--set", "coordinator.port=8080"], "is already taken by coordinator.port"),
        ):
            with self.subTest(expected):
                done = self.run_command(config, "--print", *flags)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(expected, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_kubectl_is_handed_what_is_printed(self) -> None:
        kubectl = self.folder / "kubectl"
        kubectl.write_text(
            f'#!/bin/sh\nprintf "%s " "$@" > {self.folder}/words\ncat > {self.folder}/given\n'
            f"exit $(cat {self.folder}/code)\n"
        )
        kubectl.chmod(0o755)
        config = job(ONE, f'name: "k" program: "{kubectl}"')
        (self.folder / "code").write_text("0")
        applied = self.run_command(config)
        self.assertEqual(applied.returncode, 0, applied.stderr)
        self.assertEqual(applied.stdout, "k\n")
        self.assertIn("delete jobset/k", applied.stderr)
        self.assertEqual((self.folder / "words").read_text(), "apply -f - ")
        self.assertEqual((self.folder / "given").read_text(), self.run_command(config, "--print").stdout)
        (self.folder / "code").write_text("3")
        refused = self.run_command(config)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("apply -f - has failed", refused.stderr)
        missing = self.run_command(job(ONE, 'program: "no-such-kubectl"'))
        self.assertEqual(missing.returncode, 1)
        self.assertIn("--print", missing.stderr)


@functools.lru_cache(maxsize=None)
def job_set_schema() -> dict:
    path = pathlib.Path(DATA) / "schemas" / "jobset.x-k8s.io_jobsets.yaml.gz"
    definition = yaml.load(gzip.decompress(path.read_bytes()), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    close(schema)
    return schema


def close(schema: dict) -> None:
    """Fields that a schema does not know are refused, as `kubectl --validate` does."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and schema.get("properties") and not schema.get(
            "x-kubernetes-preserve-unknown-fields"
        ):
            schema.setdefault("additionalProperties", False)
        for key, value in schema.items():
            if key != "properties":
                close(value)
            else:
                for each in value.values():
                    close(each)
    elif isinstance(schema, list):
        for each in schema:
            close(each)


UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def can_have_names_of_its_own() -> bool:
    with tempfile.NamedTemporaryFile() as hosts:
        tried = subprocess.run([*UNSHARE, "mount", "--bind", hosts.name, "/etc/hosts"],
                               capture_output=True, check=False)
    return tried.returncode == 0


class Pods:
    """The pods of a JobSet as processes of this machine, each at an address of its own."""

    def __init__(self, folder: pathlib.Path, config_map: dict, secret: dict, job_set: dict) -> None:
        self.folder, self.job_set, self.name = folder, job_set, job_set["metadata"]["name"]
        self.config = folder / "cluster.textproto"
        self.config.write_text(config_map["data"]["cluster.textproto"])
        self.keys = folder / "keys"
        self.keys.mkdir()
        for name, text in secret["stringData"].items():
            key = self.keys / name
            key.touch(mode=0o600)
            key.write_text(text)
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.addresses, self.processes = {}, {}
        for name, spec in jobs_of(job_set).items():
            for index in range(spec["completions"]):
                self.addresses[name, index] = f"127.0.77.{len(self.addresses) + 1}"

    def host(self, name: str, index: int) -> str:
        return f"{self.name}-{name}-0-{index}"

    def start(self, name: str, index: int) -> None:
        container = pod_of(jobs_of(self.job_set)[name])["containers"][0]
        # What is mounted there.
        places = {"/etc/slackline/cluster.textproto": str(self.config), "/etc/slackline/keys": str(self.keys),
                  "/runs": str(self.runs)}
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(places) <= mounted, mounted
        command = []
        for word in container["command"]:
            for there, here in places.items():
                word = word.replace("=" + there, "=" + here)
            command.append(word.replace("/opt/slackline/bin", str(BIN)))
        hosts = self.folder / f"hosts-{name}-{index}"
        lines = [f"{address} {self.host(*pod)}.{self.name}" for pod, address in self.addresses.items()]
        hosts.write_text("\n".join([*lines, f"{self.addresses[name, index]} this-pod", "127.0.0.1 localhost", ""]))
        environment = {"PATH": os.environ["PATH"], "HOSTNAME": self.host(name, index),
                       "KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": str(index)}
        for each in container.get("env", []):
            environment[each["name"]] = each["value"].replace("$$(", "$(")
        log = open(self.folder / f"{name}-{index}.log", "ab")
        self.processes[name, index] = subprocess.Popen(
            [*UNSHARE, "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh", *command],
            env=environment, stdout=log, stderr=log)
        log.close()

    def start_all(self) -> None:
        # Workers first: Kubernetes promises no order.
        for pod in reversed(list(self.addresses)):
            self.start(*pod)

    def get(self, pod: tuple, path: str) -> tuple[int, dict]:
        container = pod_of(jobs_of(self.job_set)[pod[0]])["containers"][0]
        port = container["ports"][0]["containerPort"]
        try:
            with urllib.request.urlopen(f"http://{self.addresses[pod]}:{port}{path}", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def wait_ready(self, pods) -> None:
        for pod in pods:
            while self.get(pod, "/readyz")[0] != 200:
                assert self.processes[pod].poll() is None, self.log(pod)
                time.sleep(0.02)

    def log(self, pod: tuple) -> str:
        return (self.folder / f"{pod[0]}-{pod[1]}.log").read_text()

    def wait(self) -> dict:
        return {pod: process.wait(timeout=300) for pod, process in self.processes.items()}

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def model(self) -> str:
        path = self.runs / self.name / "model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest()


RUN = """
server {{ host: "127.0.0.1" count: 3 }}
worker {{ host: "127.0.0.1" count: 2 conditions {{ step_ms: {step_ms} }} }}
worker {{ host: "127.0.0.1" conditions {{ step_ms: {step_ms} }} }}
train {{ epochs: {epochs} seed: 5 }}
limits {{ shard_kib: 1 lease_ms: 2000 }}
"""


class PodsTest(Folder):
    def setUp(self) -> None:
        super().setUp()
        if not can_have_names_of_its_own():
            self.skipTest("no mount namespaces on this machine, so no names of hosts of its own for each pod")

    def model_here(self, config: str) -> str:
        out = self.folder / "here"
        path = self.folder / "here.textproto"
        # Workers of their own speed end with the same bits.
        path.write_text(re.sub(r"conditions {.*?} ", "", config.split("launch {")[0]))
        done = subprocess.run([BIN / "slackline", "run", path, "--out", out],
                              capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()

    def pods(self, config: str) -> Pods:
        # Here all pods share the ports of one machine.
        config_map, job_set = self.manifests('health { host: "this-pod" } ' + config)
        pods = Pods(self.folder, config_map, self.secret, job_set)
        self.addCleanup(pods.end)
        return pods

    def test_the_commands_of_the_manifests_train_the_same_model(self) -> None:
        config = job(RUN.format(step_ms=20, epochs=3), 'name: "pods"')
        pods = self.pods(config)
        pods.start_all()
        pods.wait_ready(pods.addresses)
        status, said = pods.get(("workers-1", 0), "/healthz")
        self.assertEqual((status, said["role"], said["index"], said["stage"]), (200, "worker", 2, "running"))
        self.assertEqual(pods.get(("servers", 1), "/healthz")[0], 200)
        codes = pods.wait()
        self.assertEqual(set(codes.values()), {0}, {pod: pods.log(pod) for pod, code in codes.items() if code})
        self.assertEqual(pods.model(), self.model_here(config))

    def test_a_pod_that_is_killed_and_made_anew_goes_on(self) -> None:
        config = job(RUN.format(step_ms=20, epochs=8) + " replicas: 1", 'name: "copies"')
        pods = self.pods(config)
        pods.start_all()
        pods.wait_ready(pods.addresses)
        for killed in (("servers", 1), ("servers", 0)):
            self.wait_for_copies(pods)
            pods.processes[killed].send_signal(signal.SIGKILL)
            pods.processes[killed].wait()
            pods.start(*killed)
            pods.wait_ready([killed])
        codes = pods.wait()
        self.assertEqual(set(codes.values()), {0}, {pod: pods.log(pod) for pod, code in codes.items() if code})
        self.assertEqual(pods.model(), self.model_here(config))

    def test_a_job_whose_pods_are_taken_away_goes_on_by_the_same_commands(self) -> None:
        config = job(RUN.format(step_ms=20, epochs=3) + " checkpoint { every_steps: 50 }", 'name: "again" claim: "runs"')
        pods = self.pods(config)
        pods.start_all()
        pods.wait_ready(pods.addresses)
        for pod in [each for each in pods.addresses if "workers" in each[0]]:
            pods.processes[pod].send_signal(signal.SIGTERM)
        codes = pods.wait()
        self.assertEqual(set(codes.values()), {75}, {pod: pods.log(pod) for pod, code in codes.items() if code != 75})
        pods.start_all()
        codes = pods.wait()
        self.assertEqual(set(codes.values()), {0}, {pod: pods.log(pod) for pod, code in codes.items() if code})
        self.assertEqual(pods.model(), self.model_here(config))

    def wait_for_copies(self, pods: Pods) -> None:
        """Until all shards have their copies: before that a second loss would be one too many."""
        config = pods.folder / "cluster-here.textproto"
        # Names are known to the pods alone; the coordinator is with server 0.
        address = pods.addresses["servers", 0]
        config.write_text(re.sub(r'host: "[^"]*"', f'host: "{address}"', pods.config.read_text()))
        while all(process.poll() is None for process in pods.processes.values()):
            done = subprocess.run([BIN / "slackline", "status", "--json", "--key", pods.keys / "job.key", config], capture_output=True, text=True,
                                  timeout=60, check=False)
            if done.returncode == 0:
                copies = json.loads(done.stdout)["redundancy"]
                if copies["shards"] > 0 and copies["complete"] == copies["shards"]:
                    return
            time.sleep(0.05)
        self.fail("the job has ended before all shards had their copies")


if __name__ == "__main__":
    unittest.main(verbosity=2)
