"""Every command that README, the pages of docs/ or a --help shows is one.

Its program and its files are there, and its flags are in the program's help.
What can be checked without running it is: `compare` and `ablate` with
--dry-run, `run` too. The messages of troubleshooting.md are in the sources. Some pages' commands are run as they stand by other tests
(JobTest::RunCommandsOfPage). Links between pages lead to a file and a heading, and so do the paths below docs/ that sources name.

Usage: pages_test.py FOLDER_OF_PROGRAMS [unittest's arguments]
"""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop(1))
SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("manual", "protocols", "results")
PAGES = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").rglob("*.md"))]

# What users have, and this checkout has not.
PLACEHOLDERS = re.compile(r"\b(job\.textproto|modes\.textproto|runs/|recorded|start$|DATA|DIR|FOLDER|VENV|PREFIX|NAME|OUT)")
# Programs that pages tell to install or to build.
OTHERS = {"cmake", "ctest", "export", "own_model", "python3", "pip", "git", "cd"}


def commands_of(text: str) -> list[str]:
    """Of all code blocks, with lines that go on joined."""
    found, block, command = [], None, ""
    for line in text.splitlines():
        if line.startswith("```"):
            block = line[3:].strip() if block is None else None
            continue
        if block not in ("sh", ""):
            continue
        command += line
        if command.endswith("\\"):
            command = command[:-1]
            continue
        words = re.sub(r"^([A-Z_]+=\S* )*", "", command)
        if re.match(r"(slackline[a-z_]*|build/\S+|tools/\S+|benchmarks/\S+|python3) ", words + " "):
            found.append(words)
        command = ""
    return found


@functools.lru_cache(maxsize=None)
def help_of(*program: str) -> str:
    done = subprocess.run([*program, "--help"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def path_of(program: str) -> str | None:
    """Where the program of a command is; None: it is none of ours."""
    if re.fullmatch(r"slackline[a-z_]*", program):
        return str(BIN / program)
    if program.startswith("build/release/bin/"):
        return str(BIN / pathlib.Path(program).name)
    if program.startswith(("tools/", "benchmarks/")):
        return str(SOURCE / program)
    return None


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


@functools.lru_cache(maxsize=None)
def anchors_of(page: pathlib.Path) -> frozenset[str]:
    """The anchors that GitHub makes of the headings of a page."""
    anchors = set()
    for heading in re.findall(r"^#+ +(.*)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        anchors.add(next(name for name in (anchor, *(f"{anchor}-{n}" for n in range(1, 100))) if name not in anchors))
    return frozenset(anchors)


def texts_with_paths() -> list[pathlib.Path]:
    """Every file of ours that may name a page: pages, sources, examples, scripts."""
    parts = ("benchmarks", "cmake", "common", "docs", "examples", "job", "programs", "proto", "python", "server", "tests", "tools", "worker")
    files = [path for part in parts for path in (SOURCE / part).rglob("*") if path.is_file()]
    suffixes = (".cc", ".cmake", ".cu", ".h", ".ipynb", ".md", ".proto", ".py", ".sh", ".textproto", ".txt", ".yml")
    return [path for path in files if path.suffix in suffixes] + [SOURCE / "CHANGELOG.md", *PAGES[:2]]


class PagesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "examples").symlink_to(SOURCE / "examples")

    def check(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        self.check_files(words)
        own = words[: words.index("--")] if "--" in words else words
        if own[0].endswith("python") and len(own) > 1:
            own = own[1:]  # A Python, and a script of ours.
        program = path_of(own[0])
        if program is None:
            self.assertTrue(
                pathlib.Path(own[0]).name in OTHERS or own[0].startswith(("build/", "examples/")),
                f"{own[0]} is no program of ours",
            )
            return
        self.assertTrue(os.access(program, os.X_OK), f"{program} is no program")
        flags = {word.split("=")[0] for word in own[1:] if re.match(r"--?[a-z]", word)}
        self.check_flags(program, own, flags)
        if own[0].endswith("slackline"):
            self.dry_run(program, words, own)

    def check_files(self, words: list[str]) -> None:
        for word in words:
            if re.match(r"(examples|docs|benchmarks|tests|tools)/[\w./-]+$", word):
                self.assertTrue((SOURCE / word).exists(), f"{word} is not there")

    def check_flags(self, program: str, own: list[str], flags: set[str]) -> None:
        if program.endswith(".sh"):
            text = pathlib.Path(program).read_text(encoding="utf-8")
            # torture.sh hands its flags on.
            text += help_of(sys.executable, str(SOURCE / "tools/torture/torture.py")) if "torture" in program else ""
        elif program.endswith(".py"):
            text = help_of(sys.executable, program)
        else:
            depth = 1
            while program.endswith("/slackline") and depth < len(own) and re.fullmatch(r"[a-z]+", own[depth]):
                depth += 1
            # `mode set` has a help of its own, and what stands after it has not.
            text = help_of(program, *own[1 : min(depth, 3)])
            if depth >= 3 and flags - set(re.findall(r"--?[a-z][a-z0-9-]*", text)):
                text += help_of(program, own[1])
        for flag in flags:
            self.assertRegex(text, rf"(?<![\w-]){re.escape(flag)}(?![\w-])", f"{flag} is not in the help")

    def dry_run(self, program: str, words: list[str], own: list[str]) -> None:
        kind = own[1] if len(own) > 1 else ""
        if kind == "doctor" and "--on" not in own:
            # It starts nothing of the job.
            done = subprocess.run([program, *own[1:]], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return
        if kind not in ("run", "compare", "ablate") or any(PLACEHOLDERS.search(word) for word in own[2:]):
            return
        rest = words[len(own) :]
        if "own_model" in rest or "./own_model" in rest:
            return  # own_program_test builds and runs it.
        added = [] if "--dry-run" in own else ["--dry-run"]
        rest = [sys.executable if word.startswith("build/venv/") else word for word in rest]
        done = subprocess.run(
            [program, *own[1:], *added, *rest],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_pages(self) -> None:
        # Each folder has its pages, and no page is beside the folders but the index and the architecture.
        for folder in FOLDERS:
            self.assertGreaterEqual(len([page for page in PAGES if page.parent == SOURCE / "docs" / folder]), 5, folder)
        self.assertEqual([page.name for page in PAGES if page.parent == SOURCE / "docs"], ["ARCHITECTURE.md", "README.md"])
        total = 0
        for page in PAGES:
            commands = commands_of(page.read_text(encoding="utf-8"))
            total += len(commands)
            for command in commands:
                with self.subTest(page=page.name, command=command):
                    self.check(command)
        self.assertGreaterEqual(total, 100)

    def test_links(self) -> None:
        total = 0
        for page in (path for path in texts_with_paths() if path.suffix == ".md"):
            for target in re.findall(r"\]\(([^()\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
                if re.match(r"[a-z]+:", target):
                    continue
                total += 1
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                with self.subTest(page=page.name, link=target):
                    self.assertTrue(file.exists(), f"{file} is not there")
                    if anchor:
                        self.assertIn(anchor, anchors_of(file))
        self.assertGreaterEqual(total, 400)

    def test_index(self) -> None:
        """docs/README.md leads to every page."""
        index = SOURCE / "docs/README.md"
        linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^()#\s]+)", index.read_text(encoding="utf-8"))}
        for page in PAGES:
            if page != index:
                with self.subTest(page=page.name):
                    self.assertTrue(page in linked, f"{page.relative_to(SOURCE)} is not in docs/README.md")

    def test_paths(self) -> None:
        """The pages that comments, errors and --help name are there, with their headings."""
        total = 0
        for file in texts_with_paths():
            # A path of ours stands alone: what follows a slash belongs to an address.
            named = re.findall(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|ipynb|svg|png)(?:#[\w-]+)?", file.read_text(encoding="utf-8"))
            total += len(named)
            for path, _, anchor in (name.partition("#") for name in named):
                with self.subTest(file=str(file.relative_to(SOURCE)), path=path):
                    self.assertTrue((SOURCE / path).exists(), f"{path} is not there")
                    if anchor:
                        self.assertIn(anchor, anchors_of(SOURCE / path))
        self.assertGreaterEqual(total, 100)

    def test_map(self) -> None:
        """The map of the sources names files and folders that are there."""
        named = re.findall(r"`([a-z_]+/[\w./-]*)`", (SOURCE / "docs/manual/map.md").read_text(encoding="utf-8"))
        self.assertGreaterEqual(len(named), 80)
        for path in named:
            with self.subTest(path=path):
                # Files of the package for Python are named from its folder.
                self.assertTrue((SOURCE / path).exists() or (SOURCE / "python/slackline" / path).exists(), f"{path} is not there")

    def test_help(self) -> None:
        top = help_of(str(BIN / "slackline"))
        names = re.findall(r"^  ([a-z]+) ", top.split("ubcommands:")[1], re.MULTILINE)
        self.assertIn("run", names)
        texts = [top, *(help_of(str(BIN / "slackline"), name) for name in names)]
        examples = [
            match.strip()
            for text in texts
            for match in re.findall(r"(?:^|Examples?: )\s*(slackline [a-z]+ .*)$", text.replace("\\\n", " "), re.MULTILINE)
        ]
        self.assertGreaterEqual(len(examples), 15)
        for command in examples:
            with self.subTest(command=command):
                self.check(command)

    def test_help_of_scripts(self) -> None:
        scripts = sorted((SOURCE / "tools").glob("*.sh"))
        self.assertGreaterEqual(len(scripts), 9)
        for script in scripts:
            with self.subTest(script=script.name):
                said = subprocess.run(["bash", script, "--help"], capture_output=True, text=True, check=False)
                self.assertEqual((said.returncode, said.stderr), (0, ""))
                self.assertRegex(said.stdout, "(?i)usage: ")
                self.assertNotIn("pipefail", said.stdout, "what follows the comment is shown, too")

    def test_messages(self) -> None:
        """Each message of troubleshooting.md is one that the programs print."""
        text = "".join(
            re.sub(r'\\?"\s*\n\s*"', "", path.read_text(encoding="utf-8"))
            for part in ("common", "job", "programs", "server", "worker", "tools", "python")
            for path in sorted((SOURCE / part).rglob("*"))
            if path.suffix in (".cc", ".h", ".py") and "tests" not in path.parts
        )
        page = (SOURCE / "docs/manual/troubleshooting.md").read_text(encoding="utf-8")
        messages = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
        self.assertEqual(len(messages), page.count("\n### "))
        self.assertGreaterEqual(len(messages), 20)
        for message in messages:
            # "{ start_timeout_ms: ... }" is printed as it stands.
            for piece in re.split(r"(?<!_ms: )\.\.\.", message):
                with self.subTest(message=message, piece=piece):
                    self.assertTrue(piece.strip() in text, f"no program prints {piece.strip()!r}")


if __name__ == "__main__":
    unittest.main()
