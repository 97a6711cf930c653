"""Past the exact Gauss–Newton influence of one model: what predicts retraining better?

    EXEMPLA_DATA=… python -m benchmarks.beyond_ggn [--truth digits] [--truth-file mnist_truth.npz]

Each idea is tried at a few settings. The setting is chosen on subsets 0–49 and its LDS reported on
subsets 50–99, beside the plain influence of the same model, with a 95 % interval of the difference
from resampling subsets and test points together. The damping is exempla's automatic one throughout.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import exempla
from benchmarks.peers.job import network
from benchmarks.peers.truths import CHOOSE, REPORT, Truth, digits_truth, mnist_truth
from exempla.kernel.solve import query_kernel

Tried = Iterator[tuple[str, np.ndarray]]
"""Settings of one idea and the train × test matrix of each."""
TEMPERATURES = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
EPOCHS = {"digits": 40, "mnist": 12}
WEIGHT_DECAY = {"digits": 1e-4, "mnist": 0.0}


class Tempered(nn.Module):
    """The model with its logits divided by T: less sure of everything, right or wrong.

    A training example's score is its residual y − softmax(z/T) carried back to the weights. At
    T = 1 the last model's residuals speak, and a few badly fitted examples drown the rest, which
    were fitted early and taught the model just as much. Smaller logits are those of earlier epochs.
    """

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) / self.temperature


@dataclass(frozen=True)
class Job:
    """A truth with its models and data; plain influence is worked out once."""

    truth: Truth

    def data(self, x: str, y: str) -> TensorDataset:
        return TensorDataset(*(torch.from_numpy(self.truth.job[name]) for name in (x, y)))

    @cached_property
    def train(self) -> TensorDataset:
        return self.data("X", "y")

    @cached_property
    def test(self) -> TensorDataset:
        return self.data("X_test", "y_test")

    def model(self, seed: int = 0) -> nn.Module:
        model = network(self.truth.name)
        stored = {name: self.truth.job[f"{seed}/{name}"] for name in model.state_dict()}
        model.load_state_dict({name: torch.from_numpy(w) for name, w in stored.items()})
        return model.eval()

    def fitted(self, model: nn.Module) -> exempla.Explainer:
        return exempla.Explainer(model, progress=False).fit(self.train)

    def influence(self, model: nn.Module) -> np.ndarray:
        return self.fitted(model).influence(self.test)

    @cached_property
    def plain(self) -> np.ndarray:
        return self.influence(self.model())


def tempered(job: Job) -> Tried:
    """Residuals and Fisher of the model with smaller logits."""
    for T in TEMPERATURES:
        yield f"T = {T:g}", job.influence(Tempered(job.model(), T))


def noisy_copies(job: Job, copies: int = 4) -> Tried:
    """Kernels averaged over copies with Gaussian noise on the weights: a crude posterior."""
    for scale in (0.05, 0.1, 0.2):
        torch.manual_seed(0)
        total = np.zeros_like(job.plain)
        for _ in range(copies):
            model = job.model()
            for weight in model.parameters():
                weight.data += scale * weight.data.std() * torch.randn_like(weight)
            total += job.influence(model) / copies
        yield f"noise of {scale:g} sd", total


def checkpoints(job: Job) -> Tried:
    """A run of the same recipe, asked earlier, or at five moments whose kernels are averaged."""
    epochs = EPOCHS[job.truth.name]
    moments = {round(epochs * part / 5) for part in (1, 2, 3, 4, 5)}
    recorded = {round(epochs * part / 8) for part in range(1, 9)}
    asked = {epochs // 4, epochs // 2, *moments}
    matrices, run = {}, []
    for epoch, model in training_run(job, seed=0):
        if epoch in asked:
            matrices[epoch] = job.influence(model)
        if epoch in recorded:
            run.append(model)
    yield "last epoch", matrices[epochs]
    yield f"epoch {epochs // 4} of {epochs}", matrices[epochs // 4]
    yield f"epoch {epochs // 2} of {epochs}", matrices[epochs // 2]
    yield "five moments", np.mean([matrices[epoch] for epoch in sorted(moments)], axis=0)
    *earlier, last = run
    known = exempla.Explainer([last, *(m.state_dict() for m in earlier)], progress=False)
    yield "eight moments of a run", known.fit(job.train).influence(job.test)


def training_run(job: Job, seed: int) -> Iterator[tuple[int, nn.Module]]:
    """The recipe both truths were made with; a copy of the model after each epoch."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, (X, y) = network(job.truth.name), job.train.tensors
    decay = WEIGHT_DECAY[job.truth.name]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=decay)
    for epoch in range(EPOCHS[job.truth.name]):
        for batch in torch.randperm(len(X), generator=generator).split(64):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(X[batch]), y[batch]).backward()
            optimizer.step()
        yield epoch + 1, copy.deepcopy(model).eval()


def self_influence(job: Job) -> Tried:
    """Influence divided by a power of the training example's own (1/2: RelatIF)."""
    own = job.fitted(job.model()).self_influence()[:, None]
    for power in (0.125, 0.25, 0.375, 0.5):
        yield f"power {power:g}", job.plain / np.maximum(own, 1e-30) ** power


def soft_threshold(job: Job) -> Tried:
    """Small influences on a test point set to zero, the others moved towards it."""
    size = np.abs(job.plain)
    for share in (0.5, 0.8, 0.9):
        beyond = np.maximum(size - np.quantile(size, share, axis=0), 0.0)
        yield f"quantile {share:g}", np.sign(job.plain) * beyond


def flattened(job: Job) -> Tried:
    """Each influence's rank among those on the test point, or a power of it with its sign."""
    yield "ranks", rankdata(job.plain, axis=0)
    for power in (0.5, 0.7):
        yield f"power {power:g}", np.sign(job.plain) * np.abs(job.plain) ** power


def complement(job: Job) -> Tried:
    """What a sketch leaves out, added back (nothing to add where the embedding is exact)."""
    explainer = job.fitted(job.model())
    embedding, damping = explainer.embeddings[0], explainer.features.damping
    examples = embedding.oracle.read(job.test, role="test")
    yield "added", query_kernel(embedding, examples, damping).values


IDEAS: dict[str, Callable[[Job], Tried]] = {
    "logits divided by T": tempered,
    "checkpoints of one run": checkpoints,
    "noisy copies": noisy_copies,
    "÷ self-influence": self_influence,
    "soft threshold": soft_threshold,
    "ranks and powers": flattened,
    "outside the sketch": complement,
}


def together(job: Job, temperature: float, margin: bool) -> np.ndarray:
    """All models, kernels averaged; `margin` asks about log p/(1−p), as TRAK does.

    ∇ log p/(1−p) = ∇ log p / (1−p): one factor per model and test point, so that for one model
    no correlation over subsets can change, and among several the sure ones get more weight.
    """
    total = np.zeros_like(job.plain)
    (X, y), rows = job.test.tensors, np.arange(len(job.test))
    for seed in range(job.truth.models):
        model = Tempered(job.model(seed), temperature)
        with torch.no_grad():
            p = torch.softmax(model(X).double(), 1)[rows, y].numpy()
        total += job.influence(model) / (np.maximum(1 - p, 1e-7) if margin else 1.0)
    return total / job.truth.models


def interval(truth: Truth, matrix: np.ndarray, base: np.ndarray, draws: int = 400) -> np.ndarray:
    """95 % interval of the LDS difference on the reported subsets, both sides resampled alike."""
    mask = exempla.metrics.subset_mask(truth.subsets[REPORT], len(matrix))
    effects, outcomes = [mask @ matrix, mask @ base], truth.outcomes[REPORT]
    rng, one = np.random.default_rng(0), np.eye(len(mask))
    differences = []
    for _ in range(draws):
        rows = rng.integers(len(mask), size=len(mask))
        columns = rng.integers(outcomes.shape[1], size=outcomes.shape[1])
        new, old = (
            exempla.metrics.lds_per_test(effect, one[rows], outcomes[rows]) for effect in effects
        )
        differences.append((new - old)[columns].mean())
    return np.quantile(differences, (0.025, 0.975))


def line(job: Job, name: str, tried: list[tuple[str, np.ndarray]], base: np.ndarray) -> str:
    """The setting that is best on subsets 0–49, on subsets 50–99."""
    setting, matrix = max(tried, key=lambda one: job.truth.lds(one[1], CHOOSE))
    low, high = interval(job.truth, matrix, base)
    score = job.truth.lds(matrix, REPORT)
    gain = score - job.truth.lds(base, REPORT)
    cells = (name, len(tried), setting, f"{score:.3f}", f"{gain:+.3f} ({low:+.3f} … {high:+.3f})")
    return "| " + " | ".join(map(str, cells)) + " |"


def table(truth: Truth, wanted: list[str]) -> None:
    """Print every idea for one model, then all models with and without the best temperature."""
    job = Job(truth)
    print(f"\n{truth.name}: plain influence of one model {truth.lds(job.plain, REPORT):.3f}")
    print("\n| idea | tried | chosen | LDS | gain (95 %) |\n|---|---|---|---|---|")
    for name in wanted:
        tried = list(IDEAS[name](job))
        print(line(job, name, tried, job.plain), flush=True)
        curve = ", ".join(f"{s} {truth.lds(m, REPORT):.3f}" for s, m in tried)
        print(f"    ({curve})", file=sys.stderr, flush=True)
    ensemble = partial(together, job)
    plain = ensemble(1.0, False)
    print(f"\n{truth.models} models, plain: {truth.lds(plain, REPORT):.3f}")
    for T, margin in ((1.0, True), (2.0, False), (2.0, True)):
        name = f"{truth.models} models, T = {T:g}" + (", margin" if margin else "")
        print(line(job, name, [("given", ensemble(T, margin))], plain), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--truth-file", type=Path, help="mnist_truth.npz of benchmarks.mnist_truth")
    parser.add_argument("--ideas", default=",".join(IDEAS), help="some of: " + ", ".join(IDEAS))
    options = parser.parse_args()
    if "EXEMPLA_DATA" not in os.environ:
        sys.exit("benchmarks.beyond_ggn needs EXEMPLA_DATA, the folder with the data sets.")
    data = Path(os.environ["EXEMPLA_DATA"])
    wanted = [name for name in options.ideas.split(",") if name]
    if unknown := sorted(set(wanted) - set(IDEAS)):
        sys.exit(f"unknown idea {unknown[0]}; known are {', '.join(IDEAS)}.")
    if options.truth == "digits":
        table(digits_truth(data / "lds_digits"), wanted)
    else:
        file = options.truth_file or data / "mnist_truth.npz"
        table(mnist_truth(data / "mnist", file), wanted)


if __name__ == "__main__":
    main()
