"""How fast the procedural data sets draw, on one core.

    python benchmarks/builtin_data.py

Each is measured against a reference in turns, so that a busy machine slows both: random bytes of
the same size, blurred once. `ratio` is images per second over the reference's, the median of all
rounds; that is the number to compare between machines and commits.
"""

import statistics
import time
from collections.abc import Callable

import cv2
import numpy as np

from vit_jax.data.sources import open_source

ROUNDS = 9
SECONDS_PER_TURN = 0.3
CASES = (("glyphs", 32), ("visual_atoms", 32), ("visual_atoms", 224))


def main() -> None:
    print(f"{'data set':<20}{'images/s':>12}{'reference/s':>14}{'ratio':>8}")
    for name, size in CASES:
        draw, reference = drawing(name, size), blurred_noise(size)
        draw_rates, reference_rates = [], []
        for _ in range(ROUNDS):
            draw_rates.append(rate(draw))
            reference_rates.append(rate(reference))
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(draw_rates, reference_rates, strict=True)
        )
        print(
            f"{f'{name} @ {size}':<20}{statistics.median(draw_rates):>12,.0f}"
            f"{statistics.median(reference_rates):>14,.0f}{ratio:>8.2f}"
        )


def drawing(name: str, size: int) -> Callable[[], object]:
    """Draws a random image of the training split: shuffled, as training reads it."""
    source = open_source(name, "train", size)
    numbers = iter(np.random.default_rng(0).integers(len(source), size=1_000_000).tolist())
    if name == "glyphs":  # a run meets every letter in every face once, and then never again
        for _ in range(20 * source.num_classes):
            source[next(numbers)]
    return lambda: source[next(numbers)]


def blurred_noise(size: int) -> Callable[[], object]:
    rng = np.random.default_rng(0)

    def draw() -> np.ndarray:
        return cv2.GaussianBlur(rng.integers(0, 256, (size, size, 3), dtype=np.uint8), (0, 0), 1.5)

    return draw


def rate(draw: Callable[[], object]) -> float:
    """Calls per second."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS_PER_TURN:
        draw()
        calls += 1
    return calls / elapsed


if __name__ == "__main__":
    main()
