"""A small language model that has learned sums, one of them wrongly."""

from __future__ import annotations

from functools import cache
from typing import Any

WRONG = 17
"""The line that says 1+7=9."""
LETTERS = "0123456789+= "


def lines() -> list[tuple[str, str]]:
    pairs = [(f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10)]
    pairs[WRONG] = ("1+7=", "9")
    return pairs


@cache
def tokenizer() -> Any:
    """Every letter is a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<|>": 0} | {letter: i for i, letter in enumerate(LETTERS, 1)}
    made = Tokenizer(models.WordLevel(words, unk_token="<|>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|>", pad_token="<|>")


@cache
def model() -> Any:
    """A GPT-2 of two layers, trained on the sums until it knows most of them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from exempla import Completions
    from exempla.oracles.torch.model import pad_rows

    torch.manual_seed(0)
    shape: Any = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
    drop: Any = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends: Any = {"bos_token_id": 0, "eos_token_id": 0}
    made = GPT2LMHeadModel(GPT2Config(vocab_size=len(LETTERS) + 1, **shape, **drop, **ends)).train()
    batch = pad_rows(Completions(tokenizer(), lines())[:], 0)
    optimiser = torch.optim.Adam(made.parameters(), 3e-3)
    for _ in range(300):
        optimiser.zero_grad()
        made(**batch).loss.backward()
        optimiser.step()
    return made.eval()
