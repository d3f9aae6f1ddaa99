"""A forked process that becomes a script, as if Python had been started with it."""

import atexit
import os
import runpy
import sys
import threading


def become(argv):
    """The rest of this process is the script argv[0]. Descriptors 1 and 2 are its output."""
    code = 1
    try:
        sys.stdout = open(1, "w", buffering=1, closefd=False)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        sys.excepthook = sys.__excepthook__
        sys.argv = list(argv)
        sys.path[0:0] = [os.path.dirname(os.path.abspath(argv[0]))]
        try:
            runpy.run_path(argv[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if not isinstance(end.code, (int, type(None))):
                print(end.code, file=sys.stderr)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
