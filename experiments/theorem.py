"""Theorem 1 measured: convergence against what is proved and what is only estimated.

Run:  python -m experiments.theorem --out results/theorem

Small problems (16 candidates, competitors of 3) are solved exactly by trying every set, sparse
eigenvalues included; a real one (Fisher rows of breast cancer) shows the bounds along the picks.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from exempla.explainer import Explainer
from exempla.selection import SBQ, select
from exempla.selection.certificate import Certificate, certificate
from experiments.pages import markdown, run_as_script, save

CANDIDATES, WIDTH, R = 16, 8, 3
NOISES = (0.0, 0.1, 1.0, 10.0)


def run(out: Path, fast: bool, data: Path) -> Path:
    """Write theorem.csv, theorem.png, theorem.svg and theorem.md."""
    out.mkdir(parents=True, exist_ok=True)
    problems = 10 if fast else 100
    lines = [solve(seed, noise) for noise in NOISES for seed in range(problems)]
    table = pd.DataFrame(lines)
    table.to_csv(out / "theorem.csv", index=False, float_format="%.6g")
    proof = real_problem()
    draw(out / "theorem", table, proof)
    page = out / "theorem.md"
    page.write_text(PAGE.format(summary=markdown(summary(table)), real=real_words(proof)))
    return page


def solve(seed: int, noise: float) -> dict[str, float]:
    """One random problem: greedy, the best set, and every bound."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((CANDIDATES, WIDTH)) * rng.uniform(0.3, 2.0, WIDTH)
    target = rows[rng.choice(CANDIDATES, 5)].mean(0) + 0.3 * rng.standard_normal(WIDTH)
    gram, z = rows @ rows.T + noise * np.eye(CANDIDATES), rows @ target
    found = select(rows, target, R, SBQ(noise=noise))
    proof = certificate(rows, found, target, r=R, level="full")
    best = best_set(gram, z, R)
    reached = float(found.gains.sum())
    m, M = sparse_extremes(gram, 2 * R)[0], sparse_extremes(gram, R + 1)[1]
    return {
        "noise": noise,
        "seed": seed,
        "true_ratio": reached / best,
        "certified_share": proof["share_of_best_set"].value,
        "known_in_advance": proof["greedy_guarantee"].value,
        "theorem_with_true_eigenvalues": 1 - np.exp(-max(m, 0.0) / M),
        "m_over_M_true": max(m, 0.0) / M,
        "m_over_M_on_selection": proof["theorem_1"].value,
    }


def best_set(gram: np.ndarray, z: np.ndarray, r: int) -> float:
    """max z_S'(K_SS)⁻¹z_S over all sets of r."""
    sets = np.array(list(itertools.combinations(range(len(z)), r)))
    blocks = gram[sets[:, :, None], sets[:, None, :]]
    values = np.linalg.solve(blocks, z[sets][:, :, None])[:, :, 0]
    return float((values * z[sets]).sum(1).max())


def sparse_extremes(gram: np.ndarray, size: int) -> tuple[float, float]:
    """Smallest and largest eigenvalue over all principal blocks of a size."""
    sets = np.array(list(itertools.combinations(range(len(gram)), size)))
    values = np.linalg.eigvalsh(gram[sets[:, :, None], sets[:, None, :]])
    return float(values[:, 0].min()), float(values[:, -1].max())


def real_problem() -> Certificate:
    """Sixty picks from the Fisher rows of breast cancer, certified at full level."""
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)
    model = LogisticRegression().fit(X[:400], y[:400])
    explainer = Explainer(model, progress=False).fit((X[:400], y[:400]))
    rows = np.asarray(explainer.features.rows)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    embedding = explainer.embeddings[0]
    test, _ = embedding.embed(embedding.oracle.read((X[400:], y[400:]), role="test"), "true")
    target = np.asarray(embedding.metric.whiten(test, explainer.features.damping))
    target = (target / np.linalg.norm(target, axis=1, keepdims=True)).mean(0)
    found = select(rows, target, 60, SBQ(noise=10.0))
    return certificate(rows, found, target, level="full")


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Per noise level: the true ratio, the bounds, and how often each is broken."""
    lines = []
    for noise, part in table.groupby("noise"):
        ratio = part["true_ratio"]
        exact, selected = part["m_over_M_true"], part["m_over_M_on_selection"]
        lines.append(
            {
                "noise": noise,
                "true ratio, mean": ratio.mean(),
                "worst": ratio.min(),
                "certified share, mean": part["certified_share"].mean(),
                "known in advance": part["known_in_advance"].mean(),
                "Theorem 1, true m/M": part["theorem_with_true_eigenvalues"].mean(),
                "certified share above the truth": f"{broken(part, 'certified_share')}",
                "advance bound above the truth": f"{broken(part, 'known_in_advance')}",
                "m/M of the picks above the true m/M": f"{(selected > exact).sum()}/{len(part)}",
            }
        )
    return pd.DataFrame(lines)


def broken(part: pd.DataFrame, column: str) -> str:
    return f"{int((part[column] > part['true_ratio'] + 1e-9).sum())}/{len(part)}"


def real_words(proof: Certificate) -> str:
    lines = [
        f"- {s.status}: {s.name.replace('_', ' ')} {s.value:.3f} ({s.meaning})"
        for s in proof.statements
    ]
    return "\n".join(lines) + "\n"


def draw(stem: Path, table: pd.DataFrame, proof: Certificate) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    curve = proof.curve
    left.plot(curve.measured, color="#0b6e4f", label="measured")
    left.plot(curve.floor, color="black", lw=1, label="floor (certified): no set does better")
    left.plot(
        curve.ceiling, color="black", lw=1, ls="--", label="ceiling (certified): greedy's worst"
    )
    left.plot(
        curve.theorem1, color="#c05a00", lw=1, ls=":", label="Theorem 1 with m/M of the picks"
    )
    left.set(xlabel="picks", ylabel="posterior variance", title="breast cancer, noise 10")
    left.legend(frameon=False, fontsize=8, loc=(0.42, 0.44))
    for noise, part in table.groupby("noise"):
        right.scatter(part["true_ratio"], part["certified_share"], s=9, label=f"noise {noise:g}")
    right.plot([0, 1], [0, 1], color="black", lw=0.8)
    right.set(
        xlabel="true ratio to the best set of 3",
        ylabel="certified share",
        title="small problems, solved exactly",
        xlim=(0.6, 1.01),
    )
    right.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, stem)


PAGE = """# Theorem 1, measured

**What the paper claims.** Exponential convergence: k ≥ (M/m)·r·log(1/ε) picks come within ε of the
best r, with m the smallest 2r-sparse and M the largest (r+1)-sparse eigenvalue of the kernel.

**What we found.** Sparse eigenvalues can be had only by trying all sets, here of 16 candidates.
With them the theorem promises little (column "Theorem 1"), because one nearly dependent set of six
makes m small. Taking m/M on the selected rows instead overstates the true m/M almost always. What
`exempla` certifies instead needs no eigenvalues, and was never broken: with noise σ² the
submodularity ratio is at least σ²/(σ² + max‖f‖²), which gives a bound before selecting and, looking
back along the picks, a certified share of the best set. Without noise nothing but the span bound is
proved, and the certificate says so. Greedy itself is far better than any of its guarantees.

A hundred random problems per noise level (16 candidates in 8 dimensions, 3 picks, best set of 3 by
enumeration); shares of what the best set explains; counts of problems in which a bound is broken:

{summary}
![convergence and bounds](theorem.png)

On breast cancer (400 candidates, unit Fisher rows, 169 questioned predictions, noise 10, 60 picks):

{real}"""


if __name__ == "__main__":
    run_as_script(run, "theorem", __doc__)
