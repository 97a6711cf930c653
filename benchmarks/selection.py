"""Speed of selection: one pick against one reading of the rows.

Run `python -m benchmarks.selection`.

Everything is measured side by side in one run, on one thread, in rounds that take every contestant
in turn; the medians over the rounds are printed. Seconds are the processor's, not the clock's: with
one thread they are the same on an idle machine, and they stay comparable on a busy one. "Read" is
BLAS's sum of squares of all entries: no method that looks at every row can be faster than that.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from exempla.selection import SBQ, MatchingPursuit, NonNegative, StochasticGreedy, select
from exempla.selection.engine import Basis, Run, greedy
from exempla.selection.rows import ArrayRows, Rule

PICKS = 100
"""Several picks are checked in one pass, so that a few would not tell."""
FEW = 10
"""Picks of the plain loop, each of which costs the same."""


def read(F: np.ndarray) -> float:
    """Sum the squares of all entries by BLAS: one reading."""
    entries = F.ravel()
    return float(entries @ entries)


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def medians(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, measured in turn so that a busy moment hits all of them."""
    for work in contestants.values():
        work()  # fill caches
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            taken[name].append(seconds(work))
    return {name: float(np.median(times)) for name, times in taken.items()}


def engine(rows: ArrayRows, targets: np.ndarray, k: int, noise: float = 0.0) -> None:
    """The greedy loop itself, without checking the input again."""
    everybody = np.ones((len(targets), rows.t), dtype=bool)
    runs = [Run(Basis(target, noise, rows.tolerance), rows.t) for target in targets]
    greedy(rows, everybody, runs, k, noise=noise, rule=Rule.GAIN)


def plain_numpy(F: np.ndarray, norms2: np.ndarray, target: np.ndarray, k: int) -> None:
    """The same algorithm as one would write it first (float32 throughout, nothing refreshed)."""
    c, n = F @ target, norms2
    Q = np.zeros((0, F.shape[1]), dtype=F.dtype)
    for _ in range(k):
        j = int(np.argmax(c * c / n))
        f = F[j] - (Q @ F[j]) @ Q
        q = f / np.sqrt(n[j])
        v = F @ q
        c, n = c - (c[j] / np.sqrt(n[j])) * v, n - v * v
        n[j] = np.inf  # never again
        Q = np.vstack([Q, q])


def per_pick(taken: dict[str, float], name: str, picks: int = PICKS) -> float:
    """Seconds of one more pick: the start-up (first scores, first pick) is subtracted."""
    return (taken[f"{name} long"] - taken[f"{name} short"]) / picks


def one_pick(t: int, p: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    F = rng.standard_normal((t, p), dtype=np.float32)
    target = F[: t // 100].mean(axis=0)
    rows, targets = ArrayRows(F), target[None].astype(np.float64)
    norms2 = rows.norms2.astype(np.float32)
    taken = medians(
        {
            "read": lambda: read(F),
            "exempla short": lambda: engine(rows, targets, 1),
            "exempla long": lambda: engine(rows, targets, 1 + PICKS),
            "read again": lambda: read(F),
            "noise short": lambda: engine(rows, targets, 1, 10.0),
            "noise long": lambda: engine(rows, targets, 1 + PICKS, 10.0),
            "numpy short": lambda: plain_numpy(F, norms2, target, 1),
            "numpy long": lambda: plain_numpy(F, norms2, target, 1 + FEW),
        },
        rounds,
    )
    once = (taken["read"] + taken["read again"]) / 2
    print(f"\n{t} × {p} float32, one thread; reading once takes {once * 1e3:.1f} ms")
    print(f"{'':34}{'ms per pick':>12}{'× one read':>12}")
    for label, name, picks in [
        ("exempla SBQ()", "exempla", PICKS),
        ("exempla SBQ(noise=10)", "noise", PICKS),
        ("plain NumPy loop", "numpy", FEW),
    ]:
        each = per_pick(taken, name, picks)
        print(f"{label:34}{each * 1e3:12.1f}{each / once:12.2f}")


def many_targets(t: int, p: int, count: int, rounds: int) -> None:
    rng = np.random.default_rng(1)
    F = rng.standard_normal((t, p), dtype=np.float32)
    rows = ArrayRows(F)
    targets = np.stack([F[rng.choice(t, 50)].mean(axis=0) for _ in range(count)]).astype(float)
    taken = medians(
        {
            "one short": lambda: engine(rows, targets[:1], 1),
            "one long": lambda: engine(rows, targets[:1], 1 + FEW),
            "all short": lambda: engine(rows, targets, 1),
            "all long": lambda: engine(rows, targets, 1 + FEW),
        },
        rounds,
    )
    one, together = per_pick(taken, "one", FEW), per_pick(taken, "all", FEW)
    print(f"\n{count} targets at once on {t} × {p} float32")
    print(f"one pick for one target {one * 1e3:.1f} ms, for all together {together * 1e3:.1f} ms:")
    print(f"{count * one / together:.1f} times faster than one after another")


def against_sklearn(t: int, p: int, k: int, rounds: int) -> None:
    """Whole runs on a size scikit-learn can finish; it forms the p × t transpose."""
    from sklearn.linear_model import orthogonal_mp

    rng = np.random.default_rng(2)
    F = rng.standard_normal((t, p), dtype=np.float32)
    unit = F / np.linalg.norm(F, axis=1)[:, None]  # orthogonal_mp ranks by plain f·r
    target, norms2 = rng.standard_normal(p), np.ones(t, dtype=np.float32)
    columns = np.asfortranarray(unit.T.astype(np.float64))
    contestants: dict[str, Callable[[], object]] = {
        "read": lambda: read(F),
        "plain NumPy loop": lambda: plain_numpy(unit, norms2, target.astype(np.float32), k),
        "sklearn orthogonal_mp": lambda: orthogonal_mp(columns, target, n_nonzero_coefs=k),
        "SBQ()": lambda: select(unit, target, k, SBQ()),
        "MatchingPursuit()": lambda: select(unit, target, k, MatchingPursuit()),
        "StochasticGreedy()": lambda: select(unit, target, k, StochasticGreedy()),
        "NonNegative()": lambda: select(unit, target, k, NonNegative()),
    }
    taken = medians(contestants, rounds)
    print(f"\nwhole runs, {t} × {p}, k = {k} (checking the input included)")
    print(f"{'':34}{'seconds':>12}{'reads per pick':>16}{'residual²':>12}")
    for label, work in contestants.items():
        if label == "read":
            continue
        result = work()
        residual = ""
        if label == "sklearn orthogonal_mp":
            residual = f"{np.sum((target - columns @ np.asarray(result)) ** 2):12.3g}"
        elif result is not None:
            residual = f"{result.mmd2:12.3g}"  # type: ignore[attr-defined]
        print(f"{label:34}{taken[label]:12.3f}{taken[label] / k / taken['read']:16.2f}{residual}")


def measure(rounds: int, quick: bool) -> None:
    """Every comparison, on one thread."""
    warnings.simplefilter("ignore")
    scale = 40 if quick else 1
    with threadpool_limits(1), mock.patch.dict("os.environ", EXEMPLA_THREADS="1"):
        one_pick(400_000 // scale, 256, rounds)
        many_targets(100_000 // scale, 256, 64, min(3, rounds))
        against_sklearn(40_000 // scale, 128, 50, min(3, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    measure(options.rounds, options.quick)


if __name__ == "__main__":
    main()
