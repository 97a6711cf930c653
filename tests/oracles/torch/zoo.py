"""Small networks of every kind, with data: what the torch oracle must score like autograd does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N = 6
"""Examples per case."""


@dataclass
class Case:
    model: nn.Module
    data: Any
    likelihood: Any = "auto"
    fallback: tuple[str, ...] = ()
    """Parameters expected to go by the fallback."""
    tolerance: float = 1e-4
    parameters: Any = None
    extra: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    CASES[build.__name__] = build
    return build


def classes(c: int = 3, n: int = N) -> Tensor:
    return torch.randint(0, c, (n,))


def flat(*layers: nn.Module, width: int = 5) -> Case:
    return Case(nn.Sequential(*layers), (torch.randn(N, width), classes()))


def images(*layers: nn.Module, size: tuple[int, ...] = (2, 8, 8)) -> Case:
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        out = body(torch.zeros(1, *size)).shape[1]
    return Case(nn.Sequential(body, nn.Linear(out, 3)), (torch.randn(N, *size), classes()))


# ---- plain layers


@case
def mlp() -> Case:
    return flat(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3))


@case
def mlp_inplace() -> Case:
    return flat(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3, bias=False))


@case
def conv1d() -> Case:
    return images(nn.Conv1d(2, 4, 3, stride=2, padding=2), nn.Tanh(), size=(2, 9))


@case
def conv2d() -> Case:
    return images(nn.Conv2d(2, 4, 3, stride=(2, 1), padding=(1, 0)), nn.ReLU(inplace=True))


@case
def conv3d() -> Case:
    return images(nn.Conv3d(2, 3, (2, 3, 1), dilation=(1, 1, 2), padding=1), size=(2, 4, 4, 4))


@case
def conv_grouped_dilated() -> Case:
    return images(
        nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding=2),
        nn.Conv2d(6, 6, 3, groups=6, bias=False),
        size=(4, 6, 6),
    )


@case
def conv_same_even_kernel() -> Case:
    return images(nn.Conv2d(2, 4, (4, 3), padding="same"), nn.Conv2d(4, 3, 2, padding="valid"))


@case
def conv_padding_modes() -> Case:
    return images(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"),
    )


@case
def norms() -> Case:
    model = images(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm([6, 6]),
    )
    with torch.no_grad():  # statistics that are not the batch's own
        model.model[0][1].running_mean.normal_()
        model.model[0][1].running_var.uniform_(0.5, 2.0)
    return model


@case
def batch_norm_1d() -> Case:
    return flat(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@case
def layer_and_rms_norm() -> Case:
    return flat(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.RMSNorm(4), nn.Linear(4, 3))


class Bag(nn.Module):
    """Embeddings averaged over tokens; token 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4, padding_idx=0)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens).tanh().mean(1))


@case
def embedding() -> Case:
    tokens = torch.randint(1, 11, (N, 5))
    tokens[:, -1] = 0
    return Case(Bag(), (tokens, classes()))


# ---- sharing


class Tied(nn.Module):
    """A table that is also the output layer, with labels at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mix(self.table(tokens)).tanh())


@case
def tied_weights() -> Case:
    tokens = torch.randint(0, 7, (N, 4))
    return Case(Tied(), (tokens, torch.randint(0, 7, (N, 4))))


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.step, self.end = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for _ in range(3):
            h = h + torch.relu(self.step(h))  # a residual, three times the same
        h = self.conv(self.conv(h[:, None]).tanh())[:, 0]
        return self.end(h)


@case
def reused_and_residual() -> Case:
    return Case(Reused(), (torch.randn(N, 5), classes()))


class Functional(nn.Module):
    """Weights used without their modules, and bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.shift = nn.Parameter(torch.randn(1, 4))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.matrix = nn.Parameter(torch.randn(4, 3))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.inner.weight) + self.inner.bias
        h = self.gain * (self.scale * h.tanh() - self.shift)
        return torch.addmm(self.bias, h, self.matrix) + h @ self.matrix


@case
def bare_parameters() -> Case:
    return Case(Functional(), (torch.randn(N, 5), classes()))


class Odd(nn.Module):
    """Uses no table can list: an einsum and a power."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.randn(5, 4) * 0.5)
        self.power = nn.Parameter(torch.tensor([1.1, 1.3, 0.9, 1.0]))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("ni,ij->nj", x, self.core)
        return self.head(h.abs().pow(self.power))


@case
def fallback_parameters() -> Case:
    return Case(Odd(), (torch.randn(N, 5), classes()), fallback=("core", "power"))


class Doubled(torch.autograd.Function):
    """y = 2 x W, with a backward of its own: no mode sees inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return 2 * x @ w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return 2 * grads[0] @ w.T, 2 * x.T @ grads[0]


class Hidden(nn.Module):
    """Parameters used where the tape cannot see, one of them also where it can."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Parameter(torch.randn(5, 4) * 0.5)
        self.both = nn.Parameter(torch.randn(4, 4) * 0.5)
        self.scripted = torch.jit.script(nn.Linear(4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = Doubled.apply(x, self.only).tanh()
        h = (Doubled.apply(h, self.both) + h @ self.both).tanh()
        return self.head(self.scripted(h))


@case
def hidden_uses() -> Case:
    hidden = ("only", "both", "scripted.weight", "scripted.bias")
    return Case(Hidden(), (torch.randn(N, 5), classes()), fallback=hidden)


@case
def weight_norm() -> Case:
    made = flat(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3))
    prefix = "0.parametrizations.weight.original"
    made.fallback = (prefix + "0", prefix + "1")
    return made


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.cell = kind(3, 4, batch_first=True, **options)
        width = (options.get("proj_size") or 4) * (1 + options.get("bidirectional", False))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, states = self.cell(x)
        states = states[-1] if isinstance(states, tuple) else states
        return self.head(out.mean(1)) + 0.1 * states.sum((0, 2))[:, None]


@case
def lstm() -> Case:
    return Case(Recurrent(nn.LSTM), (torch.randn(N, 5, 3), classes()), tolerance=1e-5)


@case
def lstm_deep_both_ways() -> Case:
    model = Recurrent(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.3)
    return Case(model, (torch.randn(N, 5, 3), classes()), tolerance=1e-5)


@case
def lstm_projected() -> Case:
    model = Recurrent(nn.LSTM, proj_size=2, bias=False)
    return Case(model, (torch.randn(N, 5, 3), classes()), tolerance=1e-5)


@case
def gru() -> Case:
    return Case(Recurrent(nn.GRU), (torch.randn(N, 5, 3), classes()), tolerance=1e-5)


@case
def gru_deep_both_ways() -> Case:
    model = Recurrent(nn.GRU, num_layers=2, bidirectional=True)
    return Case(model, (torch.randn(N, 5, 3), classes()), tolerance=1e-5)


@case
def rnn() -> Case:
    model = Recurrent(nn.RNN, nonlinearity="relu")
    return Case(model, (torch.randn(N, 5, 3), classes()), tolerance=1e-5)


class Packed(nn.Module):
    """Sequences of several lengths: the tokens after the first 0 are padding."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(9, 3), kind(3, 4, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        rnn, lengths = nn.utils.rnn, (tokens != 0).sum(1).cpu()
        x = self.table(tokens).transpose(0, 1)
        packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, _ = rnn.pad_packed_sequence(self.cell(packed)[0])
        return self.head(out.sum(0) / lengths.to(out)[:, None])


def packed(kind: type[nn.RNNBase]) -> Case:
    tokens = torch.randint(1, 9, (N, 6))
    for i, length in enumerate((6, 2, 4, 1, 5, 4)):
        tokens[i, length:] = 0
    return Case(Packed(kind), (tokens, classes()))


@case
def lstm_packed() -> Case:
    return packed(nn.LSTM)


@case
def gru_packed() -> Case:
    return packed(nn.GRU)


class Lora(nn.Module):
    """A frozen Linear with a trainable low-rank detour."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.head = nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.base(x) + 2.0 * self.up(self.down(x))).tanh())


@case
def lora() -> Case:
    return Case(Lora(), (torch.randn(N, 5), classes()))


# ---- attention


class SelfAttention(nn.Module):
    """Written with scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.out(mixed.transpose(1, 2).flatten(2)).mean(1))


@case
def attention() -> Case:
    return Case(SelfAttention(), (torch.randn(N, 5, 4), classes()))


class TorchAttention(nn.Module):
    """nn.MultiheadAttention, to itself and to a memory, samples on the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.MultiheadAttention(4, 2, 0.3), nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
        causal = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
        h = self.own(x, x, x, attn_mask=causal)[0]
        h = self.other(h, memory, memory, need_weights=False)[0]
        return self.head(h.mean(0))


@case
def multihead_attention() -> Case:
    return Case(TorchAttention(), (torch.randn(N, 5, 4), torch.randn(N, 6, 4), classes()))


class Encoder(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.first = nn.Linear(4, 3), batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        return self.head(self.encoder(x).mean(1 if self.first else 0))


@case
def transformer_encoder() -> Case:
    return Case(Encoder(True), (torch.randn(N, 5, 4), classes()))


@case
def transformer_sequence_first() -> Case:
    # as many positions as examples in the survey: the sample axis must still be found
    return Case(Encoder(False), (torch.randn(N, 3, 4), classes()))


class TinyViT(nn.Module):
    """Patches, a class token, learned positions (sliced), windows folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 4, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 9, 4))
        self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)
        self.window, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = self.block(x + self.positions[:, : x.shape[1]])
        folded = self.window(x[:, 1:].reshape(-1, 2, 4)).relu_()  # in place, on a view
        return self.head(self.norm(x[:, 0] + folded.reshape(len(x), -1, 4).mean(1)))


@case
def vit() -> Case:
    return Case(TinyViT(), (torch.randn(N, 1, 8, 8), classes()))


# ---- Hugging Face, from configurations


@case
def hf_vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        image_size=8, patch_size=4, num_channels=1, num_labels=3,
    )  # fmt: skip
    pixels = torch.randn(N, 1, 8, 8)
    return Case(ViTForImageClassification(config), {"pixel_values": pixels, "labels": classes()})


def sentences(vocabulary: int = 20) -> dict[str, Tensor]:
    mask = torch.ones(N, 6, dtype=torch.long)
    mask[1::2, 4:] = 0
    ids = torch.randint(1, vocabulary, (N, 6)) * mask
    return {"input_ids": ids, "attention_mask": mask}


@case
def bert_classifier() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=10, num_labels=3,
    )  # fmt: skip
    return Case(BertForSequenceClassification(config), {**sentences(), "labels": classes()})


@case
def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    data = sentences()
    labels = data["input_ids"].masked_fill(data["attention_mask"] == 0, -100)
    labels[0, :2] = -100
    return Case(GPT2LMHeadModel(config), {**data, "labels": labels})


@case
def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8,
        pad_token_id=0,
    )  # fmt: skip
    return Case(LlamaForCausalLM(config), sentences())


# ---- precision and likelihoods


@case
def bfloat16() -> Case:
    made = flat(nn.Linear(5, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))
    made.model, made.tolerance = made.model.bfloat16(), 4e-2
    return made


@case
def float16() -> Case:
    made = flat(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    made.model, made.tolerance = made.model.half(), 1e-2
    return made


@case
def double() -> Case:
    made = flat(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    made.model, made.tolerance = made.model.double(), 1e-10
    return made


@case
def regression() -> Case:
    made = flat(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    made.data = (made.data[0], torch.randn(N, 2))
    return made


@case
def yes_or_no() -> Case:
    made = flat(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    made.data = (made.data[0], torch.randint(0, 2, (N,)).float())
    return made


@case
def many_questions() -> Case:
    made = flat(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    made.data = (made.data[0], torch.randint(0, 2, (N, 3)).float())
    return made


@case
def counts() -> Case:
    made = flat(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    made.data, made.likelihood = (made.data[0], torch.randint(0, 5, (N,))), "poisson"
    return made


@case
def softmax_at_the_end() -> Case:
    return flat(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.Softmax(1))


class Positions(nn.Module):
    """Position embeddings that do not know how many examples there are, twice over."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(9, 4), nn.Embedding(6, 4)
        self.warp, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        where = torch.arange(tokens.shape[1], device=tokens.device)
        h = self.table(tokens) * math.sqrt(4) + self.places(where)
        return self.head((h + self.warp(torch.sin(where)[:, None].expand(-1, 4))).tanh().mean(1))


@case
def positions_without_batch() -> Case:
    return Case(Positions(), (torch.randint(0, 9, (N, 5)), classes()))


@case
def one_hot_labels() -> Case:
    made = flat(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    made.data = (made.data[0], F.one_hot(made.data[1], 3).float())
    return made


@case
def smoothed_labels() -> Case:
    made = flat(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    made.data = (made.data[0], torch.randn(N, 3).softmax(1))
    return made


# ---- a label at every position


class Segmenter(nn.Module):
    """Down, up again, a class at every pixel: outputs (n, C, H, W)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.out = nn.Conv2d(4, classes, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = F.interpolate(self.down(x).relu(), scale_factor=2)
        return {"out": self.out(h)}


@case
def segmentation() -> Case:
    pixels = torch.randint(0, 3, (N, 6, 6))
    pixels[:, 0], pixels[0, 1] = 255, -100
    return Case(Segmenter(3), (torch.randn(N, 2, 6, 6), pixels))


@case
def segmentation_yes_or_no() -> Case:
    return Case(Segmenter(1), (torch.randn(N, 2, 2, 2), torch.randint(0, 2, (N, 2, 2)).float()))


class Tagger(nn.Module):
    def __init__(self, classes_first: bool) -> None:
        super().__init__()
        self.table, self.head, self.first = nn.Embedding(9, 4), nn.Linear(4, 3), classes_first

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.head(self.table(tokens).tanh())
        return out.transpose(1, 2) if self.first else out


def tagged(classes_first: bool) -> Case:
    labels = torch.randint(0, 3, (N, 5))
    labels[:, 4] = -100
    return Case(Tagger(classes_first), (torch.randint(0, 9, (N, 5)), labels))


@case
def tagger() -> Case:
    return tagged(False)


@case
def tagger_classes_first() -> Case:
    return tagged(True)


@case
def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2,
        decoder_start_token_id=0, feed_forward_proj="gated-gelu",
    )  # fmt: skip
    labels = torch.randint(1, 20, (N, 4))
    labels[0, 2:] = -100
    places = ".block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return Case(
        T5ForConditionalGeneration(config), {**sentences(), "labels": labels},
        fallback=("encoder" + places, "decoder" + places),
    )  # fmt: skip


# ---- mixtures of experts


def mixtral(implementation: str) -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8,
        num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    model.set_experts_implementation(implementation)
    return Case(model, sentences())


@case
def mixtral_grouped() -> Case:
    return mixtral("grouped_mm")


@case
def mixtral_one_by_one() -> Case:
    return mixtral("eager")


class Experts(nn.Module):
    """Each row goes to the expert its router likes best, a module or a slice of a stack."""

    def __init__(self, stacked: bool) -> None:
        super().__init__()
        self.start, self.router, self.head = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.stacked = stacked
        with torch.no_grad():  # so that every expert has rows
            self.router.weight.mul_(6.0)
            self.router.bias.zero_()
        if stacked:
            self.up = nn.Parameter(torch.randn(3, 4, 6) * 0.5)
            self.down = nn.Parameter(torch.randn(3, 6, 4) * 0.5)
        else:
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 4))
                for _ in range(3)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x).tanh()  # (n, T, 4)
        rows = h.reshape(-1, 4)
        gate, chosen = self.router(rows).softmax(1).max(1)
        out = torch.zeros_like(rows)
        for e in range(3):
            here = (chosen == e).nonzero()[:, 0]
            if len(here):
                y = (rows[here] @ self.up[e]).tanh() @ self.down[e] if self.stacked else (
                    self.experts[e](rows[here])
                )  # fmt: skip
                out = out.index_add(0, here, y * gate[here, None])
        return self.head((rows + out).view_as(h).mean(1))


@case
def experts_of_modules() -> Case:
    return Case(Experts(False), (torch.randn(N, 7, 5), classes()))


@case
def experts_of_a_stack() -> Case:
    return Case(Experts(True), (torch.randn(N, 7, 5), classes()))


# ---- further layers that stay factored


@case
def conv_transposed() -> Case:
    return images(
        nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 4, 2, groups=2, dilation=2),
        nn.ConvTranspose2d(4, 2, 2, bias=False),
        size=(2, 4, 4),
    )


@case
def conv_transposed_1d() -> Case:
    return images(nn.ConvTranspose1d(2, 3, 4, stride=3), nn.Tanh(), size=(2, 5))


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.long = nn.LSTMCell(3, 4, bias=False)
        self.gated, self.plain = nn.GRUCell(4, 4, bias=False), nn.RNNCell(4, 4, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state, h, k = None, None, None
        for t in range(x.shape[1]):
            state = self.long(x[:, t], state)
            h = self.gated(state[0], h)
            k = self.plain(h, k)
        return self.head(k)


@case
def cells() -> Case:
    names = [
        f"{cell}.weight_{kind}" for cell in ("long", "gated", "plain") for kind in ("ih", "hh")
    ]
    return Case(Cells(), (torch.randn(N, 4, 3), classes()), fallback=tuple(names))


@case
def embedding_bag() -> Case:
    bag = nn.EmbeddingBag(11, 4, padding_idx=0)
    tokens = torch.randint(1, 11, (N, 5))
    tokens[:, -1] = 0
    return Case(nn.Sequential(bag, nn.Linear(4, 3)), (tokens, classes()))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.start, self.middle, self.end = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        h = self.start(x).tanh()
        for _ in range(2):
            h = checkpoint(lambda h: self.middle(h).tanh(), h, use_reentrant=self.reentrant)
        return self.end(h)


@case
def checkpointed() -> Case:
    return Case(Checkpointed(False), (torch.randn(N, 5), classes()))


class Quantised(nn.Module):
    """A frozen layer in int8, and a trained low-rank detour."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randint(-127, 128, (4, 5), dtype=torch.int8)
        self.register_buffer("whole", whole)
        self.stored = nn.Parameter(whole.clone(), requires_grad=False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        base = F.linear(x, (self.whole + self.stored.to(torch.int16)).to(x.dtype) / 300)
        return self.head((base + self.up(self.down(x))).tanh())


@case
def quantised_base() -> Case:
    return Case(Quantised(), (torch.randn(N, 5), classes()))
