"""Fits into a store: the same rows and answers as in memory, resumed, shared, and never mixed."""

import json
import shutil

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from exempla import ExemplaError, ExemplaWarning, Explainer
from exempla.kernel import stored as stored_module
from exempla.kernel.sketch import SAMPLE_PER_DIRECTION
from exempla.store import StoredRows
from tests.store.case import problem, shards, small_shards, without_residual


@pytest.fixture(autouse=True)
def many_shards(monkeypatch):
    small_shards(monkeypatch)


def explainer(model, store=None, **options):
    return Explainer(model, store=store, progress=False, **options)


def same_answers(one, other, data):
    X, y = data
    assert one.features.damping == pytest.approx(other.features.damping)
    np.testing.assert_allclose(
        one.influence((X[:4], y[:4])), other.influence((X[:4], y[:4])), rtol=1e-4, atol=1e-7
    )
    for side in ("opponents", "both"):
        a = one.explain((X[:9], y[:9]), k=12, side=side)
        b = other.explain((X[:9], y[:9]), k=12, side=side)
        np.testing.assert_array_equal(a.indices, b.indices)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-4)
        assert a.removal == pytest.approx(b.removal, rel=1e-4)
    np.testing.assert_allclose(one.self_influence(), other.self_influence(), rtol=1e-4)


@pytest.mark.parametrize("fisher", ["true", "identity", "diagonal"])
def test_linear_models(tmp_path, fisher):
    model, data = problem()
    kept = explainer(model, tmp_path, fisher=fisher).fit(data)
    assert isinstance(kept.embeddings[0].rows, StoredRows)
    assert isinstance(kept.features.rows, StoredRows)
    assert len(shards(tmp_path)) == 8
    plain = explainer(model, fisher=fisher).fit(data)
    np.testing.assert_array_equal(kept.embeddings[0].rows[:], plain.embeddings[0].rows)
    same_answers(kept, plain, data)


def test_trees(tmp_path):
    _, data = problem(150)
    model = HistGradientBoostingClassifier(max_iter=8, max_leaf_nodes=5).fit(*data)
    same_answers(explainer(model, tmp_path).fit(data), explainer(model).fit(data), data)


def test_the_dual_form(tmp_path):
    X, y = np.random.default_rng(0).standard_normal((40, 200)), np.arange(40) % 2
    model = LogisticRegression().fit(X, y)
    kept = explainer(model, tmp_path).fit((X, y))
    assert "dual form" in kept.embeddings[0].sketch.note
    same_answers(kept, explainer(model).fit((X, y)), (X, y))
    same_answers(explainer(model, tmp_path).fit((X, y)), kept, (X, y))  # opened again


def fisher_sample(rows, width, seed):
    """The examples that basis and Fisher are estimated from."""
    chosen = np.random.default_rng(seed).choice(len(rows), SAMPLE_PER_DIRECTION * width, False)
    return np.sort(chosen)


def network(seed=0):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    data = torch.randn(120, 5), torch.randint(0, 3, (120,))
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return model, data


@pytest.mark.parametrize("sketch", [20, "auto"])
def test_networks_from_a_data_set(tmp_path, sketch, monkeypatch):
    from torch.utils.data import TensorDataset

    without_residual(monkeypatch)
    model, data = network()
    options = {"sketch": sketch, "damping": 0.1}
    kept = explainer(model, tmp_path, **options).fit(TensorDataset(*data))
    same_answers(kept, explainer(model, **options).fit(data), data)
    shards(tmp_path)[3].unlink()
    same_answers(explainer(model, tmp_path, **options).fit(TensorDataset(*data)), kept, data)


def test_several_models_and_checkpoints_share_a_store(tmp_path, monkeypatch):
    without_residual(monkeypatch)
    model, data = network()
    other, _ = network(1)
    models = [model, other.state_dict()]
    options = {"sketch": 20, "damping": 0.1}
    kept = explainer(models, tmp_path, **options).fit(data)
    assert {p.name for p in tmp_path.iterdir()} >= {"rows-0", "rows-1", "basis-1.npz"}
    same_answers(kept, explainer(models, **options).fit(data), data)
    with pytest.raises(ExemplaError, match="differs in the model"):
        explainer([model], tmp_path, **options).fit(data)


def test_each_question_by_itself_and_a_lower_damping(tmp_path):
    model, (X, y) = problem()
    kept, plain = explainer(model, tmp_path).fit((X, y)), explainer(model).fit((X, y))
    for damping in ("auto", 0.5, 0.01, 0.02):
        a = kept.set_damping(damping).explain_each((X[:3], y[:3]), k=5)
        b = plain.set_damping(damping).explain_each((X[:3], y[:3]), k=5)
        for one, other in zip(a, b, strict=True):
            np.testing.assert_array_equal(one.indices, other.indices)
    assert len(list(tmp_path.glob("white-*"))) == 3  # the oldest is gone
    np.testing.assert_allclose(kept.affinity([3, 4], (X[:2], y[:2])),
                               plain.affinity([3, 4], (X[:2], y[:2])))  # fmt: skip


def test_a_saved_explainer_finds_its_store(tmp_path, monkeypatch):
    model, data = problem()
    monkeypatch.chdir(tmp_path)
    kept = explainer(model, "store").fit(data)
    path = kept.save(tmp_path / "kept")
    rows = kept.embeddings[0].rows.nbytes
    monkeypatch.chdir("/")
    same_answers(Explainer.load(path), kept, data)
    assert rows > 0
    shards(tmp_path / "store")[1].unlink()
    with pytest.raises(ExemplaError, match=r"npy cannot be read: No such file"):
        Explainer.load(path)


# ---- going on


def test_only_what_is_missing_is_made(tmp_path, monkeypatch):
    model, data = problem()
    whole = explainer(model, tmp_path).fit(data).embeddings[0].rows[:]
    files = shards(tmp_path)
    for i in (0, 3, 4):
        files[i].unlink()
    before = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    asked = []
    plain = stored_module._rows_of
    monkeypatch.setattr(
        stored_module,
        "_rows_of",
        lambda missing, **job: (asked.append(missing), plain(missing, **job))[1],
    )
    again = explainer(model, tmp_path).fit(data).embeddings[0].rows
    np.testing.assert_array_equal(again[:], whole)
    assert asked == [[(0, 113), (339, 452), (452, 565)]]
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_machines_share_a_store(tmp_path):
    model, data = problem()
    for i in (3, 1, 2):
        assert explainer(model, tmp_path).fit(data, part=(i, 3))._embeddings is None
    made = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    assert len(made) == 8
    kept = explainer(model, tmp_path).fit(data)
    assert {path: path.stat().st_mtime_ns for path in shards(tmp_path)} == made
    same_answers(kept, explainer(model).fit(data), data)


@pytest.mark.parametrize("part", [(0, 2), (3, 2), (1,), "1/2", (1.0, 2), (True, 2)])
def test_a_part_that_is_none_is_said(tmp_path, part):
    model, data = problem(60)
    with pytest.raises(ExemplaError, match="the i-th of n parts"):
        explainer(model, tmp_path).fit(data, part=part)
    with pytest.raises(ExemplaError, match="give store=FOLDER too"):
        explainer(model).fit(data, part=(1, 2))


# ---- other jobs


def test_a_store_of_another_job_is_refused_with_what_differs(tmp_path):
    model, (X, y) = problem()
    explainer(model, tmp_path).fit((X, y))
    changed = X.copy()
    changed[500, 2] += 1e-9
    other, _ = problem(seed=1)
    for said, job in {
        "the training data": lambda: explainer(model, tmp_path).fit((changed, y)),
        "the number of training examples": lambda: explainer(model, tmp_path).fit((X[:-1], y[:-1])),
        "the model": lambda: explainer(other, tmp_path).fit((X, y)),
        "seed=": lambda: explainer(model, tmp_path, seed=4).fit((X, y)),
        "sketch=": lambda: explainer(model, tmp_path, sketch=4).fit((X, y)),
        "fisher=": lambda: explainer(model, tmp_path, fisher="identity").fit((X, y)),
    }.items():
        with pytest.raises(ExemplaError, match=f"another job: it differs in .*{said}"):
            job()
    path = tmp_path / "store.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "version": "0.0"}))
    with pytest.raises(ExemplaError, match=r"the version of exempla \(0\.0 there"):
        explainer(model, tmp_path).fit((X, y))


def test_scores_that_differ_where_no_hash_can_see_it_are_noticed(tmp_path):
    from exempla.oracles.scores import ScoreModel

    X = np.random.default_rng(0).standard_normal((50, 3))
    for factor, refused in ((1.0, False), (1.0, False), (1.1, True)):
        job = explainer(ScoreModel(score=lambda x, y, f=factor: f * x), tmp_path)
        if not refused:
            job.fit((X, np.zeros(50)))
            continue
        with pytest.raises(ExemplaError, match="no longer gives the scores it gave"):
            job.fit((X, np.zeros(50)))


def test_a_folder_of_something_else_is_refused(tmp_path):
    model, data = problem(60)
    np.save(tmp_path / "mine.npy", np.eye(2))
    with pytest.raises(ExemplaError, match=r"holds mine\.npy and no store\.json"):
        explainer(model, tmp_path).fit(data)
    (tmp_path / "mine.npy").unlink()
    (tmp_path / "store.json").write_text("[1")
    with pytest.raises(ExemplaError, match="not written by exempla"):
        explainer(model, tmp_path).fit(data)


# ---- damage


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("harm", [flip, cut])
@pytest.mark.parametrize("place", [3, 200, 1000, -150, -90, -1])
def test_a_damaged_shard_is_named_and_made_again(tmp_path, harm, place):
    model, data = problem()
    whole = explainer(model, tmp_path).fit(data).embeddings[0].rows[:]
    path = shards(tmp_path)[2]
    harm(path, place)
    with pytest.warns(ExemplaWarning, match=f"{path.name} .*made again"):
        again = explainer(model, tmp_path).fit(data)
    np.testing.assert_array_equal(again.embeddings[0].rows[:], whole)


def test_a_shard_of_another_place_or_basis_is_not_taken(tmp_path):
    model, data = problem()
    whole = explainer(model, tmp_path / "a").fit(data).embeddings[0].rows[:]
    explainer(model, tmp_path / "b", fisher="identity").fit(data)
    mine, theirs = shards(tmp_path / "a"), shards(tmp_path / "b")
    shutil.copy(mine[0], mine[1])
    shutil.copy(theirs[4], mine[4])
    with pytest.warns(ExemplaWarning) as told:
        again = explainer(model, tmp_path / "a").fit(data)
    said = [str(one.message) for one in told]
    assert any("differs in start, stop" in text for text in said)
    assert any("differs in basis" in text for text in said)
    np.testing.assert_array_equal(again.embeddings[0].rows[:], whole)


def test_a_damaged_basis_is_named(tmp_path):
    model, data = problem()
    explainer(model, tmp_path).fit(data)
    for harm, place in ((flip, -5), (cut, -40)):
        kept = (tmp_path / "basis-0.npz").read_bytes()
        harm(tmp_path / "basis-0.npz", place)
        with pytest.raises(ExemplaError, match=r"basis-0\.npz is damaged"):
            explainer(model, tmp_path).fit(data)
        (tmp_path / "basis-0.npz").write_bytes(kept)


# ---- faults


def test_nan_in_the_middle_is_named_by_its_row(tmp_path):
    model, (X, y) = network()
    kept = explainer(model, tmp_path / "whole", sketch=4).fit((X, y)).embeddings[0].rows[:]
    unseen = np.setdiff1d(np.arange(60, 120), np.linspace(0, 119, 16).astype(int))  # no probe
    looked_at = fisher_sample(np.arange(120), 4, 0)
    bad = int(np.setdiff1d(unseen, looked_at)[0])
    X[bad] = np.nan
    with pytest.raises(ExemplaError, match=rf"\(rows {bad}\)"):
        explainer(model, tmp_path / "store", sketch=4).fit((X, y))
    made = shards(tmp_path / "store")
    assert len(made) < 8
    for i, path in enumerate(made):  # what came before it is kept
        np.testing.assert_allclose(np.load(path), kept[15 * i : 15 * i + 15], rtol=1e-3, atol=1e-5)


def test_a_full_disk_is_said_before_it_is_full(tmp_path, monkeypatch):
    model, data = problem()
    monkeypatch.setattr(
        "exempla.store.folder.disk_usage", lambda _: type("usage", (), {"free": 100})()
    )
    with pytest.raises(ExemplaError, match="GiB free: free some space"):
        explainer(model, tmp_path).fit(data)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    model, data = problem(60)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ExemplaError, match=r"rows cannot be stored in .*file"):
        explainer(model, tmp_path / "file").fit(data)
    with pytest.raises(ExemplaError, match="rows cannot be stored in"):
        explainer(model, "/proc/nothing").fit(data)
