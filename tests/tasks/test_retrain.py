"""Retraining starts afresh: nothing learnt is left, the seed decides, all states are put back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla
from exempla.errors import ExemplaError
from exempla.tasks.retrain import check_fit, redraw, refit
from exempla.tasks.summarize.posterior import refitter

torch = pytest.importorskip("torch")
nn = torch.nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = np.arange(60) % 2


def as_it_came(module: Any, *_: Any) -> Any:
    """A `fit` that shows what it was given."""
    return module


def unfit(model: Any, seed: int = 0) -> Any:
    """The model as it reaches `fit`."""
    return refit(model, X, Y, None, as_it_came, seed)


def spoilt(module: Any) -> Any:
    """The module after a training that left 7 everywhere, and in all statistics."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data.fill_(7)
    return module


class Scaled(nn.Module):
    """A linear layer and a parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale


class Restarting(Scaled):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)


class Outer(nn.Module):
    """Sets a parameter of a module that cannot be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.theirs = Scaled()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.theirs.scale, 2.0)


# ---- torch: nothing learnt is left


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 2), nn.Conv2d(1, 2, 3), nn.ConvTranspose1d(1, 2, 3), nn.Embedding(5, 3),
        nn.EmbeddingBag(5, 3), nn.Bilinear(2, 2, 2), nn.LSTM(3, 2), nn.GRUCell(3, 2), nn.PReLU(),
        nn.LayerNorm(3), nn.RMSNorm(3), nn.GroupNorm(1, 3), nn.BatchNorm2d(3),
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True), nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2), nn.Transformer(4, 2, 1, 1, 8),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_every_layer_of_torch_is_drawn_anew(module: Any) -> None:
    fresh = unfit(spoilt(module))
    for name, value in [*fresh.named_parameters(), *fresh.named_buffers()]:
        assert bool(value.isfinite().all()), name
        assert not bool((value == 7).any()), name
    assert all(bool((p == 7).all()) for p in module.parameters()), "the caller's is as it was"


def test_a_parameter_that_nothing_sets_is_refused_by_name() -> None:
    module = spoilt(Scaled())
    with pytest.raises(ExemplaError, match=r"its parameters scale: add .* or freeze"):
        unfit(module)
    assert bool((module.scale == 7).all())
    parametrised = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    with pytest.raises(ExemplaError, match=r"parametrizations\.weight\.original"):
        unfit(parametrised)


def test_remedies_for_such_a_parameter() -> None:
    assert unfit(spoilt(Restarting())).scale.tolist() == [1.0, 1.0]
    assert unfit(spoilt(Outer())).theirs.scale.tolist() == [2.0, 2.0]
    frozen = spoilt(Scaled())
    frozen.scale.requires_grad_(False)
    assert unfit(frozen).scale.tolist() == [7.0, 7.0]


def test_a_networks_own_start_wins_over_its_layers() -> None:
    class Zeroed(nn.Sequential):
        def reset_parameters(self) -> None:
            nn.init.zeros_(self[0].weight)

    assert not unfit(spoilt(Zeroed(nn.Linear(3, 2))))[0].weight.any()


def test_running_statistics_go_and_those_of_frozen_layers_stay() -> None:
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2, affine=False))
    net = spoilt(nn.Sequential(body, nn.BatchNorm2d(2), nn.BatchNorm2d(2, affine=False)))
    assert unfit(net)[0][2].running_mean.tolist() == [0.0, 0.0]
    body.requires_grad_(False)
    fresh = unfit(net)
    for layer in fresh[0][1:]:
        assert layer.running_mean.tolist() == [7.0, 7.0]
    for layer in fresh[1:]:
        assert layer.running_mean.tolist() == [0.0, 0.0]
        assert layer.num_batches_tracked == 0


def test_half_a_layer_may_be_frozen() -> None:
    layer = spoilt(nn.Linear(3, 2))
    layer.weight.requires_grad_(False)
    fresh = unfit(layer)
    assert bool((fresh.weight == 7).all())
    assert not bool((fresh.bias == 7).any())


def test_no_old_gradient_is_left() -> None:
    layer = nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    assert unfit(layer).weight.grad is None
    assert layer.weight.grad is not None


def test_lazy_layers_pass() -> None:
    assert unfit(nn.LazyLinear(2))(torch.ones(1, 3)).shape == (1, 2)


def test_redraw_follows_torchs_random_state() -> None:
    one, two, other = (nn.Linear(3, 2) for _ in range(3))
    for layer, seed in ((one, 5), (two, 5), (other, 6)):
        torch.manual_seed(seed)
        redraw(layer)
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.weight, other.weight)


def test_summaries_are_refitted_from_the_start() -> None:
    inputs = torch.as_tensor(X, dtype=torch.float32)
    module = nn.Linear(4, 2)
    module.weight.data = 100.0 * torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]])
    labels = module(inputs).argmax(1)  # it knows them by heart
    evaluate = refitter(module, (inputs, labels), "auto", as_it_came, None)
    others = np.arange(30, 60)
    assert evaluate(np.arange(10), np.ones(10), others).mean() < -0.3


# ---- randomness


def drawing(module: Any, *_: Any) -> Any:
    """A `fit` that draws from every global state."""
    module.drawn = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    return module


def start_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def test_what_fit_draws_is_the_seeds_and_the_callers_states_are_put_back() -> None:
    layer = nn.Linear(2, 2)
    start_all(1)
    expected = drawing(nn.Identity()).drawn
    start_all(1)
    first, again, other = (refit(layer, X, Y, None, drawing, s) for s in (3, 3, 2**32 + 4))
    with pytest.raises(ExemplaError):
        refit(layer, X, Y, None, lambda *_: None, 3)
    assert drawing(nn.Identity()).drawn == expected
    assert first.drawn == again.drawn
    assert torch.equal(first.weight, again.weight)
    assert all(a != b for a, b in zip(first.drawn, other.drawn, strict=True))


def test_an_estimators_random_state_is_the_seed_or_stays() -> None:
    forest = RandomForestClassifier(3, random_state=9)
    assert refit(forest, X, Y, None, None, 4).random_state == 4
    assert refit(forest, X, Y, None, None, 4, keep_random_state=True).random_state == 9
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    free = RandomForestClassifier(3)
    one, two = (refit(free, X, Y, None, None, 4, keep_random_state=True) for _ in range(2))
    assert np.array_equal(one.predict_proba(X), two.predict_proba(X))
    assert one.random_state is None
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002


# ---- scikit-learn


@pytest.mark.parametrize("fit", [None, lambda model, A, b, _: model.fit(A, b)])
def test_a_warm_start_is_a_cold_one(fit: Any) -> None:
    settings: dict[str, Any] = {"warm_start": True, "max_iter": 1, "tol": None, "random_state": 0}
    trained = SGDClassifier(**settings).fit(X, Y)
    for _ in range(20):
        trained.fit(X, Y)
    untrained = SGDClassifier(**settings).fit(X, Y)
    assert not np.array_equal(trained.coef_, untrained.coef_)
    again = refit(trained, X, Y, None, fit, 0, keep_random_state=True)
    assert np.array_equal(again.coef_, untrained.coef_)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model,
        lambda model: make_pipeline(StandardScaler(), model),
        lambda model: make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), model)),
        lambda model: GridSearchCV(make_pipeline(StandardScaler(), model), {}, cv=2),
        lambda model: make_pipeline(StandardScaler(), GridSearchCV(model, {}, cv=2)),
    ],
    ids=["alone", "pipeline", "nested", "searched", "search inside"],
)
def test_weights_reach_the_last_step(wrap: Any) -> None:
    weights = np.where(Y == 1, 1.0, 1e-3)
    plain = refit(wrap(LogisticRegression()), X, Y, None, None, 0)
    weighted = refit(wrap(LogisticRegression()), X, Y, weights, None, 0)
    assert plain.predict(X).mean() < 0.9
    assert weighted.predict(X).all()


def test_what_cannot_be_retrained_is_refused() -> None:
    with pytest.raises(ExemplaError, match=r"KNeighborsClassifier\.fit takes no sample_weight"):
        refit(make_pipeline(StandardScaler(), KNeighborsClassifier()), X, Y, np.ones(60), None, 0)
    frozen = FrozenEstimator(LogisticRegression().fit(X, Y))
    for model in (frozen, make_pipeline(StandardScaler(), frozen)):
        with pytest.raises(ExemplaError, match="FrozenEstimator keeps what it has learned"):
            check_fit(model, None)
    scaled = FrozenEstimator(StandardScaler().fit(X))
    check_fit(make_pipeline(scaled, LogisticRegression()), None)  # it knows no labels
    with pytest.raises(ExemplaError, match="give fit="):
        check_fit(nn.Linear(2, 2), None)
    with pytest.raises(ExemplaError, match="is a class"):
        check_fit(LogisticRegression, None)


def test_failures_are_told_in_one_sentence() -> None:
    with pytest.raises(ExemplaError, match="fit returned None"):
        refit(nn.Linear(4, 2), X, Y, None, lambda *_: None, 0)
    whole = torch.arange(8).reshape(2, 4)
    with pytest.raises(ExemplaError, match=r"failed on Tensor of shape \(2, 4\) \(torch.int64\)"):
        refit(nn.Linear(4, 2), whole, Y[:2], None, lambda m, A, *_: m(A), 0)
    with pytest.raises(ExemplaError, match=r"could not be fitted to ndarray .* contains NaN"):
        refit(LogisticRegression(), np.full((60, 4), np.nan), Y, None, None, 0)


class Raising(LogisticRegression):
    """A model of the user's own that raises in `fit` or in prediction."""

    def __init__(self, error: Any = None, where: str = "fit") -> None:
        super().__init__()
        self.error, self.where = error, where

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        if self.where == "fit":
            raise self.error("age")
        return super().fit(X, y, sample_weight)

    def predict_proba(self, X: Any) -> Any:
        if self.where == "predict":
            raise self.error("age")
        return super().predict_proba(X)


ERRORS = (KeyError, ZeroDivisionError, AttributeError, OSError, AssertionError, StopIteration)


@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_model_raises_is_one_sentence_that_names_it(error: Any) -> None:
    model = Raising(error)
    for job in (
        lambda: exempla.fix_labels(model, (X, Y), progress=False),
        lambda: exempla.clean(model, (X, Y), (X, Y), 3, progress=False),
        lambda: exempla.summarize(model, (X, Y), 8, progress=False),
        lambda: refit(LogisticRegression(), X, Y, None, lambda *_: model.fit(X, Y), 0),
    ):
        with pytest.raises(ExemplaError, match=error.__name__):
            job()
    with pytest.raises(ExemplaError, match=f"cannot predict .*{error.__name__}"):
        exempla.fix_labels(Raising(error, "predict"), (X, Y), progress=False)


def test_too_little_memory_stays_what_it_is() -> None:
    with pytest.raises(MemoryError):
        refit(Raising(MemoryError), X, Y, None, None, 0)
