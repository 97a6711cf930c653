"""The last linear layer of a torch module: its inputs, recorded in one forward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.torch.likelihood import FamilyHead
from exempla.oracles.torch.oracle import TorchOracle
from exempla.recorder.weights import unwrap_module
from exempla.tasks.summarize.last_layer import LastLayer, given_weights

_TOLERANCE = 1e-3
"""Log-likelihoods from the noted inputs and from the model itself may differ by this much."""


def read_torch_layer(
    model: nn.Module, train: Any, likelihood: Any, parameters: Any, device: Any
) -> LastLayer:
    """The module's last linear layer with the training data in it."""
    name = _linear_layer(unwrap_module(model), parameters)
    oracle = TorchOracle(model, likelihood, unwrap_module(model).get_submodule(name), device)
    examples = oracle.read(train, role="train")
    if not isinstance(oracle.head, FamilyHead) or oracle.head.link != "logits":
        raise UnsupportedModelError(
            f"a model under the {oracle.likelihood} likelihood cannot be summarised: it takes one "
            "that returns logits, means or log-rates, one vector per example."
        )
    # the oracle may work on a copy on another device: the layer is found there by its name
    layer = unwrap_module(oracle.model).get_submodule(name)
    assert isinstance(layer, nn.Linear)
    seen: list[np.ndarray] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].detach().double().cpu().numpy())

    handle = layer.register_forward_pre_hook(note)
    try:
        theirs = oracle.log_likelihood(examples)
    finally:
        handle.remove()
    last = _assemble(layer, seen, examples.labels, oracle.head.family, given_weights(train))
    ours = last.family.log_prob(last.a @ last.theta, last.codes)
    if not np.allclose(ours, theirs, atol=_TOLERANCE, rtol=_TOLERANCE):
        raise UnsupportedModelError(
            "the chosen layer's outputs are not the model's: name the last linear layer with "
            "parameters=."
        )
    return last if examples.ids is None else replace(last, ids=np.asarray(examples.ids))


def _assemble(
    layer: nn.Linear, seen: list[np.ndarray], labels: Any, family: Any, counts: Any
) -> LastLayer:
    """Inputs with their ones, labels and parameters in NumPy."""
    if labels is None:
        raise ExemplaError("the training data has no labels: give (X, y).")
    if any(part.ndim != 2 for part in seen):
        raise UnsupportedModelError(
            "the last linear layer sees several positions of an example: a summary needs one "
            "that sees each example once."
        )
    a = np.concatenate(seen)
    theta = layer.weight.detach().double().cpu().numpy().T
    if layer.bias is not None:
        theta = np.vstack([theta, layer.bias.detach().double().cpu().numpy()])
        a = np.hstack([a, np.ones((len(a), 1))])
    return LastLayer(a, np.asarray(labels), family, theta, np.zeros(len(theta)), None, counts)


def _linear_layer(model: nn.Module, wanted: Any) -> str:
    """Name of the wanted linear layer, or of the last one of the module."""
    if isinstance(wanted, (list, tuple)) and len(wanted) == 1:
        wanted = wanted[0]
    found = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    if wanted is None and found:
        return list(found)[-1]
    for name, module in found.items():
        if module is wanted or (isinstance(wanted, str) and wanted in (name, name + ".weight")):
            return name
    raise UnsupportedModelError(
        f"parameters={wanted!r} is not one linear layer of the model; its linear layers are "
        f"{list(found) or 'none'}."
    )
