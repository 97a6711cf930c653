"""Large models: what is found from fewer examples, refused for its price, or made to fit."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from exempla import Explainer, memory, progress
from exempla.kernel import fisher as estimate
from exempla.kernel import moments
from exempla.kernel import sketch as choose
from exempla.kernel.basis import KroneckerSketch, SpanSketch
from exempla.oracles import make_oracle
from exempla.oracles.torch.likelihood import draw

LENGTH, WORDS = 40, 50


class Language(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.table(x).cumsum(1))))


@pytest.fixture
def job():
    torch.manual_seed(0)
    tokens = torch.randint(0, WORDS, (120, LENGTH))
    return Language().eval(), (tokens, tokens.roll(-1, 1))


def test_labels_are_drawn_by_their_probability():
    p = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.0, 0.0, 1.0, 0.0]]).repeat_interleave(20_000, 0)
    drawn = draw(p, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn[:20_000], minlength=4) / 20_000
    assert (counts - p[0]).abs().max() < 0.015
    assert counts[1] == 0
    assert (drawn[20_000:] == 2).all()


def test_drawn_in_pieces_or_at_once(monkeypatch):
    from exempla.oracles.torch import likelihood as heads

    p = torch.rand(100, 7)
    once = draw(p, torch.Generator().manual_seed(3))
    monkeypatch.setattr(heads, "_DRAWN_AT_ONCE", 21)
    assert (draw(p, torch.Generator().manual_seed(3)) == once).all()


def test_long_examples_make_a_basis_of_fewer(job):
    model, data = job
    oracle = make_oracle(model, likelihood="tokens")
    work = choose.look_at(oracle, oracle.read(data, role="train")).work
    assert choose.basis_examples(oracle.layers, work) == 32
    short = nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 3)).eval()
    oracle = make_oracle(short)
    train = oracle.read((torch.randn(120, 8), torch.arange(120) % 3), role="train")
    assert choose.basis_examples(oracle.layers, choose.look_at(oracle, train).work) > 120


def test_norms_of_few_long_rows_tell_the_trace(monkeypatch, job):
    model, data = job
    seen = {}
    for name, every in (("all", 10**6), ("some", 32)):
        monkeypatch.setattr(estimate, "MEASURED_LONG", every)
        monkeypatch.setattr(moments, "MEASURED", 1 if name == "all" else 4)
        explainer = Explainer(model, likelihood="tokens", sketch=40, progress=False).fit(data)
        seen[name] = explainer.embeddings[0].evidence.trace
    assert seen["some"] == pytest.approx(seen["all"], rel=0.1)


def test_a_large_model_is_not_held_exactly_at_any_price(monkeypatch, job):
    model, data = job
    monkeypatch.setattr(choose, "PRIMAL_LIMIT", 100)
    fit = lambda: Explainer(  # noqa: E731
        model, likelihood="tokens", budget="exact", progress=False
    ).fit(data)
    assert isinstance(fit().embeddings[0].sketch, SpanSketch)
    monkeypatch.setattr(choose, "LARGE", 100)
    assert isinstance(fit().embeddings[0].sketch, KroneckerSketch)


def test_a_width_that_memory_has_no_room_for_is_halved_and_said(monkeypatch, capsys):
    monkeypatch.setattr(choose, "available_memory", lambda *_: 2**28)
    with progress.showing(True):
        assert choose.fitting(2048, 10_000, 4) == 1024
    assert "using 1024" in capsys.readouterr().err
    assert choose.fitting(2048, 10**7, 4) == choose.NARROWEST
    monkeypatch.setattr(choose, "available_memory", lambda *_: 2**36)
    assert choose.fitting(2048, 10_000, 4) == 2048


def test_moments_are_forecast_before_the_first_pass_and_made_to_fit(monkeypatch, capsys, job):
    model, data = job
    oracle = make_oracle(model, likelihood="tokens")
    train = oracle.read(data, role="train")
    monkeypatch.setattr(choose, "LEAST_WHOLE", 16)
    monkeypatch.setattr(moments, "NYSTROM", (4, 8))
    monkeypatch.setattr(memory, "MIN_ANNOUNCED_BYTES", 0)
    needed = moments.moments_bytes(oracle.layers, 20, 4)
    smaller = moments.moments_bytes(oracle.layers, 20, 4, 16)
    assert smaller < needed
    # by hand: every side that is not summed whole is seen along a few columns, three times
    sides = [(w, o) for x in oracle.layers for w, o in ((x.d_in, x.d_out), (x.d_out, x.d_in))]
    few = [min(moments.columns(o, 20, 8), w) for w, o in sides]
    each = [2 * w * w if w <= 16 else 3 * w * f for (w, _), f in zip(sides, few, strict=True)]
    assert smaller == 4 * sum(each)
    said = []
    passes = oracle.fisher_rows
    monkeypatch.setattr(
        oracle, "fisher_rows", lambda x: (said.append(capsys.readouterr().err), passes(x))[1]
    )
    room = (needed + smaller) / 2 / choose.MEMORY_SHARE
    monkeypatch.setattr(choose, "available_memory", lambda *_: room)
    with progress.showing(True):
        sketch = choose.kronecker(oracle, train, 20)
    assert "using 32" in said[0]
    assert "GiB of memory" in said[0]
    assert sketch.built_bytes == smaller + oracle.pass_bytes
    assert sketch.width == 20


def test_the_memory_of_a_pass_is_counted(job):
    model, data = job
    oracle = make_oracle(model, likelihood="tokens")
    oracle.read(data, role="train")
    held = LENGTH * (8 + 8 + 8 + WORDS) * 4
    size = oracle.network.batch_size()
    assert size * held <= oracle.pass_bytes <= 6 * size * held


def test_the_memory_of_a_pass_is_that_of_a_collate_functions_batches(job):
    """Known before the first pass, when it is said."""
    model, data = job
    taken = []
    for batch in (4, 16):
        oracle = make_oracle(model, likelihood="tokens")
        loader = DataLoader(
            TensorDataset(*data), batch_size=batch, collate_fn=lambda rows: default_collate(rows)
        )
        oracle.read(loader, role="train")
        assert oracle.pass_bytes == batch * oracle.network.row_bytes
        taken.append(oracle.pass_bytes)
    assert 0 < taken[0] < taken[1]


def test_a_model_that_checkpoints_its_activations_is_scored_alike():
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, saves):
            super().__init__()
            self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
            self.saves = saves

        def forward(self, x):
            inner = lambda t: torch.tanh(self.first(t))  # noqa: E731
            h = checkpoint(inner, x, use_reentrant=False) if self.saves else inner(x)
            return self.last(h)

    torch.manual_seed(0)
    plain, saving = Block(False).eval(), Block(True).eval()
    saving.load_state_dict(plain.state_dict())
    data = (torch.randn(12, 5), torch.arange(12) % 3)
    rows = []
    for model in (plain, saving):
        oracle = make_oracle(model)
        train = oracle.read(data, role="train")
        (batch,) = oracle.scores(train)
        rows.append(np.hstack([f.dense().numpy() for f in batch.factors]))
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
