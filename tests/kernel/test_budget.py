"""What "auto" costs: forecast before it is spent, chosen by it, and shown while it is spent."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.mlp_from_weights import mlp_classifier_from_weights
from benchmarks.mnist_truth import small_cnn
from exempla import Explainer, progress
from exempla.errors import ExemplaError
from exempla.kernel import sketch as choose
from exempla.kernel.basis import IdentitySketch, KroneckerSketch, SpanSketch
from exempla.kernel.embed import EmbeddingOptions, embed_training_set
from exempla.kernel.moments import WHOLE, plan_side
from exempla.kernel.sketch import Price, choose_sketch, look_at
from exempla.oracles import make_oracle
from tests.oracles.torch.resnet import ResNet

N, CLASSES = 24, 4


@pytest.fixture(scope="module")
def job():
    """A small residual network: many positions and few channels at first, few and many at last."""
    torch.manual_seed(0)
    model = ResNet(CLASSES, widths=(6, 12, 24, 48)).eval()
    return model, (torch.randn(N, 3, 16, 16), torch.arange(N) % CLASSES)


def flops_of(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_a_dot_product_costs_what_the_factors_say(job):
    model, data = job
    oracle = make_oracle(model)
    train = oracle.read(data, role="train")
    (rows,) = [batch.compact() for batch in oracle.scores(train)]
    (others,) = [batch.compact() for batch in oracle.scores(train)]
    forecast = N * N * look_at(oracle, train).gram
    # of few rows, writing them out is shared by few products
    assert 0.7 < flops_of(lambda: rows.gram(others)) / forecast < 1.6


def test_the_sketch_costs_what_is_forecast(job):
    model, data = job
    oracle = make_oracle(model)
    train = oracle.read(data, role="train")
    forecast = sum(look_at(oracle, train).sketch(40, N, N))
    eigen = 0.0  # the counter does not know eigenbases
    for layer in oracle.layers:
        for d, other in ((layer.d_in, layer.d_out), (layer.d_out, layer.d_in)):
            # of a wider moment only leading eigenvectors, by products that are counted
            eigen += 10.0 * d**3 if plan_side(d, other, 40, WHOLE, 512) == (True, d) else 0.0
    spent = flops_of(lambda: embed_training_set(oracle, train, EmbeddingOptions(sketch=40)))
    assert 0.6 < (spent + eigen) / forecast < 1.6


def test_rows_and_layers_are_seen(job):
    model, data = job
    oracle = make_oracle(model)
    train = oracle.read(data, role="train")
    seen = look_at(oracle, train)
    assert seen.rows == N * CLASSES  # untrained: every class carries probability
    by_layer = dict(zip((layer.name for layer in oracle.layers), seen.work, strict=True))
    assert by_layer["stem.0.weight"][:3] == (256, 27, 6)
    assert by_layer["stages.7.conv2.weight"][:3] == (4, 432, 48)
    assert by_layer["head"][:3] == (1, 49, CLASSES)


@pytest.mark.parametrize(("allowed", "taken"), [(1e15, SpanSketch), (0.0, KroneckerSketch)])
def test_exact_up_to_a_price(job, monkeypatch, allowed, taken):
    model, data = job
    monkeypatch.setattr(choose, "EXACT_FLOPS", allowed)
    monkeypatch.setattr(choose, "EXACT_TIMES", 0.0)
    monkeypatch.setattr(choose, "WIDTH", 40)
    embedding = Explainer(model, budget="exact", progress=False).fit(data).embeddings[0]
    assert isinstance(embedding.sketch, taken)
    insisted = Explainer(model, sketch="exact", progress=False).fit(data).embeddings[0]
    assert isinstance(insisted.sketch, SpanSketch)


def test_exact_while_the_sketch_costs_nearly_as_much(job, monkeypatch):
    model, data = job
    oracle = make_oracle(model)
    train = oracle.read(data, role="train")
    monkeypatch.setattr(choose, "EXACT_FLOPS", 0.0)
    monkeypatch.setattr(choose, "WIDTH", 40)
    seen = look_at(oracle, train)
    ratio = sum(seen.dual()) / sum(seen.sketch(40, N, N))
    for times, fair in ((0.9 * ratio, False), (1.1 * ratio, True)):
        monkeypatch.setattr(choose, "EXACT_TIMES", times)
        assert Price(oracle, train, N, insists=False).accepts_dual() is fair


def test_few_parameters_and_very_many_rows_are_a_price_too(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 8)), np.arange(60) % 3
    model = LogisticRegression().fit(X, y)
    assert isinstance(sketch_of(model, X, y), IdentitySketch)
    monkeypatch.setattr(choose, "EXACT_FLOPS", 0.0)
    monkeypatch.setattr(choose, "EXACT_TIMES", 0.0)
    assert isinstance(sketch_of(model, X, y), KroneckerSketch)


def sketch_of(model, X, y):
    oracle = make_oracle(model)
    train = oracle.read((X, y), role="train")
    return choose_sketch(oracle, train, "auto", train)


@pytest.mark.parametrize("limit", ["DUAL_LIMIT", "DUAL_BYTES"])
def test_landmarks_that_will_not_fit_are_not_collected_first(job, monkeypatch, limit):
    model, data = job
    monkeypatch.setattr(choose, limit, 30)
    monkeypatch.setattr(choose, "EXACT_FLOPS", 0.0)
    monkeypatch.setattr(choose, "WIDTH", 40)
    monkeypatch.setattr(choose, "collect", lambda *_: pytest.fail("collected in vain"))
    embedding = Explainer(model, budget="exact", progress=False).fit(data).embeddings[0]
    assert isinstance(embedding.sketch, KroneckerSketch)


def test_a_budget_limits_the_cost_and_says_what_it_gave_up(job, monkeypatch, capsys):
    model, data = job
    monkeypatch.setattr(choose, "FREE_FLOPS", 0.0)
    monkeypatch.setattr(choose, "BUDGET_WIDTH", 20)
    oracle = make_oracle(model)
    seen = look_at(oracle, oracle.read(data, role="train"))
    exact, wide = seen.epochs(seen.dual()), seen.epochs(seen.sketch(2048, N, N))
    fits = {b: Explainer(model, budget=b).fit(data) for b in (1.1 * exact, 0.9 * wide, 1e-6)}
    kinds = {b: e.embeddings[0].sketch for b, e in fits.items()}
    assert isinstance(kinds[1.1 * exact], SpanSketch)
    assert kinds[1.1 * exact].given_up == ""
    assert 20 < kinds[0.9 * wide].width < 2048
    assert kinds[1e-6].width == 20
    assert f"about {exact:,.0f} epochs of training" in kinds[1e-6].given_up
    assert "sketch='exact' insists" in capsys.readouterr().err
    answer = fits[1e-6].explain(data, k=2)
    assert answer.given_up in answer.details
    assert isinstance(Explainer(model, budget="exact").fit(data).embeddings[0].sketch, SpanSketch)


def test_a_small_job_is_within_every_budget(job):
    model, data = job
    embedding = Explainer(model, budget=1e-6, progress=False).fit(data).embeddings[0]
    assert embedding.sketch.exact


def test_networks_have_a_budget_by_default_and_token_models_and_others_have_none(job, monkeypatch):
    model, data = job
    monkeypatch.setattr(choose, "FREE_FLOPS", 0.0)
    monkeypatch.setattr(choose, "WIDTH", 40)
    monkeypatch.setattr("exempla.oracles.torch.oracle.DEFAULT_BUDGET", 1e-6)
    limited = Explainer(model, progress=False).fit(data).embeddings[0].sketch
    assert isinstance(limited, KroneckerSketch)
    assert "the budget is" in limited.given_up
    for likelihood in ("tokens", lambda m, batch: -m(batch[0]).square().sum(1)):
        oracle = Explainer(model, likelihood=likelihood, progress=False).oracles[0]
        assert oracle.budget is None
    line = LogisticRegression().fit(np.eye(4), np.arange(4) % 2)
    assert Explainer(line, progress=False).oracles[0].budget is None


@pytest.mark.parametrize("budget", ["most", 0, -1.0, float("nan"), True, None])
def test_an_unknown_budget_is_refused(job, budget):
    with pytest.raises(ExemplaError, match="budget="):
        Explainer(job[0], budget=budget)


def digits_mlp():
    """As sure of its labels as a trained one."""
    rng = np.random.default_rng(0)
    sizes = (64, 128, 128, 10)
    layers = [(rng.normal(size=(b, a)), np.zeros(b)) for a, b in pairwise(sizes)]
    model = mlp_classifier_from_weights(layers, np.arange(10), alpha=0.15)
    return model, (rng.random((1500, 64)), np.arange(1500) % 10)


def mnist_cnn():
    model = small_cnn()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 10.0
    return model, (torch.rand(5000, 1, 28, 28), torch.arange(5000) % 10)


@pytest.mark.parametrize("truth", [digits_mlp, mnist_cnn])
def test_the_models_of_the_faithfulness_truths_stay_exact(truth):
    model, data = truth()
    oracle = make_oracle(model)
    train = oracle.read(data, role="train")
    assert oracle.n_parameters > choose.PRIMAL_LIMIT
    assert len(train) <= choose.DUAL_LIMIT
    assert Price(oracle, train, 512, insists=False).accepts_dual()


@pytest.mark.parametrize(
    ("sketch", "steps"),
    [
        ("exact", ["Fisher rows of the training set", "dot products"]),
        (40, ["finding the basis", "finding the directions"]),
    ],
)
def test_every_long_step_is_shown(job, monkeypatch, capsys, sketch, steps):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    model, data = job
    Explainer(model, sketch=sketch).fit(data)
    shown = capsys.readouterr().err
    for step in steps:
        assert step in shown
    # the rows of the Fisher give the scores
    assert "scoring the training set" not in shown


def test_a_dropped_exact_form_is_said(job, monkeypatch, capsys):
    for name, value in (("EXACT_FLOPS", 0.0), ("EXACT_TIMES", 0.0), ("WIDTH", 40)):
        monkeypatch.setattr(choose, name, value)
    model, data = job
    Explainer(model, budget="exact").fit(data)
    assert "sketch='exact' insists" in capsys.readouterr().err


def test_the_input_moment_is_taken_once_for_all_classes(monkeypatch):
    from exempla.kernel.moments import Moments
    from exempla.oracles.torch.conv import ConvFactors

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    oracle = make_oracle(model)
    train = oracle.read((torch.randn(6, 1, 4, 4), torch.arange(6) % 3), role="train")
    calls = []
    plain = ConvFactors.moment
    monkeypatch.setattr(
        ConvFactors, "moment", lambda self, side: calls.append(side) or plain(self, side)
    )
    found = Moments.of(oracle.layers, oracle.fisher_rows(train))[0]
    assert calls.count("inputs") == 1
    expected = plain(next(iter(oracle.fisher_rows(train))).factors[0], "inputs")
    torch.testing.assert_close(found.inputs.total, expected)


def test_rows_of_the_basis_are_not_computed_again(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    data = (torch.randn(900, 6).double(), torch.arange(900) % 3)
    found, sizes = [], []
    for large in (10**9, 1):  # the rows of a large model are not kept
        monkeypatch.setattr(choose, "LARGE", large)
        oracle = make_oracle(model)
        passes, read = oracle.fisher_rows, []
        monkeypatch.setattr(
            oracle, "fisher_rows", lambda x, *a, p=passes, r=read, **k: (r.append(len(x)), p(x))[1]
        )
        found.append(embed_training_set(oracle, data, EmbeddingOptions(sketch=60)))
        sizes.append(read)
    kept, again = found
    (_, basis, *rest), (_, same, *whole) = sizes
    assert basis == same
    assert sum(rest) == sum(whole) - basis
    assert kept.sketch.seen_rows == ()
    torch.testing.assert_close(kept.rows, again.rows)
    np.testing.assert_allclose(kept.metric.matrix, again.metric.matrix, rtol=1e-6, atol=1e-12)
