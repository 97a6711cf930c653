"""Callbacks of the real Trainer and of both of Lightning's packages."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import exempla
from exempla.recorder.snapshots import read_run
from tests.recorder.test_recorder import X, Y, network

ROWS = [
    {"x": torch.tensor(x, dtype=torch.float32), "labels": torch.tensor(y)} for x, y in zip(X, Y)
]


class WithLoss(nn.Module):
    """What the Trainer asks of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x, labels=None):
        logits = self.net(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def arguments(folder, **more):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    given = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    batch = {"per_device_train_batch_size": 30, "learning_rate": 0.01}
    return transformers.TrainingArguments(str(folder), **(batch | given | more))


def run_trainer(model, record, folder, resume=None, **more):
    from transformers import Trainer

    given = arguments(folder / "trainer", **more)
    callbacks = [record.trainer_callback()]
    trainer = Trainer(model, given, train_dataset=ROWS, callbacks=callbacks)  # pyright: ignore
    trainer.train(resume_from_checkpoint=resume)


def test_a_trainer_records(tmp_path):
    pytest.importorskip("transformers")
    model = WithLoss()
    record = exempla.Recorder(model.net, tmp_path / "run", keep=5)
    run_trainer(model, record, tmp_path, num_train_epochs=5)
    run = read_run(tmp_path / "run")
    assert [s.step for s in run.snapshots] == [5, 10, 15, 20, 25]  # 25 steps in all
    assert run.finished
    rates = [s.learning_rate for s in run.snapshots]
    assert rates == sorted(rates, reverse=True)  # the Trainer's schedule goes down
    assert rates[0] > rates[-1]
    train = (torch.tensor(X, dtype=torch.float32), torch.tensor(Y))
    explainer = exempla.Explainer([model.net, tmp_path / "run"], progress=False).fit(train)
    assert len(explainer.oracles) == 5
    assert np.isfinite(explainer.influence((train[0][:3], train[1][:3]))).all()


def test_an_accumulating_trainer_counts_optimizer_steps(tmp_path):
    pytest.importorskip("transformers")
    model = WithLoss()
    record = exempla.Recorder(model, tmp_path / "run")
    run_trainer(model, record, tmp_path, num_train_epochs=4, gradient_accumulation_steps=5)
    assert [s.step for s in read_run(tmp_path / "run").snapshots] == [1, 2, 3, 4]


def test_a_trainer_that_goes_on_forgets_what_came_after(tmp_path):
    pytest.importorskip("transformers")
    model = WithLoss()
    record = exempla.Recorder(model, tmp_path / "run", keep=4)
    more = {"num_train_epochs": 4, "save_strategy": "steps", "save_steps": 10}
    run_trainer(model, record, tmp_path, **more)
    assert [s.step for s in record.snapshots] == [5, 10, 15, 20]
    again = exempla.Recorder(model, tmp_path / "run", keep=4, resume=True)
    run_trainer(model, again, tmp_path, str(tmp_path / "trainer" / "checkpoint-10"), **more)
    assert again.steps == 20
    assert [s.step for s in read_run(tmp_path / "run").snapshots] == [5, 10, 15, 20]


def test_another_model_than_the_trained_one_is_noticed(tmp_path):
    pytest.importorskip("transformers")
    record = exempla.Recorder(WithLoss(), tmp_path / "run")
    with pytest.raises(exempla.ExemplaError, match="same object"):
        run_trainer(WithLoss(), record, tmp_path, num_train_epochs=1)


# ---- Lightning


def lightning_job(package: str):
    """A LightningModule of this package, and its Trainer."""
    pl = importlib.import_module(package)

    class Job(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch, batch_idx):
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    place = {"accelerator": "cpu", "devices": 1, "enable_checkpointing": False}

    def trainer(**more):
        return pl.Trainer(**quiet, **place, **more)

    return Job(), trainer


def loader():
    rows = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y))
    return DataLoader(rows, batch_size=30, shuffle=True)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_records_under_either_name(tmp_path, package):
    pytest.importorskip(package)
    job, trainer = lightning_job(package)
    record = exempla.Recorder(job.net, tmp_path / "run", keep=5)
    callback = record.lightning_callback()
    assert isinstance(callback, importlib.import_module(package).Callback)
    trainer(max_epochs=5, callbacks=[callback]).fit(job, loader())
    run = read_run(tmp_path / "run")
    assert [s.step for s in run.snapshots] == [5, 10, 15, 20, 25]
    assert {s.learning_rate for s in run.snapshots} == {0.05}
    assert run.finished
    assert len(exempla.Explainer([job.net, tmp_path / "run"], progress=False).oracles) == 5


def test_lightning_counts_optimizer_steps(tmp_path):
    pytest.importorskip("lightning.pytorch")
    job, trainer = lightning_job("lightning.pytorch")
    record = exempla.Recorder(job, tmp_path / "run")
    callbacks = [record.lightning_callback()]
    trainer(max_epochs=4, accumulate_grad_batches=5, callbacks=callbacks).fit(job, loader())
    assert [s.step for s in read_run(tmp_path / "run").snapshots] == [1, 2, 3, 4]


def test_an_interrupted_lightning_run_is_written(tmp_path):
    pytest.importorskip("lightning.pytorch")
    job, trainer = lightning_job("lightning.pytorch")
    record = exempla.Recorder(job, tmp_path / "run")
    step = job.training_step

    def failing(batch, batch_idx):
        if record.steps == 6:
            raise RuntimeError("the job fails")
        return step(batch, batch_idx)

    job.training_step = failing
    callbacks = [record.lightning_callback()]
    with pytest.raises(RuntimeError, match="the job fails"):
        trainer(max_epochs=8, callbacks=callbacks).fit(job, loader())
    run = read_run(tmp_path / "run")
    assert [s.step for s in run.snapshots] == [5]
    assert not run.finished


def test_without_lightning_the_remedy_is_said(tmp_path, monkeypatch):
    from exempla.recorder import recorder

    monkeypatch.setattr(recorder, "_LIGHTNINGS", ("no_such_package",))
    with pytest.raises(exempla.ExemplaError, match="pip install lightning"):
        exempla.Recorder(network(), tmp_path).lightning_callback()


def test_recording_loads_no_framework():
    code = (
        "import sys, exempla; exempla.Recorder\n"
        "heavy = {'torch', 'transformers', 'lightning', 'pytorch_lightning', 'safetensors'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"
