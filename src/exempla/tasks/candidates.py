"""The candidates of `acquire`: the rows of a pool, seen from a query, and how they are picked.

A candidate is one row in whitened coordinates: its own score if the pool has labels (of texts at
unit length), otherwise its contrast towards the query (see `acquire`). Where the sketch of a model
does not represent all parameters, a row has one more coordinate, along the residual of the target;
the rest of its residual, which no other row is compared in, is a private variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from exempla.data import count_examples, take_examples
from exempla.explainer import Explainer
from exempla.kernel.basis import IdentitySketch
from exempla.kernel.embed import Embedding
from exempla.oracles.base import ScoreRows, in_float64
from exempla.progress import track_rows
from exempla.selection import SBQ, Selector, TopInfluence
from exempla.selection.select import quiet_select

_NOISE_SHARE = 0.1
"""Noise of the default selector as a share of n. At 1 the gains are the exact variance reductions
if all labels were observed with the model's own label noise; less noise asks for more diversity."""
_PROBES, _PROBE_EXAMPLES = 4, 256
"""Random combinations of test predictions that breadth is aimed at, and examples in each."""
_GROUP_DIGITS = 5
"""Rows whose directions agree to this many decimals are copies of each other."""


class Candidates(NamedTuple):
    """The pool, seen from one query."""

    rows: np.ndarray
    """What candidates are selected by, one row each."""
    plain: np.ndarray
    """The same at their own length, divided by √(1 + d/n) for a private variance d."""
    target: np.ndarray
    single: np.ndarray
    """Rows of the queried examples, one by one."""


class _Target:
    """A combination of one model's score rows: the direction that candidates are compared in.

    `vector` is the target, whitened, with the length of its residual as the last coordinate.
    """

    def __init__(
        self, embedding: Embedding, damping: float, rows: ScoreRows, mix: np.ndarray
    ) -> None:
        self.embedding, self.damping, self.rows, self.mix = embedding, damping, rows, mix
        self.inside = mix @ in_float64(embedding.sketch.project(rows))
        self.length = self.scale = 0.0  # of the residual, and 1 / metric there
        if not isinstance(embedding.sketch, IdentitySketch):
            square = float(mix @ rows.gram(rows) @ mix - self.inside @ self.inside)
            penalty = embedding.sketch.residual_penalty
            penalty = embedding.residual_eigenvalue if penalty is None else penalty
            self.scale = embedding.metric.residual_inverse(penalty, damping)
            self.length = max(square, 0.0) ** 0.5
        white = in_float64(embedding.metric.whiten(self.inside[None], damping))[0]
        self.vector = np.append(white, np.sqrt(self.scale) * self.length)

    def features(self, batch: ScoreRows, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whitened rows with one coordinate along the target's residual, and each row's
        squared length in the rest of the residual, which no other row is compared in.

        `inside` are the rows in sketch space.
        """
        white = in_float64(self.embedding.metric.whiten(inside, self.damping))
        along = rest = np.zeros(len(white))
        if self.scale and self.length > 0:
            along = (batch.gram(self.rows) @ self.mix - inside @ self.inside) / self.length
        if self.scale:
            rest = batch.norm2() - np.einsum("ij,ij->i", inside, inside) - along**2
        rows = np.column_stack([white, np.sqrt(self.scale) * along])
        return rows, self.scale * np.maximum(rest, 0.0)


class CandidatePool:
    """The candidates: one row each towards a given target, whitened, all models side by side."""

    def __init__(
        self, explainer: Explainer, pool: Any, test: Any, selector: Selector | None = None,
        root_costs: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        kernel = explainer.kernel("influence")
        self.models = list(zip(kernel.embeddings, (d.value for d in kernel.dampings), strict=True))
        self.examples = [e.oracle.read(pool, role="test") for e, _ in self.models]
        self.labelled = self.examples[0].labels is not None
        # the tokens of a text are its label
        self.is_text = self.models[0][0].oracle.likelihood == "causal_lm"
        self.unit = self.is_text and explainer.normalize
        usual = TopInfluence() if self.unit else SBQ(noise=_NOISE_SHARE * explainer.n_train)
        self.selector = usual if selector is None else selector
        self.test, self.root_costs, self.n_train = test, root_costs, explainer.n_train

    def towards(self, query: Any) -> Candidates:
        """Return a row for every candidate, towards the mean score of the queried examples."""
        made, single = [], []
        for e, damping in self.models:
            scores = ScoreRows.join(list(e.oracle.scores(e.oracle.read(query, role="test"))))
            inside = in_float64(e.sketch.project(scores))
            made.append(_Target(e, damping, scores, np.full(len(scores), 1.0 / len(scores))))
            if self.unit:  # every queried example counts the same
                rows, private = made[-1].features(scores, inside)
                length = np.sqrt(np.einsum("ij,ij->i", rows, rows) + private)
                mix = 1.0 / np.maximum(length, np.finfo(float).tiny) / len(scores)
                made[-1] = _Target(e, damping, scores, mix)
            single.append(made[-1].features(scores, inside)[0])
        ((target, rows, private),) = self._towards([made], self.labelled, np.float64)
        single = np.hstack(single) / np.sqrt(len(single))
        return Candidates(
            self._weighed(rows, private, self.unit), self._weighed(rows, private), target, single
        )

    def pick(
        self, towards: Candidates, k: int, breadth: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pick k candidates, a share of them for what all test predictions depend on.

        Returns their positions and their gains: 0 for those picked for breadth.
        """
        keep, general = _first_of_copies(towards.rows), round(breadth * k)
        order, gains = np.zeros(0, np.int64), np.zeros(0)
        if k > general:
            side, wanted = "proponents" if self.labelled else "both", min(k - general, len(keep))
            found = quiet_select(towards.rows[keep], towards.target, wanted, self.selector, side)
            order, gains = keep[found.indices], np.asarray(found.gains)
        return self._with_breadth(order, gains, keep, k, rng) if general else (order, gains)

    def _with_breadth(
        self, order: np.ndarray, gains: np.ndarray, keep: np.ndarray, k: int,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Spread picks for random combinations of all test predictions evenly among the others."""
        general, size = min(k, len(keep)) - len(order), count_examples(self.test) or 0
        targets = []
        for _ in range(min(_PROBES, general)):
            drawn = np.sort(rng.choice(size, min(size, _PROBE_EXAMPLES), replace=False))
            some, made = take_examples(self.test, drawn), []
            for e, damping in self.models:
                rows = ScoreRows.join(list(e.oracle.fisher_rows(e.oracle.read(some, role="test"))))
                signs = rng.choice([-1.0, 1.0], len(rows)) / np.sqrt(len(drawn))
                made.append(_Target(e, damping, rows, signs))
            targets.append(made)
        found: list[int] = []
        for i, (goal, rows, private) in enumerate(self._towards(targets, False, np.float32), 1):
            share = general * i // len(targets)
            wanted = min(len(keep), len(order) + len(found) + share)
            own = self._weighed(rows, private)[keep]
            candidates = keep[quiet_select(own, goal, wanted, self.selector, "both").indices]
            fresh = [int(j) for j in candidates if j not in order and j not in found]
            found += fresh[: share - len(found)]
        places = np.linspace(0, len(order), len(found) + 1)[1:].astype(int)
        return np.insert(order, places, found), np.insert(gains, places, 0.0)

    def _weighed(self, rows: np.ndarray, private: np.ndarray, unit: bool = False) -> np.ndarray:
        """Divide rows by √(1 + d/n), for a private variance d beside the shared noise n, or by
        their length; and by the root of their cost."""
        scale = np.sqrt(1 + private / self.n_train)
        if unit:
            scale = np.sqrt(np.einsum("ij,ij->i", rows, rows) + private)
        if self.root_costs is not None:
            scale = scale * self.root_costs
        return rows / np.maximum(scale, np.finfo(float).tiny)[:, None].astype(rows.dtype)

    def _towards(
        self, targets: list[list[_Target]], labelled: bool, dtype: Any
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for each target its vector, a row per candidate, and the rows' private variances.

        One pass over the pool is made per model.
        """
        root = np.sqrt(len(self.models))
        parts = [
            self._rows([made[i] for made in targets], examples, labelled, dtype)
            for i, examples in enumerate(self.examples)
        ]
        for place, made in enumerate(targets):
            rows = np.hstack([part[place][0] for part in parts]) / dtype(root)
            private = np.mean([part[place][1] for part in parts], axis=0)
            yield np.concatenate([t.vector for t in made]) / root, rows, private

    def _rows(
        self, targets: list[_Target], examples: Any, labelled: bool, dtype: Any
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        embedding, n = targets[0].embedding, len(examples)
        oracle = embedding.oracle
        out = [(np.zeros((n, len(t.vector)), dtype), np.zeros(n)) for t in targets]
        batches = oracle.scores(examples) if labelled else oracle.fisher_rows(examples)
        for batch in track_rows(batches, "scoring the pool", n):
            inside = in_float64(embedding.sketch.project(batch))
            for target, (made, private) in zip(targets, out, strict=True):
                features, rest = target.features(batch, inside)
                for rows in _by_example(batch.sample):
                    at = batch.sample[rows[:, 0]]
                    made[at], private[at] = _contrast(
                        features[rows], rest[rows], target.vector, self.n_train
                    )
        return out


def _contrast(
    block: np.ndarray, private: np.ndarray, goal: np.ndarray, n: float
) -> tuple[np.ndarray, np.ndarray]:
    """Reduce blocks of rows (m, c, p) to the unit combination that gains most towards the goal, and
    their private variances."""
    if block.shape[1] == 1:
        return block[:, 0], private[:, 0]
    inner = block @ block.transpose(0, 2, 1) / n
    inner += np.eye(block.shape[1]) + private[:, :, None] * np.eye(block.shape[1]) / n
    w = np.linalg.solve(inner, (block @ goal)[..., None])[..., 0]
    w /= np.maximum(np.linalg.norm(w, axis=1, keepdims=True), np.finfo(float).tiny)
    return np.einsum("mc,mcp->mp", w, block), np.einsum("mc,mc->m", w**2, private)


def _by_example(sample: np.ndarray) -> Iterator[np.ndarray]:
    """Positions of each example's rows, examples with equally many rows together."""
    order = np.argsort(sample, kind="stable")
    _, starts, counts = np.unique(sample[order], return_index=True, return_counts=True)
    for count in np.unique(counts):
        yield order[starts[counts == count][:, None] + np.arange(count)]


def _first_of_copies(rows: np.ndarray) -> np.ndarray:
    """Positions of the first row in every direction; rows of no length at all are left out."""
    length = np.linalg.norm(rows, axis=1)
    alive = np.flatnonzero(length > 0)
    unit = rows[alive] / length[alive, None]
    draws = np.random.default_rng(0).normal(size=(rows.shape[1], 4))
    cells = np.column_stack(
        [np.round(unit @ draws, _GROUP_DIGITS), np.round(np.log(length[alive]), 3)]
    )
    return alive[np.sort(np.unique(cells, axis=0, return_index=True)[1])]
