"""`Explainer` on torch networks: the same answers whichever way the scores are embedded."""

import copy

import numpy as np
import pytest

import exempla
from exempla import Explainer
from exempla.arrays import to_numpy
from exempla.oracles.base import CLASS_CUT
from tests.threads import hammered

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


@pytest.fixture(scope="module")
def job():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(y)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X[:200]), y[:200]).backward()
        optimizer.step()
    return model, (X[:200], y[:200]), (X[300:320], y[300:320])


def literal_influence(model, train, test, damping):
    """Per-sample autograd, Fisher over all classes, everything written out in float64."""
    model = copy.deepcopy(model).double()
    parameters = list(model.parameters())

    def gradient(value):
        parts = torch.autograd.grad(value, parameters, retain_graph=True)
        return torch.cat([p.ravel() for p in parts])

    def scores(X, y):
        return torch.stack(
            [gradient(model(x[None].double()).log_softmax(1)[0, c]) for x, c in zip(X, y)]
        )

    fisher = 0.0
    for x in train[0]:
        log_p = model(x[None].double()).log_softmax(1)[0]
        for value in log_p[log_p.exp() > CLASS_CUT]:
            g = gradient(value) * (value.exp() ** 0.5).detach()
            fisher = fisher + torch.outer(g, g)
    S, Z = scores(*train), scores(*test)
    M = fisher / len(S) + damping * torch.eye(S.shape[1], dtype=torch.float64)
    return (S @ torch.linalg.solve(M, Z.T) / len(S)).detach().numpy()


def test_influence_is_the_written_out_formula(job):
    model, train, test = job
    few = (train[0][:60], train[1][:60])
    explainer = Explainer(model, damping=0.01, progress=False).fit(few)
    expected = literal_influence(model, few, test, damping=0.01)
    actual = explainer.influence(test)
    assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.9999
    np.testing.assert_allclose(actual, expected, rtol=0.02, atol=2e-3 * np.abs(expected).max())


def test_a_wide_sketch_agrees_with_the_exact_embedding(job):
    model, train, test = job
    exact = Explainer(model, progress=False).fit(train)
    sketched = Explainer(model, sketch=600, progress=False).fit(train)
    assert exact.features.share > 0.9999
    assert 0.97 < sketched.features.share < 1.0
    assert sketched.features.damping == pytest.approx(exact.features.damping, rel=0.05)
    a, b = exact.influence(test), sketched.influence(test)
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.99


def test_explanation_of_a_network(job):
    model, train, test = job
    answer = exempla.explain(model, train, test, k=5, progress=False)
    assert len(answer) == 5
    assert (answer.alignment < 0).all()
    assert answer.damping_rule.startswith("per-effective-row")


def test_last_layer_only(job):
    model, train, test = job
    explainer = Explainer(model, parameters="6.*", progress=False).fit(train)
    assert explainer.embeddings[0].oracle.n_parameters == 170
    assert explainer.influence(test).shape == (200, 20)


def test_ensembles_average_kernels(job):
    model, train, test = job
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    each = [Explainer(m, progress=False).fit(train).influence(test) for m in (model, other)]
    both = Explainer([model, other], progress=False).fit(train).influence(test)
    np.testing.assert_allclose(both, np.mean(each, axis=0), rtol=1e-6)


def test_an_ensemble_whose_models_are_embedded_in_different_ways(job, monkeypatch):
    model, train, test = job
    sure = copy.deepcopy(model)
    with torch.no_grad():
        sure[-1].weight.mul_(10)  # few classes carry probability: few Fisher rows
    parts = []
    for one, limit in ((model, 0), (sure, 10**6)):  # sketched, and exact in the dual
        monkeypatch.setattr("exempla.kernel.sketch.PRIMAL_LIMIT", 0)
        monkeypatch.setattr("exempla.kernel.sketch.DUAL_LIMIT", limit)
        parts.append(Explainer(one, progress=False).fit(train).embeddings[0])
    assert {type(part.rows) for part in parts} == {np.ndarray, torch.Tensor}
    answers = []
    for order in (parts, parts[::-1]):
        both = Explainer([model, sure], progress=False)
        both._embeddings = list(order)
        answers.append(both.explain(test, k=5))
    assert list(answers[0].indices) == list(answers[1].indices)


def test_damping_changes_without_embedding_again(job, monkeypatch):
    model, train, test = job
    explainer = Explainer(model, sketch=100, progress=False).fit(train)
    oracle = explainer.embeddings[0].oracle
    first = explainer.influence(test)  # the first question looks at what the sketch leaves out
    monkeypatch.setattr(
        type(oracle), "fisher_rows", lambda *_: pytest.fail("the Fisher was estimated again")
    )
    second = explainer.set_damping(1.0).influence(test)
    assert np.abs(second).max() < np.abs(first).max()


def test_save_and_load(tmp_path, job):
    model, train, test = job
    explainer = Explainer(model, sketch=100, progress=False).fit(train)
    again = Explainer.load(explainer.save(tmp_path / "network.joblib"))
    np.testing.assert_allclose(again.influence(test), explainer.influence(test))


def test_checkpoints_are_models(tmp_path, job, monkeypatch):
    # levelling applies to a run, not to models given one by one
    monkeypatch.setattr("exempla.kernel.solve.LEVELLING_EXPONENT", 0.0)
    model, train, test = job
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.mul_(1.1)
    torch.save(other.state_dict(), tmp_path / "other.pt")
    given = {"damping": 0.01, "progress": False}  # … by the automatic damping, too
    expected = Explainer([model, other], **given).fit(train).influence(test)
    for checkpoint in (other.state_dict(), tmp_path / "other.pt", str(tmp_path / "other.pt")):
        found = Explainer([model, checkpoint], **given).fit(train).influence(test)
        np.testing.assert_allclose(found, expected)


def test_checkpoints_that_do_not_fit_are_said(tmp_path, job):
    model = job[0]
    torch.save(model, tmp_path / "whole.pt")  # a pickled model would run code when read
    with pytest.raises(exempla.ExemplaError, match="weights alone"):
        Explainer([model, tmp_path / "whole.pt"])
    with pytest.raises(exempla.ExemplaError, match="does not fit"):
        Explainer([model, nn.Linear(2, 2).state_dict()])
    with pytest.raises(exempla.ExemplaError, match="no file"):
        Explainer([model, tmp_path / "nothing.pt"])


# ---- several threads


def restless(model):
    """A copy in training mode, a part of it frozen, with dropout: much to put back."""
    model = copy.deepcopy(model)
    model.insert(6, nn.Dropout(0.5))
    model[0].requires_grad_(False)
    return model.train()


@pytest.mark.parametrize("sketch", ["exact", 60])
def test_threads_share_an_explainer(job, sketch):
    model, train, test = job
    few = (test[0][:5], test[1][:5])
    explainer = Explainer(restless(model), sketch=sketch, progress=False).fit(train)
    jobs = [
        lambda: explainer.influence(test),
        lambda: explainer.explain(few, k=4).indices,
        lambda: explainer.influence(few),
        lambda: explainer.explain(test, k=4).weights,
        explainer.self_influence,
        lambda: explainer.affinity([3, 1], few),
    ]
    alone = [one() for one in jobs]
    for expected, got in zip(alone, hammered(jobs), strict=True):
        for one in got:
            np.testing.assert_allclose(one, expected, rtol=1e-12)
    assert all(m.training for m in explainer.model.modules())


def test_explainers_of_one_model_in_threads(job):
    model, train, test = job
    shared = restless(model)

    def fitted(**options):
        return Explainer(shared, sketch=60, progress=False, **options).fit(train).influence(test)

    jobs = [lambda: fitted(), lambda: fitted(parameters="7.*"), lambda: fitted(fisher="identity")]
    alone = [one() for one in jobs]
    for expected, got in zip(alone, hammered(jobs, times=2), strict=True):
        for one in got:
            np.testing.assert_allclose(one, expected, rtol=1e-12)
    assert all(m.training for m in shared.modules())
    assert not shared[0].weight.requires_grad


def test_examples_that_are_not_finite_are_named_in_the_thread_that_asked(job):
    model, train, _ = job
    explainer = Explainer(model, progress=False).fit(train)
    broken = train[0][:6].clone()
    broken[4] = float("nan")

    def refused():
        with pytest.raises(exempla.ExemplaError, match=r"rows 4\)"):
            explainer.influence((broken, train[1][:6]))

    def fine():
        return explainer.influence((train[0][:6], train[1][:6]))

    expected = fine()
    _, got = hammered([refused, fine])
    for one in got:
        np.testing.assert_allclose(one, expected, rtol=1e-12)


@pytest.mark.parametrize("sketch", ["auto", "exact", 30])
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian", "multilabel"])
def test_rows_of_the_fisher_pass_are_those_of_a_scoring_pass(likelihood, sketch, monkeypatch):
    """The Fisher row of the given label is a multiple of the score; other examples are scored."""
    torch.manual_seed(0)
    X, weights = torch.randn(40, 6), torch.rand(40) + 0.5
    outputs = {"categorical": 4, "multilabel": 3}.get(likelihood, 1)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, outputs))
    with torch.no_grad():
        model[2].weight *= 40  # some labels get a probability below the cut
    y = {
        "categorical": torch.arange(40) % 4,
        "bernoulli": (torch.arange(40) % 2).float()[:, None],
        "gaussian": torch.randn(40, 1),
        "multilabel": (torch.rand(40, 3) > 0.5).float(),
    }[likelihood]
    if sketch == "exact":  # the dual form
        monkeypatch.setattr("exempla.kernel.sketch.PRIMAL_LIMIT", 0)
    explainer = Explainer(model, likelihood=likelihood, sketch=sketch, progress=False)
    embedding = explainer.fit((X, y, weights)).embeddings[0]
    batches = embedding.oracle.scores(embedding.train)
    expected = np.concatenate([to_numpy(embedding.sketch.project(b)) for b in batches])
    rows = to_numpy(embedding.rows)
    np.testing.assert_allclose(rows, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    batches = embedding.oracle.fisher_rows(embedding.train)
    known = {int(i) for b in batches for i in b.sample[b.to_score != 0]}
    assert (len(known) == 40) is (likelihood in ("bernoulli", "gaussian"))
    assert known or likelihood == "multilabel"
