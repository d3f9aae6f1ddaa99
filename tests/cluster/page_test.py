"""The page of a job, `slackline open`, in a real browser.

On a desk and on a phone, light and dark: what it shows is what `slackline status` says, who
holds whom up stands on it, curves survive a reload, and orders are carried out with the
operator's key, and refused with a reader's. Skipped aloud where there is no Chromium.

Usage: page_test.py FOLDER_OF_PROGRAMS [--screenshots FOLDER] [unittest's arguments]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
SCREENSHOTS = None
if "--screenshots" in sys.argv:
    at = sys.argv.index("--screenshots")
    SCREENSHOTS = pathlib.Path(sys.argv[at + 1]).resolve()
    del sys.argv[at : at + 2]
WAIT_MAX = 60

# Worker 2 is slow, and holds the others up.
JOB = """
job: "digits"
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: 2 conditions { step_ms: 20 } }
worker { host: "127.0.0.1" conditions { step_ms: 60 } }
model { mlp { hidden: 32 } }
data { teacher_student { features: 16 classes: 4 train_examples: 8000 test_examples: 1000 } batch_size: 20 }
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
train { epochs: 400 seed: 1 eval_every_epochs: 0.2 }
sync { ssp {} }
limits { shard_kib: 1 }
"""
# What a page must not do on a narrow screen, and what it shows.
WIDER_THAN_THE_SCREEN = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
# Controls without a name for who cannot see them.
NAMELESS = """
return [...document.querySelectorAll('button, input, select, svg[role=img], [role=region]')].filter((e) =>
  !(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))).length
"""


def browser(width: int, height: int, dark: bool):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
                     "--disable-background-networking", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    # A window cannot be narrower than 500 px.
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    )
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
    )
    return driver


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="page_test-"))
        cls.processes = []
        (cls.folder / "job.textproto").write_text(JOB)
        cls.start("run", ["run", "job.textproto", "--out=run"])
        cls.wait_until(lambda: cls.status().get("view", {}).get("state") == "RUNNING", "a job that runs")

    @classmethod
    def tearDownClass(cls):
        for process in reversed(cls.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()
        shutil.rmtree(cls.folder)

    @classmethod
    def start(cls, name: str, arguments: list) -> subprocess.Popen:
        with open(cls.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                [str(BIN / "slackline"), *map(str, arguments)], cwd=cls.folder, stdout=log, stderr=subprocess.STDOUT
            )
        cls.processes.append(process)
        return process

    @classmethod
    def log(cls, name: str) -> str:
        return (cls.folder / f"{name}.log").read_text()

    @classmethod
    def wait_until(cls, what, why: str):
        end = time.monotonic() + WAIT_MAX
        while time.monotonic() < end:
            if value := what():
                return value
            time.sleep(0.1)
        raise AssertionError(f"{why}: not within {WAIT_MAX} s\n" + "\n".join(cls.log(log.stem) for log in cls.folder.glob("*.log")))

    @classmethod
    def status(cls) -> dict:
        asked = subprocess.run([str(BIN / "slackline"), "status", "run", "--json"], cwd=cls.folder, capture_output=True)
        return json.loads(asked.stdout) if asked.stdout else {}

    def open_page(self, *arguments) -> str:
        name = f"open-{len(self.processes)}"
        self.opened = self.start(name, ["open", "run", *arguments])
        return self.wait_until(lambda: re.search(r"page: (\S+)", self.log(name)), "the page's address")[1]

    def show(self, address: str, width=1280, height=1600, dark=False):
        driver = browser(width, height, dark)
        self.addCleanup(driver.quit)
        driver.get(address)
        self.wait_until(lambda: self.text(driver, "state") == "running", "the job on the page")
        return driver

    def text(self, driver, id: str) -> str:
        return driver.execute_script("return document.getElementById(arguments[0]).textContent", id)

    def picture(self, driver, name: str):
        if SCREENSHOTS:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            driver.save_screenshot(str(SCREENSHOTS / f"{name}.png"))

    def check_layout(self, driver):
        self.assertFalse(driver.execute_script(WIDER_THAN_THE_SCREEN))
        self.assertEqual(driver.execute_script(NAMELESS), 0)
        self.assertEqual([entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"], [])

    def test_shows_what_the_status_says(self):
        # Another test may have changed it; if none has, this is refused.
        subprocess.run([str(BIN / "slackline"), "mode", "set", "run", "ssp:3"], cwd=self.folder, capture_output=True)
        address = self.open_page()
        driver = self.show(address)
        self.wait_until(lambda: len(driver.find_elements("css selector", "#waiting polyline")) == 3, "curves of three workers")
        rows = driver.execute_script("return [...document.querySelectorAll('#workers tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
        self.assertEqual([row[:2] for row in rows], [["0", "alive"], ["1", "alive"], ["2", "alive"]])
        self.assertLessEqual(int(rows[0][3]), max(worker["clock"] for worker in self.status()["worker"]))
        self.assertEqual(len(driver.find_elements("css selector", "#servers tbody tr")), 2)
        self.wait_until(lambda: self.text(driver, "mode") == "mode: ssp:3", "the mode")
        # The others wait for the worker that waits least.
        self.wait_until(lambda: re.search(r"worker 2 (\d+)", self.text(driver, "waiting")), "its share")

        def shares():
            return [int(share) for share in re.findall(r"worker \d (\d+) %", self.text(driver, "waiting"))]

        self.wait_until(lambda: len(shares()) == 3 and shares()[2] < min(shares()[:2]), "the slow worker waits least")
        # So does the alarm of the coordinator, and where the time of a step goes.
        self.wait_until(lambda: "worker 2 is" in self.text(driver, "alerts"), "who is slow")
        self.wait_until(lambda: len(driver.find_elements("css selector", "#steps .stack")) == 3, "phases of three workers")
        # Curves are there at once after a reload.
        seen = driver.execute_script("return points.length")
        driver.refresh()
        self.wait_until(lambda: driver.execute_script("return points.length") >= seen, "what was there before")
        self.check_layout(driver)
        self.picture(driver, "page-light")
        for name, width, height, dark in (("page-dark", 1280, 1600, True), ("page-phone", 390, 844, False), ("page-phone-dark", 390, 844, True)):
            with self.subTest(name):
                driver = self.show(address, width, height, dark)
                self.wait_until(lambda: driver.find_elements("css selector", "#loss polyline"), "curves")
                self.check_layout(driver)
                self.picture(driver, name)

    def test_carries_out_orders(self):
        driver = self.show(self.open_page())
        driver.find_element("css selector", "form[data-order=mode] input").send_keys("asp")
        driver.find_element("css selector", "form[data-order=mode] button").click()
        self.wait_until(lambda: self.text(driver, "mode") == "mode: asp", "another mode")
        self.wait_until(lambda: "changed from ssp" in self.text(driver, "events"), "what has happened")
        # By keyboard alone: the field, then the button behind it.
        field = driver.find_element("css selector", "input[name=shards]")
        field.send_keys("0-3\t1\n")
        self.wait_until(lambda: "ordered" in self.text(driver, "said") or "nothing" in self.text(driver, "said"), "an answer")
        field.clear()
        field.send_keys("no-such-table\n")
        self.wait_until(lambda: "no-such-table" in self.text(driver, "said"), "an error that names it")
        driver.find_element("css selector", "button[data-order=checkpoint]").click()
        self.wait_until(lambda: "a checkpoint of step" in self.text(driver, "events"), "a checkpoint")
        # What cannot be taken back is asked twice; the first answer is to leave it.
        driver.find_element("css selector", "button[data-order=stop]").click()
        self.wait_until(lambda: driver.find_element("id", "ask").is_displayed(), "a question")
        driver.switch_to.active_element.click()
        self.assertFalse(driver.find_element("id", "ask").is_displayed())
        self.assertEqual(self.status()["view"]["state"], "RUNNING")

    def test_shows_where_a_process_is(self):
        driver = self.show(self.open_page())
        button = driver.find_element("css selector", "button[data-stacks='worker 2']")
        button.click()
        self.wait_until(lambda: "threads (number, name" in self.text(driver, "stacks"), "its threads")
        self.assertIn("communication", self.text(driver, "stacks"))
        # The same by keyboard, of a server; the table is made anew every second, and the focus stays.
        driver.execute_script("arguments[0].focus()", driver.find_element("css selector", "button[data-stacks='server 1']"))
        seen = driver.execute_script("return points.length")
        self.wait_until(lambda: driver.execute_script("return points.length") > seen + 1, "two looks more")
        driver.switch_to.active_element.send_keys("\n")
        self.wait_until(lambda: "shards 0" in self.text(driver, "stacks"), "its shard thread")
        self.check_layout(driver)

    def test_gives_nobody_else_anything(self):
        address = self.open_page()
        root = re.match(r"http://127\.0\.0\.1:\d+/", address)[0]
        for path in ("", "now", "order", "0" * 32 + "/now", address[len(root) :].rstrip("/")):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(root + path, timeout=10)
            self.assertEqual(refused.exception.code, 404, path)

        def order(body: bytes, kind="application/json"):
            request = urllib.request.Request(address + "order", data=body, headers={"Content-Type": kind})
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        self.assertEqual(order(b'{"order": "stop"}', "text/plain")[0], 415)
        for body in (b"", b"[]", b"{}", b'{"order": 3}', b'{"order": "mode", "mode": "fast"}', b'{"order": "drain", "server": 1e99}',
                     b'{"order": "drain", "server": -1}', b'{"order": "stacks"}', b'{"order": "stacks", "of": "nobody"}', b'{"order": "move", "shards": " ", "to": "1"}', b"[" * 60000, b'{"order": "\xff"}'):
            self.assertEqual(order(body)[0], 400, body[:60])
        self.assertIn(order(b"x" * (1 << 20))[0], (400, 413))
        # Nor is a body read whose length nobody has said.
        host, port = re.match(r"http://(127\.0\.0\.1):(\d+)/", address).groups()
        for path, code in (("/x", 404), (address[len(root) - 1 :] + "order", 411)):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
                self.assertEqual(int(connection.recv(1000).split()[1]), code)
        # The port is this page's alone.
        other = subprocess.run([str(BIN / "slackline"), "open", "run", "--port", port], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(other.returncode, 1, other.stdout)
        self.assertIn("the port is taken", other.stderr)
        self.assertEqual(self.status()["view"]["state"], "RUNNING")

    def test_a_reader_only_looks(self):
        subprocess.run(
            [str(BIN / "slackline"), "keys", "export", "run", "--role", "reader", "--out", "reader.key"],
            cwd=self.folder, check=True, capture_output=True,
        )
        address = self.open_page("--key", "reader.key")
        with urllib.request.urlopen(address + "now", timeout=10) as answer:
            self.assertEqual(json.load(answer)["status"]["view"]["job"], "digits")
        stacks = urllib.request.Request(
            address + "order", data=b'{"order": "stacks", "of": "worker 0"}', headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(stacks, timeout=20) as answer:
            self.assertIn("worker 0 (", json.load(answer)["text"])
        request = urllib.request.Request(address + "order", data=b'{"order": "rebalance"}', headers={"Content-Type": "application/json"})
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        self.assertEqual(refused.exception.code, 409)
        self.assertIn("reader", refused.exception.read().decode())

    def test_ends_by_ctrl_c_and_the_job_goes_on(self):
        driver = self.show(self.open_page())
        self.opened.send_signal(signal.SIGINT)
        self.assertEqual(self.opened.wait(timeout=10), 0)
        self.wait_until(lambda: self.text(driver, "state") == "no answer", "a page that says so")
        self.assertIn("The job goes on", self.text(driver, "alerts"))
        self.assertEqual(self.status()["view"]["state"], "RUNNING")


if __name__ == "__main__":
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if missing:
        print(f"page_test: skipped, there is no {missing[0]}; tools/setup.sh --cluster installs it")
        sys.exit(0)
    unittest.main()
