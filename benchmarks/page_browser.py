#!/usr/bin/env python3
"""What does a browser take that shows the page of a job with a day behind it?

Chromium, without a window, on a page that bench_page serves: 100 workers, 20 servers, 2,000
shards, 86,400 looks. Printed: the memory of JavaScript and of the process of the page, after the
garbage is collected, at the beginning and at the end of the time; the bytes that came in it; and the
share of a core that script, styles and layout took. The same of an empty page is the least that
a browser can take.

Usage: page_browser.py FOLDER_OF_PROGRAMS [--seconds 60] [--replies 86400]
Needs Chromium, chromedriver and selenium (tools/setup.sh --cluster).
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import time


def start_browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
                     "--disable-background-networking", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def renderer_bytes() -> int:
    """Resident memory of the largest process of Chromium that draws pages, without what it shares."""
    largest = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            if b"--type=renderer" not in (status.parent / "cmdline").read_bytes():
                continue
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            largest = max(largest, int(fields["RssAnon"].split()[0]) * 1024)
        except (OSError, KeyError):
            continue
    return largest


class Measured:
    def __init__(self, driver):
        self.driver = driver
        driver.execute_cdp_cmd("Performance.enable", {})

    def now(self) -> dict:
        self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        metrics = {m["name"]: m["value"] for m in self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
        return {"heap": metrics["JSHeapUsedSize"], "nodes": metrics["Nodes"], "busy": metrics["TaskDuration"], "process": renderer_bytes()}

    def received(self) -> int:
        """Bytes on the wire since the last call."""
        sum_of = 0
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.loadingFinished":
                sum_of += int(message["params"]["encodedDataLength"])
        return sum_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--replies", type=int, default=86400)
    flags = parser.parse_args()
    bench = subprocess.Popen(
        [flags.programs / "bench_page", f"--replies={flags.replies}", "--serve"], stdout=subprocess.PIPE, text=True
    )
    driver = start_browser()
    try:
        url = next(line.strip() for line in bench.stdout if line.startswith("http"))
        measured = Measured(driver)
        driver.get("about:blank")
        empty = measured.now()
        measured.received()
        driver.get(url)
        time.sleep(5)
        opened = measured.received()
        begin, begun = measured.now(), time.monotonic()
        time.sleep(flags.seconds)
        seconds = time.monotonic() - begun
        end, received = measured.now(), measured.received()
        print(json.dumps({
            "replies": flags.replies,
            "empty_page_bytes": empty["process"],
            "opened_received_bytes": opened,
            "heap_bytes": [begin["heap"], end["heap"]],
            "process_bytes": [begin["process"], end["process"]],
            "nodes": [begin["nodes"], end["nodes"]],
            "received_bytes_per_second": round(received / seconds),
            "busy_share": round((end["busy"] - begin["busy"]) / seconds, 4),
        }))
    finally:
        driver.quit()
        bench.kill()
        bench.wait()


if __name__ == "__main__":
    main()
