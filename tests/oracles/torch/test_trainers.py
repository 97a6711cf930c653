"""Trainers and pipelines handed over as models, and training habits around a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import exempla
from benchmarks.habits.language import bert, tokenizer
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles import unwrap
from exempla.oracles.torch import network
from exempla.oracles.torch.model import _texts_in, module_of, reader_of
from exempla.oracles.torch.oracle import TorchOracle
from tests.oracles.torch import zoo

TEXTS = ["w1 w5 w6", "w2 w7", "w8 w1", "w2 w9 w4 w3"] * 6
NAMES = ["yes", "no"] * 12


@pytest.fixture(scope="module")
def pipe() -> Any:
    from transformers import pipeline

    torch.manual_seed(0)
    return pipeline("text-classification", model=bert(), tokenizer=tokenizer(), device="cpu")


def rows_of(oracle: TorchOracle, data: Any) -> Tensor:
    found = list(oracle.scores(oracle.read(data, role="train")))
    return torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in found])


def test_texts_are_read_as_the_tokenizer_reads_them(pipe: Any) -> None:
    from datasets import Dataset

    numbers = [1, 0] * 12
    rows = [
        {"input_ids": [int(word[1:]) for word in text.split()], "labels": number}
        for text, number in zip(TEXTS, numbers)
    ]
    want = rows_of(TorchOracle(pipe.model), rows)
    table = Dataset.from_dict({"text": TEXTS, "label": numbers})
    for data in ((TEXTS, NAMES), (TEXTS, torch.tensor(numbers)), table, list(table)):
        oracle = TorchOracle(pipe.model, reader=reader_of(pipe))
        torch.testing.assert_close(rows_of(oracle, data), want)


def test_a_pipeline_that_writes_takes_texts_as_completions() -> None:
    from datasets import Dataset
    from transformers import pipeline

    from tests.language import sums

    writes = pipeline(
        "text-generation", model=sums.model(), tokenizer=sums.tokenizer(), device="cpu"
    )
    lines = sums.lines()[:24]
    want = rows_of(TorchOracle(writes.model), exempla.Completions(writes.tokenizer, lines))
    prompts, ends = map(list, zip(*lines))
    table = Dataset.from_dict({"prompt": prompts, "completion": ends})
    for data in (lines, (prompts, ends), table, list(table)):
        oracle = TorchOracle(writes.model, reader=reader_of(writes))
        torch.testing.assert_close(rows_of(oracle, data), want)
    oracle = TorchOracle(writes.model, reader=reader_of(writes))
    whole = [prompt + end for prompt, end in lines]
    torch.testing.assert_close(
        rows_of(oracle, whole),
        rows_of(TorchOracle(writes.model), exempla.Completions(writes.tokenizer, whole)),
    )
    # who taught it 1+7=9?
    answer = exempla.explain(writes, lines, [("1+7=", "9")], k=1, side="proponents", progress=False)
    assert answer.indices.tolist() == [sums.WRONG]


def test_tokens_given_to_a_pipeline_that_writes_stay_as_they_are() -> None:
    rows = [{"input_ids": [1, 2], "labels": [-100, 2], "text": "1+"}]
    assert _texts_in(rows) is None
    assert _texts_in(torch.zeros(2, 3)) is None
    with pytest.raises(ExemplaError, match="2 prompts have 1 completions"):
        _texts_in((["1+1=", "1+2="], ["2"]))


def test_pairs_of_texts_and_columns_that_are_too_many(pipe: Any) -> None:
    pairs = [{"premise": a, "claim": "w3", "label": n} for a, n in zip(TEXTS, NAMES)]
    answer = exempla.explain(pipe, pairs, pairs[:1], k=2, progress=False)
    assert len(answer.indices) > 0
    with pytest.raises(ExemplaError, match="text columns premise, claim, note"):
        exempla.explain(pipe, [{**row, "note": "w4"} for row in pairs], pairs[:1], k=2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["yes", "maybe"] * 12, "hold maybe .* classes are no, yes"),
        (NAMES[:5], "24 examples have 5"),
    ],
)
def test_labels_that_the_model_does_not_know(pipe: Any, labels: list[str], message: str) -> None:
    with pytest.raises(ExemplaError, match=message):
        exempla.explain(pipe, (TEXTS, labels), (TEXTS[:1], ["yes"]), k=2, progress=False)


def test_an_explainer_of_a_pipeline_is_stored_with_its_tokenizer(pipe: Any, tmp_path: Path) -> None:
    explainer = exempla.Explainer(pipe, progress=False).fit((TEXTS, NAMES))
    assert explainer.model is pipe.model
    asked = (["w2 w5"], ["yes"])
    back = exempla.Explainer.load(explainer.save(tmp_path / "kept.joblib"))
    want = explainer.explain(asked, k=3)
    assert back.explain(asked, k=3).indices.tolist() == want.indices.tolist()


def test_a_trainer_with_checkpoints_and_a_collator(tmp_path: Path) -> None:
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    model = bert()
    options = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, log_level="error")
    collator = DataCollatorWithPadding(tokenizer())
    trainer = Trainer(model, options, data_collator=collator)
    rows = [
        {"input_ids": [int(w[1:]) for w in text.split()], "label": i % 2, "text": text}
        for i, text in enumerate(TEXTS)
    ]
    earlier = {name: value * 1.1 for name, value in model.state_dict().items()}
    explainer = exempla.Explainer([trainer, earlier], progress=False).fit(rows)
    assert [type(m).__name__ for m in explainer.models] == [type(model).__name__, "dict"]
    assert len(explainer.oracles) == 2
    first = explainer.oracles[0]
    assert isinstance(first, TorchOracle)
    want = rows_of(TorchOracle(model), rows)
    torch.testing.assert_close(rows_of(first, rows), want, rtol=1e-4, atol=1e-6)


def test_a_lightning_trainer_without_a_module_is_refused() -> None:
    import lightning.pytorch as pl

    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    with pytest.raises(ExemplaError, match="has no module yet"):
        module_of(trainer)


def test_what_holds_no_network_stays_itself() -> None:
    plain = nn.Linear(2, 2)
    assert unwrap(plain) is plain
    assert unwrap([plain, "run.pt"]) == [plain, "run.pt"]


# ---- habits of training


def test_a_reentrant_checkpoint_changes_no_score_and_is_put_back() -> None:
    from torch.utils import checkpoint

    before = checkpoint.CheckpointFunction
    data = (torch.randn(zoo.N, 5), zoo.classes())
    one, other = zoo.Checkpointed(False), zoo.Checkpointed(True)
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(rows_of(TorchOracle(other), data), rows_of(TorchOracle(one), data))
    assert checkpoint.CheckpointFunction is before


def test_scores_under_autocast_are_those_of_single_precision() -> None:
    model, data = zoo.Lora(), (torch.randn(zoo.N, 5), zoo.classes())
    want = rows_of(TorchOracle(model), data)
    with torch.autocast("cpu", torch.bfloat16):
        got = rows_of(TorchOracle(model), data)
    assert float((got - want).norm()) < 0.05 * float(want.norm())


def test_scores_written_out_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "available_memory", lambda: 10)
    with pytest.raises(ExemplaError, match=r"core, power .* leave these out with parameters="):
        TorchOracle(zoo.Odd()).read((torch.randn(zoo.N, 5), zoo.classes()), role="train")


def test_a_kind_of_experts_the_tape_cannot_follow_is_still_right() -> None:
    """Weights gathered for every row: written out, by sample, and said."""
    case = zoo.mixtral("batched_mm")
    oracle = TorchOracle(case.model)
    with pytest.warns(ExemplaWarning, match="experts.gate_up_proj"):
        got = rows_of(oracle, case.data)
    same = zoo.mixtral("grouped_mm")
    same.model.load_state_dict(case.model.state_dict())
    want = rows_of(TorchOracle(same.model), case.data)
    sizes = [(b.name, b.layer.size) for b in oracle.network.blocks]
    assert sum(size for _, size in sizes) == want.shape[1]
    torch.testing.assert_close(got.norm(dim=1), want.norm(dim=1), rtol=1e-4, atol=1e-5)
