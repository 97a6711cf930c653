"""No row's label is known to the models that predict it: on labels drawn by chance they are right
about half the time, however well the caller's own model knows those labels by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.neural_network import MLPClassifier

from exempla.cli.main import main
from exempla.errors import ExemplaError
from exempla.tasks.labels.crossfit import Learner
from exempla.tasks.labels.fix_labels import gather

torch = pytest.importorskip("torch")
nn = torch.nn

N = 120
CHANCE = pytest.approx(0.5, abs=0.2)  # four standard deviations; a leak gives 0.8 and more


def accuracy(log_proba: np.ndarray, codes: np.ndarray) -> float:
    return float(np.mean(log_proba.argmax(1) == codes))


def noise(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows that say nothing about their labels."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, *shape)).astype(np.float32), rng.permutation(N) % 2


def descend(module: Any, X: Any, y: Any, sample_weight: Any, steps: int = 40) -> Any:
    """Adam by hand (torch.optim is slow to import), long enough to learn any labels by heart."""
    inputs, labels = torch.as_tensor(np.asarray(X)), torch.as_tensor(np.asarray(y))
    parameters = list(module.parameters())
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for step in range(1, steps + 1):
        loss = nn.functional.cross_entropy(module.train()(inputs), labels)
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, slope, m, v in zip(parameters, slopes, first, second, strict=True):
                m.lerp_(slope, 0.1)
                v.lerp_(slope**2, 0.001)
                size = (v / (1 - 0.999**step)).sqrt() + 1e-8
                p -= 0.01 * (m / (1 - 0.9**step)) / size
    return module.eval()


NETWORKS = {
    "perceptron": ((20,), lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))),
    "convolutions": (
        (1, 6, 6),
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)
        ),
    ),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_trained_torch_module(kind: str) -> None:
    shape, build = NETWORKS[kind]
    X, y = noise(*shape)
    torch.manual_seed(0)
    module = descend(build(), X, y, None, steps=100)
    assert accuracy(module(torch.as_tensor(X)).detach().numpy(), y) > 0.95
    evidence = gather(module, (X[:90], y[:90]), (X[90:], y[90:]), fit=descend)
    assert accuracy(evidence.cross_fitted, y) == CHANCE
    again = gather(module, (X[:90], y[:90]), (X[90:], y[90:]), fit=descend)
    assert np.array_equal(evidence.cross_fitted, again.cross_fitted)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_trained_estimator_with_a_warm_start() -> None:
    X, y = noise(20)
    model = MLPClassifier((64,), max_iter=150, warm_start=True, random_state=0, tol=0.0)
    model.fit(X, y)
    assert model.score(X, y) > 0.95
    for fit in (None, lambda model, A, b, _: model.fit(A, b)):
        evidence = gather(model, (X, y), fit=fit)
        assert accuracy(evidence.cross_fitted, y) == CHANCE


def test_the_command_line_on_a_folder_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    for i in range(80):
        path = tmp_path / "images" / f"{i % 2}" / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(path)
    seen: dict[str, float] = {}

    def look(learner: Learner, problem: Any, *_: Any) -> np.ndarray:
        seen["out of fold"] = accuracy(cross_fitted(learner, problem, 0)[0], problem.codes)
        raise ExemplaError("seen enough.")

    cross_fitted = Learner.out_of_fold
    monkeypatch.setattr(Learner, "out_of_fold", look)
    assert main(["fix-labels", str(tmp_path / "images"), "--out", str(tmp_path / "out")]) != 0
    assert "seen enough" in capsys.readouterr().err
    assert seen["out of fold"] == CHANCE
