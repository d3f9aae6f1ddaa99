#!/usr/bin/env python3
"""Makes the report of an experiment: tables, plots, one HTML page, TensorBoard files.
Of a single run it makes the TensorBoard files.

Usage: slackline_report.py DIR
"""

import sys

from slackline_report_lib import main

if __name__ == "__main__":
    sys.exit(main.main(sys.argv[1:]))
