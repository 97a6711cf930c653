"""What a Recorder copies of a model, and how that becomes a file: one way for each framework.

A run's folder: one file per snapshot, and run.json, which says what they are.

A snapshot's file is complete before run.json names it, and one that is to go is no longer named
when it is deleted. So whatever run.json names is there, at every moment; a file that it does not
name was caught in the middle, and is removed by the next one who writes.

Weights of scikit-learn models that are trained step by step, as plain arrays in an NPZ file.

Weights of a torch module, parameters and buffers, in a safetensors file.

Names are those of the bare module: what DistributedDataParallel, DataParallel and torch.compile
put in front of them is left out. A tensor under two names (tied weights) is kept once, and the
file's own metadata says which names are one; tensors that overlap otherwise are kept apart.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from exempla import __version__
from exempla import io as atomic
from exempla.errors import ExemplaError, UnfittedModelError, UnsupportedModelError

_ENTRY = 512
"""Bytes that a file takes for one array beside its name and numbers, at most."""


@dataclass(frozen=True)
class Weights:
    """How the weights of one kind of model are copied and written."""

    kind: str
    suffix: str
    copied: Callable[[Any], Any]
    """A copy in main memory that later steps do not change."""
    encoded: Callable[[Any], bytes]
    """The copy as the bytes of a file."""
    nbytes: Callable[[Any], int]
    """Bytes that its file takes, or a few more."""
    learning_rate: Callable[[Any], float | None]
    """What the model itself says of its learning rate."""


def weights_of(model: Any) -> Weights:
    """How to copy this model's weights.

    >>> from sklearn.neural_network import MLPClassifier
    >>> weights_of(MLPClassifier()).kind
    'scikit-learn'
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _TORCH_WEIGHTS
    if hasattr(model, "partial_fit"):
        return _SKLEARN_WEIGHTS
    raise UnsupportedModelError(
        f"{type(model).__name__} is not trained step by step, so there is nothing to record: give "
        "a torch.nn.Module, or a scikit-learn model with partial_fit (of a Pipeline its last step)."
    )


_RUN = "run.json"
_FORMAT = "exempla-run-1"


@dataclass(frozen=True)
class Snapshot:
    """Weights at one step of a training, in a file of the run's folder."""

    step: int
    learning_rate: float | None
    file: str
    size: int
    sha256: str

    def checked(self, folder: Path) -> Path:
        """Its path, if the file is what was written."""
        path = folder / self.file
        try:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ExemplaError(f"{path} cannot be read ({error.strerror}).") from None
        if found != self.sha256:
            raise ExemplaError(
                f"{path} is not the file that was recorded: remove its entry from {_RUN}."
            )
        return path


@dataclass(frozen=True)
class Run:
    """What run.json says."""

    kind: str
    """Of the model: "torch" or "scikit-learn"."""
    model: str
    steps: int
    stride: int
    finished: bool
    snapshots: tuple[Snapshot, ...]


def has_run(folder: Path) -> bool:
    """Whether a run was recorded in this folder."""
    return (folder / _RUN).is_file()


def read_run(folder: Path) -> Run:
    """The run recorded in a folder.

    >>> read_run(Path("nowhere"))
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: there is no recorded run in nowhere (no run.json).
    """
    try:
        said = json.loads((folder / _RUN).read_bytes())
    except FileNotFoundError:
        raise ExemplaError(f"there is no recorded run in {folder} (no {_RUN}).") from None
    except (OSError, ValueError) as error:
        raise ExemplaError(f"{folder / _RUN} cannot be read ({type(error).__name__}).") from None
    try:
        return _understood(said)
    except (KeyError, TypeError, ValueError):
        raise ExemplaError(f"{folder / _RUN} was not written by this exempla's Recorder.") from None


def _understood(said: Any) -> Run:
    if said["format"] != _FORMAT:
        raise ValueError
    snapshots = tuple(sorted((Snapshot(**one) for one in said["snapshots"]), key=_step))
    if any(Path(one.file).name != one.file for one in snapshots):
        raise ValueError  # only files of this folder
    return Run(
        kind=str(said["kind"]),
        model=str(said["model"]),
        steps=int(said["steps"]),
        stride=max(1, int(said["stride"])),
        finished=bool(said["finished"]),
        snapshots=snapshots,
    )


def _step(snapshot: Snapshot) -> int:
    return snapshot.step


def write_run(folder: Path, run: Run) -> None:
    """Say what the folder holds from now on, and delete what it no longer names."""
    said = {"format": _FORMAT, "version": __version__, **asdict(run)}
    atomic.write_text(folder / _RUN, json.dumps(said, indent=2) + "\n")
    sweep(folder, {one.file for one in run.snapshots})


def write_snapshot(
    folder: Path, step: int, learning_rate: float | None, suffix: str, data: bytes
) -> Snapshot:
    """Write one snapshot's file; it counts once run.json names it."""
    path = atomic.write_bytes(folder / f"step-{step:09d}{suffix}", data)
    return Snapshot(step, learning_rate, path.name, len(data), digest(data))


def digest(data: bytes) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def sweep(folder: Path, named: set[str]) -> None:
    """Delete snapshots that are not named, and what killed runs left of files."""
    for path in [*folder.glob("step-*"), *folder.glob(".step-*.part"), *folder.glob(".run*.part")]:
        if path.name not in named:
            path.unlink(missing_ok=True)


_LISTS = ("coefs_", "intercepts_")
"""Of a perceptron: one array per layer."""
_SINGLE = ("coef_", "intercept_")
"""Of a linear model."""


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Copies of the fitted weights by name.

    >>> from sklearn.linear_model import SGDClassifier
    >>> sorted(arrays_of(SGDClassifier().partial_fit([[0.0], [1.0]], [0, 1], [0, 1])))
    ['coef_', 'intercept_']
    """
    if hasattr(model, _LISTS[0]):
        pairs = [(f"{name}.{i}", a) for name in _LISTS for i, a in enumerate(getattr(model, name))]
    elif hasattr(model, _SINGLE[0]):
        pairs = [(name, getattr(model, name)) for name in _SINGLE]
    else:
        raise UnfittedModelError(
            f"{type(model).__name__} has no weights (coefs_ or coef_) to record yet: call "
            "record.step() after partial_fit."
        )
    return {name: np.array(a) for name, a in pairs}


def place(model: Any, arrays: dict[str, np.ndarray]) -> None:
    """Give the model these weights instead of its own, which must have the same shapes."""
    own = arrays_of(model)
    if {n: a.shape for n, a in own.items()} != {n: a.shape for n, a in arrays.items()}:
        raise ExemplaError(
            f"these weights are of another model than this {type(model).__name__}: their shapes "
            "differ."
        )
    if _LISTS[0] in "".join(own):
        for name in _LISTS:
            setattr(model, name, [arrays[f"{name}.{i}"] for i in range(len(getattr(model, name)))])
    else:
        for name in _SINGLE:
            setattr(model, name, arrays[name])


def _encoded_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as an NPZ file."""
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    return out.getvalue()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file; it cannot run code."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except Exception as problem:  # a file may hold anything
        raise ExemplaError(f"{path} is not a snapshot ({type(problem).__name__}).") from None


def _learning_rate(model: Any) -> float | None:
    """The rate that was asked for: what a schedule makes of it is the model's own affair."""
    if hasattr(model, "learning_rate_init"):
        return float(model.learning_rate_init)
    return float(model.eta0) if getattr(model, "learning_rate", None) == "constant" else None


_SKLEARN_WEIGHTS = Weights(
    kind="scikit-learn",
    suffix=".npz",
    copied=arrays_of,
    encoded=_encoded_arrays,
    nbytes=lambda arrays: _ENTRY + sum(a.nbytes + _ENTRY for a in arrays.values()),
    learning_rate=_learning_rate,
)


SUFFIX = ".safetensors"
_TIED = "tied"
_SHARDED = (
    "{} is not on this machine as a whole, so it cannot be recorded: record a model that is not "
    "sharded (DistributedDataParallel is fine)."
)
_COMPILED, _WRAPPED = "_orig_mod.", "module."


@dataclass(frozen=True)
class _Tensors:
    """A copy of a state dict."""

    kept: dict[str, Tensor]
    tied: dict[str, str]
    """Further names, each with the one its tensor is kept under."""


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict under the names it has without wrappers.

    >>> plain_names({"module._orig_mod.0.weight": 1, "module._orig_mod.0.bias": 2})
    {'0.weight': 1, '0.bias': 2}
    """
    names = [name.replace(_COMPILED, "") for name in state]
    while names and all(name.startswith(_WRAPPED) for name in names):
        names = [name.removeprefix(_WRAPPED) for name in names]
    return dict(zip(names, state.values(), strict=True))


def copied(model: nn.Module) -> _Tensors:
    """The module's parameters and buffers in main memory, as they are now.

    >>> first = nn.Linear(2, 2)
    >>> second = nn.Linear(2, 2)
    >>> second.weight = first.weight
    >>> made = copied(nn.Sequential(first, second))
    >>> sorted(made.kept), made.tied
    (['0.bias', '0.weight', '1.bias'], {'1.weight': '0.weight'})
    """
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise UnsupportedModelError(_SHARDED.format("this model"))
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    places: dict[Any, str] = {}
    for name, value in plain_names(model.state_dict()).items():
        if not isinstance(value, Tensor):  # a module's own extra state is no weight
            continue
        _refuse(name, value)
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in places:
            tied[name] = places[place]
            continue
        places[place] = name
        kept[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return _Tensors(kept, tied)


def _refuse(name: str, value: Tensor) -> None:
    """What is not here as a whole, or is no plain array, cannot be written as one."""
    if type(value).__name__ == "DTensor" or value.is_meta:
        raise UnsupportedModelError(_SHARDED.format(name))
    if value.layout != torch.strided or value.is_quantized:
        raise UnsupportedModelError(f"{name} is sparse or quantized, and cannot be recorded.")


def encoded_tensors(tensors: _Tensors) -> bytes:
    """The copy as the bytes of a safetensors file, the same for the same weights (the library
    writes several entries of metadata in any order, so there is one)."""
    return _library().save(tensors.kept, {_TIED: json.dumps(tensors.tied)})


def nbytes(tensors: _Tensors) -> int:
    """Bytes that the file takes, or a few more."""
    names = [*tensors.kept, *tensors.tied, *tensors.tied.values()]
    numbers = sum(value.nbytes for value in tensors.kept.values())
    return numbers + _ENTRY + sum(len(name.encode()) + _ENTRY for name in names)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The state dict in a safetensors file, tied names included; the file cannot run code."""
    _library()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tied = json.loads((file.metadata() or {}).get(_TIED, "{}"))
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as problem:
        raise ExemplaError(
            f"{path} is not a file of weights alone ({type(problem).__name__}): save "
            "model.state_dict() with safetensors.torch.save_file."
        ) from None
    return found | {name: found[kept] for name, kept in tied.items() if kept in found}


def _library() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise ExemplaError(
            "weights are kept in safetensors files: pip install 'exempla[torch]'."
        ) from None
    return safetensors.torch


_TORCH_WEIGHTS = Weights(
    kind="torch",
    suffix=SUFFIX,
    copied=copied,
    encoded=encoded_tensors,
    nbytes=nbytes,
    learning_rate=lambda model: None,
)
