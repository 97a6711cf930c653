"""Plain networks: kinds of label, and what people wrap a network into."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.habits.base import ASKED, COUNT, Job, Planted, epoch_of, kind, plant

N = COUNT + ASKED
Loss = Callable[[Tensor, Tensor], Tensor]


def blobs() -> tuple[Tensor, Tensor]:
    """Vectors of two classes, far apart."""
    Y = torch.arange(N) % 2
    return torch.randn(N, 6) + 3.0 * torch.eye(6)[Y], Y


def mlp(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, outputs))


def classified(model: Any, handed: Any = None, **options: Any) -> Job:
    """A network with one class an example, trained; `handed` is what exempla is given."""
    X, Y = blobs()
    data = plant(X, Y, 1 - Y[-ASKED:])
    return trained(model, data, F.cross_entropy, handed, **options)


def trained(model: Any, data: Planted, loss: Loss, handed: Any = None, **options: Any) -> Job:
    learn = epoch_of(model, lambda rows: loss(model(data.X[rows]), data.Y[rows]))
    given = model if handed is None else handed
    return Job(given, data.train, data.asked, data.where, learn, options=options)


# ---- labels


@kind("labels", "one class number each")
def classes() -> Job:
    return classified(mlp())


@kind("labels", "one-hot, in floats")
def one_hot() -> Job:
    X, Y = blobs()
    data = plant(X, torch.eye(2)[Y], torch.eye(2)[1 - Y[-ASKED:]])
    return trained(mlp(), data, F.cross_entropy)


@kind("labels", "smoothed, a share of each class")
def smoothed() -> Job:
    X, Y = blobs()
    shares = 0.9 * torch.eye(2) + 0.05
    return trained(mlp(), plant(X, shares[Y], shares[1 - Y[-ASKED:]]), F.cross_entropy)


@kind("labels", "yes or no, one output")
def yes_or_no() -> Job:
    X, Y = blobs()
    data = plant(X, Y.float(), 1 - Y[-ASKED:].float())
    loss: Loss = lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y)  # noqa: E731
    return trained(mlp(1), data, loss)


@kind("labels", "several labels each (multi-label)")
def multilabel() -> Job:
    X = torch.randn(N, 6)
    Y = (X[:, :3] > 0).float()
    data = plant(X, Y, 1 - Y[-ASKED:])
    return trained(mlp(3), data, F.binary_cross_entropy_with_logits)


@kind("labels", "numbers (regression)")
def regression() -> Job:
    X = torch.randn(N, 6)
    Y = X[:, 0] + X[:, 1]
    loss: Loss = lambda out, y: F.mse_loss(out[:, 0], y)  # noqa: E731
    return trained(mlp(1), plant(X, Y, Y[-ASKED:] + 4.0), loss)


@kind("labels", "a contrastive loss of one's own (Custom)")
def contrastive() -> Job:
    """Pairs that belong together or do not: near or far in the space of the embedding."""
    same = torch.arange(N) % 2
    left = torch.randn(N, 6)
    right = torch.where(same[:, None] == 1, left + 0.2 * torch.randn(N, 6), torch.randn(N, 6))
    data = plant(torch.stack([left, right], 1), same, 1 - same[-ASKED:])
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))

    def log_prob(net: Any, batch: dict[str, Tensor]) -> Tensor:
        one, other = net(batch["left"]), net(batch["right"])
        near = 1.0 - (one - other).square().sum(1)
        return F.logsigmoid(torch.where(batch["same"] == 1, near, -near))

    def named(X: Tensor, Y: Tensor) -> dict[str, Tensor]:
        return {"left": X[:, 0], "right": X[:, 1], "same": Y}

    learn = epoch_of(model, lambda rows: -log_prob(model, named(data.X[rows], data.Y[rows])).mean())
    train, asked = named(*data.train), named(*data.asked)
    return Job(model, train, asked, data.where, learn, options={"likelihood": log_prob})


# ---- what a network is wrapped into, and parts of it


@kind("model", "frozen backbone, trained head")
def frozen_backbone() -> Job:
    model = mlp()
    model[0].requires_grad_(False)
    return classified(model)


@kind("model", "normalisation and dropout")
def norms() -> Job:
    return classified(
        nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.1),
            nn.LayerNorm(12), nn.Linear(12, 2),
        )
    )  # fmt: skip


class Detour(nn.Module):
    """A frozen layer in int8 with a trained low-rank detour, as quantised LoRA has it."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        weight = torch.randn(out, width) / width**0.5
        self.whole: Tensor
        self.scale = float(weight.abs().max()) / 127
        self.register_buffer("whole", (weight / self.scale).round().to(torch.int8))
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.whole.to(x.dtype) * self.scale) + self.up(self.down(x))


@kind("model", "base in int8, trained low-rank parts")
def quantised_lora() -> Job:
    return classified(nn.Sequential(Detour(6, 12), nn.Tanh(), Detour(12, 2)))


@kind("model", "quantised backbone (torch.ao), trained head")
def quantised_backbone() -> Job:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that it moves this elsewhere
        whole = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(6, 12)), {nn.Linear}, torch.qint8
        )
    return classified(nn.Sequential(whole[0], nn.Tanh(), nn.Linear(12, 2)))


@kind("model", "mixture of experts, of modules")
def experts() -> Job:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.head = nn.Linear(6, 3), nn.Linear(12, 2)
            self.experts = nn.ModuleList(nn.Linear(6, 12) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            gate, chosen = self.router(x).softmax(1).max(1)
            out = x.new_zeros(len(x), 12)
            for e, expert in enumerate(self.experts):
                here = (chosen == e).nonzero()[:, 0]
                out = out.index_add(0, here, expert(x[here]).tanh() * gate[here, None])
            return self.head(out)

    return classified(Experts())


@kind("model", "compiled")
def compiled() -> Job:
    model = mlp()
    return classified(model, torch.compile(model, backend="eager"))


@kind("model", "scripted")
def scripted() -> Job:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return classified(torch.jit.script(mlp()))


@kind("model", "DataParallel")
def data_parallel() -> Job:
    model = mlp()
    return classified(model, nn.DataParallel(model))


@kind("model", "DistributedDataParallel")
def distributed() -> Job:
    import torch.distributed as dist

    if not dist.is_initialized():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(mlp())
    return classified(model)


@kind("model", "under autocast")
def autocast() -> Job:
    model = mlp()
    X, Y = blobs()
    data = plant(X, Y, 1 - Y[-ASKED:])

    def loss(rows: list[int]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(data.X[rows]), data.Y[rows])

    job = Job(model, data.train, data.asked, data.where, epoch_of(model, loss))
    job.around = lambda: torch.autocast("cpu", torch.bfloat16)
    return job


@kind("model", "bfloat16")
def bfloat16() -> Job:
    model = mlp().bfloat16()
    X, Y = blobs()
    data = plant(X.bfloat16(), Y, 1 - Y[-ASKED:])
    return trained(model, data, F.cross_entropy)


def checkpointed(reentrant: bool) -> Job:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.middle, self.end = (
                nn.Linear(6, 12),
                nn.Linear(12, 12),
                nn.Linear(12, 2),
            )

        def forward(self, x: Tensor) -> Tensor:
            h = self.start(x)
            h = checkpoint(lambda h: self.middle(h.tanh()), h, use_reentrant=reentrant)
            return self.end(h.tanh())

    return classified(Checkpointed())


@kind("model", "gradient checkpointing")
def checkpointing() -> Job:
    return checkpointed(False)


@kind("model", "gradient checkpointing, re-entrant")
def checkpointing_reentrant() -> Job:
    return checkpointed(True)


@kind("model", "Lightning module, and its Trainer")
def lightning() -> Job:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    X, Y = blobs()
    data = plant(X, Y, 1 - Y[-ASKED:])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data.train), 16)
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(max_epochs=0, accelerator="cpu", enable_checkpointing=False, **quiet)
        trainer.fit(module := Module(), loader)

    def learn() -> None:
        assert trainer.max_epochs is not None
        trainer.fit_loop.max_epochs = trainer.current_epoch + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, loader)

    return Job(trainer, loader, data.asked, data.where, learn)
