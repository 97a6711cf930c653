"""A small decoder in plain torch, so that every peer can take it, and its training.

Layers are `nn.Linear` and `nn.LayerNorm`, which all the peers know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

__all__ = ["Decoder", "token_losses", "train"]

WIDTH, HEADS, LAYERS, LONGEST = 64, 4, 2, 48
EPOCHS, BATCH, RATE, DECAY = 20, 32, 6e-3, 0.01
IGNORED = -100


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.attend(self.before(x)).view(n, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Decoder(nn.Module):
    """Token numbers (n, T) to logits (n, T, V). Texts are padded on the right, so no mask is
    needed: nothing looks ahead."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words, bias=False)

    def hidden(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        return self.norm(self.blocks(self.words(input_ids) + self.places(places)))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.hidden(input_ids))


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p of every token that counts, (n, T − 1); 0 elsewhere."""
    flat = F.cross_entropy(
        logits[:, :-1].flatten(0, 1),
        labels[:, 1:].flatten(),
        reduction="none",
        ignore_index=IGNORED,
    )
    return flat.view(len(labels), -1)


def train(
    ids: Tensor,
    labels: Tensor,
    words: int,
    seed: int = 0,
    recorder: Callable[[nn.Module, Optimizer], Any] | None = None,
) -> Decoder:
    """From scratch with AdamW on one cycle; the mean over tokens of a batch is the loss.

    `recorder(model, optimiser)` makes something whose `step()` is called after every step, and
    `finish()` at the end.
    """
    torch.manual_seed(seed)
    model = Decoder(words)
    steps = EPOCHS * -(-len(ids) // BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    record = recorder(model, optimiser) if recorder else None
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(ids)).split(BATCH):
            length = int((labels[batch] != IGNORED).sum(1).max()) + 1
            some, wanted = ids[batch, :length], labels[batch, :length]
            loss = token_losses(model(some), wanted).sum() / (wanted[:, 1:] != IGNORED).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            if record is not None:
                record.step()
    if record is not None:
        record.finish()
    return model.eval()
