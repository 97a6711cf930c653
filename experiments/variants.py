"""The paper's table of greedy variants, measured: objective, time, memory, and how they grow.

Run:  python -m experiments.variants --out results/variants

CPU seconds of one thread and peak bytes allocated beyond the rows themselves. Rows are made: 256
numbers each, with a spectrum that falls like 1/√i, and the target is the mean of other such rows
moved off centre.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from exempla.selection import (
    SBQ,
    MatchingPursuit,
    Selector,
    Sharded,
    StochasticGreedy,
    select,
)
from experiments.pages import markdown, run_as_script, save

WIDTH = 256
TS, KS = (5000, 10000, 20000, 40000), (8, 16, 32, 64)
LITERAL_TS, LITERAL_KS = (125, 250, 500), (6, 12, 24)


def run(out: Path, fast: bool, data: Path) -> Path:
    """Write variants.csv, variants.png, variants.svg and variants.md."""
    out.mkdir(parents=True, exist_ok=True)
    ts, ks = (TS[:2], KS[:2]) if fast else (TS, KS)
    lines = []
    points = {*((t, ks[-1]) for t in ts), *((ts[-1], k) for k in ks)}
    warm_up()
    for t, k in sorted(points):
        rows, target = problem(t, seed=0)
        for name, selector in variants().items():
            lines.append(
                measure(name, t, k, lambda s=selector, r=rows, m=target, n=k: select(r, m, n, s))
            )
    lit_ts, lit_ks = (LITERAL_TS[:2], LITERAL_KS[:2]) if fast else (LITERAL_TS, LITERAL_KS)
    for t, k in sorted({*((t, lit_ks[-1]) for t in lit_ts), *((lit_ts[-1], k) for k in lit_ks)}):
        rows, target = problem(t, seed=0)
        lines.append(measure(LITERAL, t, k, lambda r=rows, m=target, n=k: literal(r, m, n)))
    table = pd.DataFrame(lines)
    table.to_csv(out / "variants.csv", index=False, float_format="%.5g")
    grown = growth(table)
    draw(out / "variants", table)
    page = out / "variants.md"
    largest = table[(table["t"] == ts[-1]) & (table["k"] == ks[-1])]
    page.write_text(
        PAGE.format(t=ts[-1], k=ks[-1], largest=markdown(quality(largest)), growth=markdown(grown))
    )
    return page


LITERAL = "Algorithm 1 as printed (inverse corrected)"


def variants() -> dict[str, Selector]:
    named: dict[str, Selector] = {"SBQ": SBQ(), "matching pursuit": MatchingPursuit()}
    for delta in (0.5, 0.1, 0.01):
        named[f"stochastic, δ = {delta:g}"] = StochasticGreedy(delta=delta)
    for shards in (1, 2, 4, 8, 16):
        named[f"distributed exact, {shards} parts"] = Sharded(SBQ(), shards, "exact")
    for shards in (2, 4, 8, 16):
        named[f"distributed two-round, {shards} parts"] = Sharded(SBQ(), shards, "two-round")
    return named


def problem(t: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in float32 and a target that no few of them match."""
    rng = np.random.default_rng(seed)
    spectrum = 1.0 / np.sqrt(np.arange(1, WIDTH + 1))
    rows = (rng.standard_normal((t, WIDTH)) * spectrum).astype(np.float32)
    target = (rng.standard_normal((200, WIDTH)) * spectrum + 0.3 * spectrum).mean(0)
    return rows, target


def warm_up() -> None:
    """Compile the fused passes before anything is timed."""
    rows, target = problem(TS[-1], seed=1)
    for selector in (SBQ(), MatchingPursuit(), Sharded(SBQ(), 2)):
        select(rows, target, 2, selector)


def measure(name: str, t: int, k: int, work: Callable) -> dict[str, float | str]:
    """Objective, the shorter of two CPU times, and peak memory in a run of its own."""
    seconds = []
    for _ in range(2):
        start = time.process_time()
        found = work()
        seconds.append(time.process_time() - start)
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    left = found if isinstance(found, float) else found.variance / found.target_norm2
    return {"variant": name, "t": t, "k": k, "left": left, "seconds": min(seconds), "bytes": peak}


def literal(rows: np.ndarray, target: np.ndarray, k: int) -> float:
    """Algorithm 1 over a written-out kernel, with the sign of Proposition 1 put right.

    Returns the share of ‖μ‖² left unexplained.
    """
    F = rows.astype(np.float64)
    K, z = F @ F.T, F @ target
    chosen: list[int] = []
    inverse = np.zeros((0, 0))
    best = 0.0
    for _ in range(k):
        best, winner, kept = -np.inf, -1, inverse
        for j in range(len(F)):
            if j in chosen:
                continue
            trial = grown_inverse(inverse, K[chosen, j], K[j, j])
            t = z[[*chosen, j]]
            value = float(t @ trial @ t)
            if value > best:
                best, winner, kept = value, j, trial
        chosen.append(winner)
        inverse = kept
    return 1.0 - best / float(target @ target)


def grown_inverse(inverse: np.ndarray, b: np.ndarray, c: float) -> np.ndarray:
    """The inverse of [[A, b], [bᵀ, c]] from that of A."""
    u = inverse @ b
    d = c - b @ u
    size = len(inverse) + 1
    out = np.empty((size, size))
    out[:-1, :-1] = inverse + np.outer(u, u) / d
    out[:-1, -1] = out[-1, :-1] = -u / d  # the paper prints +u/d here
    out[-1, -1] = 1.0 / d
    return out


PAPER = {
    "SBQ": "k³t; t²",
    LITERAL: "k³t; t²",
    "matching pursuit": "k²t; t²",
    "stochastic": "kt·log 1/δ; t²",
    "distributed": "kt/l; t²/l²",
}


def growth(table: pd.DataFrame) -> pd.DataFrame:
    """Fitted exponents of k at the largest t, and of t at the largest k."""
    lines = []
    for name, part in table.groupby("variant", sort=False):
        by_k, by_t = part[part["t"] == part["t"].max()], part[part["k"] == part["k"].max()]
        claim = next((v for n, v in PAPER.items() if str(name).startswith(n)), "")
        lines.append(
            {
                "variant": name,
                "paper: time; memory": claim,
                "seconds ~ k^": slope(by_k["k"], by_k["seconds"]),
                "seconds ~ t^": slope(by_t["t"], by_t["seconds"]),
                "bytes ~ t^": slope(by_t["t"], by_t["bytes"]),
            }
        )
    return pd.DataFrame(lines)


def slope(x: pd.Series, y: pd.Series) -> float:
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, 1e-9)), 1)[0]) if len(x) > 1 else np.nan


def quality(part: pd.DataFrame) -> pd.DataFrame:
    reference = part[part["variant"] == "SBQ"].iloc[0]
    return pd.DataFrame(
        {
            "variant": part["variant"],
            "left unexplained": part["left"],
            "× SBQ's": part["left"] / reference["left"],
            "CPU seconds": part["seconds"],
            "× SBQ's ": part["seconds"] / reference["seconds"],
            "MiB beyond the rows": part["bytes"] / 2**20,
        }
    )


def draw(stem: Path, table: pd.DataFrame) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4))
    shown = ["SBQ", "matching pursuit", "stochastic, δ = 0.1", "distributed exact, 8 parts",
             "distributed two-round, 8 parts", LITERAL]  # fmt: skip
    for name in shown:
        part = table[table["variant"] == name]
        by_k = part[part["t"] == part["t"].max()].sort_values("k")
        by_t = part[part["k"] == part["k"].max()].sort_values("t")
        axes[0].plot(by_k["k"], by_k["left"], "o-", ms=3, label=name)
        axes[1].plot(by_k["k"], by_k["seconds"], "o-", ms=3)
        axes[2].plot(by_t["t"], by_t["seconds"], "o-", ms=3)
    axes[0].set(xscale="log", yscale="log", xlabel="picks k", title="share left unexplained")
    axes[1].set(xscale="log", yscale="log", xlabel="picks k", title="CPU seconds, largest t")
    axes[2].set(xscale="log", yscale="log", xlabel="candidates t", title="CPU seconds, largest k")
    axes[0].legend(frameon=False, fontsize=7)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, stem)


PAGE = """# The greedy variants, measured

**What the paper claims.** SBQ takes O(k³t) time and O(t²) memory; matching pursuit O(k²t),
stochastic selection O(kt·log 1/δ), l machines O(kt/l), at slightly weaker rates of convergence.

**What we found.** With explicit features exact SBQ is orthogonal least squares: one pass over the
rows per pick, O(ktp) time and memory linear in t, nothing t×t, so the cheaper variants lose most of
their reason. Matching pursuit costs the same. Exact sharding gives SBQ's picks whatever the number
of parts. Stochastic and two-round selection pay with a larger residual. The paper's own algorithm
(with the sign of its Proposition 1 corrected) is timed at much smaller sizes, where it already is
slow.

{t} candidates of 256 numbers, {k} picks; all parts run one after the other in one process, so
distributed times are total work, not what l machines would take:

{largest}
Fitted growth (log–log slopes; short runs carry a fixed cost, which flattens them, and Algorithm 1
is timed where Python's own overhead, one step per candidate and pick, still hides its k³):

{growth}
![objective and time](variants.png)
"""


if __name__ == "__main__":
    run_as_script(run, "variants", __doc__)
