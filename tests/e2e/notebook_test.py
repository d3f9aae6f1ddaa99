"""docs/manual/run.ipynb draws a real run, and docs/manual/records.md reads it with pandas in one line.

Usage: notebook_test.py FOLDER_OF_PROGRAMS [unittest's arguments]
"""

import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

import small_job

BIN = pathlib.Path(sys.argv.pop(1))
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs/manual"
for module in ("matplotlib", "pandas"):
    if importlib.util.find_spec(module) is None:
        # Said aloud; CMake counts it as skipped where the module was missing before.
        print(f"notebook_test: skipped, as there is no module {module}")
        sys.exit(0)


class NotebookTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.addClassCleanup(os.chdir, os.getcwd())
        os.chdir(place.name)
        config = small_job.write(pathlib.Path(place.name), "sync { ssp { staleness: 2 } }")
        small_job.done(small_job.command(BIN, config, pathlib.Path("runs/mine")))

    def test_the_notebook_draws_a_run(self):
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        notebook = json.loads((DOCS / "run.ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        shown = []
        pyplot.show = lambda: shown.extend(
            (axes.get_xlabel(), len(axes.lines), len(axes.patches)) for axes in pyplot.gcf().axes
        )
        names = {}
        for cell in cells:
            self.assertEqual(cell["outputs"], [], "strip the outputs")
            exec(compile("".join(cell["source"]), "docs/manual/run.ipynb", "exec"), names)
        pyplot.close("all")
        bins = {name: len(names["summary"][f"{name}_histogram"]) for name in ("missed_clocks", "lead")}
        expected = [
            ("step", 4, 0),  # Two workers, their mean, and the test loss.
            ("missed_clocks (clocks)", 0, bins["missed_clocks"]),
            ("lead (clocks)", 0, bins["lead"]),
            ("s", 0, 4),  # Computing and waiting of each worker.
        ]
        self.assertEqual(shown, expected)
        self.assertGreater(names["times"].to_numpy().min(), 0)

    def test_one_line_of_the_page_reads_each_file(self):
        (block,) = re.findall(
            r"```python\n(.*?)```", (DOCS / "records.md").read_text(encoding="utf-8"), re.DOTALL
        )
        names = {}
        exec(block, names)
        self.assertEqual(set(names["metrics"]["kind"]), {"train", "eval"})
        self.assertEqual(list(names["workers"]["rank"]), [0, 1])


if __name__ == "__main__":
    unittest.main()
