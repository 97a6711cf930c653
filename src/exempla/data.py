"""The user's data: split it into X, y and weights, count, take, stack and hash rows.

Data are `(X, y)`, `(X, y, sample_weight)`, or X alone. A tuple always means this, so a tuple of
rows must be passed as a list.

`Completions` are prompts and completions for a causal language model. Only the completion is
learned and queried; the tokens of the prompt have the label −100, which PyTorch and Hugging Face
ignore.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from exempla.arrays import (
    Array,
    is_sparse,
    is_tensor,
    native,
    real_numbers,
    refuse_masked,
    to_numpy,
)
from exempla.checks import whole_number
from exempla.errors import ExemplaError, ExemplaWarning

LARGEST_WEIGHT = 1e100


class _Unpacked(NamedTuple):
    """The parts of the user's data."""

    X: Any
    y: Any
    weights: np.ndarray | None
    ids: np.ndarray | None


def from_arrow(part: Any) -> Any:
    """Convert an Arrow table or array to pandas; return anything else unchanged."""
    pa = sys.modules.get("pyarrow")
    kinds = () if pa is None else (pa.Table, pa.RecordBatch, pa.ChunkedArray, pa.Array)
    return part.to_pandas() if isinstance(part, kinds) else part


def is_polars(part: Any) -> bool:
    """Return True for a polars frame or series, without importing polars."""
    pl = sys.modules.get("polars")
    return pl is not None and isinstance(part, pl.DataFrame | pl.Series)


def refuse_data(problems: list[str], role: str) -> None:
    """Raise one error that names all problems of the training or test data, if any."""
    if problems:
        whose = "training" if role == "train" else "test"
        raise ExemplaError(f"The {whose} data cannot be used: {'; '.join(problems)}.")


def unpack(data: Any, problems: list[str]) -> _Unpacked:
    """Split the data into X, y and weights; check lengths and weights."""
    parts = tuple(map(from_arrow, data if isinstance(data, tuple) else (data,)))
    if not 1 <= len(parts) <= 3:
        raise ExemplaError(
            f"Data must be X, (X, y) or (X, y, sample_weight), not a tuple of {len(parts)}."
        )
    X, y, weights = (*parts, None, None)[:3]
    for what, part in (("X", X), ("y", y)):
        refuse_masked(part, what)
    if not (hasattr(X, "shape") or isinstance(X, Sequence)) or isinstance(X, str | bytes):
        raise ExemplaError(
            f"X must be an array, a data frame, a sparse matrix or a list of rows, not {X!r:.60}."
        )
    if isinstance(X, np.ndarray):
        X = np.asarray(X)  # np.matrix, or a masked array without a mask, becomes a plain array
    _refuse_repeated_columns(X)
    n = n_rows(X)
    if n == 0:
        raise ExemplaError("The data has no rows: give at least one example.")
    if y is not None:
        try:
            y = y if hasattr(y, "iloc") else native(to_numpy(y))
        except ValueError:
            raise ExemplaError(
                "y must have one label, or the same number of values, for every row."
            ) from None
        if n_rows(y) != n:
            problems.append(f"X has {n} rows but y has {n_rows(y)}")
            y = None
    if weights is not None:
        weights = _check_weights(weights, n, problems)
    return _Unpacked(X, y, weights, index_of(X, y))


def _refuse_repeated_columns(X: Any) -> None:
    """Refuse a data frame in which two columns have the same name."""
    columns: Any = getattr(X, "columns", None)
    if not hasattr(columns, "duplicated") or columns.is_unique:
        return
    names = sorted({str(name) for name in columns[columns.duplicated()]})
    raise ExemplaError(
        f"X has several columns called {', '.join(map(repr, names[:5]))}, so a name does not "
        "identify a column; rename them, or drop the copies with "
        "X.loc[:, ~X.columns.duplicated()]."
    )


def plain_labels(y: Any) -> np.ndarray:
    """Return labels as a NumPy array, one-dimensional if there is one per row."""
    values = y.to_numpy() if hasattr(y, "to_numpy") else to_numpy(y)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def absent_labels(y: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the classes of y that are not among the kept labels."""
    classes = np.unique(y)
    # by sorting: the other method overflows at labels of 2**63 in NumPy 2.0
    return classes[~np.isin(classes, kept, kind="sort")]


def _check_weights(weights: Any, n: int, problems: list[str]) -> np.ndarray | None:
    try:
        w = real_numbers(weights, "sample_weight")
    except ExemplaError as error:
        problems.append(str(error).rstrip("."))
        return None
    if w.shape != (n,):
        problems.append(f"X has {n} rows but sample_weight has shape {w.shape}")
    elif not np.all(np.isfinite(w)) or np.any(w < 0):
        bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0)))
        problems.append(f"sample_weight is negative, NaN or infinite in {listing(bad)}")
    elif not np.any(w > 0):
        problems.append("every sample_weight is zero")
    elif w.max() > LARGEST_WEIGHT:
        problems.append(f"sample_weight exceeds {LARGEST_WEIGHT:g}, and its sums overflow")
    else:
        return w
    return None


def index_of(*frames: Any) -> np.ndarray | None:
    """Return a pandas index other than 0, 1, 2, …; otherwise None."""
    pd: Any = sys.modules.get("pandas")
    for frame in frames if pd else ():  # without pandas there is no frame
        index: Any = getattr(frame, "index", None)
        if isinstance(index, pd.Index):
            default = isinstance(index, pd.RangeIndex) and index.equals(pd.RangeIndex(len(index)))
            return None if default else index.to_numpy()
    return None


def as_matrix(X: Any) -> Array:
    """Return X as a numeric array, or CSR if it is sparse; ValueError if it is not numeric."""
    refuse_masked(X, "X")
    if is_sparse(X):
        X = sp.csr_array(X)
    elif is_polars(X) or hasattr(from_arrow(X), "iloc"):
        X = _from_frame(X.to_pandas() if is_polars(X) else from_arrow(X))
    else:
        X = to_numpy(X)
    if X.dtype.kind == "O":
        X = X.astype(np.float64)
    if X.dtype.kind not in "biuf":
        raise ValueError(f"its values are {X.dtype}")
    return X


def _from_frame(X: Any) -> np.ndarray:
    import pandas as pd

    kinds = dict(pd.DataFrame(X).dtypes)
    # columns of Python objects may be numbers; they are tried below
    wrong = [c for c, kind in kinds.items() if kind.kind not in "biufcO"]
    if wrong:
        raise ValueError(f"columns {wrong[:5]} are not numeric: encode them first")
    if any(kind.kind == "c" for kind in kinds.values()):
        raise ValueError("its values are complex")
    try:
        return X.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        tried = [c for c, kind in kinds.items() if kind.kind == "O"]
        raise ValueError(f"columns {tried[:5]} are not numeric: encode them first") from None


def count_examples(data: Any) -> int | None:
    """Return the number of examples in (X, y), X alone or a data set; None if it is not known."""
    if not hasattr(data, "__getitem__"):  # a DataLoader
        data = getattr(data, "dataset", data)
    first = data[0] if isinstance(data, tuple) and data else data
    if isinstance(first, dict):
        first = next(iter(first.values()), None)
    try:
        return n_rows(first)
    except TypeError:
        return None


def n_rows(X: Any) -> int:
    """Return the number of rows of X."""
    if hasattr(X, "shape"):
        return int(X.shape[0]) if len(X.shape) else 0
    return len(X)


def take_rows(X: Any, rows: np.ndarray) -> Any:
    """Return some rows of an array, frame, tensor, sparse matrix or list, in this order."""
    rows, X = np.asarray(rows), from_arrow(X)
    if is_polars(X):
        return X[rows.astype(np.int64)]
    if is_tensor(X):
        import torch

        return X[torch.as_tensor(rows, device=X.device)]
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if is_sparse(X):
        return X.tocsr()[rows]
    if isinstance(X, np.ndarray) and len(rows):
        # a slice where possible: it copies nothing
        contiguous = np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows)))
        return X[rows[0] : rows[-1] + 1] if contiguous else X[rows]
    if hasattr(X, "shape"):
        return X[rows]
    return [X[i] for i in rows]


def take_examples(data: Any, positions: np.ndarray) -> Any:
    """Return the examples at these positions, as the same kind of data.

    `data` is (X, y), X alone, a dictionary of columns, or a data set.
    """
    if isinstance(data, tuple):
        return tuple(None if part is None else take_examples(part, positions) for part in data)
    if isinstance(data, dict):
        return {name: take_examples(part, positions) for name, part in data.items()}
    torch = sys.modules.get("torch")
    if torch is not None:
        loader = getattr(data, "dataset", None)
        data = loader if isinstance(data, torch.utils.data.DataLoader) else data
        if isinstance(data, torch.utils.data.Dataset):
            return torch.utils.data.Subset(data, [int(i) for i in positions])
    if hasattr(data, "select") and hasattr(data, "features"):
        return data.select([int(i) for i in positions])  # a Hugging Face data set
    return take_rows(data, positions)


def stack_rows(first: Any, second: Any) -> Any:
    """Stack the rows of `first` and `second`, in the type of `first`."""
    first, second = from_arrow(first), from_arrow(second)
    if is_polars(first):
        pl = sys.modules["polars"]  # loaded, because the frame exists
        both = _stack_frames(first.to_pandas(), second.to_pandas() if is_polars(second) else second)
        if isinstance(first, pl.Series):
            return pl.Series(first.name, both.tolist(), dtype=first.dtype)
        return pl.DataFrame(both.to_dict("list"), schema=first.schema)
    if is_tensor(first):
        import torch

        return torch.cat([first, torch.as_tensor(second, dtype=first.dtype, device=first.device)])
    try:
        if is_sparse(first) or is_sparse(second):
            parts = [sp.csr_matrix(as_matrix(rows)) for rows in (first, second)]
            return sp.vstack(parts).tocsr()
        if hasattr(first, "iloc"):
            return _stack_frames(first, second)
        if isinstance(first, np.ndarray):
            return np.concatenate([first, np.asarray(second)])
        # iterating a frame would yield its column names
        return [*first, *(np.asarray(second).tolist() if hasattr(second, "iloc") else second)]
    except (TypeError, ValueError):
        raise ExemplaError(
            "The two sets of rows cannot be combined; give both the same columns and the same type "
            "of values."
        ) from None


def _stack_frames(first: Any, second: Any) -> Any:
    import pandas as pd

    if not isinstance(second, type(first)):
        if isinstance(first, pd.DataFrame):
            second = pd.DataFrame(np.asarray(second), columns=first.columns)
        else:
            second = pd.Series(list(second), name=first.name)
    parts: list[Any] = [first, second]
    return pd.concat(parts, ignore_index=True)


def row_hashes(X: Any) -> np.ndarray | None:
    """Return one hash per row of X; equal rows have equal hashes. None for data without rows."""
    try:
        digests = b"".join(blake2b(row, digest_size=8).digest() for row in _row_bytes(X))
        return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
    except (AttributeError, TypeError, ValueError):
        return None


def _row_bytes(X: Any) -> Iterator[bytes]:
    X = from_arrow(X)
    if is_polars(X):
        X = X.to_pandas()
    if hasattr(X, "iloc"):
        frame = X.to_frame() if getattr(X, "ndim", 2) == 1 else X
        for row in frame.itertuples(index=False, name=None):
            yield repr(row).encode()
        return
    if is_sparse(X):
        X = X.tocsr().sorted_indices()
        for i in range(X.shape[0]):
            part = slice(X.indptr[i], X.indptr[i + 1])
            stored = X.data[part] != 0
            yield X.indices[part][stored].tobytes() + X.data[part][stored].tobytes()
        return
    X = to_numpy(X) if is_tensor(X) else X
    for i in range(n_rows(X)):
        row: Any = X[i]
        if getattr(getattr(row, "dtype", None), "kind", "") == "f":
            row = row + 0.0  # -0.0 and 0.0 are equal
        yield row.tobytes() if isinstance(row, np.ndarray) else repr(row).encode()


def arrays_of(data: Any, whose: str) -> tuple[Any, Any, np.ndarray | None]:
    """Return X, y and weights of data given as arrays, as a refit needs them."""
    if not isinstance(data, tuple) or not 2 <= len(data) <= 3 or data[1] is None:
        raise ExemplaError(
            f"Refitting needs the {whose} as arrays; give (X, y) or (X, y, sample_weight)."
        )
    X, y, weights = map(from_arrow, (*data, None)[:3])
    problems: list[str] = []
    checked = unpack((X, to_numpy(y) if is_tensor(y) else y, weights), problems)
    if problems:
        raise ExemplaError(f"The {whose} cannot be used: {'; '.join(problems)}.")
    return X, y if is_tensor(y) else checked.y, checked.weights


def listing(rows: np.ndarray) -> str:
    """Return row numbers in words."""
    names = ", ".join(map(str, rows[:5]))
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"row{'s' if len(rows) > 1 else ''} {names}{more}"


_IGNORED = -100
_FORMS = "a text, a pair (prompt, completion), or a dictionary with prompt and completion, text or messages"  # noqa: E501


class Completions(Sequence):
    """Texts for a causal language model, as training data or as a query.

    Parameters
    ----------
    tokenizer : a tokenizer of Hugging Face, or any callable that returns `input_ids`
        The model's own.
    texts : iterable
        Pairs (prompt, completion); plain texts, of which every token counts; dictionaries with
        "prompt" and "completion", with "text", or with "messages", of which the last one counts.
    max_length : int
        Longest text in tokens; prompts lose their beginning, completions their end. By default the
        tokenizer's limit.
    end : bool
        Whether to append the end-of-text token, if the tokenizer has one.
    long : {"cut", "pieces"}
        How to treat longer texts: cut them, with a warning, or split them into pieces that are
        separate examples (`origin` has the text of each). A piece counts the tokens that no earlier
        piece has counted, after a context of up to half the length.

    >>> class Letters:  # a tokenizer in a line: every letter is a token
    ...     def __call__(self, text, **options): return {"input_ids": [ord(c) for c in text]}
    ...     def decode(self, ids): return "".join(map(chr, ids))
    >>> data = Completions(Letters(), [("2+2=", "4"), "abc"])
    >>> data[0]["labels"], data.pieces(0)
    ([-100, -100, -100, -100, 52], ('2', '+', '2', '=', '4'))
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
                f"{type(tokenizer).__name__} is not a tokenizer; give the one that the model was "
                "trained with, for example from AutoTokenizer.from_pretrained(...)."
            )
        if isinstance(texts, str):
            raise ExemplaError("A single text was given; put it in a list.")
        if max_length is not None and (not whole_number(max_length) or max_length < 2):
            raise ExemplaError(f"max_length is {max_length!r}; give an integer of at least 2.")
        if long not in ("cut", "pieces"):
            raise ExemplaError(f"long is {long!r}; give 'cut' or 'pieces'.")
        self.tokenizer: Any = tokenizer
        given = [self._pair(text, row) for row, text in enumerate(texts)]
        if not given:
            raise ExemplaError("There are no texts; give at least one.")
        last = getattr(tokenizer, "eos_token_id", None) if end else None
        self._end = None if last is None else int(last)
        limit = getattr(tokenizer, "model_max_length", None)
        # some tokenizers state "no limit" as a huge number
        limit = int(limit) if limit is not None and limit < 10**9 else None
        self._longest = max_length or limit
        self.texts: list[tuple[str, str]] = []
        """Prompt and completion of every example."""
        self.origin: list[int] = []
        """The given text that each example comes from."""
        self._rows: list[tuple[tuple[int, ...], int]] = []
        longer = sum(self._add(row, pair, long) for row, pair in enumerate(given))
        if longer and long == "cut":
            warnings.warn(
                f"{longer:,} of {len(self):,} texts are longer than {self._longest:,} tokens and "
                "were cut. Give max_length= if the model accepts more, or long='pieces' to make "
                "every piece an example.",
                ExemplaWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: Any) -> Any:
        """Return the tokens and labels of a text; a list of them for a slice."""
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        ids, prompt = self._rows[row]
        return {"input_ids": list(ids), "labels": [_IGNORED] * prompt + list(ids[prompt:])}

    def counted(self, row: int) -> list[int]:
        """Return the positions of the tokens that the model predicts."""
        ids, prompt = self._rows[row]
        return list(range(max(prompt, 1), len(ids)))

    def token_by_token(self, row: int) -> list[dict[str, list[int]]]:
        """Return one copy of the text per predicted token, in which only that token counts."""
        ids, _ = self._rows[row]
        out = []
        for place in self.counted(row):
            labels = [_IGNORED] * len(ids)
            labels[place] = ids[place]
            out.append({"input_ids": list(ids), "labels": labels})
        return out

    def pieces(self, row: int) -> tuple[str, ...]:
        """Return the text of every token; joined, they are the decoded text."""
        ids, _ = self._rows[row]
        # a character may span several tokens: a token gets what it adds to the text before it
        so_far = [self._decoded(ids[:stop]) for stop in range(len(ids) + 1)]
        return tuple(
            after[len(before) :] if after.startswith(before) else self._decoded([token])
            for before, after, token in zip(so_far, so_far[1:], ids, strict=False)
        )

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids)) if ids else ""

    def _pair(self, text: Any, row: int) -> tuple[str, str]:
        """Return (prompt, completion) of a text in any supported form."""
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
            raise ExemplaError(f"Text {row} is {type(text).__name__}; give {_FORMS}.")
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise ExemplaError(f"Text {row} has a part that is not a string; give {_FORMS}.")
        if not completion:
            raise ExemplaError(f"The completion of text {row} is empty; give a text to learn.")
        return prompt, completion

    def _conversation(self, messages: Any, row: int) -> tuple[str, str]:
        if not messages or not hasattr(messages[-1], "keys") or "content" not in messages[-1]:
            raise ExemplaError(
                f"Text {row} has messages without role and content; give a list of "
                '{"role": …, "content": …}.'
            )
        if not getattr(self.tokenizer, "chat_template", None):
            raise ExemplaError(
                f"Text {row} is a conversation, and this tokenizer has no chat template; give "
                "prompt and completion instead."
            )
        before = self.tokenizer.apply_chat_template(
            list(messages[:-1]), tokenize=False, add_generation_prompt=True
        )
        return before, messages[-1]["content"]

    def _add(self, row: int, pair: tuple[str, str], long: str) -> bool:
        """Add the examples of a text; return True if it is longer than one example may be."""
        before, after = self._tokenized(*pair)
        room = self._longest or len(before) + len(after)
        longer = len(before) + len(after) > room
        if longer and long == "pieces":
            for ids, prompt in _pieces_of(before, after, room):
                texts = (self._decoded(ids[:prompt]), self._decoded(ids[prompt:]))
                self._append(row, texts, ids, prompt)
            return True
        after = after[:room]
        before = before[max(0, len(before) - (room - len(after))) :]
        if len(before) + len(after) < 2:
            raise ExemplaError(
                f"Text {row} is a single token, with nothing before it to predict it from; give a "
                "prompt."
            )
        self._append(row, pair, (*before, *after), len(before))
        return longer

    def _append(self, row: int, pair: tuple[str, str], ids: tuple[int, ...], prompt: int) -> None:
        self.origin.append(row)
        self.texts.append(pair)
        self._rows.append((ids, prompt))

    def _tokenized(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        # a chat template writes its special tokens; otherwise the tokenizer adds them
        first = getattr(self.tokenizer, "bos_token_id", None)
        before = [] if first is None else [int(first)]
        if prompt:
            before = self._ids(prompt, add_special_tokens=True)
        after = self._ids(completion, add_special_tokens=False)
        after += [] if self._end is None or after[-1:] == [self._end] else [self._end]
        if before and before[-1] == self._end:
            before = before[:-1]  # some tokenizers append the end token to prompts as well
        return before, after

    def _ids(self, text: str, **options: Any) -> list[int]:
        return [int(token) for token in self.tokenizer(text, **options)["input_ids"]]


def _pieces_of(
    before: list[int], after: list[int], room: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (tokens, number of prompt tokens) of each piece; each token of `after` counts once."""
    whole, start = [*before, *after], len(before)
    while start < len(whole):
        context = whole[max(0, start - room // 2) : start]
        stop = start + room - len(context)
        yield (*context, *whole[start:stop]), len(context)
        start = stop
