"""The public calls, each with arguments that work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.tasks.attack import weak_points

_X, _Y = load_breast_cancer(return_X_y=True)
_X = (_X - _X.mean(0)) / _X.std(0)
KEEP = np.r_[0:90]
X, Y = _X[KEEP][:, :6].copy(), _Y[KEEP].copy()
XT, YT = _X[200:240][:, :6].copy(), _Y[200:240].copy()
MODEL = LogisticRegression().fit(X, Y)
FITTED = exempla.Explainer(MODEL, progress=False).fit((X, Y))
ROWS = np.random.default_rng(0).normal(size=(40, 5))
TARGET = ROWS[:8].mean(0)
torch.manual_seed(0)
NET = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).double()
FOUND = exempla.clean(MODEL, (X, Y), (XT, YT), 3, ask="all", progress=False)
MOVED = exempla.attack(MODEL, (X, Y), (XT[:4], YT[:4]), steps=3, progress=False)


def _frame(found: Any) -> np.ndarray:
    return found.table.select_dtypes("number").to_numpy().ravel()


def _estimator(X: Any, y: Any, sample_weight: Any, **options: Any) -> np.ndarray:
    made = exempla.FisherExplainer(LogisticRegression(), **options).fit(X, y, sample_weight)
    return made.influence(XT[:3], YT[:3])


DOORS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "explain": (
        lambda **a: exempla.explain(MODEL, **a),
        {"train": (X, Y), "test": (XT, YT), "k": 3, "side": "opponents", "labels": "true",
         "selector": None, "weights": None, "ids": None, "likelihood": "auto", "fisher": "true",
         "sketch": "auto", "damping": "auto", "normalize": True, "parameters": None,
         "store": None, "device": None, "seed": 0, "progress": False},
    ),
    "explain_errors": (
        lambda **a: exempla.explain_errors(MODEL, (X, Y), **a),
        {"test": (XT, YT), "k": 3, "side": "both", "ask": "errors", "seed": 0, "progress": False},
    ),
    "explain_each": (
        FITTED.explain_each,
        {"test": (XT[:3], YT[:3]), "k": 2, "side": "opponents", "labels": "true",
         "selector": None, "weights": None},
    ),
    "influence": (FITTED.influence, {"test": (XT, YT), "labels": "true"}),
    "affinity": (FITTED.affinity, {"indices": [1, 2], "test": (XT, YT), "labels": "true"}),
    "set_damping": (
        lambda **a: exempla.Explainer(MODEL, progress=False).fit((X, Y)).set_damping(**a)
        .influence((XT, YT)),
        {"damping": 0.1},
    ),
    "fix_labels": (
        lambda **a: exempla.fix_labels(MODEL, **a),
        {"train": (X, Y), "curated": (XT, YT), "k": 5, "method": "sbq", "fit": None, "seed": 0,
         "progress": False, "sketch": "auto", "noise": 10.0, "damping": "auto", "ids": None},
    ),
    "clean": (
        lambda **a: exempla.clean(MODEL, **a),
        {"train": (X, Y), "test": (XT, YT), "k": 3, "ask": "all", "selector": None,
         "fit": None, "ids": None, "damping": "auto", "seed": 0, "progress": False},
    ),
    "summarize": (
        lambda **a: exempla.summarize(MODEL, **a),
        {"train": (X, Y), "k": 8, "total": "k", "selector": None, "fit": None, "ids": None,
         "damping": "auto", "seed": 0, "progress": False},
    ),
    "attack": (
        lambda **a: exempla.attack(MODEL, **a),
        {"train": (X, Y), "test": (XT[:4], YT[:4]), "k": 2, "perturb": "train",
         "objective": "influence", "budget": 0.1, "steps": 3, "step": None, "bounds": "auto",
         "damping": "auto", "rounds": 1, "ids": None, "seed": 0, "progress": False},
    ),
    "select": (
        exempla.select,
        {"features": ROWS, "target": TARGET, "k": 3, "selector": None, "side": "both",
         "start": None},
    ),
    "select_from_kernel": (
        lambda kernel, **a: exempla.select_from_kernel(lambda i, J: kernel[i][J], **a),
        {"kernel": ROWS @ ROWS.T, "z": ROWS @ TARGET, "k": 3,
         "target_norm2": float(TARGET @ TARGET), "noise": 0.0, "side": "both"},
    ),
    "certificate": (
        lambda **a: exempla.certificate(selection=exempla.select(ROWS, TARGET, 3), **a)
        .to_dict()["statements"][0]["value"],
        {"features": ROWS, "target": TARGET},
    ),
    "hessian_influence": (
        lambda **a: exempla.metrics.hessian_influence(MODEL, **a),
        {"train": (X, Y), "test": (XT[:3], YT[:3]), "damping": 0.0},
    ),
    "lds": (
        exempla.metrics.lds,
        {"attribution": ROWS[:, :4], "subsets": ROWS[:12].repeat(8, 1)[:, :40] > 0,
         "outcomes": ROWS[:12, :4]},
    ),
    "noise": (lambda **a: exempla.select(ROWS, TARGET, 3, exempla.SBQ(**a)), {"noise": 0.5}),
    "stochastic": (
        lambda **a: exempla.select(ROWS, TARGET, 3, exempla.StochasticGreedy(**a)),
        {"delta": 0.1, "seed": 0},
    ),
    "sharded": (
        lambda **a: exempla.select(ROWS, TARGET, 3, exempla.Sharded(exempla.SBQ(), **a)),
        {"shards": 2, "mode": "exact", "backend": "local"},
    ),
    "explainer": (
        lambda train, ids, **a: exempla.Explainer(MODEL, **a).fit(train, ids).self_influence(),
        {"train": (X, Y), "ids": None, "likelihood": "auto", "fisher": "true", "sketch": "auto",
         "damping": "auto", "normalize": True, "parameters": None, "store": None, "device": None,
         "seed": 0, "progress": False},
    ),
    "fitted": (
        FITTED.explain,
        {"test": (XT, YT), "k": 3, "side": "opponents", "labels": "true", "selector": None,
         "weights": None},
    ),
    "estimator": (
        _estimator,
        {"X": X, "y": Y, "sample_weight": None, "fisher": "true", "sketch": "auto",
         "damping": "auto", "normalize": True, "seed": 0, "progress": False},
    ),
    "network": (
        lambda **a: exempla.explain(NET, **a),
        {"train": (X, Y), "test": (XT, YT), "k": 3, "side": "opponents", "labels": "true",
         "weights": None, "likelihood": "auto", "fisher": "true", "sketch": "auto",
         "damping": "auto", "normalize": True, "parameters": None, "device": None, "seed": 0,
         "progress": False},
    ),
    "array scores": (
        lambda train, test, **a: exempla.explain(
            exempla.ArrayScores(**a), train, test, k=3, progress=False
        ),
        {"train": ROWS, "test": ROWS[:5], "penalty": 0.1},
    ),
    "weak_points": (
        lambda **a: weak_points(MODEL, (X, Y), (XT[:4], YT[:4]), **a),
        {"budget": 0.1, "bounds": "auto", "damping": "auto", "parameters": None, "seed": 0},
    ),
    "verify": (
        lambda **a: _frame(FOUND.verify(**a)),
        {"fit": None, "seeds": 2, "holdout": (XT, YT), "first_seed": 0},
    ),
    "attack verify": (lambda **a: _frame(MOVED.verify(**a)), {"fit": None, "seeds": 2}),
    "mislabel_auc": (
        exempla.metrics.mislabel_auc,
        {"suspicion": ROWS[:, 0], "wrong": ROWS[:, 1] > 0},
    ),
    "found_share": (
        exempla.metrics.found_share,
        {"ranking": np.arange(40), "wrong": ROWS[:, 1] > 0, "k": 5},
    ),
    "random": (lambda **a: exempla.select(ROWS, TARGET, 3, exempla.Random(**a)), {"seed": 0}),
    "matching": (
        lambda **a: exempla.select(ROWS, TARGET, 3, exempla.MatchingPursuit(**a)), {"noise": 0.5},
    ),
}  # fmt: skip
