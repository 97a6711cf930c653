"""The peers' own libraries in the removal test.

    python -m benchmarks.truths.peers prepare --data FOLDER --peers .peers --out FOLDER
    python -m benchmarks.truths.peers measure --data FOLDER --scores FOLDER --out FOLDER   (one GPU)

`prepare` trains one network of each setting with eight snapshots on the processor, asks every
library for its scores of the network's errors, and keeps both in NAME.npz; what is there already is
not asked again. `measure` lets exempla answer for the same network (the exact Gauss–Newton
influence of `baselines`) and retrains without the rows that each names, as
`benchmarks.truths.removals` does (peers_removal.csv). The protocol is in
`benchmarks.truths.settings`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.scripts import run_script
from benchmarks.truths import removals
from benchmarks.truths.baselines import damped_influence, gradients_of, levelled, trust_scales
from benchmarks.truths.removals import SNAPSHOTS, Methods, Work, append, load_work, questions_of
from benchmarks.truths.settings import PEER_SETTINGS, SETTINGS
from benchmarks.truths.train import State, loaded

ASKED = {
    "kronfluence EK-FAC, one model": ("kronfluence", "EK-FAC", "default", False),
    "kronfluence EK-FAC, own damping, one model": ("kronfluence", "EK-FAC", "none", False),
    "kronfluence EK-FAC, own damping, eight snapshots": ("kronfluence", "EK-FAC", "none", True),
    "TRAK, one model": ("traker", "TRAK, 512 dimensions", "default", False),
    "TRAK, eight snapshots": ("traker", "TRAK, 512 dimensions", "default", True),
    "captum TracInCP, eight snapshots": ("captum", "TracInCP", "default", True),
    "dattri EK-FAC, one model": ("dattri", "EK-FAC", "default", False),
    "dattri TRAK, one model": ("dattri", "TRAK", "default", False),
}
"""By name: library, method, damping, and whether it is given the snapshots."""


def prepare(work: Work, name: str, peers: Path, out: Path) -> None:
    file = out / f"{name}.npz"
    kept = dict(np.load(file)) if file.exists() else {}
    states = stored_states(work, kept)
    if not states:
        states = work.train(np.ones((1, work.n), bool), [0], SNAPSHOTS)[0]
        kept |= {f"run/{m}/{k}": v.numpy() for m, one in enumerate(states) for k, v in one.items()}
    questions = questions_of(work, states[-1])
    kept["questions"], kept["sizes"] = np.concatenate(questions), np.array([*map(len, questions)])
    job = out / f"{name}-job.npz"
    asked, d = np.concatenate(questions), work.data
    np.savez(
        job, X=d["X"], y=d["y"], X_test=d["X_all"][asked], y_test=d["y_all"][asked],
        kind=work.setting.network, words=0, **{k: v for k, v in kept.items() if k[:4] == "run/"},
        **{f"0/{k}": v.numpy() for k, v in states[-1].items()},
    )  # fmt: skip
    sizes = np.cumsum([len(own) for own in questions])[:-1]
    for method, (library, way, damping, run) in ASKED.items():
        if f"scores/{method}" in kept:
            continue
        python = peers / library / "bin" / "python"
        answer = out / f"{name}-{library}-{len(kept)}.npz"
        options = ["--method", way, "--dampings", damping, *(["--checkpoints"] if run else [])]
        begun = time.time()
        try:
            found = run_script(python.absolute(), library, job, answer, options).matrices[0]
        except RuntimeError as error:
            print(name, method, "failed:", error, flush=True)
            continue
        parts = np.split(found, sizes, axis=1)
        kept[f"scores/{method}"] = np.stack([part.mean(1) for part in parts], 1)
        answer.unlink()
        answer.with_suffix(".json").unlink()
        np.savez_compressed(file, **kept)
        print(name, method, f"{time.time() - begun:.0f} s", flush=True)
    np.savez_compressed(file, **kept)
    job.unlink()


def stored_states(work: Work, kept: dict[str, np.ndarray]) -> list[State]:
    device = work.data["y"].device
    return [
        {
            name: torch.from_numpy(kept[f"run/{m}/{name}"]).to(device)
            for name in work.make().state_dict()
        }
        for m in range(SNAPSHOTS)
        if any(k.startswith(f"run/{m}/") for k in kept)
    ]


def measure(work: Work, name: str, scores: Path, out: Path, quick: bool) -> None:
    kept = dict(np.load(scores / f"{name}.npz"))
    states, device = stored_states(work, kept), work.data["y"].device
    questions = np.split(kept["questions"], np.cumsum(kept["sizes"])[:-1])
    mix = torch.zeros(len(questions), len(work.data["y_all"]), device=device)
    for q, own in enumerate(questions):
        mix[q, torch.from_numpy(own)] = 1 / len(own)
    d = work.data
    last, total = loaded(work.make, states[-1], device), 0.0
    found: dict[str, torch.Tensor] = {}
    for state in states:
        g = gradients_of(loaded(work.make, state, device), d["X"], d["y"], d["X_all"], d["y_all"],
                         mix)  # fmt: skip
        scale = trust_scales(last, g.misfit, work.n)["one"]
        one, several = damped_influence(g, scale, (2.0, 1.0))
        found["exempla, one model"] = one  # of the last
        total = total + levelled(several, 0.75)
    found["exempla, eight snapshots"] = torch.as_tensor(total)
    for key, matrix in kept.items():
        if key.startswith("scores/") and np.isfinite(matrix).all():
            found[key.removeprefix("scores/")] = torch.from_numpy(matrix).to(device)
    methods = Methods({}, found, {})
    lines = removals.removal_test(work, methods, questions, quick, 0, ours=False)
    append(out / "peers_removal.csv", lines)
    for share in sorted({line["share"] for line in lines}):
        for method in [*found, "random rows"]:
            own = [float(x["gain"]) for x in lines if x["method"] == method and x["share"] == share]
            print(name, share, method, f"{np.mean(own):+.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prepare", "measure"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--peers", type=Path, default=Path(".peers"))
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--only", default=",".join(PEER_SETTINGS))
    parser.add_argument("--seconds", type=float, default=150.0, help="start no setting after these")
    parser.add_argument("--quick", action="store_true", help="two retrainings, to see that it runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if options.what == "measure" and torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    known, start = {s.name: s for s in SETTINGS}, time.time()
    for name in options.only.split(","):
        if time.time() - start > options.seconds:
            print("no time for", name, flush=True)
            continue
        work = load_work(options.data, known[name], device, False)
        if options.what == "prepare":
            prepare(work, name, options.peers, options.out)
        elif (options.scores / f"{name}.npz").exists():
            measure(work, name, options.scores, options.out, options.quick)


if __name__ == "__main__":
    main()
