"""Many networks of one kind trained at once, each on rows of its own: `vmap` over the networks.

Three hundred networks of ten thousand parameters keep a GPU as busy as one of three million. The
arithmetic of each is that of a plain loop over its own batches. Two layers are written in another
way while training, for speed under `vmap`: a convolution is a product of patches, and batch norm
keeps no running moments; these are measured once at the end, over the network's training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from benchmarks.truths.settings import Setting

__all__ = ["State", "loaded", "logits_of", "train_many"]

State = dict[str, Tensor]


def train_many(
    make: Callable[[], nn.Module],
    setting: Setting,
    X: Tensor,
    y: Tensor,
    rows: Tensor,
    seeds: list[int],
    moments: int = 1,
    loss: Callable[..., Tensor] = F.cross_entropy,
    weights_of_rows: Tensor | None = None,
    snapshots_of: int | None = None,
    common_order: bool = False,
) -> list[list[State]]:
    """The weights of every network at `moments` evenly spaced steps, the last included.

    `rows` (networks, examples) are the training rows of each, `seeds` what each starts from,
    `loss` what a batch's outputs and labels cost. With `weights_of_rows` (networks, all examples)
    the loss of each example counts that often. Networks after the first `snapshots_of` keep their
    last weights only. With `common_order` networks of one seed read their rows in one order.
    """
    networks = []
    for seed in seeds:
        torch.manual_seed(seed)
        networks.append(make())
    weights, _ = stack_module_state([without_moments(network) for network in networks])
    weights = {name: w.detach().to(X.device).requires_grad_() for name, w in weights.items()}
    base = for_training(without_moments(make())).to(X.device)

    def cost(one: State, x: Tensor, label: Tensor, weight: Tensor | None) -> Tensor:
        outputs = functional_call(base, one, (x,))
        if weight is None:
            return loss(outputs, label)
        return (loss(outputs, label, reduction="none") * weight).mean()

    costs = vmap(cost, (0, 0, 0, None if weights_of_rows is None else 0))
    places = np.unique(seeds, return_inverse=True)[1] if common_order else np.arange(len(seeds))
    order_of, orders = torch.from_numpy(places).to(X.device), int(places.max()) + 1
    optimizer = make_optimizer(setting, list(weights.values()))
    generator = torch.Generator(X.device).manual_seed(seeds[0])
    per_epoch = rows.shape[1] // setting.batch
    assert per_epoch, "fewer rows than a batch"
    total_steps = setting.epochs * per_epoch
    asked = {round(total_steps * part / moments) for part in range(1, moments + 1)}
    kept: list[list[State]] = [[] for _ in seeds]
    step = 0
    for _ in range(setting.epochs):
        size = (orders, rows.shape[1])
        order = torch.rand(size, generator=generator, device=X.device).argsort(1)[order_of]
        order = rows.gather(1, order)[:, : per_epoch * setting.batch]
        for batch in order.split(setting.batch, 1):
            weight = None if weights_of_rows is None else weights_of_rows.gather(1, batch)
            total = costs(weights, X[batch], y[batch], weight).sum()  # a gradient of its own each
            own = list(weights.values())
            for weight, found in zip(own, torch.autograd.grad(total, own), strict=True):
                weight.grad = found
            optimizer.step()
            step += 1
            if step in asked:
                for i in range(len(kept) if step == total_steps else snapshots_of or len(kept)):
                    kept[i].append({k: w[i].detach().clone() for k, w in weights.items()})
    return [
        [with_moments(make, state, X[own]) for state in states]
        for own, states in zip(trained_rows(rows, weights_of_rows), kept, strict=True)
    ]


def trained_rows(rows: Tensor, weights: Tensor | None) -> list[Tensor]:
    """The rows of each network that count."""
    if weights is None:
        return list(rows)
    return [own[weight[own] > 0] for own, weight in zip(rows, weights, strict=True)]


def make_optimizer(setting: Setting, weights: list[Tensor]) -> torch.optim.Optimizer:
    if setting.optimizer == "adam":
        return torch.optim.AdamW(weights, lr=setting.rate, weight_decay=setting.decay)
    return torch.optim.SGD(
        weights, lr=setting.rate, momentum=setting.momentum, weight_decay=setting.decay
    )


def without_moments(network: nn.Module) -> nn.Module:
    """Batch norm by the batch's own moments."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network


def for_training(network: nn.Module) -> nn.Module:
    """Convolutions as products of patches: grouped convolutions are slow under `vmap`."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.forward = partial(by_patches, module)
    return network


def by_patches(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution of stride 1 that keeps the size; shifted copies, as `F.unfold` goes one
    example at a time."""
    (height, width), (side, _) = x.shape[-2:], layer.kernel_size
    padded = F.pad(x, (side // 2,) * 4)
    shifted = [padded[..., i : i + height, j : j + width] for i in range(side) for j in range(side)]
    patches = torch.stack(shifted, -3).flatten(-4, -3).flatten(-2)
    made = layer.weight.flatten(1) @ patches
    if layer.bias is not None:
        made = made + layer.bias[:, None]
    return made.unflatten(-1, (height, width))


def with_moments(make: Callable[[], nn.Module], state: State, X: Tensor) -> State:
    """The state of the plain network, running moments of batch norm measured over X."""
    network = make()
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms:
        return state
    network.load_state_dict(state, strict=False)
    network.to(X.device).train()
    for norm in norms:
        norm.momentum = None  # the plain mean over the batches
    with torch.no_grad():
        for batch in X.split(250):
            network(batch)
    return network.state_dict()


def loaded(make: Callable[[], nn.Module], state: State, device: torch.device | str) -> nn.Module:
    """A network with these weights, ready to predict."""
    network = make()
    network.load_state_dict(state)
    return network.to(device).eval()


def logits_of(make: Callable[[], nn.Module], states: list[State], X: Tensor) -> Tensor:
    """(networks, examples, classes)."""
    with torch.no_grad():
        return torch.stack([loaded(make, state, X.device)(X) for state in states])
