#!/usr/bin/env python3
"""Draws the course of a scenario of bench_rebalance.

Usage: bench_rebalance --scenario=skew > skew.jsonl
       plot_rebalance.py skew.jsonl docs/results/rebalancing.svg
"""

import argparse
import json

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito: for all eyes.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="a line of bench_rebalance's output")
    parser.add_argument("picture", help="SVG file to be written")
    options = parser.parse_args()
    with open(options.results, encoding="utf-8") as file:
        result = json.loads(file.readline())
    course = [point for point in result["course"]]
    seconds = [point[0] for point in course]
    # The pause between the phases, in which shards were moved away on purpose.
    gap = next((i for i in range(1, len(seconds)) if seconds[i] - seconds[i - 1] > 0.7), None)

    # One palette of hashes, so that the same data make the same file.
    matplotlib.rcParams["svg.hashsalt"] = "slackline"
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.6))
    top.plot(seconds, [point[1] for point in course], color=BLUE, linewidth=2)
    top.axhline(1.2, color=GREY, linestyle=":", linewidth=1)
    on_white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    small = {"color": GREY, "fontsize": 8}
    top.annotate("1.2: acts above it", (seconds[-1], 1.25), ha="right", va="bottom", bbox=on_white, **small)
    top.set_ylabel("load of the busiest server\ntimes the mean")
    top.set_ylim(bottom=0.9)
    bottom.plot(seconds, [point[2] for point in course], color=ORANGE, linewidth=2)
    bottom.axhline(result["steps_per_second_ideal"], color=GREY, linestyle=":", linewidth=1)
    ideal = result["steps_per_second_ideal"]
    # Where the curve is low.
    bottom.annotate("even placement", (-0.3, ideal * 1.03), ha="right", va="bottom", **small)
    bottom.set_ylabel("steps per second\n(push and pull)")
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel("seconds since the first decision to rebalance")
    for axes in (top, bottom):
        axes.axvline(0, color=GREY, linewidth=1)
        if gap is not None:
            axes.axvspan(seconds[gap - 1], seconds[gap], color="#EEEEEE")
    if gap is not None:
        top.annotate("disturbed", (seconds[gap], 2.8), ha="left", va="bottom", **small)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(options.picture, metadata={"Date": None})
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
