"""Optimum of l2-regularised logistic regression on the a9a data, found by an
independent solver, for tests to compare with.

Objective: mean over examples of log(1 + exp(-s x)) with s = +1 or -1, plus
l2 / 2 * |weights|^2; the bias is not penalised. It is convex and smooth, so
L-BFGS in double precision finds the one optimum; that it did is checked by the
norm of the gradient.

Usage: a9a_optimum.py DATA_FOLDER L2
Prints the optimum and the accuracy on the test data, as JSON.
"""

import gzip
import json
import sys

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special

FEATURES = 123


def read_libsvm(path):
    """Examples as rows of a sparse matrix, and labels 0 or 1."""
    labels, columns, values, row_starts = [], [], [], [0]
    with gzip.open(path, "rt") as lines:
        for line in lines:
            label, *features = line.split()
            labels.append(1.0 if float(label) > 0 else 0.0)
            for feature in features:
                column, value = feature.split(":")
                columns.append(int(column) - 1)
                values.append(float(value))
            row_starts.append(len(columns))
    inputs = scipy.sparse.csr_matrix(
        (values, columns, row_starts), shape=(len(labels), FEATURES)
    )
    return inputs, np.array(labels)


def objective(parameters, inputs, labels, l2):
    """Value and gradient at (weights, bias)."""
    weights, bias = parameters[:-1], parameters[-1]
    scores = inputs @ weights + bias
    value = np.mean(np.logaddexp(0.0, scores) - labels * scores)
    residual = (scipy.special.expit(scores) - labels) / len(labels)
    gradient = np.append(inputs.T @ residual + l2 * weights, residual.sum())
    return value + l2 / 2 * weights @ weights, gradient


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, l2 = sys.argv[1], float(sys.argv[2])
    inputs, labels = read_libsvm(folder + "/a9a/a9a.gz")
    result = scipy.optimize.minimize(
        objective,
        np.zeros(FEATURES + 1),
        args=(inputs, labels, l2),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 10000, "maxfun": 20000, "ftol": 0, "gtol": 1e-8},
    )
    gradient_norm = float(np.linalg.norm(result.jac))
    if gradient_norm > 1e-6:
        sys.exit(f"not converged: {result.message}, |gradient| {gradient_norm:g}")
    test_inputs, test_labels = read_libsvm(folder + "/a9a/a9a.t.gz")
    scores = test_inputs @ result.x[:-1] + result.x[-1]
    print(
        json.dumps(
            {
                "train_loss": float(result.fun),
                "gradient_norm": gradient_norm,
                "test_accuracy": float(np.mean((scores > 0) == (test_labels > 0))),
            }
        )
    )


if __name__ == "__main__":
    main()
