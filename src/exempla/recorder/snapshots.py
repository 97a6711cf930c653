"""The files of a recorded run: one of weights per snapshot, and run.json, which lists them.

scikit-learn models that are trained step by step become plain arrays in an NPZ file. A torch
module becomes a safetensors file of its parameters and buffers, under the names of the bare module:
prefixes added by DistributedDataParallel, DataParallel and torch.compile are removed. A tensor with
two names (tied weights) is stored once, and the file's metadata lists the further names. Tensors
that share only part of their storage are stored separately. No file can run code when it is read.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exempla import io
from exempla.errors import ExemplaError, UnfittedModelError, UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

SUFFIX = ".safetensors"
SUFFIXES = {"torch": SUFFIX, "scikit-learn": ".npz"}
"""The file name suffix of each kind of model."""
RUN_FILE = "run.json"
RUN_FORMAT = "exempla-run-1"
_SNAPSHOT = re.compile(r"step-\d+(-\d+)?\.(safetensors|npz)")


@dataclass(frozen=True)
class Snapshot:
    """The weights after one training step, in a file of the run's folder."""

    step: int
    learning_rate: float | None
    file: str
    size: int
    sha256: str

    def checked(self, folder: Path) -> Path:
        """Return the path of the file after verifying its checksum."""
        path = folder / self.file
        try:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ExemplaError(f"{path} cannot be read ({error.strerror}).") from None
        if found != self.sha256:
            raise ExemplaError(
                f"{path} has changed since it was recorded: remove its entry from {RUN_FILE}."
            )
        return path


@dataclass(frozen=True)
class RecordedRun:
    """The contents of run.json. `kind` is the kind of model, "torch" or "scikit-learn"."""

    kind: str
    model: str
    steps: int
    stride: int
    finished: bool
    snapshots: tuple[Snapshot, ...]
    writing: tuple[str, ...] = ()
    """Files about to be written or deleted; a killed run may have left them incomplete."""

    @property
    def files(self) -> set[str]:
        """The files that this run may delete."""
        return {one.file for one in self.snapshots} | set(self.writing)


def read_run(folder: Path) -> RecordedRun:
    """Read and validate the run recorded in a folder."""
    path = folder / RUN_FILE
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ExemplaError(f"there is no recorded run in {folder} (no {RUN_FILE}).") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ExemplaError(f"{path} cannot be read ({type(error).__name__}).") from None
    try:
        return _parsed(content)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ExemplaError(f"{path} was not written by this exempla's Recorder.") from None


def _parsed(content: Any) -> RecordedRun:
    snapshots = [Snapshot(**one) for one in content["snapshots"]]
    writing = tuple(content.get("writing", ()))
    names = [*(one.file for one in snapshots), *writing]
    # a Recorder names its files in one way, and deletes no others
    valid = content["format"] == RUN_FORMAT and all(_SNAPSHOT.fullmatch(name) for name in names)
    if not valid or any(type(one.step) is not int for one in snapshots):
        raise ValueError
    return RecordedRun(
        kind=str(content["kind"]),
        model=str(content["model"]),
        steps=int(content["steps"]),
        stride=max(1, int(content["stride"])),
        finished=bool(content["finished"]),
        snapshots=tuple(sorted(snapshots, key=lambda one: one.step)),
        writing=writing,
    )


def write_snapshot(
    folder: Path, step: int, learning_rate: float | None, name: str, data: bytes
) -> Snapshot:
    """Write the file of one snapshot; it counts once run.json lists it."""
    io.write_bytes(folder / name, data)
    return Snapshot(step, learning_rate, name, len(data), hashlib.sha256(data).hexdigest())


# ---- weights


def kind_of(model: Any) -> str:
    """Return "torch" or "scikit-learn"; raise if the model is not trained step by step."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torch"
    if hasattr(model, "partial_fit"):
        return "scikit-learn"
    raise UnsupportedModelError(
        f"{type(model).__name__} is not trained step by step, so there is nothing to record: give "
        "a torch.nn.Module, or a scikit-learn model with partial_fit (of a Pipeline its last step)."
    )


def encoded(model: Any) -> bytes:
    """Return the model's weights as the bytes of a file; the same weights give the same bytes."""
    if kind_of(model) == "torch":
        return _encoded_tensors(model)
    out = BytesIO()
    np.savez(out, allow_pickle=False, **arrays_of(model))  # pyright: ignore[reportArgumentType]
    return out.getvalue()


def learning_rate(model: Any) -> float | None:
    """Return the initial learning rate that a scikit-learn model states, if it does."""
    if hasattr(model, "learning_rate_init"):
        return float(model.learning_rate_init)
    return float(model.eta0) if getattr(model, "learning_rate", None) == "constant" else None


# ---- scikit-learn

_FITTED = ("coefs_", "intercepts_", "coef_", "intercept_")
"""Attributes of a perceptron, lists with one array per layer, and of a linear model."""


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Copy the fitted weights, by name."""
    found: dict[str, np.ndarray] = {}
    for name in _FITTED:
        value = getattr(model, name, None)
        if isinstance(value, list):
            found |= {f"{name}.{i}": np.array(a) for i, a in enumerate(value)}
        elif value is not None:
            found[name] = np.array(value)
    if not found:
        raise UnfittedModelError(
            f"{type(model).__name__} has no weights (coefs_ or coef_) to record yet: call "
            "record.step() after partial_fit."
        )
    return found


def place(model: Any, arrays: dict[str, np.ndarray]) -> None:
    """Replace the model's weights by these, which must have the same names and shapes."""
    own = arrays_of(model)
    if {n: a.shape for n, a in own.items()} != {n: a.shape for n, a in arrays.items()}:
        raise ExemplaError(
            f"these weights belong to another model than this {type(model).__name__}: their shapes "
            "differ."
        )
    for name in {name.partition(".")[0] for name in arrays}:
        value: Any = arrays.get(name)
        if value is None:
            value = [arrays[f"{name}.{i}"] for i in range(len(getattr(model, name)))]
        setattr(model, name, value)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an NPZ file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except Exception as problem:  # a file may hold anything
        raise ExemplaError(f"{path} is not a snapshot ({type(problem).__name__}).") from None


# ---- torch

_TIED = "tied"
_SHARDED = (
    "{} is not on this machine as a whole, so it cannot be recorded: record a model that is not "
    "sharded (DistributedDataParallel is fine)."
)


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict under the names it has without wrappers."""
    names = [name.replace("_orig_mod.", "") for name in state]
    while names and all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, state.values(), strict=True))


def _encoded_tensors(model: nn.Module) -> bytes:
    """Return the module's parameters and buffers as a safetensors file."""
    import torch

    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise UnsupportedModelError(_SHARDED.format("this model"))
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    places: dict[Any, str] = {}
    for name, value in plain_names(model.state_dict()).items():
        if not isinstance(value, torch.Tensor):  # a module's own extra state is no weight
            continue
        if type(value).__name__ == "DTensor" or value.is_meta:
            raise UnsupportedModelError(_SHARDED.format(name))
        if value.layout != torch.strided or value.is_quantized:
            raise UnsupportedModelError(f"{name} is sparse or quantized, and cannot be recorded.")
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in places:
            tied[name] = places[place]
            continue
        places[place] = name
        kept[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    # one entry of metadata: safetensors writes several of them in any order
    return _safetensors().save(kept, {_TIED: json.dumps(tied)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a safetensors file, tied names included."""
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tied = json.loads((file.metadata() or {}).get(_TIED, "{}"))
            return found | {name: found[kept] for name, kept in tied.items() if kept in found}
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError, RecursionError, AttributeError, TypeError) as bad:
        raise ExemplaError(
            f"{path} is not a file of weights alone ({type(bad).__name__}): save "
            "model.state_dict() with safetensors.torch.save_file."
        ) from None


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise ExemplaError(
            "weights are stored in safetensors files: pip install 'exempla[torch]'."
        ) from None
    return safetensors.torch
