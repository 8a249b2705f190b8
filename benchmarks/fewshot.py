"""What the few-shot solver saves against solving every case by itself.

    python -m benchmarks.fewshot [--classes=1000] [--shots=1,5,10] [--features=1024] [--seeds=3]

Both solve the same cases in turns, round by round: ours gathers moments and takes a Cholesky
factorisation of them, the other standardises, multiplies and takes an eigendecomposition of the
smaller side for each case, as the published code does. Prints seconds and the ratio, medians over
rounds, and how often both choose the same class. On a machine that others use, take one thread
(OPENBLAS_NUM_THREADS=1): threads that wait for one that was put aside measure the others.
"""

import argparse
import statistics
import time

import numpy as np

from benchmarks import results
from vit_jax.evaluate.fewshot import BIAS_FEATURE, L2, class_orders, solutions

ROUNDS = 5
TEST_IMAGES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shots", default="10", help="as in 1,5,10")
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    arguments = parser.parse_args()
    shots = tuple(map(int, arguments.shots.split(",")))

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(arguments.classes), 2 * max(shots))
    centres = rng.normal(size=(arguments.classes, arguments.features))
    spread = rng.uniform(0.5, 3, arguments.features)
    noise = rng.normal(scale=3, size=(len(labels), arguments.features))
    x = ((centres[labels] + noise) * spread).astype(np.float32)
    test = x[rng.permutation(len(x))[:TEST_IMAGES]]
    orders = [class_orders(labels, arguments.classes, seed) for seed in range(arguments.seeds)]

    seconds: dict[str, list[float]] = {"ours": [], "each case by itself": []}
    for _ in range(ROUNDS):
        answers = []
        for name, solve in (("ours", gathered), ("each case by itself", separately)):
            began = time.perf_counter()
            answers.append(solve(x, labels, test, orders, shots))
            seconds[name].append(time.perf_counter() - began)
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    lines = [f"{name:20} {statistics.median(values):8.2f} s" for name, values in seconds.items()]
    same = np.mean(np.array(answers[0]) == answers[1])
    lines.append(f"{'ratio':20} {statistics.median(ratios):8.2f}")
    lines.append(f"{'the same class for':20} {same:8.2%} of answers")
    print("\n".join(lines))
    if arguments.write:
        what = f"{arguments.classes} classes, {arguments.features} features, shots {shots}"
        results.write_lines("fewshot.py", "Few-shot solver", what, lines, "numpy")


def gathered(x, labels, test, orders, shots) -> list[np.ndarray]:
    """Ours, as FewShot does it."""
    return [solution.classes(test) for _, _, solution in solutions(x, orders, shots)]


def separately(x, labels, test, orders, shots) -> list[np.ndarray]:
    """The plain way: matrices for each case, and an eigendecomposition."""
    answers = []
    for order in orders:
        for shot in shots:
            rows = np.concatenate([part[:shot] for part in order])
            train = x[rows]
            mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-5
            train, held_out = (
                np.pad((part - mean) / deviation, ((0, 0), (0, 1)), constant_values=BIAS_FEATURE)
                for part in (train, test)
            )
            targets = (2 * np.eye(len(order), dtype=np.float32) - 1)[labels[rows]]
            is_wide = len(train) < train.shape[1]
            gram = train @ train.T if is_wide else train.T @ train
            values, vectors = np.linalg.eigh(gram.astype(np.float64))
            right = targets if is_wide else train.T @ targets
            weights = vectors @ ((vectors.T @ right) / (values + L2)[:, None])
            answers.append((held_out @ (train.T @ weights if is_wide else weights)).argmax(axis=1))
    return answers


if __name__ == "__main__":
    main()
