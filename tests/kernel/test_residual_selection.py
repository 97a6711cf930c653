"""What sketches leave out counts towards a question: against kernels written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exempla import Explainer
from exempla.kernel import embed
from exempla.kernel import kernel as kernels
from exempla.kernel.kernel import mean_embedding, roots
from tests.kernel.test_residual_influence import ASKED, TRAIN, network
from tests.reference import dense_rows

FEW = 6


def fitted(sketch: Any = 20, models: int = 1, **more: Any) -> Explainer:
    networks = [network(seed) for seed in range(models)]
    return Explainer(networks, sketch=sketch, progress=False, **more).fit(TRAIN)


def written_out(explainer: Explainer, use: str) -> np.ndarray:
    """The whole kernel of all training and all questioned examples, from scores written out."""
    total, own_i, own_j = np.zeros((3, 1))
    chosen = explainer.kernel(use).dampings  # type: ignore[arg-type]
    for e, damping in zip(explainer.embeddings, chosen, strict=True):
        asked = e.oracle.read(ASKED, role="test")
        S, T = (dense_rows(e.oracle.scores(x)) for x in (e.train, asked))
        rows, other = np.asarray(e.rows), np.asarray(e.embed(asked, "true")[0])
        metric = e.metric.matrix + damping.value * np.eye(rows.shape[1])  # type: ignore[attr-defined]
        outside = e.residual_eigenvalue + damping.value

        def kernel(a, x, b, y, metric=metric, outside=outside):
            return x @ np.linalg.solve(metric, y.T) + (a @ b.T - x @ y.T) / outside

        total = total + kernel(S, rows, T, other)
        own_i = own_i + np.diag(kernel(S, rows, S, rows))
        own_j = own_j + np.diag(kernel(T, other, T, other))
    if use == "influence":
        return total / len(explainer.embeddings)
    return total / np.sqrt(np.outer(own_i, own_j))


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("normalize", [True, False])
def test_alignment_and_affinity_are_the_whole_kernel(models: int, normalize: bool) -> None:
    explainer = fitted(models=models, normalize=normalize)
    K = written_out(explainer, "selection" if normalize else "influence")
    weights = np.linspace(0.5, 2.0, len(ASKED[1]))
    for given in (None, weights):
        found = explainer.explain(ASKED, FEW, side="both", weights=given)
        assert found.residual_used
        c = K @ (np.full(len(weights), 1 / len(weights)) if given is None else given / given.sum())
        np.testing.assert_allclose(found.alignment, c[found.indices], rtol=1e-6, atol=1e-9)
        assert abs(c[found.indices[0]]) == pytest.approx(np.abs(c).max()) or not normalize
    some = np.array([3, 50, 99])
    np.testing.assert_allclose(explainer.affinity(some, ASKED), K[some], rtol=1e-6, atol=1e-9)


def test_each_question_has_a_direction_of_its_own() -> None:
    explainer = fitted(sketch=20)
    few = (ASKED[0][:5], ASKED[1][:5])
    K = written_out(explainer, "selection")[:, :5]
    for j, found in enumerate(explainer.explain_each(few, FEW)):
        np.testing.assert_allclose(found.alignment, K[found.indices, j], rtol=1e-5, atol=1e-8)
        alone = explainer.explain((few[0][j : j + 1], few[1][j : j + 1]), FEW)
        np.testing.assert_allclose(alone.alignment, K[alone.indices, j], rtol=1e-5, atol=1e-8)
        assert found.indices[0] in alone.indices
    weights = np.array([[1.0, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    for line, found in zip(weights, explainer.explain_each(few, 3, weights=weights), strict=True):
        np.testing.assert_allclose(
            found.alignment, K[found.indices] @ (line / line.sum()), rtol=1e-5, atol=1e-8
        )


def test_many_questions_and_dear_ones_are_asked_of_the_sketch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explainer = fitted(sketch=20)
    assert len(ASKED[1]) > 20 * kernels.MAX_ADDED_WIDTH
    kernel = explainer.kernel("selection")
    features = kernel.features

    def by_the_sketch() -> np.ndarray:
        return np.asarray(kernel.query_rows(kernel.query(ASKED), features.rows))

    found = explainer.explain_each(ASKED, 3)[0]
    wanted = np.asarray(features.rows)[found.indices] @ by_the_sketch()[0]
    np.testing.assert_allclose(found.alignment, wanted)
    monkeypatch.setattr(kernels, "MAX_SELECTION_PASSES", -1.0)
    one = explainer.explain(ASKED, 3)
    assert not one.residual_used
    wanted = np.asarray(features.rows)[one.indices] @ mean_embedding(by_the_sketch())
    np.testing.assert_allclose(one.alignment, wanted)


def test_the_residual_is_added_wherever_the_sketch_drops_enough_and_rows_are_in_memory(
    tmp_path: Any,
) -> None:
    rough, exact, disk = fitted(20), fitted("exact"), fitted(20, store=tmp_path / "rows")
    assert rough.explain(ASKED, FEW).residual_used
    assert not exact.explain(ASKED, FEW).residual_used
    assert not disk.explain(ASKED, FEW).residual_used
    wide = fitted(60)
    assert 0.5 < wide.embeddings[0].evidence.share < embed.MAX_SKETCH_SHARE
    assert wide.explain(ASKED, FEW).residual_used


def test_it_is_nearer_to_the_exact_kernel_than_the_sketch_alone() -> None:
    def aligned(explainer: Explainer) -> np.ndarray:
        found = explainer.explain(ASKED, 100, side="both")
        out = np.zeros(100)
        out[found.indices] = found.alignment
        return out

    exact, whole = aligned(fitted("exact")), aligned(fitted(20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed, "MAX_SKETCH_SHARE", 0.0)
        alone = aligned(fitted(20))
    near = [float(np.corrcoef(exact, c)[0, 1]) for c in (alone, whole)]
    assert near[0] < 0.85
    assert near[1] > 0.9


def test_roots_of_questions_that_say_the_same() -> None:
    directions = np.array([[1.0, 0, 0], [1, 0, 0], [0, 2, 0]])
    gram = directions @ directions.T
    root, inverse = roots(gram)
    assert root.shape == (3, 2)
    np.testing.assert_allclose(root @ root.T, gram, atol=1e-12)
    np.testing.assert_allclose(root.T @ inverse, np.eye(2), atol=1e-12)
    assert not roots(np.zeros((2, 2)))[0].any()
