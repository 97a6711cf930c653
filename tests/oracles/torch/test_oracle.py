"""The torch oracle as a whole: likelihoods, weights, memory, and a user's mistakes."""

from __future__ import annotations

import doctest
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import exempla.oracles.torch.oracle as module
from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.oracles.likelihoods import Custom
from exempla.oracles.torch import likelihood as torch_likelihoods
from exempla.oracles.torch import model as torch_select
from exempla.oracles.torch.examples import ArraySource, TorchExamples
from exempla.oracles.torch.oracle import TorchOracle

N = 8


def mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def data(c: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, 4), torch.arange(N) % c


def written_out(rows: list) -> Tensor:
    return torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in rows])


def scores(oracle: TorchOracle, examples: object, labels: str = "true") -> Tensor:
    return written_out(list(oracle.scores(examples, labels)))  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [module, torch_likelihoods, torch_select])
def test_examples_in_docstrings(source: object) -> None:
    assert doctest.testmod(source).failed == 0  # type: ignore[arg-type]


# ---- likelihoods


@pytest.mark.parametrize(
    ("outputs", "labels", "name"),
    [
        (3, torch.arange(N) % 3, "categorical"),
        (1, torch.arange(N) % 2, "bernoulli"),
        (1, (torch.arange(N) % 2).float()[:, None], "bernoulli"),
        (3, torch.eye(3).repeat(3, 1)[:N], "categorical"),
        (3, torch.ones(3, 3).tril().repeat(3, 1)[:N], "multilabel"),
        (3, torch.full((N, 3), 1 / 3), "categorical"),
        (1, torch.randn(N), "gaussian"),
        (2, torch.randn(N, 2), "gaussian"),
    ],
)
def test_the_likelihood_is_told_from_the_labels(outputs: int, labels: Tensor, name: str) -> None:
    oracle = TorchOracle(mlp(outputs))
    oracle.read((data()[0], labels), role="train")
    assert oracle.likelihood == name


def test_gaussian_variance_is_the_mean_squared_residual() -> None:
    model, (x, _) = mlp(1), data()
    y = torch.randn(N)
    oracle = TorchOracle(model)
    train = oracle.read((x, y), role="train")
    residual = (model(x)[:, 0] - y).square().mean().item()
    assert oracle.head.family.variance == pytest.approx(residual)  # type: ignore[union-attr]
    normal = torch.distributions.Normal(model(x)[:, 0], residual**0.5)
    np.testing.assert_allclose(
        oracle.log_likelihood(train), normal.log_prob(y).detach().numpy(), rtol=1e-5
    )
    np.testing.assert_allclose(oracle.predict(train), model(x)[:, 0].detach().numpy(), rtol=1e-5)


def test_predicted_labels_and_predictions() -> None:
    model, (x, y) = mlp(), data()
    oracle = TorchOracle(model)
    train = oracle.read((x, y), role="train")
    predicted = model(x).argmax(1)
    np.testing.assert_array_equal(oracle.predict(train), predicted.numpy())
    other = oracle.read((x, predicted), role="test")
    torch.testing.assert_close(scores(oracle, train, "predicted"), scores(oracle, other))
    bare = oracle.read(x, role="test")
    assert bare.labels is None
    torch.testing.assert_close(scores(oracle, bare, "predicted"), scores(oracle, other))


def test_a_softmax_at_the_end_changes_nothing() -> None:
    model, (x, y) = mlp(), data()
    plain, ended = TorchOracle(model), TorchOracle(nn.Sequential(model, nn.Softmax(1)))
    a, b = (o.read((x, y), role="train") for o in (plain, ended))
    torch.testing.assert_close(scores(plain, a), scores(ended, b), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(plain.log_likelihood(a), ended.log_likelihood(b), rtol=1e-5)


def test_a_custom_likelihood_equal_to_the_built_in_one() -> None:
    model, (x, y) = mlp(), data()

    def log_prob(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]).log_softmax(1).gather(1, batch[1][:, None])[:, 0]

    def sample(model: nn.Module, batch: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple:
        p = model(batch[0]).softmax(1)
        return batch[0], torch.multinomial(p, 1, generator=generator)[:, 0]

    built_in, own = TorchOracle(model), TorchOracle(model, Custom(log_prob, sample), draws=800)
    a, b = (o.read((x, y), role="train") for o in (built_in, own))
    torch.testing.assert_close(scores(built_in, a), scores(own, b))
    np.testing.assert_allclose(built_in.log_likelihood(a), own.log_likelihood(b), rtol=1e-5)
    exact, sampled = (written_out(list(o.fisher_rows(e))) for o, e in ((built_in, a), (own, b)))
    exact, sampled = exact.T @ exact, sampled.T @ sampled
    assert (exact - sampled).norm() < 0.1 * exact.norm()
    assert "sampled" in own.fisher_note
    empirical = TorchOracle(model, log_prob)  # a function alone
    train = empirical.read((x, y), role="train")
    torch.testing.assert_close(
        written_out(list(empirical.fisher_rows(train))), scores(empirical, train)
    )
    assert "empirical" in empirical.fisher_note


def test_many_classes_are_exact_at_the_top_and_sampled_below() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 50).double()
    with torch.no_grad():
        model.weight *= 2
    x = torch.randn(2, 4, dtype=torch.float64)
    oracle = TorchOracle(model, draws=1000)
    train = oracle.read((x, torch.tensor([3, 49])), role="train")
    rows = written_out(list(oracle.fisher_rows(train)))
    p = model(x).softmax(1).detach()
    a = torch.cat([x, torch.ones(2, 1, dtype=torch.float64)], 1)
    want = sum(
        torch.kron(torch.outer(a[i], a[i]), torch.diag(p[i]) - torch.outer(p[i], p[i]))
        for i in range(2)
    )
    assert (rows.T @ rows - want).norm() < 0.08 * want.norm()  # type: ignore[operator]


def test_sampled_token_labels_estimate_the_fisher() -> None:
    torch.manual_seed(0)

    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 5)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.table(input_ids)

    model = Next().double()
    ids = torch.tensor([[1, 2, 3, 0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    oracle = TorchOracle(model, "causal_lm", draws=1500)
    train = oracle.read({"input_ids": ids, "attention_mask": mask}, role="train")
    rows = written_out(list(oracle.fisher_rows(train)))
    fisher = (rows.T @ rows).reshape(5, 5, 5, 5)
    p = model.table.weight.softmax(1).detach()
    for token in (1, 2):  # tokens 1 and 2 predict what follows; 3 is last, 0 is padding
        want = torch.diag(p[token]) - torch.outer(p[token], p[token])
        assert (fisher[token, :, token] - want).abs().max() < 0.04
    assert fisher[3].abs().max() == 0
    assert fisher[0].abs().max() == 0
    log_p = model.table.weight.detach().log_softmax(1)
    assert oracle.log_likelihood(train)[0] == pytest.approx(float(log_p[1, 2] + log_p[2, 3]))


def test_weights_scale_scores_and_fisher() -> None:
    model, (x, y) = mlp(), data()
    w = torch.rand(N) + 0.5
    oracle = TorchOracle(model)
    plain = oracle.read((x, y), role="train")
    weighted = oracle.read((x, y, w), role="train")
    torch.testing.assert_close(scores(oracle, weighted), w[:, None] * scores(oracle, plain))
    one, other = (list(oracle.fisher_rows(e)) for e in (plain, weighted))
    sample = torch.as_tensor(np.concatenate([r.sample for r in one]))
    torch.testing.assert_close(written_out(other), w.sqrt()[sample][:, None] * written_out(one))


def test_confident_examples_need_few_fisher_rows() -> None:
    """The most probable class first, and later ranks only where they carry probability."""
    model = nn.Linear(1, 10)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0] = 1.0
        model.bias.zero_()
    x = torch.tensor([[20.0]] * 5 + [[0.0]])
    oracle = TorchOracle(model)
    rows = list(oracle.fisher_rows(oracle.read((x, torch.zeros(6).long()), role="train")))
    counts = np.bincount(np.concatenate([r.sample for r in rows]), minlength=6)
    assert counts.tolist() == [1, 1, 1, 1, 1, 10]


# ---- parameters, memory, devices


def test_parameters_narrow_the_scores() -> None:
    model, (x, y) = mlp(), data()
    whole = TorchOracle(model)
    everything = scores(whole, whole.read((x, y), role="train"))
    for wanted in ("2", ["2.*"], model[2], ["2.weight", model[2].bias]):  # type: ignore[index]
        oracle = TorchOracle(model, parameters=wanted)
        part = scores(oracle, oracle.read((x, y), role="train"))
        assert [layer.name for layer in oracle.layers] == ["2"]
        torch.testing.assert_close(part, everything[:, 25:])
    assert all(p.requires_grad for p in model.parameters())


def test_out_of_memory_halves_the_batch_and_goes_on() -> None:
    class Greedy(nn.Module):
        sizes: list[int]

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.sizes = mlp(), []

        def forward(self, x: Tensor) -> Tensor:
            self.sizes.append(len(x))
            if len(x) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return self.inner(x)

    model, (x, y) = Greedy(), data()
    oracle, plain = TorchOracle(model, "categorical"), TorchOracle(model.inner)
    oracle.read((x[:3], y[:3]), role="train")
    everyone = TorchExamples(ArraySource((x, y)), oracle.form, weighted=True)
    want = plain.read((x, y), role="train")
    rows = list(oracle.scores(everyone))
    assert np.concatenate([r.sample for r in rows]).tolist() == list(range(N))
    torch.testing.assert_close(written_out(rows), scores(plain, want))
    oracle.batch_size = None
    mine, theirs = (
        written_out(list(o.fisher_rows(e))) for o, e in ((oracle, everyone), (plain, want))
    )
    torch.testing.assert_close(mine.T @ mine, theirs.T @ theirs)


def test_autocast_agrees_with_single_precision() -> None:
    model, (x, y) = mlp(), data()
    oracle, mixed = TorchOracle(model), TorchOracle(model)
    plain = scores(oracle, oracle.read((x, y), role="train"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = scores(mixed, mixed.read((x, y), role="train"))
    assert low.dtype == torch.float32
    assert (plain - low).norm() < 0.05 * plain.norm()
    assert not torch.equal(plain, low)


def test_another_device_uses_a_copy() -> None:
    model = mlp()
    assert TorchOracle(model, device="cpu").model is model
    away = TorchOracle(model, device="meta")
    assert away.device.type == "meta"
    assert all(p.device.type == "cpu" for p in model.parameters())


def test_wrappers_are_opened() -> None:
    model = mlp()
    assert TorchOracle(nn.DataParallel(model)).model is model


# ---- mistakes: one clear sentence each


def refused(message: str, model: nn.Module, given: object, likelihood: object = "auto") -> None:
    def attempt() -> None:
        oracle = TorchOracle(model, likelihood)
        list(oracle.scores(oracle.read(given, role="train")))

    with pytest.raises(ExemplaError, match=message) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_labels_out_of_range() -> None:
    x, y = data()
    refused("rows 2, 5.*correct", mlp(), (x, torch.where(torch.arange(N) % 3 == 2, 7, y)))
    refused("outside 0 … 2", mlp(), (x, y - 1))


def test_a_late_label_out_of_range_names_its_row() -> None:
    x, y = torch.randn(300, 4), torch.zeros(300).long()
    y[280] = 3
    refused("rows 280", mlp(), (x, y))


def test_a_loss_that_averages_over_the_batch() -> None:
    def mean(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return -nn.functional.cross_entropy(model(batch[0]), batch[1])

    refused("one log-probability per example", mlp(), data(), Custom(mean))


def test_nan_outputs_name_the_rows() -> None:
    x, y = data()
    x[3] = float("nan")
    refused("NaN or infinity \\(rows 3\\)", mlp(), (x, y))


def test_nothing_to_train() -> None:
    with pytest.raises(UnsupportedModelError, match="no trainable parameters"):
        TorchOracle(nn.ReLU())
    with pytest.raises(UnsupportedModelError, match="no trainable parameters"):
        TorchOracle(mlp().requires_grad_(False))


def test_parameters_that_are_not_there() -> None:
    model = mlp()
    with pytest.raises(ExemplaError, match="'head' is not in the model"):
        TorchOracle(model, parameters="head")
    model[0].requires_grad_(False)  # type: ignore[index]
    with pytest.raises(ExemplaError, match="only frozen parameters"):
        TorchOracle(model, parameters="0")


def test_parameters_the_output_does_not_depend_on() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = mlp(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    with pytest.raises(ExemplaError, match="do not depend"):
        TorchOracle(Idle(), parameters="idle").read(data(), role="train")


def test_a_model_that_mixes_its_batch_is_refused() -> None:
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    model = nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 3))
    refused("depend on which other examples", model, data())


def test_labels_that_do_not_fit_the_outputs() -> None:
    x, _ = data()
    refused("likelihood cannot be inferred", mlp(3), (x, torch.randn(N)))
    refused("one label per output", mlp(3), (x, torch.randn(N)), "gaussian")
    refused("other than 0 and 1", mlp(1), (x, torch.arange(N)), "bernoulli")
    refused("negative count", mlp(1), (x, -torch.ones(N)), "poisson")
    refused("not known", mlp(3), data(), "softmax")
    refused("no labels", mlp(3), x, "categorical")


def test_predicted_labels_where_they_mean_nothing() -> None:
    oracle = TorchOracle(mlp(1))
    train = oracle.read((data()[0], torch.randn(N)), role="train")
    with pytest.raises(ExemplaError, match="no meaning"):
        list(oracle.scores(train, "predicted"))


def test_no_cuda_here() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ExemplaError, match="no CUDA device"):
        TorchOracle(mlp(), device="cuda")


def test_the_fallback_speaks_once() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("ni,ij->nj", x, self.w)

    oracle = TorchOracle(Odd())
    with pytest.warns(ExemplaWarning, match="loop over examples.*: w"):
        train = oracle.read(data(), role="train")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (first,) = oracle.scores(train)  # by the loop, which vmap is compared with
        assert oracle.network.vmap_works
        (again,) = oracle.scores(train)
        oracle.read(data(), role="test")
    np.testing.assert_allclose(*(rows.factors[0].project(None, None) for rows in (again, first)))


class Changeable(nn.Module):
    """Does something else with more than five examples than the survey saw."""

    def __init__(self, reach: bool = False) -> None:
        super().__init__()
        self.first, self.other, self.reach = nn.Linear(4, 3), nn.Linear(4, 3), reach

    def forward(self, x: Tensor) -> Tensor:
        if len(x) <= 5:
            return self.first(x)
        if self.reach:
            return self.first(x) + self.other(x)
        return torch.einsum("ni,ji->nj", x, self.first.weight) + self.first.bias


def test_a_parameter_used_otherwise_than_in_the_survey() -> None:
    x, y = data()
    oracle = TorchOracle(model := Changeable(), parameters="first")
    oracle.read((x[:5], y[:5]), role="train")
    got = scores(oracle, oracle.read((x, y), role="train"))
    plain = TorchOracle(model.first)
    torch.testing.assert_close(got, scores(plain, plain.read((x, y), role="train")))


def test_a_parameter_the_survey_did_not_reach_is_said() -> None:
    x, y = data()
    oracle = TorchOracle(Changeable(reach=True))
    oracle.read((x[:5], y[:5]), role="train")
    assert [layer.name for layer in oracle.layers] == ["first"]
    with pytest.warns(ExemplaWarning, match=r"do not reach other\.bias, other\.weight"):
        list(oracle.scores(oracle.read((x, y), role="train")))


def test_layers_before_any_data() -> None:
    with pytest.raises(ExemplaError, match="unknown until data"):
        _ = TorchOracle(mlp()).layers
