"""An Explainer on a run's folder is an Explainer on the same weights given by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import exempla
from exempla.recorder.snapshots import read_tensors
from tests.recorder.test_recorder import DataParallel, Tied, X, Y, network, trained

TRAIN = (torch.tensor(X[::2], dtype=torch.float32), torch.tensor(Y[::2]))
TEST = (torch.tensor(X[1:20:2], dtype=torch.float32), torch.tensor(Y[1:20:2]))


@pytest.fixture
def run(tmp_path):
    model = network()
    with exempla.Recorder(model, tmp_path / "run") as record:
        seen = trained(model, record, 40)
    return model, tmp_path / "run", [seen[s.step] for s in record.snapshots]


def explained(models):
    return exempla.Explainer(models, progress=False).fit(TRAIN)


def test_a_folder_stands_for_its_snapshots(run):
    model, folder, states = run
    by_hand = explained([model, *states[:-1]])  # the last one is the model itself
    for place in (folder, str(folder)):
        found = explained([model, place])
        assert len(found.oracles) == len(states)
        np.testing.assert_array_equal(found.influence(TEST), by_hand.influence(TEST))
        assert (
            found.explain(TEST, k=5).indices.tolist() == by_hand.explain(TEST, k=5).indices.tolist()
        )


def test_a_model_with_other_weights_than_the_last_has_all_of_them(run):
    model, folder, states = run
    best = copy.deepcopy(model)
    with torch.no_grad():
        best[0].weight.add_(0.01)
    assert len(explained([best, folder]).oracles) == 1 + len(states)


def test_errors_are_told_by_the_model_alone(run):
    model, folder, states = run
    test = (torch.tensor(X, dtype=torch.float32), torch.tensor(Y))
    found = exempla.explain_errors([model, folder], TRAIN, test, k=4, progress=False)
    hand = exempla.explain_errors([model, *states[:-1]], TRAIN, test, k=4, progress=False)
    assert found.indices.tolist() == hand.indices.tolist()
    assert found.n_test == hand.n_test


def test_an_explainer_with_a_run_is_saved_without_its_folder(run, tmp_path):
    model, folder, _ = run
    explainer = explained([model, folder])
    kept = explainer.save(tmp_path / "kept")
    folder.rename(tmp_path / "moved")
    again = exempla.Explainer.load(kept)
    np.testing.assert_array_equal(again.influence(TEST), explainer.influence(TEST))


def test_wrapped_training_fits_the_bare_model(tmp_path):
    model = network()
    with exempla.Recorder(DataParallel(model), tmp_path) as record:
        trained(model, record, 12)
    assert len(explained([model, tmp_path]).oracles) == len(record.snapshots)
    first = read_tensors(tmp_path / record.snapshots[0].file)
    wrapped = {f"module.{name}": value for name, value in first.items()}
    by_hand, bare = explained([model, wrapped]), explained([model, first])
    np.testing.assert_array_equal(by_hand.influence(TEST), bare.influence(TEST))


def test_tied_weights_and_extra_state_fit(tmp_path):
    from exempla.oracles import with_runs
    from exempla.oracles.torch.model import with_checkpoints

    model = Tied()
    record = exempla.Recorder(model, tmp_path)
    for step in range(3):
        nn.init.constant_(model.embed.weight, step)
        record.step()
    record.finish()
    one, two = with_checkpoints(with_runs([model, tmp_path]))[1:]
    assert (one.out.weight == 0).all()
    assert (two.out.weight == 1).all()
    assert one.out.weight is one.embed.weight


def test_what_is_wrong_with_a_folder_is_said(run, tmp_path):
    model, folder, _ = run
    (tmp_path / "empty").mkdir()
    with pytest.raises(exempla.ExemplaError, match="no recorded run"):
        exempla.Explainer([model, tmp_path / "empty"])
    with pytest.raises(exempla.ExemplaError, match="put their model before it"):
        exempla.Explainer([folder])
    with pytest.raises(exempla.ExemplaError, match="does not fit"):
        exempla.Explainer([nn.Linear(4, 3), folder])
    with pytest.raises(exempla.ExemplaError, match="not a snapshot"):
        exempla.Explainer([SGDClassifier(loss="log_loss").fit(X, Y), folder])
    first = sorted(folder.glob("step-*"))[0]
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    with pytest.raises(exempla.ExemplaError, match="has changed since it was recorded"):
        exempla.Explainer([model, folder])
    first.unlink()
    with pytest.raises(exempla.ExemplaError, match="cannot be read"):
        exempla.Explainer([model, folder])


# ---- scikit-learn


@pytest.mark.parametrize(
    "model",
    [
        MLPClassifier((5,), random_state=0, learning_rate_init=0.01),
        MLPRegressor(hidden_layer_sizes=(5,), random_state=0, learning_rate_init=0.01),
        SGDClassifier(loss="log_loss", random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_scikit_learn_models_take_their_run_too(tmp_path, model, monkeypatch):
    # levelling applies to a run, not to models given one by one
    monkeypatch.setattr("exempla.kernel.solve.LEVELLING_EXPONENT", 0.0)
    classes = {} if isinstance(model, MLPRegressor) else {"classes": [0, 1, 2]}
    copies = {}
    with exempla.Recorder(model, tmp_path) as record:
        for step in range(1, 31):
            model.partial_fit(X, Y, **classes)
            record.step()
            copies[step] = copy.deepcopy(model)
    test = (X[::10], Y[::10])
    earlier = [copies[s.step] for s in record.snapshots[:-1]]
    given = {"damping": 0.01, "progress": False}  # … by the automatic damping, too
    found = exempla.Explainer([model, tmp_path], **given).fit((X, Y))
    by_hand = exempla.Explainer([model, *earlier], **given).fit((X, Y))
    np.testing.assert_array_equal(found.influence(test), by_hand.influence(test))
    alone = exempla.Explainer(model, **given).fit((X, Y))
    assert not np.allclose(found.influence(test), alone.influence(test))


def test_a_pipeline_takes_the_run_of_its_last_step(tmp_path):
    scaler = StandardScaler().fit(X)
    last = MLPClassifier((5,), random_state=0)
    with exempla.Recorder(last, tmp_path) as record:
        for _ in range(20):
            last.partial_fit(scaler.transform(X), Y, classes=[0, 1, 2])
            record.step()
    whole = exempla.Explainer([make_pipeline(scaler, last), tmp_path], progress=False)
    parts = exempla.Explainer([last, tmp_path], progress=False)
    expected = parts.fit((scaler.transform(X), Y)).influence((scaler.transform(X[:5]), Y[:5]))
    np.testing.assert_allclose(whole.fit((X, Y)).influence((X[:5], Y[:5])), expected)


def test_a_snapshot_of_another_shape_is_refused(tmp_path):
    small, large = (MLPClassifier((n,)).partial_fit(X, Y, classes=[0, 1, 2]) for n in (3, 4))
    record = exempla.Recorder(small, tmp_path)
    record.step()
    record.finish()
    with pytest.raises(exempla.ExemplaError, match="shapes differ"):
        exempla.Explainer([large, tmp_path])
