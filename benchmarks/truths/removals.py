"""Truths where people act: 50, 5 and 1 % of the rows left out, and the rows that methods name.

    python -m benchmarks.truths.removals --data FOLDER --out FOLDER [--seconds 500]   (one GPU)

Of each setting five networks are trained on all rows, seeds 0 to 4, the first with eight snapshots.
Then, with random rows left out,

* fresh    networks with seeds of their own: the rows are gone with half left out, weigh nothing
           with 5 and 1 %
* common   the networks of seeds 0, 1, … again: same weights at the start, same batches, the rows
           weigh nothing. What changes is what the rows did in that very training. (The moments of
           batch norm still see them.)

lds.csv has the LDS of every method on every truth. In the removal test (removal.csv) each method
names the k rows most harmful to ten test errors of the first network; eight networks of other seeds
are trained with and without them, same start and batches. `weights-*.npz` keep the networks on all
rows, `truths-*.npz` what retraining did. Nothing is chosen here: see `benchmarks.truths.settings`.
"exempla" is the exact Gauss–Newton influence at the library's damping; on one small network
`Explainer.influence(solve="exact")` agreed with it to 1e-6 (for a network of one layer the library
uses another rule).
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.truths.baselines import (
    Gradients,
    damped_influence,
    ekfac,
    gradients_of,
    trak,
    trust_scales,
)
from benchmarks.truths.data import load_set
from benchmarks.truths.make import masks
from benchmarks.truths.networks import make_network
from benchmarks.truths.settings import SETTINGS, Setting
from benchmarks.truths.train import State, loaded, train_many

SEEDS, SNAPSHOTS = 5, 8
DAMPINGS = (0.05, 0.1, 0.2, 0.4, 2 / 3, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""1/ρ², multiples of κ/(n w²)."""
EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
NOW = {"one model": 2.0, "five seeds": 2.0, "eight snapshots": 1.0}
"""The library's multiple, and its exponent."""
NOW_EXPONENT = 0.5
SHARES = {"50 %": 0.5, "5 %": 0.05, "1 %": 0.01}
COUNTS = {"50 %": (100, 3, 2), "5 %": (60, 4, 3), "1 %": (60, 6, 4)}
"""Masks, fresh seeds and common seeds."""
QUESTIONS, ERRORS, RETRAININGS = 6, 10, 8
REMOVED = (0.01, 0.05)
AT_ONCE = 1500


@dataclass
class Work:
    """One setting with its data on the device."""

    setting: Setting
    data: dict[str, Tensor]
    make: partial[nn.Module]

    @property
    def n(self) -> int:
        return len(self.data["y"])

    def train(
        self, kept: np.ndarray, seeds: list[int], moments: int = 1, snapshots_of: int | None = None
    ) -> list[list[State]]:
        """Networks in which the rows that are not kept weigh nothing, one order for each seed."""
        X, y = self.data["X"], self.data["y"]
        weights = torch.from_numpy(kept / kept.mean(1, keepdims=True)).float().to(X.device)
        rows = torch.arange(self.n, device=X.device).expand(len(seeds), self.n)
        return train_many(
            self.make, self.setting, X, y, rows, seeds, moments,
            weights_of_rows=weights, snapshots_of=snapshots_of, common_order=True,
        )  # fmt: skip

    def outcomes(self, states: list[State], X: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihood of every label by every network, and whether it is right."""
        network, found, right = self.make().to(X.device).eval(), [], []
        with torch.no_grad():
            for state in states:
                logits = functional_call(network, state, (X,))
                log_p = torch.log_softmax(logits.double(), 1)
                found.append(log_p.gather(1, y[:, None])[:, 0].float())
                right.append(logits.argmax(1) == y)
        return torch.stack(found).cpu().numpy(), torch.stack(right).cpu().numpy()


def load_work(folder: Path, setting: Setting, device: str, quick: bool) -> Work:
    stored = load_set(folder, setting.data)
    words = int(stored.pop("words"))
    if quick:
        stored = {name: value[:100] for name, value in stored.items()}
        setting = replace(setting, epochs=4)
    data = {name: torch.from_numpy(value).to(device) for name, value in stored.items()}
    data["X_all"] = torch.cat([data["X_test"], data["X_more"]])
    data["y_all"] = torch.cat([data["y_test"], data["y_more"]])
    shape, classes = tuple(data["X"].shape[1:]), int(stored["y"].max()) + 1
    return Work(setting, data, partial(make_network, setting.network, shape, classes, words))


# ---- truths


def truths(
    work: Work, quick: bool, seeds: tuple[int, ...] = tuple(range(SEEDS))
) -> tuple[list[list[State]], dict[str, np.ndarray]]:
    """The networks of these seeds on all rows, and by name masks and what retraining did."""
    counts = dict.fromkeys(COUNTS, (8, 1, 1)) if quick else COUNTS
    kept = {
        kind: masks(work.n, counts[kind][0], share, 10 + i)
        for i, (kind, share) in enumerate(SHARES.items())
    }
    jobs = [("reference", 0, i, seed) for i, seed in enumerate(seeds)]
    halves = []
    for kind, (count, fresh, common) in counts.items():
        own = [(f"{kind}/fresh", m, r, 1000 + len(jobs) + 10 * m + r) for r in range(fresh)
               for m in range(count)]  # fmt: skip
        if kind == "50 %":
            halves = own
        else:
            jobs += own
        jobs += [(f"{kind}/common", m, r, r) for r in range(common) for m in range(count)]
    everything = np.ones(work.n, bool)
    found: dict[tuple[str, int, int], np.ndarray] = {}
    references: list[list[State]] = []
    X, y = work.data["X_test"], work.data["y_test"]
    for start in range(0, len(jobs), AT_ONCE):
        some = jobs[start : start + AT_ONCE]
        rows = [everything if k == "reference" else kept[k.split("/")[0]][m] for k, m, *_ in some]
        first = len(seeds) if start == 0 else None
        states = work.train(
            np.stack(rows), [j[3] for j in some], SNAPSHOTS if first else 1, first
        )  # fmt: skip
        references = references or states[: len(seeds)]
        after, _ = work.outcomes([state[-1] for state in states], X, y)
        found |= {(k, m, r): line for (k, m, r, _), line in zip(some, after, strict=True)}
    gone = torch.from_numpy(np.stack([np.flatnonzero(kept["50 %"][m]) for _, m, _, _ in halves]))
    states = train_many(
        work.make, work.setting, work.data["X"], work.data["y"], gone.to(X.device),
        [seed for *_, seed in halves],
    )  # fmt: skip
    after, _ = work.outcomes([state[-1] for state in states], X, y)
    found |= {(k, m, r): line for (k, m, r, _), line in zip(halves, after, strict=True)}
    out = {f"mask/{kind}": np.packbits(mask, axis=1) for kind, mask in kept.items()}
    for kind, (count, fresh, common) in counts.items():
        for way, repeats in (("fresh", fresh), ("common", common)):
            out[f"{kind}/{way}"] = np.stack(
                [[found[f"{kind}/{way}", m, r] for r in range(repeats)] for m in range(count)]
            )
    return references, out


def lds(influence: Tensor, removed: Tensor, after: Tensor) -> float:
    """Mean over tests of Spearman's correlation, over masks, of −Σ influence and outcome."""

    def centred(values: Tensor) -> Tensor:
        ranks = values.argsort(0).argsort(0).double()
        return ranks - ranks.mean(0)

    a, b = centred(-(removed @ influence.double())), centred(after.double())
    return float(((a * b).sum(0) / (a.square().sum(0) * b.square().sum(0)).sqrt()).mean())


# ---- methods


@dataclass
class Methods:
    """What every method says of every question: 200 test examples, then the sets of errors."""

    grid: dict[tuple[str, str, float, float], Tensor]
    """By models, form, damping and exponent."""
    others: dict[str, Tensor]
    evidence: dict[str, float]

    @property
    def now(self) -> dict[str, Tensor]:
        """What the library does, and the other methods."""
        ours = {
            f"exempla, {models}": self.grid[
                models, "one", damping, NOW_EXPONENT if models == "eight snapshots" else 0.0
            ]
            for models, damping in NOW.items()
        }
        return ours | self.others


def ask(work: Work, references: list[list[State]], mix: Tensor) -> Methods:
    """Every method, one network's gradients in memory at a time."""
    d, n = work.data, work.n
    device = d["X"].device
    grid: dict[tuple[str, str, float, float], Tensor] = {}
    last = loaded(work.make, references[0][-1], device)
    evidence: dict[str, float] = {}

    def gradients(state: State) -> Gradients:
        network = loaded(work.make, state, device)
        return gradients_of(network, d["X"], d["y"], d["X_all"], d["y_all"], mix)

    seeds: dict[str, list[Tensor]] = {"one": [], "each layer": []}
    for seed, states in enumerate(references):
        g = gradients(states[-1])
        network = loaded(work.make, states[-1], device)
        for form, scale in trust_scales(network, g.misfit, n).items():
            seeds[form].append(damped_influence(g, scale, DAMPINGS))
            if seed == 0:
                evidence[f"damping, {form}"] = float(scale.double().mean())
        if seed == 0:
            evidence["misfit"] = g.misfit
            cosine = torch.nn.functional.normalize
            others = {
                "gradient cosine, one model": cosine(g.scores) @ cosine(g.targets).T,
                "EK-FAC, one model": ekfac(network, g, d["X"]),
                "TRAK, one model": trak([g]),
            }
        del g
    for form, found in seeds.items():
        for damping, one, five in zip(DAMPINGS, found[0], torch.stack(found).mean(0), strict=True):
            grid["one model", form, damping, 0.0] = one
            grid["five seeds", form, damping, 0.0] = five
    run, tracin, factored, projected = [], 0.0, 0.0, []
    for state in references[0]:
        g = gradients(state)
        run.append(damped_influence(g, trust_scales(last, g.misfit, n)["one"], DAMPINGS))
        tracin = tracin + g.scores @ g.targets.T
        factored = factored + ekfac(loaded(work.make, state, device), g, d["X"])
        empty = torch.zeros(0, device=device)
        projected.append(Gradients(empty, empty, empty, g.margins, g.doubt))
        del g
    several = torch.stack(run)  # snapshots, dampings, rows, questions
    sizes = several.double().square().mean(2, keepdim=True).sqrt().clamp_min(1e-30)
    for exponent in EXPONENTS:
        summed = (several * sizes**-exponent).mean(0).float()
        for damping, whole in zip(DAMPINGS, summed, strict=True):
            grid["eight snapshots", "one", damping, exponent] = whole
    others |= {
        "TracIn, eight snapshots": torch.as_tensor(tracin),
        "EK-FAC, eight snapshots": torch.as_tensor(factored),
        "TRAK, eight snapshots": trak(projected),
    }
    return Methods(grid, others, evidence)


def scored(work: Work, methods: Methods, found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """One line for each method and truth."""
    device, tests = work.data["X"].device, len(work.data["y_test"])
    everything = {("exempla", *key): m for key, m in methods.grid.items()}
    everything |= {
        (*name.split(", "), "", "", ""): m for name, m in methods.others.items()
    }  # fmt: skip
    lines = []
    for kind in SHARES:
        kept = np.unpackbits(found[f"mask/{kind}"], axis=1, count=work.n)
        removed = torch.from_numpy(1.0 - kept).to(device).double()
        for way in ("fresh", "common"):
            after = torch.from_numpy(found[f"{kind}/{way}"]).to(device)
            half = after.shape[1] // 2
            for (method, models, form, damping, exponent), influence in everything.items():
                lines.append({
                    "setting": work.setting.name, "part": work.setting.part, "left out": kind,
                    "seeds": way, "retrainings": after.shape[1], "method": method,
                    "models": models, "form": form,
                    "damping": f"{damping:.3g}" if damping else "", "exponent": exponent,
                    "lds": f"{lds(influence[:, :tests], removed, after.mean(1)):.4f}",
                })  # fmt: skip
            if half:
                a, b = after[:, :half].mean(1), after[:, half : 2 * half].mean(1)
                eye = torch.eye(len(a), device=device, dtype=torch.float64)
                lines.append({
                    "setting": work.setting.name, "part": work.setting.part, "left out": kind,
                    "seeds": way, "retrainings": half, "method": "half of the retrainings",
                    "lds": f"{lds(-a, eye, b):.4f}",
                })  # fmt: skip
    return lines


# ---- the removal test


def questions_of(work: Work, first: State) -> list[np.ndarray]:
    """Sets of errors of the first network, among all test examples."""
    _, right = work.outcomes([first], work.data["X_all"], work.data["y_all"])
    wrong = np.random.default_rng(0).permutation(np.flatnonzero(~right[0]))
    whole = len(wrong) // ERRORS
    if not whole:
        return [wrong] if len(wrong) else []
    return list(wrong[: whole * ERRORS].reshape(whole, ERRORS)[:QUESTIONS])


def removal_test(
    work: Work,
    methods: Methods,
    questions: list[np.ndarray],
    quick: bool,
    tests: int | None = None,
    ours: bool = True,
) -> list[dict[str, Any]]:
    """The gain in log-likelihood of the errors asked about, method by method.

    The questions' columns come after those of `tests` examples; without `ours` only the other
    methods are asked.
    """
    tests = len(work.data["y_test"]) if tests is None else tests
    retrainings = 2 if quick else RETRAININGS
    asked = methods.now if ours else methods.others
    kept, what = [np.ones(work.n, bool)], [("nothing", -1, 0)]
    for q in range(len(questions)):
        for share in REMOVED:
            k = round(share * work.n)
            rng = np.random.default_rng(q)
            named = {
                name: m[:, tests + q].argsort()[:k].cpu().numpy() for name, m in asked.items()
            } | {"random rows": rng.choice(work.n, k, replace=False)}
            for name, rows in named.items():
                line = np.ones(work.n, bool)
                line[rows] = False
                kept.append(line)
                what.append((name, q, k))
    seeds = [500 + r for r in range(retrainings)]
    jobs = [(i, seed) for i in range(len(kept)) for seed in seeds]
    after, right = [], []
    for start in range(0, len(jobs), AT_ONCE):
        some = jobs[start : start + AT_ONCE]
        states = work.train(np.stack([kept[i] for i, _ in some]), [seed for _, seed in some])
        one, two = work.outcomes(
            [state[-1] for state in states], work.data["X_all"], work.data["y_all"]
        )
        after.append(one)
        right.append(two)
    shape = (len(kept), retrainings, -1)
    gain, fixed = np.concatenate(after).reshape(shape), np.concatenate(right).reshape(shape)
    lines = []
    for i, (name, q, k) in enumerate(what):
        if q < 0:
            continue
        own = questions[q]
        others = np.setdiff1d(np.arange(gain.shape[2]), own)
        moved = (gain[i] - gain[0])[:, own].mean(1)
        lines.append({
            "setting": work.setting.name, "part": work.setting.part, "question": q,
            "errors": len(own), "removed": k, "share": f"{k / work.n:.3f}", "method": name,
            "gain": f"{moved.mean():.4f}", "sd over seeds": f"{moved.std(ddof=1):.4f}",
            "fixed": f"{fixed[i][:, own].mean():.3f}",
            "fixed, nothing removed": f"{fixed[0][:, own].mean():.3f}",
            "gain elsewhere": f"{(gain[i] - gain[0])[:, others].mean():.4f}",
            "accuracy elsewhere": f"{fixed[i][:, others].mean():.4f}",
            "rows": " ".join(map(str, np.flatnonzero(~kept[i]))) if k <= 0.02 * work.n else "",
        })  # fmt: skip
    return lines


# ---- everything


def study(work: Work, out: Path, quick: bool, kept: dict[str, dict[str, np.ndarray]]) -> None:
    clock = [time.time()]
    references, found = truths(work, quick)
    clock.append(time.time())
    questions = questions_of(work, references[0][-1])
    total, tests = len(work.data["y_all"]), len(work.data["y_test"])
    mix = torch.zeros(tests + len(questions), total, device=work.data["X"].device)
    mix[torch.arange(tests), torch.arange(tests)] = 1.0
    for q, own in enumerate(questions):
        mix[tests + q, torch.from_numpy(own)] = 1 / len(own)
    methods = ask(work, references, mix)
    clock.append(time.time())
    append(out / "lds.csv", scored(work, methods, found))
    clock.append(time.time())
    if work.setting.part.endswith("new"):
        append(out / "removal.csv", removal_test(work, methods, questions, quick))
    clock.append(time.time())
    name, age = work.setting.name, "new" if work.setting.part.endswith("new") else "old"
    kept["truths-" + age] |= {
        f"{name}/{k}": v if k.startswith("mask") else v.astype(np.float16) for k, v in found.items()
    }
    for seed, states in enumerate(references):
        for moment, state in enumerate(states if seed == 0 else states[-1:]):
            at = moment if seed == 0 else SNAPSHOTS - 1
            kept["weights-" + age] |= {
                f"{name}/{seed}/{at}/{k}": v.cpu().numpy() for k, v in state.items()
            }
    last = loaded(work.make, references[0][-1], work.data["X"].device)
    with torch.no_grad():
        right = [
            float((last(work.data[x]).argmax(1) == work.data[y]).float().mean())
            for x, y in (("X", "y"), ("X_all", "y_all"))
        ]
    seconds = np.diff(clock)
    line = {
        "setting": name, "part": work.setting.part,
        "parameters": sum(w.numel() for w in last.parameters()),
        "accuracy": f"{right[0]:.3f}", "test accuracy": f"{right[1]:.3f}",
        "questions": len(questions), **{k: f"{v:.4g}" for k, v in methods.evidence.items()},
        **dict(zip(("truths s", "methods s", "scores s", "removal s"), seconds.round(1))),
    }  # fmt: skip
    append(out / "settings.csv", [line])
    print(*line.values(), sep="  ", flush=True)


def append(file: Path, lines: list[dict[str, Any]]) -> None:
    if not lines:
        return
    fresh = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(lines[0]), restval="")
        if fresh:
            writer.writeheader()
        writer.writerows(lines)


def in_order(settings: tuple[Setting, ...]) -> list[Setting]:
    """The new settings first, both halves in turn; then the older ones, those chosen on first."""
    parts = ("choose new", "report new"), ("choose",), ("report",), ("confirm",)
    out: list[Setting] = []
    for group in parts:
        own = [[s for s in settings if s.part == part] for part in group]
        out += [s for pair in zip(*own, strict=True) for s in pair]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(s.name for s in SETTINGS))
    parser.add_argument("--seconds", type=float, default=500.0, help="start no setting after these")
    parser.add_argument("--quick", action="store_true", help="a few rows, to see that it runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    start, longest = time.time(), 0.0
    kept: dict[str, dict[str, np.ndarray]] = {
        f"{what}-{age}": {} for what in ("truths", "weights") for age in ("new", "old")
    }
    for setting in in_order(SETTINGS):
        if setting.name not in options.only.split(","):
            continue
        begun = time.time()
        if begun + longest - start > options.seconds:
            print("no time for", setting.name, flush=True)
            continue
        try:
            study(load_work(options.data, setting, device, options.quick), options.out,
                  options.quick, kept)  # fmt: skip
        except Exception as error:  # the other settings are worth having
            print(setting.name, "failed:", repr(error), flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
        longest = max(longest, time.time() - begun)
        for name, arrays in kept.items():
            if any(key.startswith(setting.name + "/") for key in arrays):
                np.savez_compressed(options.out / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
