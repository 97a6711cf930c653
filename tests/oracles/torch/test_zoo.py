"""Every network of the zoo: factors multiplied out equal plain autograd, sample by sample.

With EXEMPLA_TEST_DEVICE=cuda the same on a GPU.
"""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from exempla.errors import ExemplaWarning
from exempla.oracles.base import CLASS_CUT
from exempla.oracles.torch.examples import TorchExamples
from exempla.oracles.torch.likelihood import Head
from exempla.oracles.torch.oracle import TorchOracle
from tests.oracles.torch import zoo as zoo

DEVICE = os.environ.get("EXEMPLA_TEST_DEVICE", "cpu")
torch.backends.cudnn.allow_tf32 = False  # 1e-4 needs the digits that TF32 drops


def build(name: str) -> tuple[zoo.Case, TorchOracle, TorchExamples]:
    torch.manual_seed(sum(map(ord, name)))
    case = zoo.CASES[name]()
    case.model.to(DEVICE).train()
    oracle = TorchOracle(case.model, case.likelihood, case.parameters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        examples = oracle.read(case.data, role="train")
    said = " ".join(str(w.message) for w in caught if w.category is ExemplaWarning)
    assert all(name in said for name in case.fallback)
    assert bool(case.fallback) == bool(said)
    return case, oracle, examples


def by_autograd(oracle: TorchOracle, outputs: Tensor, cotangent: Tensor) -> Tensor:
    """One example's gradient of ⟨outputs, cotangent⟩, in the order of the oracle's layers."""
    parameters = oracle.network.parameters
    found = torch.autograd.grad(
        outputs, list(parameters.values()), cotangent, retain_graph=True, allow_unused=True
    )
    gradients = {}
    for (name, p), g in zip(parameters.items(), found, strict=True):
        whole = torch.zeros_like(p) if g is None else g
        gradients[name] = whole[None].to(torch.promote_types(p.dtype, torch.float32))
    return torch.cat([b.pack(gradients).flatten() for b in oracle.network.blocks])


def recurrent_backward() -> AbstractContextManager[None]:
    """cuDNN's recurrent layers cannot be pulled back in evaluation mode; torch's own can."""
    return torch.backends.cudnn.flags(enabled=DEVICE == "cpu")


def close(got: Tensor, want: Tensor, tolerance: float) -> bool:
    return bool((got - want).norm() <= tolerance * want.norm())


@pytest.mark.parametrize("name", zoo.CASES)
def test_scores_equal_autograd(name: str) -> None:
    case, oracle, examples = build(name)
    rows = list(oracle.scores(examples))
    scores = torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in rows])
    assert all(m.training for m in case.model.modules())
    planned = {x for block in oracle.network.blocks for x in block.parameters}
    assert planned == set(oracle.network.parameters) or name == "hf_vit"
    assert {b.weight for b in oracle.network.blocks if b.kind == "fallback"} == set(case.fallback)
    case.model.eval()
    assert isinstance(oracle.head, Head)
    for i in range(zoo.N):
        (batch,) = examples.read(i, i + 1)
        with recurrent_backward():
            outputs = oracle.run(case.model, batch)
            value = oracle.head.log_prob(outputs, batch).sum()
            want = by_autograd(oracle, value, torch.ones_like(value))
        assert want.norm() > 0
        assert close(scores[i], want, case.tolerance), (name, i)


SAMPLED = (
    "gpt2", "llama", "tied_weights", "segmentation", "tagger", "tagger_classes_first", "t5",
    "mixtral_grouped", "mixtral_one_by_one",
)  # fmt: skip
"""Cases with a label at every position, whose Fisher is sampled."""


@pytest.mark.parametrize("name", [n for n in zoo.CASES if n not in SAMPLED])
def test_fisher_rows_sum_to_the_expectation(name: str) -> None:
    """Σ r rᵀ against E_y[s sᵀ] with every label written out, along random directions."""
    case, oracle, examples = build(name)
    rows = list(oracle.fisher_rows(examples))
    dense = torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in rows]).double()
    sample = torch.cat([torch.as_tensor(r.sample) for r in rows]).to(DEVICE)
    directions = torch.randn(dense.shape[1], 4, dtype=torch.float64).to(DEVICE)
    case.model.eval()
    for i in range(zoo.N):
        (batch,) = examples.read(i, i + 1)
        with recurrent_backward():
            outputs = oracle.run(case.model, batch)
        want = torch.zeros(4, 4, dtype=torch.float64, device=DEVICE)
        for p, cotangent in expectation(oracle, outputs):
            s = by_autograd(oracle, outputs, cotangent).double() @ directions
            want += p * torch.outer(s, s)
        mine = dense[sample == i] @ directions
        assert close(mine.T @ mine, want, max(1e-3, case.tolerance)), (name, i)


def expectation(oracle: TorchOracle, outputs: Tensor) -> list[tuple[float, Tensor]]:
    """(probability, ∂ log p/∂outputs) over all labels; for the Gaussian an equivalent basis."""
    x = outputs.detach().double()
    kind = oracle.likelihood
    head = oracle.head
    if kind == "categorical":
        p = x if getattr(head, "link", "") == "probabilities" else x.softmax(1)
        out = []
        for c in range(x.shape[1]):
            e = torch.zeros_like(p)
            e[0, c] = 1.0
            g = e / p if getattr(head, "link", "") == "probabilities" else e - p
            if p[0, c] > CLASS_CUT:
                out.append((float(p[0, c]), g.to(outputs.dtype)))
        return out
    if kind in ("bernoulli", "multilabel"):
        p = x.sigmoid().flatten()
        out = []
        for answer in torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).to(p)] * len(p)).reshape(
            -1, len(p)
        ):
            weight = torch.where(answer == 1, p, 1 - p).prod()
            out.append((float(weight), (answer - p).reshape(outputs.shape).to(outputs.dtype)))
        return out
    scale = x.exp() if kind == "poisson" else torch.full_like(x, 1 / head.family.variance)
    basis = torch.eye(x.numel()).reshape(-1, *outputs.shape).to(outputs)
    return [(float(scale.flatten()[d]), basis[d]) for d in range(x.numel())]
