"""What slackline uses of wandb, as recorded from wandb 0.31: a stand-in that keeps a run
in a JSON file where wandb keeps its own. The real one's files are its own business."""

import json
import pathlib

_count = 0


class Settings:
    def __init__(self, console, silent):
        pass


class Artifact:
    def __init__(self, name, type):
        self.name, self.type, self.files = name, type, []

    def add_file(self, local_path):
        assert pathlib.Path(local_path).exists()
        self.files.append(pathlib.Path(local_path).name)


class Run:
    def __init__(self, given):
        global _count
        _count += 1
        self.id = given["id"] or f"id{_count}"
        self._path = pathlib.Path(given["dir"]) / "wandb" / f"offline-run-{_count}-{self.id}" / "fake.json"
        given.pop("settings")
        self.summary = {}
        self._kept = {"given": given, "history": [], "artifacts": {}, "summary": self.summary}

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, data):
        self._kept["history"].append(data)

    def log_artifact(self, artifact):
        self._kept["artifacts"][artifact.type] = artifact.files

    def mark_preempting(self):
        self._kept["preempting"] = True

    def finish(self, exit_code):
        self._kept["exit_code"] = exit_code
        self._path.parent.mkdir(parents=True)
        self._path.write_text(json.dumps(self._kept), encoding="utf-8")


def init(project, name, id, resume, group, job_type, config, dir, mode, reinit, settings):
    assert reinit == "create_new" and resume == ("allow" if id else None)
    return Run(dict(locals()))
