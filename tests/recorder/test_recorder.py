"""What a training loop leaves in its folder."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from torch import nn

import exempla
from exempla.recorder import recorder as module
from exempla.recorder.snapshots import encoded, plain_names, read_run, read_tensors

X, Y = load_iris(return_X_y=True)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def trained(model, record, steps, optimizer=None):
    """Steps of training, with the weights after each of them."""
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    seen = {}
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        record.step()
        seen[record.steps] = {n: v.clone() for n, v in model.state_dict().items()}
    return seen


def same(one, other) -> bool:
    return set(one) == set(other) and all(torch.equal(one[n], other[n]) for n in one)


def files(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_snapshots_are_the_weights_of_their_steps_buffers_included(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    with exempla.Recorder(model, tmp_path / "run", optimizer) as record:
        seen = trained(model, record, 45, optimizer)
    run = read_run(tmp_path / "run")
    assert [s.step for s in run.snapshots] == [8, 16, 24, 32, 40, 45]
    assert run.finished
    assert run.steps == 45
    for snapshot in run.snapshots:
        found = read_tensors(snapshot.checked(tmp_path / "run"))
        assert same(found, seen[snapshot.step])
        assert found["1.num_batches_tracked"].dtype == torch.int64
        assert snapshot.learning_rate == 0.25
    assert files(tmp_path / "run") == {"run.json", *(s.file for s in run.snapshots)}


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 17, 100])
def test_the_last_weights_are_always_there(tmp_path, length):
    model = network()
    record = exempla.Recorder(model, tmp_path)
    seen = trained(model, record, length)
    record.finish()
    last = record.snapshots[-1]
    assert last.step == length
    assert same(read_tensors(tmp_path / last.file), seen[length])
    before = files(tmp_path), (tmp_path / last.file).stat().st_mtime_ns
    record.finish()
    assert (files(tmp_path), (tmp_path / last.file).stat().st_mtime_ns) == before


def test_weights_put_back_before_the_end_are_the_last_ones(tmp_path):
    model = network()
    record = exempla.Recorder(model, tmp_path)
    seen = trained(model, record, 8)
    record.flush()
    model.load_state_dict(seen[3])  # the best of the run
    record.finish()
    assert same(read_tensors(tmp_path / record.snapshots[-1].file), seen[3])


def test_a_step_between_snapshots_only_counts(tmp_path, monkeypatch):
    record = exempla.Recorder(network(), tmp_path, steps=800)
    monkeypatch.setattr(record, "_check", lambda: pytest.fail("looked up"))
    for _ in range(99):
        record.step()
    assert record.steps == 99


def test_a_known_length_writes_each_file_once(tmp_path, monkeypatch):
    written = []
    whole = module.write_snapshot
    monkeypatch.setattr(module, "write_snapshot", lambda *a: written.append(a[1]) or whole(*a))
    model = network()
    with exempla.Recorder(model, tmp_path, steps=64) as record:
        trained(model, record, 64)
    assert sorted(written) == [8, 16, 24, 32, 40, 48, 56, 64]
    assert [s.step for s in record.snapshots] == sorted(written)


def test_snapshots_thinned_out_while_they_wait_are_never_written(tmp_path, monkeypatch):
    written = []
    whole = module.write_snapshot
    monkeypatch.setattr(module, "write_snapshot", lambda *a: written.append(a[1]) or whole(*a))
    monkeypatch.setattr(module, "perf_counter", lambda: 0.0)
    model = network()
    with exempla.Recorder(model, tmp_path) as record:
        trained(model, record, 100)
        assert files(tmp_path) == set()
    assert sorted(written) == [s.step for s in record.snapshots]


def test_copies_that_take_too_much_memory_do_not_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WAITING_BYTES", 0)
    model = network()
    record = exempla.Recorder(model, tmp_path)
    trained(model, record, 5)
    assert [s.step for s in read_run(tmp_path).snapshots] == [1, 2, 3, 4, 5]


def test_snapshots_are_written_once_the_pause_is_over(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(module, "perf_counter", lambda: now)
    model = network()
    record = exempla.Recorder(model, tmp_path)
    trained(model, record, 2)
    assert files(tmp_path) == set()
    now = module._WRITE_EVERY
    trained(model, record, 1)
    assert [s.step for s in read_run(tmp_path).snapshots] == [1, 2, 3]


# ---- the budget


def test_a_budget_keeps_fewer_and_says_so_once(tmp_path, monkeypatch):
    model = network()
    size = len(encoded(model))
    record = exempla.Recorder(model, tmp_path, max_bytes=3 * size)
    monkeypatch.setattr(module, "_WAITING_BYTES", 0)  # every snapshot is written at once
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", exempla.ExemplaWarning)
        for _ in range(50):
            trained(model, record, 1)
            stored = [p.stat().st_size for p in tmp_path.glob("step-*")]
            assert sum(stored) <= 3 * size
            assert len(stored) <= 3
    record.finish()
    assert ["room for 3 snapshots" in str(one.message) for one in said] == [True]
    assert record.snapshots[-1].step == 50
    assert sum(p.stat().st_size for p in tmp_path.glob("step-*")) <= 3 * size


def test_a_budget_for_one_keeps_the_last_weights(tmp_path):
    model = network()
    record = exempla.Recorder(model, tmp_path, max_bytes=int(1.5 * len(encoded(model))))
    with pytest.warns(exempla.ExemplaWarning, match="the last weights alone"):
        trained(model, record, 30)
    record.finish()
    assert [s.step for s in record.snapshots] == [30]
    assert len(list(tmp_path.glob("step-*"))) == 1


def test_a_budget_too_small_for_one_is_refused_at_the_first_step(tmp_path):
    model = network()
    record = exempla.Recorder(model, tmp_path, max_bytes=10)
    with pytest.raises(exempla.ExemplaError, match="takes more than max_bytes"):
        trained(model, record, 1)


# ---- going on


def test_a_folder_in_use_is_refused_unless_the_run_goes_on(tmp_path):
    model = network()
    with exempla.Recorder(model, tmp_path / "run") as record:
        trained(model, record, 20)
    with pytest.raises(exempla.ExemplaError, match="resume=True"):
        exempla.Recorder(model, tmp_path / "run")
    again = exempla.Recorder(model, tmp_path / "run", resume=True)
    assert again.steps == 20
    trained(model, again, 21)
    again.finish()
    assert [s.step for s in read_run(tmp_path / "run").snapshots] == [8, 16, 24, 32, 41]


def test_a_run_that_goes_on_equals_one_that_was_not_interrupted(tmp_path):
    whole, parts = network(), network()
    with exempla.Recorder(whole, tmp_path / "whole") as record:
        trained(whole, record, 60)
    first = exempla.Recorder(parts, tmp_path / "parts")
    seen = trained(parts, first, 37)
    first.flush()  # and killed
    parts.load_state_dict(seen[30])
    second = exempla.Recorder(parts, tmp_path / "parts", resume=True)
    second.restart_at(30)
    trained(parts, second, 30)
    second.finish()
    one, other = read_run(tmp_path / "whole"), read_run(tmp_path / "parts")
    assert [s.step for s in one.snapshots] == [s.step for s in other.snapshots]
    for a, b in zip(one.snapshots, other.snapshots, strict=True):
        assert same(
            read_tensors(tmp_path / "whole" / a.file), read_tensors(tmp_path / "parts" / b.file)
        )


def test_other_files_are_no_place_for_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(exempla.ExemplaError, match="not empty"):
        exempla.Recorder(network(), tmp_path)


USERS = ("step-1000.ckpt", "step-notes.txt", "step-000000001.safetensors", ".step-1.x.part")


@pytest.mark.parametrize("earlier", [False, True], ids=["no run.json", "a run"])
def test_the_files_of_the_user_stay(tmp_path, earlier):
    model = network()
    if earlier:
        with exempla.Recorder(model, tmp_path, keep=2) as record:
            trained(model, record, 5)
    for name in USERS:
        (tmp_path / name).write_text("mine")
    last = 14 if earlier else 9
    folder = f"step-{last:09d}.safetensors"  # named as the last snapshot would be
    (tmp_path / folder).mkdir()
    with exempla.Recorder(model, tmp_path, keep=3, resume=True) as record:
        for _ in range(9):
            trained(model, record, 1)
            record.flush()
    assert [(tmp_path / name).read_text() for name in USERS] == ["mine"] * len(USERS)
    run = read_run(tmp_path)
    assert run.steps == last
    written = {one.file for one in run.snapshots}
    assert len(written) > 1
    assert files(tmp_path) == {"run.json", folder, *USERS, *written}
    assert f"step-{last:09d}-2.safetensors" in written
    for one in run.snapshots:
        one.checked(tmp_path)


def test_what_a_killed_run_left_of_a_snapshot_is_removed(tmp_path, monkeypatch):
    model = network()
    record = exempla.Recorder(model, tmp_path)
    trained(model, record, 2)
    record.flush()

    def killed(folder, step, rate, name, data):
        (folder / name).write_bytes(data[:10])
        (folder / f".{name}.abc.part").write_bytes(data[:10])
        raise KeyboardInterrupt

    whole = module.write_snapshot
    monkeypatch.setattr(module, "write_snapshot", killed)
    trained(model, record, 1)
    with pytest.raises(KeyboardInterrupt):
        record.flush()
    monkeypatch.setattr(module, "write_snapshot", whole)
    assert (tmp_path / "step-000000003.safetensors").stat().st_size == 10
    del record
    with exempla.Recorder(model, tmp_path, keep=2, resume=True) as record:
        trained(model, record, 4)
    assert files(tmp_path) == {"run.json", *(one.file for one in read_run(tmp_path).snapshots)}


def test_two_recorders_on_one_empty_folder_do_not_mix(tmp_path):
    model, other = network(), network(1)
    first = exempla.Recorder(model, tmp_path)
    with pytest.raises(exempla.ExemplaError, match="another Recorder is writing"):
        exempla.Recorder(other, tmp_path)
    seen = trained(model, first, 3)
    first.finish()
    assert same(read_tensors(tmp_path / first.snapshots[-1].file), seen[3])


def test_another_process_is_refused_while_one_records(tmp_path):
    record = exempla.Recorder(network(), tmp_path)
    code = (
        "import exempla, sys; from sklearn.linear_model import SGDClassifier\n"
        "exempla.Recorder(SGDClassifier(), sys.argv[1], resume=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another Recorder is writing" in done.stderr
    record.finish()
    exempla.Recorder(network(), tmp_path, resume=True).finish()


def test_a_recorder_whose_run_was_continued_stops(tmp_path):
    first_model, second_model = network(), network(1)
    first = exempla.Recorder(first_model, tmp_path)
    trained(first_model, first, 3)
    first.flush()
    second = exempla.Recorder(second_model, tmp_path, resume=True)
    seen = trained(second_model, second, 2)
    second.flush()
    trained(first_model, first, 1)
    with pytest.warns(exempla.ExemplaWarning, match="another Recorder has continued this run"):
        first.finish()
    second.finish()
    assert [one.step for one in read_run(tmp_path).snapshots][-1] == 5
    assert same(read_tensors(tmp_path / second.snapshots[-1].file), seen[5])


def test_a_run_of_another_kind_does_not_go_on(tmp_path):
    model = network()
    with exempla.Recorder(model, tmp_path) as record:
        trained(model, record, 3)
    with pytest.raises(exempla.ExemplaError, match="of a torch model"):
        exempla.Recorder(MLPClassifier(), tmp_path, resume=True)


def test_an_exception_leaves_what_was_recorded(tmp_path):
    model = network()
    with contextlib.suppress(KeyboardInterrupt), exempla.Recorder(model, tmp_path) as record:
        trained(model, record, 5)
        raise KeyboardInterrupt
    run = read_run(tmp_path)
    assert [s.step for s in run.snapshots] == [1, 2, 3, 4, 5]
    assert not run.finished


def test_a_disk_that_refuses_does_not_end_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_snapshot", full)
    monkeypatch.setattr(module, "_WAITING_BYTES", 0)
    model = network()
    record = exempla.Recorder(model, tmp_path)
    with pytest.warns(exempla.ExemplaWarning, match="No space left") as said:
        trained(model, record, 20)
    record.finish()
    assert len(said) == 1
    assert record.steps == 20


def test_only_the_first_process_records(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    model = network()
    with exempla.Recorder(model, tmp_path / "run") as record:
        trained(model, record, 10)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    with exempla.Recorder(model, tmp_path / "run") as record:
        trained(model, record, 10)
    assert read_run(tmp_path / "run").finished


# ---- names and shapes of weights


class Tied(nn.Module):
    """An embedding that is its own output layer, and two views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight
        both = torch.arange(6.0)
        self.register_buffer("left", both[:4])
        self.register_buffer("right", both[2:])
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("nothing", torch.empty(0))
        self.short = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    def get_extra_state(self):
        return {"words": "no weight"}

    def set_extra_state(self, state):
        self.words = state


def test_tied_and_overlapping_weights_come_back_whole(tmp_path):
    model = Tied()
    record = exempla.Recorder(model, tmp_path)
    record.step()
    record.finish()
    found = read_tensors(tmp_path / record.snapshots[0].file)
    own = {n: v for n, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
    assert same(found, own)
    assert found["out.weight"] is found["embed.weight"]


class DataParallel(nn.Module):
    """Names weights as torch's wrappers do."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_wrappers_do_not_show_in_names(tmp_path):
    model = network()
    for wrapped in (torch.compile(model), DataParallel(model), DataParallel(torch.compile(model))):
        assert set(wrapped.state_dict()) != set(model.state_dict())
        assert set(plain_names(wrapped.state_dict())) == set(model.state_dict())
        assert encoded(wrapped) == encoded(model)


def test_channels_last_weights_are_written_in_order(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # pyright: ignore
    record = exempla.Recorder(model, tmp_path)
    record.step()
    record.finish()
    found = read_tensors(tmp_path / record.snapshots[0].file)
    assert same(found, model.state_dict())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(2, 2, device="meta"), "not on this machine"),
        (type("FullyShardedDataParallel", (nn.Linear,), {})(2, 2), "not sharded"),
    ],
)
def test_models_in_parts_are_refused(tmp_path, model, words):
    record = exempla.Recorder(model, tmp_path)
    with pytest.raises(exempla.ExemplaError, match=words):
        record.step()


# ---- scikit-learn


@pytest.mark.parametrize(
    "model", [MLPClassifier((5, 4), random_state=0), SGDClassifier(loss="log_loss", random_state=0)]
)
def test_partial_fit_is_recorded_without_pickles(tmp_path, model):
    seen = {}
    with exempla.Recorder(model, tmp_path, keep=4) as record:
        for step in range(1, 21):
            model.partial_fit(X, Y, classes=[0, 1, 2])
            record.step()
            arrays = model.coefs_ if hasattr(model, "coefs_") else [model.coef_]
            seen[step] = [np.array(a) for a in arrays]
    run = read_run(tmp_path)
    assert run.kind == "scikit-learn"
    assert 3 <= len(run.snapshots) <= 4
    for snapshot in run.snapshots:
        with np.load(tmp_path / snapshot.file, allow_pickle=False) as kept:
            names = ["coefs_.0", "coefs_.1", "coefs_.2"] if hasattr(model, "coefs_") else ["coef_"]
            for name, array in zip(names, seen[snapshot.step], strict=True):
                np.testing.assert_array_equal(kept[name], array)
    if hasattr(model, "coefs_"):
        assert run.snapshots[0].learning_rate == model.learning_rate_init


def test_what_has_no_steps_or_no_weights_is_refused(tmp_path):
    with pytest.raises(exempla.ExemplaError, match="step by step"):
        exempla.Recorder(MLPClassifier(solver="lbfgs"), tmp_path)
    with pytest.raises(exempla.ExemplaError, match="after partial_fit"):
        exempla.Recorder(MLPClassifier(), tmp_path).step()
    with pytest.raises(exempla.ExemplaError, match="no weights"):
        exempla.Recorder(GaussianNB().fit(X, Y), tmp_path).step()


@pytest.mark.parametrize(
    "options", [{"keep": 0}, {"keep": 2.5}, {"max_bytes": -1}, {"steps": 0}, {"resume": "yes"}]
)
def test_options_are_checked(tmp_path, options):
    with pytest.raises(exempla.ExemplaError, match=next(iter(options))):
        exempla.Recorder(network(), tmp_path, **options)


def test_the_manifest_is_read_with_care(tmp_path):
    model = network()
    with exempla.Recorder(model, tmp_path) as record:
        trained(model, record, 2)
    good = json.loads((tmp_path / "run.json").read_text())
    evil = json.loads(json.dumps(good))
    evil["snapshots"][0]["file"] = "../other.safetensors"
    mine = json.loads(json.dumps(good))
    mine["snapshots"][0]["file"] = "notes.txt"
    texts = ["", "[]", "{}", "[" * 100_000, '{"a":' * 100_000]
    texts += [json.dumps({**good, **changed}) for changed in (
        {"format": "other"}, {"stride": float("inf")}, {"steps": float("nan")},
        {"snapshots": 3}, {"snapshots": [3]}, {"writing": ["../x.npz"]}, {"writing": [[]]},
        {"snapshots": [{**good["snapshots"][0], "step": "2"}]},
    )]  # fmt: skip
    for text in (*texts, json.dumps(evil), json.dumps(mine)):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(exempla.ExemplaError, match=r"run\.json"):
            read_run(tmp_path)


def test_recording_says_nothing(tmp_path):
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with exempla.Recorder(model, tmp_path) as record:
            trained(model, record, 30)
