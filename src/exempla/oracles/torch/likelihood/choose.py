"""Which likelihood a network was trained with, as far as its outputs and labels tell."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from exempla.errors import ExemplaError
from exempla.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from exempla.oracles.torch.inputs.batch import Batch
from exempla.oracles.torch.likelihood.heads import FamilyHead, Head, MultiLabel, are_shares
from exempla.oracles.torch.likelihood.tokens import IGNORED, TokenHead

__all__ = ["choose_head", "outputs_of"]

POSITIONS = ("causal_lm", "tokens", "pixels")
"""Likelihoods with a label at every position of an example."""
NAMES = ("categorical", "bernoulli", "multilabel", "gaussian", "poisson", *POSITIONS)
VOID = 255
"""The label of pixels that count for nothing in most segmentation data; −100 does as well."""


def outputs_of(result: Any, n: int) -> Tensor:
    """The tensor of outputs in whatever the model returns, one row per example."""
    if hasattr(result, "logits"):
        result = result.logits
    elif isinstance(result, dict):
        named = ("logits", "output", "outputs", "out")
        result = next((result[k] for k in named if k in result), result)
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    if is_detections(result):
        raise ExemplaError(
            "the model returns boxes, as detectors do, and a list of boxes has no likelihood that "
            "can be told from it: give likelihood=Custom(log_prob), where log_prob(model, batch) "
            "is minus the training loss of each image."
        )
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
    if isinstance(wanted, str) and wanted in POSITIONS:
        first = wanted == "pixels"
        void = (VOID,) if first and outputs.shape[1] <= VOID else ()
        return TokenHead(wanted == "causal_lm", draws, first, (IGNORED, *void))
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


def is_detections(result: Any) -> bool:
    return hasattr(result, "pred_boxes") or (isinstance(result, dict) and "boxes" in result)


def infer(model: nn.Module, outputs: Tensor, batch: Batch) -> str:
    """The likelihood's name, from the batch's labels and the outputs of some of its examples."""
    labels = batch.labels
    if labels is None and outputs.ndim == 3:
        return "causal_lm"
    if labels is None:
        raise ExemplaError(
            "the likelihood cannot be told without labels: give labels, or name it "
            "(likelihood='categorical', for example)."
        )
    if not isinstance(labels, Tensor) or labels.ndim == 0:
        raise ExemplaError("the labels are no array: give one label for every example.")
    found = of_positions(model, outputs, batch) or of_examples(outputs, labels)
    if found:
        return found
    raise ExemplaError(
        f"the likelihood cannot be told from outputs {tuple(outputs.shape)} and labels "
        f"{tuple(labels.shape)} of {str(labels.dtype).removeprefix('torch.')}: name it, as in "
        "likelihood='gaussian', or give Custom(log_prob)."
    )


def of_positions(model: nn.Module, outputs: Tensor, batch: Batch) -> str:
    """The name where every position of an example has a class number; "" elsewhere."""
    labels = batch.labels
    if outputs.ndim < 3 or labels.is_floating_point() or labels.ndim < 2:
        return ""
    places, images = tuple(labels.shape[1:]), outputs.ndim > 3
    if len(places) == outputs.ndim - 1 and places[0] == 1 and outputs.shape[1] > 1:
        places = places[1:]  # labels with a channel axis
    first, last = places == tuple(outputs.shape[2:]), places == tuple(outputs.shape[1:-1])
    if first and (images or not last):
        return "pixels"
    if last:
        return "causal_lm" if shifts(model, batch) else "tokens"
    if images and len(places) == outputs.ndim - 2:
        raise ExemplaError(
            f"the model returns {tuple(outputs.shape[1:])} per example and its labels are "
            f"{places}: a segmentation needs outputs of the labels' size; resize the labels, or "
            "give a module that enlarges the outputs."
        )
    return ""


def shifts(model: nn.Module, batch: Batch) -> bool:
    """Whether output t is for label t + 1, as Hugging Face's causal models have it."""
    if not hasattr(model, "config"):
        return False
    kinds = [type(module).__name__ for module in model.modules()]
    if any("CausalLM" in kind or "LMHead" in kind for kind in kinds):
        return True
    inputs = batch.kwargs.get("input_ids")
    if inputs is None or inputs.shape != batch.labels.shape:
        return False
    if any("Masked" in kind or "TokenClassification" in kind for kind in kinds):
        return False
    return bool(((batch.labels == inputs) | (batch.labels == IGNORED)).all())


def of_examples(outputs: Tensor, labels: Tensor) -> str:
    """The name where an example has one label, or one for each output; "" if it cannot be told."""
    numbers = labels.is_floating_point()
    yes_no = bool(((labels == 0) | (labels == 1)).all())
    single = outputs.ndim == 1 or outputs[0].numel() == 1
    one_each = labels.ndim == 1 or labels[0].numel() == 1
    if single and one_each and yes_no:
        return "bernoulli"
    if outputs.ndim == 2 and one_each and not numbers and not single:
        return "categorical"
    if labels.shape[1:].numel() != outputs.shape[1:].numel():
        return ""
    if outputs.ndim == 2 and not single and are_shares(labels):
        return "categorical"
    if yes_no and not single:
        return "multilabel"
    return "gaussian" if numbers else ""


def gives_probabilities(name: str, model: nn.Module, outputs: Tensor) -> bool:
    """True if the network ends in a softmax or sigmoid, so that its outputs are probabilities."""
    x = outputs.detach().float()
    if bool(((x < 0) | (x > 1)).any()):
        return False
    if name == "categorical":
        return bool(((x.sum(1) - 1).abs() < 1e-3).all())
    last = list(model.modules())[-1]
    return name in ("bernoulli", "multilabel") and isinstance(last, nn.Sigmoid)
