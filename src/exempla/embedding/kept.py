"""Basis, metric and evidence of one model in a file, so that every run and every machine that adds
rows to a store makes them with the same numbers.

A K-FAC basis is written out: eigenvectors found on another machine may be turned. The identity
needs none. The dual form, which is for few examples, is found again and its numbers compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exempla.arrays import concatenate, to_numpy
from exempla.embedding.prepare import Prepared, Preparing
from exempla.errors import ExemplaError
from exempla.fisher.base import Metric
from exempla.fisher.damping import FisherEvidence
from exempla.fisher.diagonal import DiagonalMetric
from exempla.fisher.full import FullMetric
from exempla.fisher.identity import IdentityMetric
from exempla.oracles.base import Examples, Oracle
from exempla.sketch import Sketch
from exempla.sketch.identity import IdentitySketch
from exempla.sketch.kronecker import KroneckerSketch
from exempla.sketch.span import SpanSketch
from exempla.store import publish_first

__all__ = ["Kept", "keep", "refuse_other_scores", "reopen"]

PROBES = 16
"""Training examples whose rows are kept beside the basis and compared by everybody who goes on."""
ALIKE = 1e-3
"""Relative difference that rounding on another machine may make."""
KINDS = {"identity": IdentitySketch, "kronecker": KroneckerSketch, "span": SpanSketch}


@dataclass(frozen=True)
class Kept:
    """What was read back."""

    prepared: Prepared
    digest: str
    """Of everything in the file: what rows made with it say of themselves."""
    probes: np.ndarray
    """Rows of a few examples."""


def keep(path: Path, prepared: Prepared, oracle: Oracle, train: Examples) -> None:
    """Write the file, unless another was first."""
    from safetensors.numpy import save

    basis, metric = prepared.basis, prepared.metric
    kind = next(name for name, sort in KINDS.items() if isinstance(basis, sort))
    arrays = {f"basis.{name}": a for name, a in _basis_arrays(basis).items()}
    if isinstance(metric, FullMetric):
        arrays["metric"] = metric.matrix
    elif isinstance(metric, DiagonalMetric):
        arrays["metric"] = metric.diagonal
    arrays["probes"] = probe_rows(basis, oracle, train)
    said = {
        "basis": kind,
        "metric": metric.name,
        "evidence": json.dumps(asdict(prepared.evidence)),
    }
    arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    said["sha256"] = _digest(arrays, said)
    publish_first(path, save(arrays, said))


def reopen(path: Path, oracle: Oracle, train: Examples, again: Preparing | None) -> Kept:
    """What the file holds, once it is found whole. `again` has the dual form found anew."""
    arrays, said = _read(path)
    own = {name[6:]: values for name, values in arrays.items() if name.startswith("basis.")}
    metric = _metric(said["metric"], arrays)
    evidence = FisherEvidence(**json.loads(said["evidence"]))
    if said["basis"] == "span":
        assert again is not None
        prepared = again.done()
        if not np.array_equal(own["lower"], _basis_arrays(prepared.basis)["lower"]):
            raise ExemplaError(
                f"the basis found here is not the one in {path.parent}, which another machine or "
                "library made: go on there, or give a number as sketch=, whose basis is kept."
            )
    else:
        like = getattr(getattr(oracle, "network", None), "like", None)
        basis = _basis(said["basis"], oracle, own, like)
        prepared = Prepared(basis, metric, evidence)
    return Kept(prepared, said["sha256"], arrays["probes"])


def needs_again(path: Path) -> bool:
    """Whether the basis in this file has to be found anew."""
    return _read(path)[1]["basis"] == "span"


def probe_rows(basis: Sketch, oracle: Oracle, train: Examples) -> np.ndarray:
    """Rows of a few examples, spread over the data."""
    some = np.unique(np.linspace(0, len(train) - 1, PROBES).astype(np.int64))
    batches = oracle.scores(train.take(some))
    return to_numpy(concatenate([basis.project(batch) for batch in batches]))


def refuse_other_scores(kept: Kept, oracle: Oracle, train: Examples, path: Path) -> None:
    """Raise if a few examples are scored otherwise here: hashes do not see all that may differ."""
    rows = probe_rows(kept.prepared.basis, oracle, train)
    scale = np.abs(kept.probes).max(initial=0.0)
    same = rows.shape == kept.probes.shape and rows.dtype == kept.probes.dtype
    if not same or np.abs(rows - kept.probes).max(initial=0.0) > ALIKE * scale:
        raise ExemplaError(
            f"the model does not score the training examples as it did when the store in "
            f"{path.parent} was begun (other weights, data or options, or random inputs): give "
            "another folder."
        )


# ---- the file


def _basis_arrays(basis: Sketch) -> dict[str, np.ndarray]:
    if isinstance(basis, KroneckerSketch):
        return basis.arrays()
    return {"lower": basis.lower} if isinstance(basis, SpanSketch) else {}


def _basis(kind: str, oracle: Oracle, arrays: Mapping[str, np.ndarray], like: Any) -> Sketch:
    if kind == "kronecker":
        return KroneckerSketch.from_arrays(oracle.layers, arrays, like)
    return IdentitySketch(oracle.layers)


def _metric(name: str, arrays: Mapping[str, np.ndarray]) -> Metric:
    if name == FullMetric.name:
        return FullMetric(arrays["metric"])
    return DiagonalMetric(arrays["metric"]) if name == DiagonalMetric.name else IdentityMetric()


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            said = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = said.pop("sha256")
        if _digest(arrays, said) == digest:
            return arrays, {**said, "sha256": digest}
    except OSError as problem:
        raise ExemplaError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except (SafetensorError, KeyError, ValueError):
        pass
    raise ExemplaError(
        f"{path} is damaged, and without it no row in {path.parent} has a meaning: delete that "
        "folder and fit again."
    )


def _digest(arrays: Mapping[str, np.ndarray], said: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(said), sort_keys=True).encode())
    for name in sorted(arrays):
        values = arrays[name]
        digest.update(f"{name}{values.dtype.str}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
