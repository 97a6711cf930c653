"""Make the truths: networks trained again without half of the rows, and without a twentieth.

    python -m benchmarks.truths.make --data FOLDER --out FOLDER [--only NAME,…]   (one GPU)

FOLDER/NAME.npz holds, of one setting: reference networks trained on all rows (`REFERENCES`, each
at `MOMENTS` moments of its training), masks of the rows trained on, each retrained network's
log-likelihood of every test label, and what the exact damped Gauss–Newton influence of a few
reference networks predicts for each mask. The first retraining of a mask starts from the weights
the first reference started from (one seed); the others from weights of their own.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.truths.data import load_set
from benchmarks.truths.exact import exact_influences
from benchmarks.truths.networks import make_network
from benchmarks.truths.settings import SETTINGS, Setting
from benchmarks.truths.train import State, loaded, logits_of, train_many

REFERENCES, MOMENTS = 3, 8
HALVES, HALF_REPEATS = 100, 3
FEW, FEW_REPEATS, FEW_SHARE = 60, 4, 0.05
EXACT = ((0, 0), (0, 1), (0, 2), (0, 4), (0, 6), (0, 7), (1, 7))
"""Which (reference, moment) the exact influence is written down for."""
AT_ONCE = 150
"""Networks trained together."""


def masks(n: int, count: int, removed: float, seed: int) -> np.ndarray:
    """(count, n): which rows are trained on."""
    rng = np.random.default_rng(seed)
    out = np.ones((count, n), bool)
    for line in out:
        line[rng.choice(n, round(n * removed), replace=False)] = False
    return out


def outcomes(setting: Setting, data: dict[str, Tensor], make: partial[nn.Module],
             kept: np.ndarray, repeats: int) -> np.ndarray:  # fmt: skip
    """(masks, repeats, tests): log-likelihood of the test labels after each retraining."""
    device = data["X"].device
    jobs = [(m, r) for r in range(repeats) for m in range(len(kept))]
    found = np.zeros((len(kept), repeats, len(data["y_test"])), np.float32)
    rows = torch.from_numpy(np.stack([np.flatnonzero(line) for line in kept])).to(device)
    for start in range(0, len(jobs), AT_ONCE):
        some = jobs[start : start + AT_ONCE]
        seeds = [0 if r == 0 else 1000 * r + m for m, r in some]
        states = train_many(
            make, setting, data["X"], data["y"], rows[[m for m, _ in some]], seeds
        )  # fmt: skip
        logits = logits_of(make, [state[-1] for state in states], data["X_test"])
        log_p = torch.log_softmax(logits.double(), -1)
        picked = log_p[:, torch.arange(len(data["y_test"])), data["y_test"]].float().cpu().numpy()
        for (m, r), line in zip(some, picked, strict=True):
            found[m, r] = line
    return found


def make_truth(setting: Setting, folder: Path, out: Path, device: str, quick: bool) -> None:
    stored = load_set(folder, setting.data)
    words = int(stored.pop("words"))
    if quick:
        stored = {name: value[:200] for name, value in stored.items()}
    data = {name: torch.from_numpy(value).to(device) for name, value in stored.items()}
    n, classes = len(data["y"]), int(stored["y"].max()) + 1
    make = partial(make_network, setting.network, tuple(data["X"].shape[1:]), classes, words)
    clock = time.time()
    everything = torch.arange(n, device=device).expand(REFERENCES, n)
    references = train_many(
        make, setting, data["X"], data["y"], everything, list(range(REFERENCES)), MOMENTS
    )
    last = loaded(make, references[0][-1], device)
    with torch.no_grad():
        right = [
            (last(data[x]).argmax(1) == data[y]).float().mean().item()
            for x, y in (("X", "y"), ("X_test", "y_test"))
        ]
    half = masks(n, 10 if quick else HALVES, 0.5, 1)
    few = masks(n, 6 if quick else FEW, FEW_SHARE, 2)
    after_half = outcomes(setting, data, make, half, HALF_REPEATS)
    after_few = outcomes(setting, data, make, few, FEW_REPEATS)
    trained = time.time() - clock
    saved = predicted(make, references, data, np.concatenate([half, few]))
    for r, states in enumerate(references):
        for m, state in enumerate(states):
            saved |= {f"weights/{r}/{m}/{k}": v.cpu().numpy() for k, v in state.items()}
    np.savez_compressed(
        out / f"{setting.name}.npz", half=np.packbits(half, axis=1), few=np.packbits(few, axis=1),
        after_half=after_half, after_few=after_few, accuracy=right, **saved,
    )  # fmt: skip
    parameters = sum(w.numel() for w in last.parameters())
    print(
        f"{setting.name}: {parameters} parameters, accuracy {right[0]:.3f} / {right[1]:.3f}; "
        f"trained in {trained:.0f} s, exact in {time.time() - clock - trained:.0f} s, "
        f"{(out / f'{setting.name}.npz').stat().st_size / 2**20:.1f} MiB",
        flush=True,
    )


def predicted(
    make: partial[nn.Module], references: list[list[State]], data: dict[str, Tensor],
    kept: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The exact influence's effect of every mask, standardised over the masks to save room."""
    device = data["X"].device
    gone = 1 - torch.from_numpy(kept).to(device).double()
    saved: dict[str, np.ndarray] = {}
    for r, m in EXACT:
        network = loaded(make, references[r][m], device)
        found, dimensions = exact_influences(
            network, data["X"], data["y"], data["X_test"], data["y_test"]
        )
        removed = torch.stack([gone @ one.double() for one in found])
        assert torch.isfinite(removed).all()
        spread = removed.std(1, keepdim=True)
        saved[f"effect/{r}/{m}"] = (-removed / spread).half().cpu().numpy()
        saved[f"spread/{r}/{m}"] = spread.float().cpu().numpy()
        saved[f"dimension/{r}/{m}"] = np.array(dimensions)
    return saved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(s.name for s in SETTINGS))
    parser.add_argument("--quick", action="store_true", help="a few rows, to see that it runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for setting in SETTINGS:
        if setting.name in options.only.split(","):
            make_truth(setting, options.data, options.out, device, options.quick)


if __name__ == "__main__":
    main()
