import json
import pathlib
import re
import types
import urllib.parse

from . import entities

NAMES = re.compile(r"[\w./ -]+")  # That MLflow takes.


class MlflowClient:
    def __init__(self, tracking_uri):
        assert tracking_uri.startswith("file:///"), tracking_uri
        self._path = pathlib.Path(urllib.parse.unquote(tracking_uri[7:])) / "fake.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def _load(self):
        if self._path.exists():
            return json.loads(self._path.read_text(encoding="utf-8"))
        return {"experiments": [], "runs": {}}

    def _change(self, change):
        state = self._load()
        result = change(state)
        self._path.write_text(json.dumps(state), encoding="utf-8")
        return result

    def get_experiment_by_name(self, name):
        names = self._load()["experiments"]
        return types.SimpleNamespace(experiment_id=str(names.index(name))) if name in names else None

    def create_experiment(self, name):
        return self._change(
            lambda state: state["experiments"].append(name) or str(len(state["experiments"]) - 1)
        )

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        def change(state):
            run_id = f"run{len(state['runs'])}"
            state["runs"][run_id] = {
                "experiment": experiment_id, "status": "RUNNING", "name": run_name, "start": start_time,
                "tags": dict(tags or {}), "params": {}, "metrics": {}, "artifacts": [],
            }  # fmt: skip
            return run_id

        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=self._change(change)))

    def update_run(self, run_id, status=None, name=None):
        self._change(lambda state: state["runs"][run_id].update(status=status))

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000 and len(params) <= 100

        def change(state):
            run = state["runs"][run_id]
            for metric in metrics:
                assert NAMES.fullmatch(metric.key), metric.key
                run["metrics"].setdefault(metric.key, []).append(
                    [metric.value, metric.timestamp, metric.step]
                )
            for param in params:
                assert NAMES.fullmatch(param.key) and len(param.value) <= 6000, param
                assert run["params"].setdefault(param.key, param.value) == param.value

        self._change(change)

    def set_tag(self, run_id, key, value):
        self._change(lambda state: state["runs"][run_id]["tags"].update({key: value}))

    def log_artifact(self, run_id, local_path):
        self._change(lambda state: state["runs"][run_id]["artifacts"].append(pathlib.Path(local_path).name))

    def set_terminated(self, run_id, status=None):
        self._change(lambda state: state["runs"][run_id].update(status=status))

    # ---- For who reads.

    def search_runs(self, experiment_ids):
        return [
            types.SimpleNamespace(
                info=types.SimpleNamespace(
                    run_id=run_id, status=run["status"], run_name=run["name"], start_time=run["start"]
                ),
                data=types.SimpleNamespace(tags=run["tags"], params=run["params"]),
            )
            for run_id, run in self._load()["runs"].items()
            if run["experiment"] in experiment_ids
        ]

    def get_metric_history(self, run_id, key):
        return [entities.Metric(key, *of) for of in self._load()["runs"][run_id]["metrics"].get(key, [])]

    def list_artifacts(self, run_id):
        return [types.SimpleNamespace(path=name) for name in self._load()["runs"][run_id]["artifacts"]]
