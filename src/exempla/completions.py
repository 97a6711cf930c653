"""Prompts and completions as a causal language model takes them.

What is learned, and asked about, is the completion: the prompt is given, and its tokens carry the
label −100, which stands for "does not count" in PyTorch and Hugging Face alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from exempla.checks import whole_number
from exempla.errors import ExemplaError, ExemplaWarning

__all__ = ["Completions"]

IGNORED = -100
FORMS = "a text, a pair (prompt, completion), or a dictionary with prompt and completion, text or messages"  # noqa: E501


class Completions(Sequence):
    """Texts for a causal language model, as training data or as a question.

    Parameters
    ----------
    tokenizer : a tokenizer of Hugging Face, or any callable that returns `input_ids`
        The model's own.
    texts : iterable
        Pairs (prompt, completion); plain texts, of which every token counts; dictionaries with
        "prompt" and "completion", with "text", or with "messages", of which the last one counts.
    max_length : int
        Longest text in tokens: prompts lose their beginning, completions their end. By default what
        the tokenizer says.
    end : bool
        Whether the end-of-text token belongs to a completion, where the tokenizer has one.
    long : {"cut", "pieces"}
        What becomes of texts longer than that: they are cut, with a warning; or every piece is an
        example of its own (`origin` says of which text), which counts the tokens that no piece
        before it has counted, after up to half the length of what stands before them.

    >>> class Letters:  # a tokenizer in a line: every letter is a token
    ...     def __call__(self, text, **options): return {"input_ids": [ord(c) for c in text]}
    ...     def decode(self, ids): return "".join(map(chr, ids))
    >>> data = Completions(Letters(), [("2+2=", "4"), "abc"])
    >>> data[0]["labels"], data.pieces(0)
    ([-100, -100, -100, -100, 52], ('2', '+', '2', '=', '4'))
    >>> data.counted(1)  # nothing stands before the first token to predict it from
    [1, 2]
    """

    def __init__(
        self,
        tokenizer: Any,
        texts: Iterable[Any],
        *,
        max_length: int | None = None,
        end: bool = True,
        long: Literal["cut", "pieces"] = "cut",
    ) -> None:
        if not callable(tokenizer):
            raise ExemplaError(
                f"{type(tokenizer).__name__} is no tokenizer: give the one the model was trained "
                "with, as AutoTokenizer.from_pretrained(...) loads it."
            )
        if isinstance(texts, str):
            raise ExemplaError("a single text was given: put it in a list.")
        if max_length is not None and (not whole_number(max_length) or max_length < 2):
            raise ExemplaError(f"max_length is {max_length!r}: give a whole number of at least 2.")
        if long not in ("cut", "pieces"):
            raise ExemplaError(f"long is {long!r}: give 'cut' or 'pieces'.")
        self.tokenizer: Any = tokenizer
        given = [self._pair(text, row) for row, text in enumerate(texts)]
        if not given:
            raise ExemplaError("there are no texts: give at least one.")
        self._end = _end_token(tokenizer) if end else None
        self._longest = max_length or _longest(tokenizer)
        self.texts: list[tuple[str, str]] = []
        """Prompt and completion of every example."""
        self.origin: list[int] = []
        """Position of the text, among those given, that every example comes from."""
        self._rows: list[tuple[tuple[int, ...], int]] = []
        longer = sum(self._add(row, pair, long) for row, pair in enumerate(given))
        if longer and long == "cut":
            warnings.warn(
                f"{longer:,} of {len(self):,} texts are longer than {self._longest:,} tokens and "
                "were cut: give max_length= if the model can take more, or long='pieces' to have "
                "every piece as an example.",
                ExemplaWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: Any) -> Any:
        """The tokens of a text and which of them count; a list of such for a slice."""
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        ids, prompt = self._rows[row]
        return {"input_ids": list(ids), "labels": [IGNORED] * prompt + list(ids[prompt:])}

    def counted(self, row: int) -> list[int]:
        """Places of the tokens that the model is asked to predict."""
        ids, prompt = self._rows[row]
        return list(range(max(prompt, 1), len(ids)))

    def token_by_token(self, row: int) -> list[dict[str, list[int]]]:
        """The text once for every token that counts, with that token alone counting."""
        ids, _ = self._rows[row]
        out = []
        for place in self.counted(row):
            labels = [IGNORED] * len(ids)
            labels[place] = ids[place]
            out.append({"input_ids": list(ids), "labels": labels})
        return out

    def pieces(self, row: int) -> tuple[str, ...]:
        """The text of every token; joined they are the text as the tokenizer writes it."""
        ids, _ = self._rows[row]
        # a letter may be spread over tokens: what a token adds to the text before it is its own
        so_far = [self._decoded(ids[:stop]) for stop in range(len(ids) + 1)]
        return tuple(
            after[len(before) :] if after.startswith(before) else self._decoded([token])
            for before, after, token in zip(so_far, so_far[1:], ids, strict=False)
        )

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids)) if ids else ""

    def _pair(self, text: Any, row: int) -> tuple[str, str]:
        """(prompt, completion) of whatever stands for a text."""
        named: Any = text if hasattr(text, "keys") else {}
        if isinstance(text, str):
            prompt, completion = "", text
        elif isinstance(text, (tuple, list)) and len(text) == 2:
            prompt, completion = text
        elif "messages" in named:
            prompt, completion = self._conversation(named["messages"], row)
        elif "completion" in named:
            prompt, completion = named.get("prompt") or "", named["completion"]
        elif "text" in named:
            prompt, completion = "", named["text"]
        else:
            raise ExemplaError(f"text {row} is {type(text).__name__}: give {FORMS}.")
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise ExemplaError(f"text {row} holds something that is no text: give {FORMS}.")
        if not completion:
            raise ExemplaError(f"the completion of text {row} is empty: there is nothing to learn.")
        return prompt, completion

    def _conversation(self, messages: Any, row: int) -> tuple[str, str]:
        if not messages or not hasattr(messages[-1], "keys") or "content" not in messages[-1]:
            raise ExemplaError(
                f"text {row} has messages without role and content: give a list of "
                '{"role": …, "content": …}.'
            )
        if not getattr(self.tokenizer, "chat_template", None):
            raise ExemplaError(
                f"text {row} is a conversation and this tokenizer has no chat template: give "
                "prompt and completion instead."
            )
        before = self.tokenizer.apply_chat_template(
            list(messages[:-1]), tokenize=False, add_generation_prompt=True
        )
        return before, messages[-1]["content"]

    def _add(self, row: int, pair: tuple[str, str], long: str) -> bool:
        """One example or several of a text; whether it is longer than an example may be."""
        before, after = self._tokenized(*pair)
        room = self._longest or len(before) + len(after)
        longer = len(before) + len(after) > room
        if longer and long == "pieces":
            for ids, prompt in pieces_of(before, after, room):
                texts = (self._decoded(ids[:prompt]), self._decoded(ids[prompt:]))
                self._append(row, texts, ids, prompt)
            return True
        after = after[:room]
        before = before[max(0, len(before) - (room - len(after))) :]
        if len(before) + len(after) < 2:
            raise ExemplaError(
                f"text {row} is a single token: nothing stands before it to predict it from; give "
                "a prompt."
            )
        self._append(row, pair, (*before, *after), len(before))
        return longer

    def _append(self, row: int, pair: tuple[str, str], ids: tuple[int, ...], prompt: int) -> None:
        self.origin.append(row)
        self.texts.append(pair)
        self._rows.append((ids, prompt))

    def _tokenized(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        # a chat template has written its own special tokens; elsewhere the tokenizer adds them
        before = self._ids(prompt, add_special_tokens=True) if prompt else self._begin()
        after = self._ids(completion, add_special_tokens=False)
        after += [] if self._end is None or after[-1:] == [self._end] else [self._end]
        if before and before[-1] == self._end:
            before = before[:-1]  # tokenizers that close every text close prompts as well
        return before, after

    def _begin(self) -> list[int]:
        first = getattr(self.tokenizer, "bos_token_id", None)
        return [] if first is None else [int(first)]

    def _ids(self, text: str, **options: Any) -> list[int]:
        return [int(token) for token in self.tokenizer(text, **options)["input_ids"]]


def pieces_of(
    before: list[int], after: list[int], room: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """(tokens, how many of them are prompt) of each piece of a text; `after` counts once in all."""
    whole, start = [*before, *after], len(before)
    while start < len(whole):
        context = whole[max(0, start - room // 2) : start]
        stop = start + room - len(context)
        yield (*context, *whole[start:stop]), len(context)
        start = stop


def _end_token(tokenizer: Any) -> int | None:
    found = getattr(tokenizer, "eos_token_id", None)
    return None if found is None else int(found)


def _longest(tokenizer: Any) -> int | None:
    """What the tokenizer says of its model; tokenizers that do not know say a huge number."""
    found = getattr(tokenizer, "model_max_length", None)
    return int(found) if found is not None and found < 10**9 else None
