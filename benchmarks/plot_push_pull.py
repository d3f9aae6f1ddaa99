#!/usr/bin/env python3
"""Draws how long a step takes by its size, of each system, and what it costs.

Usage: bench_push_pull --transport tcp > tcp.jsonl
       bench_push_pull --transport shm > shm.jsonl
       plot_push_pull.py docs/results/performance.svg tcp.jsonl shm.jsonl
"""

import argparse
import json

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)

# Okabe and Ito: for all eyes.
COLORS = {
    "memory": "#009E73",
    "tcp": "#CC79A7",
    "raw": "#666666",
    "transport": "#E69F00",
    "slackline": "#0072B2",
}
MARKS = {"memory": "v", "tcp": "D", "raw": "s", "transport": "^", "slackline": "o"}
WORDS = {
    "memory": "a copy in memory",
    "tcp": "the kernel's sockets",
    "raw": "raw ZeroMQ",
    "transport": "our transport",
    "slackline": "Slackline",
}
SHORTEST_US = 10  # A copy of few bytes is far below everything else.


def size_text(size: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", help="SVG file to be written")
    parser.add_argument("results", nargs="+", help="outputs of bench_push_pull, a transport each")
    options = parser.parse_args()
    # One palette of hashes, so that the same data make the same file.
    matplotlib.rcParams["svg.hashsalt"] = "slackline"
    figure, grid = plt.subplots(
        2, len(options.results), sharex="col", sharey="row", squeeze=False, figsize=(5 * len(options.results), 7)
    )
    for column, path in enumerate(options.results):
        with open(path, encoding="utf-8") as file:
            results = [json.loads(line) for line in file]
        times, costs = grid[0][column], grid[1][column]
        for system in dict.fromkeys(result["system"] for result in results):
            own = [result for result in results if result["system"] == system]
            sizes = [result["bytes"] for result in own]
            look = {"color": COLORS[system], "marker": MARKS[system], "markersize": 4, "linewidth": 1.5}
            times.plot(sizes, [result["step_us"]["median"] for result in own], label=WORDS[system], **look)
            costs.plot(
                sizes,
                [result["worker_per_step"]["cpu_us"] + result["servers_per_step"]["cpu_us"] for result in own],
                **look,
            )
        times.set_title(f"{results[0]['transport']}, {results[0]['workers']} x {results[0]['servers']}", fontsize=10)
        for axes in (times, costs):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_ylim(bottom=SHORTEST_US)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#EEEEEE")
        sizes = sorted({result["bytes"] for result in results})
        costs.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45)
        costs.set_xlabel("pushed, and pulled, in a step")
    grid[0][0].set_ylabel("step, microseconds (median)")
    grid[1][0].set_ylabel("processor time of a step, microseconds,\nall processes")
    grid[0][0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(options.picture, metadata={"Date": None})
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
