"""Which likelihood a network was trained with, as far as its outputs and labels tell."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from exempla.errors import ExemplaError
from exempla.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from exempla.oracles.torch.inputs.batch import Batch
from exempla.oracles.torch.likelihood.heads import FamilyHead, Head, MultiLabel
from exempla.oracles.torch.likelihood.tokens import TokenHead

__all__ = ["choose_head", "outputs_of"]

NAMES = ("categorical", "bernoulli", "multilabel", "gaussian", "poisson", "causal_lm", "tokens")


def outputs_of(result: Any, n: int) -> Tensor:
    """The tensor of outputs in whatever the model returns, one row per example."""
    if hasattr(result, "logits"):
        result = result.logits
    elif isinstance(result, dict):
        result = next((result[k] for k in ("logits", "output", "outputs") if k in result), result)
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    if not isinstance(result, Tensor):
        raise ExemplaError(
            f"the model returns {type(result).__name__}: exempla needs a tensor, something with "
            ".logits, or a likelihood of your own, Custom(log_prob)."
        )
    if result.ndim == 0 or len(result) != n:
        raise ExemplaError(
            f"the model returns {tuple(result.shape)} for {n} examples: the first axis of its "
            "output must be the examples."
        )
    return result


def choose_head(wanted: Any, model: nn.Module, outputs: Tensor, batch: Batch, draws: int) -> Head:
    """The head by name, or by what outputs and labels look like."""
    if isinstance(wanted, Head):
        return wanted
    if isinstance(wanted, Likelihood):
        return FamilyHead(wanted, draws=draws)
    if isinstance(wanted, str) and wanted == "auto":
        wanted = infer(model, outputs, batch)
    if isinstance(wanted, str) and wanted in ("causal_lm", "tokens"):
        return TokenHead(shift=wanted == "causal_lm", draws=draws)
    families: dict[str, Likelihood] = {
        family.name: family
        for family in (Categorical(), Bernoulli(), MultiLabel(), Gaussian(), Poisson())
    }
    if not isinstance(wanted, str) or wanted not in families:
        raise ExemplaError(
            f"likelihood={wanted!r} is not known: use 'auto', {', '.join(map(repr, NAMES))}, or "
            "Custom(log_prob)."
        )
    link = "probabilities" if gives_probabilities(wanted, model, outputs) else "logits"
    return FamilyHead(families[wanted], link, draws)


def infer(model: nn.Module, outputs: Tensor, batch: Batch) -> str:
    """The likelihood's name, from the batch's labels and the outputs of some of its examples."""
    labels = batch.labels
    kind = type(model).__name__
    if outputs.ndim == 3 and (labels is None or labels.shape[1:2] == outputs.shape[1:2]):
        aligned = not hasattr(model, "config") or "TokenClassification" in kind or "Masked" in kind
        return "tokens" if aligned and labels is not None else "causal_lm"
    if labels is None:
        raise ExemplaError(
            "the likelihood cannot be told without labels: give labels, or name it "
            "(likelihood='categorical', for example)."
        )
    if not isinstance(labels, Tensor) or labels.ndim == 0:
        raise ExemplaError("the labels are no array: give one label for every example.")
    numbers = labels.is_floating_point()
    yes_no = bool(((labels == 0) | (labels == 1)).all())
    single = outputs.ndim == 1 or outputs[0].numel() == 1
    one_each = labels.ndim == 1 or labels[0].numel() == 1
    if single and one_each and yes_no:
        return "bernoulli"
    if outputs.ndim == 2 and one_each and not numbers and not single:
        return "categorical"
    if labels.shape[1:] == outputs.shape[1:] and outputs.ndim == 2 and yes_no and not single:
        return "multilabel"
    if numbers and labels.shape[1:].numel() == outputs.shape[1:].numel():
        return "gaussian"
    raise ExemplaError(
        f"the likelihood cannot be told from outputs {tuple(outputs.shape)} and labels "
        f"{tuple(labels.shape)} of {str(labels.dtype).removeprefix('torch.')}: name it, as in "
        "likelihood='gaussian', or give Custom(log_prob)."
    )


def gives_probabilities(name: str, model: nn.Module, outputs: Tensor) -> bool:
    """True if the network ends in a softmax or sigmoid, so that its outputs are probabilities."""
    x = outputs.detach().float()
    if bool(((x < 0) | (x > 1)).any()):
        return False
    if name == "categorical":
        return bool(((x.sum(1) - 1).abs() < 1e-3).all())
    last = list(model.modules())[-1]
    return name in ("bernoulli", "multilabel") and isinstance(last, nn.Sigmoid)
