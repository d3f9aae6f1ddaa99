"""What each worker of ``slackline.launch()`` runs."""

import os
import pickle
import sys

from slackline import _join


def main() -> None:
    folder = sys.argv[1]
    with open(os.path.join(folder, "function"), "rb") as file:
        function, args = pickle.load(file)
    result = function(*args)
    job = _join.joined()
    if job is None:
        raise RuntimeError("slackline.launch(): the function did not call slackline.join()")
    path = os.path.join(folder, f"result-{job.rank}")
    with open(path + ".part", "wb") as file:
        try:
            import cloudpickle as pickler
        except ImportError:
            pickler = pickle
        pickler.dump(result, file)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main()
