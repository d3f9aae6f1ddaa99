"""What each worker of ``slackline.launch()`` runs."""

import base64
import os
import pickle
import sys
import zlib
from typing import List

from slackline._start import join, launch


def main() -> None:
    folder = sys.argv[1]
    with open(os.path.join(folder, "function"), "rb") as file:
        pickled = file.read()
    _run(pickled, folder)


def run_carried(words: List[str]) -> None:
    """On another host: the function is in ``words``, and what it returns goes into the folder of the
    run, whose files are brought back."""
    _run(zlib.decompress(base64.b64decode("".join(words))), "")


def _run(pickled: bytes, folder: str) -> None:
    function, args = pickle.loads(pickled)
    result = function(*args)
    job = join.joined()
    if job is None:
        raise RuntimeError("slackline.launch(): the function did not call slackline.join()")
    path = os.path.join(folder or job.out, launch.result_file(job.rank, job.world_size))
    # Not sent anywhere before it is whole.
    part = f"{path}.partial-{os.getpid()}"
    with open(part, "wb") as file:
        try:
            import cloudpickle as pickler
        except ImportError:
            pickler = pickle
        pickler.dump(result, file)
    os.rename(part, path)


if __name__ == "__main__":
    main()
