"""What a report says: the answer in words, how far to trust it, and where the data came from.

The explanation in words: the question, the answer in one sentence, and how far to trust it.

What a report says beside the explanation: where the data came from and how to repeat it.

The one way to write a probability, in reports, on the review page and in its exports.

How far to trust an answer, and what to do next, in sentences for people.

How good a model is, by rows it has not learned from where there are any.

A model that knows its training rows by heart looks perfect on them, and has no reasons worth
asking for. So it is judged, in this order, by

    test rows      those that `explain_errors` and `clean` looked for errors among
    held-out rows  a copy of a scikit-learn model, fitted without them, where that takes seconds
    asked rows     unless all of them are wrong: those were chosen for being so

and by its training rows only to see whether it learned anything at all.
"""

from __future__ import annotations

import math
import platform
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from exempla import __version__
from exempla.data import arrays_of, n_rows, take_examples
from exempla.errors import ExemplaError
from exempla.influence import CLASSES
from exempla.oracles import make_oracle
from exempla.quality import FEW, LOOKED_AT, Judged, disagreement, poor_sentence, spaced
from exempla.report.views import View
from exempla.results import Answer, Explanation, Question, Selection

_SHOWN = ("numpy", "scipy", "scikit-learn", "pandas", "torch")


@dataclass(frozen=True)
class About:
    """The circumstances of one explanation, in words.

    Attributes
    ----------
    question, answer : str
        Sentences that replace the standard ones.
    data, model : str
        What was learned from, and what learned.
    accuracy : str
        How good the model is on rows it has not seen, in a few words; "" if nobody measured it.
    command : str
        What to type to get the same result again.
    notes : tuple of str
        What the reader should know: how many errors there were, which rows were left out.
    warnings : tuple of str
        What speaks against trusting the answer.
    steps : tuple of (why, command)
        What to do next: a sentence, and what to type for it ("" where there is nothing to type).
    noun : str
        What the questioned predictions are, in the plural ("errors", "predictions").

    >>> About(data="digits", noun="errors").data
    'digits'
    """

    question: str = ""
    answer: str = ""
    data: str = ""
    model: str = ""
    accuracy: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    steps: tuple[tuple[str, str], ...] = ()
    noun: str = "predictions"


def versions() -> list[tuple[str, str]]:
    """Python and the libraries that can change a result, with their versions.

    >>> versions()[0][0]
    'Python'
    """
    found = [("Python", platform.python_version()), ("exempla", __version__)]
    for name in _SHOWN:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found


def chance(p: float) -> str:
    """A probability in whole per cents; never certain. Its twin in the browser is in dom.js.

    >>> chance(0.255), chance(0.997), chance(1.0), chance(0.004)
    ('26 %', '> 99 %', '> 99 %', '< 1 %')
    """
    if p > 0.99:
        return "> 99 %"
    return "< 1 %" if p < 0.01 else f"{math.floor(100 * p + 0.5)} %"


_PROBED = 300
"""Rows of a first fit, which tells whether one on `LOOKED_AT` is quick enough."""
PATIENCE = 2.0
"""Seconds a fit may take for the sake of one sentence."""
_FIFTHS = 5


_HELD_OUT: WeakKeyDictionary[Any, Judged | None] = WeakKeyDictionary()
"""One judgement per explainer: an answer is printed, shown and reported."""


def _on_training_rows(explanation: Explanation) -> Judged | None:
    """The model on what it learned from."""
    question = _asked(explanation)
    if question is None:
        return None
    embedding = question.explainer.embeddings[0]
    train = embedding.train
    return _judged(embedding.oracle, train.take(spaced(len(train))), "its training rows")


def on_unseen_rows(explanation: Explanation) -> Judged | None:
    """The model on rows it has not learned from, or None where there are none to be had."""
    question = _asked(explanation)
    if question is None:
        return None
    explainer = question.explainer
    oracle = explainer.embeddings[0].oracle
    if question.rows is not None:
        return _given(oracle, question.test, "test rows")
    if explainer not in _HELD_OUT:
        _HELD_OUT[explainer] = _refitted(explainer, oracle.likelihood)
    if (found := _HELD_OUT[explainer]) is not None:
        return found
    asked = _given(oracle, question.test, "the predictions asked about")
    return asked._replace(chosen=True) if asked and asked.classes and asked.score > 0 else None


def _asked(explanation: Explanation) -> Question | None:
    """The question, where its model can be asked again."""
    question = explanation.question
    if question is None or not getattr(question.explainer, "embeddings", ()):
        return None
    return question


def _given(oracle: Any, test: Any, rows: str) -> Judged | None:
    """A test set as the caller gave it."""
    first = test[0] if isinstance(test, tuple) else test
    try:
        n = n_rows(getattr(first, "dataset", first))  # a loader counts batches
        read = oracle.read(take_examples(test, spaced(n)), role="test")
        return _judged(oracle, read, rows)
    except (ExemplaError, AttributeError, TypeError, ValueError):  # cannot be read in part
        return None


def _judged(oracle: Any, examples: Any, rows: str) -> Judged | None:
    labels = None if examples.labels is None else np.asarray(examples.labels)
    if labels is None or labels.ndim != 1 or len(labels) < FEW:
        return None
    if oracle.likelihood not in (*CLASSES, "gaussian"):
        return None
    said = np.asarray(oracle.predict(examples))
    if said.shape != labels.shape:
        return None
    return Judged(said, labels, oracle.likelihood in CLASSES, rows)


def _refitted(explainer: Any, likelihood: str) -> Judged | None:
    """Copies of a scikit-learn model, fitted to four fifths of some rows, on the other fifth: each
    fifth in turn where rows are few, else the first one alone."""
    from exempla.tasks.verify import check_fit

    model = explainer.models[0]
    # of a search, what it found: the search itself may take long
    model = getattr(model, "best_estimator_", model)
    if likelihood not in (*CLASSES, "gaussian") or len(explainer.models) > 1:
        return None
    try:
        check_fit(model, None)
        data = arrays_of(explainer.train_data, "training data")
        rows = np.random.default_rng(0).permutation(n_rows(data[0]))[:LOOKED_AT]
        start = time.perf_counter()
        parts = [_on_fifth(model, data, rows[:_PROBED], 0)]
        took = time.perf_counter() - start
        if took * (len(rows) / _PROBED) ** 2 > PATIENCE:
            return None
        if len(rows) > _PROBED:
            parts = [_on_fifth(model, data, rows, 0)]
        else:
            parts += [_on_fifth(model, data, rows, i) for i in range(1, _FIFTHS)]
    except (ExemplaError, TypeError, ValueError):  # what cannot be fitted again is not judged
        return None
    said, labels = (np.concatenate(side) for side in zip(*parts, strict=True))
    held = "training rows held out from a copy of it"
    return Judged(said, labels, likelihood in CLASSES, held) if len(labels) >= FEW else None


def _on_fifth(model: Any, data: Any, rows: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
    """What a copy, fitted to the other rows, says about the i-th fifth, and what they are."""
    from exempla.tasks.verify import refit

    X, y, weights = data
    out, kept = rows[i::_FIFTHS], np.delete(rows, np.s_[i::_FIFTHS])
    some = None if weights is None else weights[kept]
    fitted = refit(model, take_examples(X, kept), take_examples(y, kept), some, None, 0)
    oracle = make_oracle(fitted, "auto")
    read = oracle.read((take_examples(X, out), take_examples(y, out)), role="test")
    said, labels = np.asarray(oracle.predict(read)), np.asarray(read.labels)
    if said.shape != labels.shape or labels.ndim != 1:
        raise ExemplaError("There is more than one answer to a row.")
    return said, labels


_CLEAR = 3.0
"""Spreads of a random removal from which on an effect is called clear."""
_BY_HEART = 0.1
"""How much better a model is on its training rows before that is worth a word."""


def poor_model(explanation: Explanation) -> str:
    """A sentence that says first of all if the model does not agree with its own training rows, or
    is no better on rows it has not seen than an answer that looks at no row; "" otherwise, or where
    that cannot be told.

    >>> import exempla, numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(300, 2)); y = np.arange(300) % 3 > 0
    >>> model = LogisticRegression().fit(X, y)
    >>> poor_model(exempla.explain(model, (X, y), (X[:5], y[:5]), k=3, progress=False))[:48]
    'The model is hardly better than always giving th'
    """
    question = explanation.question
    embeddings = getattr(getattr(question, "explainer", None), "embeddings", ())
    if embeddings and (said := disagreement(embeddings[0])):
        return said
    unseen = on_unseen_rows(explanation)
    if unseen is None or not unseen.poor:
        return ""
    where = f"on {len(unseen.labels):,} {unseen.rows}"
    if unseen.chosen:
        return poor_sentence(
            unseen, f"on {unseen.rows}", "unless these were chosen for being hard, "
        )
    learned = _on_training_rows(explanation)
    heart = learned is not None and learned.score - unseen.score > _BY_HEART
    return poor_sentence(unseen, where + (f", though right on {_share(learned)}" if heart else ""))


def _share(learned: Judged | None) -> str:
    """How well it knows its training rows."""
    assert learned is not None
    if learned.classes:
        return f"{learned.score:.1%} of its training rows"
    return f"its training rows (R² {learned.score:.2f})"


def stands_out(explanation: Explanation) -> float | None:
    """How many spreads of a random removal the predicted effect lies from the random mean."""
    effect = explanation.removal
    if not effect or not effect["random_baseline_sd"] > 0:
        return None
    return abs(effect["log_likelihood"] - effect["random_baseline"]) / effect["random_baseline_sd"]


def trust_sentences(explanation: Explanation, about: About, doubted: int) -> list[str]:
    """What speaks for and against the answer, most important first."""
    out = []
    if about.accuracy:
        out.append(f"The model: {about.accuracy}, {about.model}.")
    elif about.model:
        out.append(f"The model is {about.model}. {_how_good(explanation)}")
    else:
        out.append(_how_good(explanation))
    if (far := stands_out(explanation)) is not None:
        out.append(_against_chance(far))
    if explanation.share < 0.9995:
        out.append("The model is large: the answer rests on a compressed view of its parameters.")
    if doubted:
        carry = "carries" if doubted == 1 else "carry"
        out.append(
            f"{doubted:,} of the {len(explanation):,} examples {carry} a label that the model "
            "itself would not give: worth a look first."
        )
    return out


def _how_good(explanation: Explanation) -> str:
    """How good the model is on rows it has not seen, as far as that can be told."""
    found = on_unseen_rows(explanation)
    if found is None or found.chosen:
        return "How good the model is was not measured: trust the answer as far as the model."
    n = f"{len(found.labels):,} {found.rows}"
    if not found.classes:
        return f"The model has an R² of {found.score:.2f} on {n}."
    return (
        f"The model is right for {found.score:.1%} of {n}; the commonest class alone gets "
        f"{found.commonest:.1%}."
    )


def _against_chance(far: float) -> str:
    if far >= _CLEAR:
        return f"The predicted effect is clear: {far:.0f} times the spread of random removals."
    return (
        f"The predicted effect is not clear: {far:.1f} times the spread of random removals. As "
        "many rows drawn by chance could do as much."
    )


def next_steps(explanation: Explanation, about: About) -> tuple[tuple[str, str], ...]:
    """What to do with the answer, each with what to type."""
    if about.steps:
        return about.steps
    if explanation.question is None:
        return ()
    return (
        ("Train again without these examples and see whether the prediction holds:",
         "answer.verify()"),
        ("Hand the list on as a table:", 'answer.to_csv("explanation.csv")'),
    )  # fmt: skip


Trust = tuple[str, str, str]
"""(heading, value, remark) of one line of the trust section."""


def percent(share: float) -> str:
    """A share as every page and every printed answer writes it: as `chance`, and exactly none or
    all where it is.

    >>> percent(0.8149), percent(0.997), percent(0.0042), percent(1.0), percent(0.0)
    ('81 %', '> 99 %', '< 1 %', '100 %', '0 %')
    """
    return f"{100 * share:.0f} %" if share in (0, 1) else chance(share)


def _plural(count: int, noun: str) -> str:
    """A number with its noun.

    >>> _plural(1, "error"), _plural(1200, "errors")
    ('1 error', '1,200 errors')
    """
    single = noun[:-1] if noun.endswith("s") else noun
    return f"{count:,} {single if count == 1 else noun}"


def question(explanation: Selection, about: About) -> str:
    """What was asked."""
    if about.question or not isinstance(explanation, Explanation):
        return about.question
    verb = {
        "opponents": "pushed the model towards",
        "proponents": "support",
    }.get(explanation.side, "are most responsible for")
    these = "this" if explanation.n_test == 1 else "these"
    these_many = _plural(explanation.n_test, about.noun)
    return f"Which training examples {verb} {these} {these_many.removeprefix('1 ')}?"


def answer(found: Selection, about: About) -> str:
    """The answer in one sentence."""
    if about.answer:
        return about.answer
    return removal_sentence(found, about.noun) if isinstance(found, Explanation) else found.finding


def removal_sentence(explanation: Explanation, noun: str = "predictions") -> str:
    """What removing the picked examples is predicted to do, in one sentence."""
    effect, n = explanation.removal, explanation.n_test
    picked = f"{len(explanation):,} of {explanation.n_train:,} training examples"
    if not effect:
        return f"{picked} {'was' if len(explanation) == 1 else 'were'} picked."
    change = effect["log_likelihood"]
    right = "the true values of" if effect["n_fixed"] is None else "the right answers to"
    answers = right if explanation.labels == "true" else "the model's answers to"
    which = f"{answers} these {n:,} {noun}" if n > 1 else "this prediction"
    this = "this" if len(explanation) == 1 else "these"
    parts = [
        f"Removing {this} {picked} is predicted to {'raise' if change >= 0 else 'lower'} the "
        f"likelihood of {which} by {_by_how_much(change)} (log-likelihood {signed(change)}; as "
        f"many "
        f"random ones: {within(effect['random_baseline'], effect['random_baseline_sd'])})"
    ]
    parts += turned(effect["n_fixed"], "right", n) + turned(effect["n_broken"], "wrong", n)
    return "; ".join(parts) + "."


def _by_how_much(change: float) -> str:
    """A change of log-likelihood as the share by which a likelihood rises or falls.

    >>> _by_how_much(0.24), _by_how_much(-0.5), _by_how_much(1.5), _by_how_much(9.0)
    ('27 %', '39 %', 'a factor of 4.5', 'a factor of over 1,000')
    """
    if change <= math.log(2):
        return percent(abs(math.expm1(change))).replace("<", "less than")
    factor = math.exp(min(change, 99.0))
    return "a factor of over 1,000" if factor > 1000 else f"a factor of {factor:.2g}"


def signed(change: float) -> str:
    """A change with its sign, in plain decimals.

    >>> signed(0.2446), signed(-0.00031), signed(-5.6e-08)
    ('+0.24', '-0.00031', '0.0000')
    """
    return f"{change:+.2g}" if abs(change) >= 1e-4 else "0.0000"


def turned(count: int | None, how: str, asked: int) -> list[str]:
    """How many predictions would turn out otherwise, if any."""
    if not count:
        return []
    return [f"it would turn {how}" if asked == 1 else f"{count:,} of them would turn {how}"]


def within(value: float, spread: float) -> str:
    """A change and its spread, both to the spread's two digits.

    >>> within(0.00017, 0.0281), within(-0.5, 0.2), within(0.1, 0.0)
    ('0.000 ± 0.028', '-0.50 ± 0.20', '0.1 ± 0')
    """
    if not spread > 0:
        return f"{value:.2g} ± 0"
    digits = max(0, 1 - math.floor(math.log10(spread)))
    rounded = round(value, digits) + 0.0  # no minus sign before a zero
    return f"{rounded:.{digits}f} ± {spread:.{digits}f}"


def doubtful(explanation: Explanation, train_view: View | None) -> int:
    """How many of the picked examples the model would label differently."""
    if train_view is None or train_view.numeric or train_view.labels is None:
        return 0
    if train_view.predicted is None:
        return 0
    picked = explanation.indices
    given, said = np.asarray(train_view.labels), np.asarray(train_view.predicted)
    return int(np.sum(given[picked] != said[picked]))


def trust_in_model(about: About) -> list[Trust]:
    """How good the model is, if that or at least the model is known."""
    if about.accuracy:
        return [("Model", about.accuracy, about.model)]
    return [("Model", about.model, "its accuracy was not measured")] if about.model else []


def trust(found: Selection, about: About) -> list[Trust]:
    """How sure this is: one line per thing that could be wrong."""
    lines = trust_in_model(about)
    noise = f", noise {found.noise:g}" if found.noise else ""
    if not isinstance(found, Explanation):
        return [*lines, ("Selection", f"{found.selector}{noise}", found.finding)]
    lines.append(("Damping", f"{found.damping:.3g}", found.damping_rule))
    exact = found.share >= 0.9995
    rest = (
        "the rest counts along the question, by its mean eigenvalue"
        if found.residual_used
        else "the rest was left out by the sketch"
    )
    kept = "all" if exact else percent(found.share)
    lines.append(("Kept of the Fisher information", kept, "exact" if exact else rest))
    lines.append(("Selection", f"{found.selector}{noise}", _selected(found)))
    lines += _certified(found)
    return lines


def _selected(explanation: Explanation) -> str:
    short = explanation.k - len(explanation)
    side = {"both": "both sides"}.get(explanation.side, f"{explanation.side} only")
    labels = f"{explanation.labels} labels questioned"
    return f"{side}, {labels}" + (f"; {short:,} fewer than asked for" if short > 0 else "")


def _certified(explanation: Explanation) -> list[Trust]:
    """What is proved about the picks as a set."""
    found = {line["name"]: line for line in explanation.certificate.get("statements", [])}
    proved = found.get("share_of_best_set")
    if not proved or proved["status"] != "certified" or not math.isfinite(proved["value"]):
        return []
    value = float(proved["value"])
    rivals = _plural(int(explanation.certificate.get("r", len(explanation))), "examples")
    meaning = f"proved: of what the best possible set of {rivals} could explain"
    return [("Certificate", f"at least {percent(value)}", meaning)] if value > 0 else []


def terminal_text(found: Answer, rows: int = 10) -> str:
    """An answer as a few lines of plain text: what was found, the first rows, how it was done."""
    if not isinstance(found, Explanation):
        return "\n".join(
            [found.finding, *_said(found.warnings), *_rows(found, rows, found.to_frame())]
        )
    frame = found.to_frame().drop(columns=["alignment", "gain"])
    poor = poor_model(found)
    head = [*_said((poor,) if poor else ()), found.finding]
    others = _said(tuple(said for said in found.warnings if said != poor))
    return "\n".join([*head, *others, *_rows(found, rows, frame), computed(found)])


def _said(warnings: tuple[str, ...]) -> list[str]:
    return [f"warning: {warning}" for warning in warnings]


def _rows(found: Answer, rows: int, frame: Any) -> list[str]:
    table = frame.head(rows).to_string(index=False, float_format="{:.3g}".format)
    more = len(found) - rows
    return [table, *([f"… and {more:,} more"] if more > 0 else [])]


def computed(found: Explanation) -> str:
    """The technical choices behind an explanation, in one line."""
    return (
        f"how this was computed: side {found.side} · labels {found.labels} · selector "
        f"{found.selector} (noise {found.noise:g}) · damping {found.damping:.3g} "
        f"({found.damping_rule}) · Fisher kept {percent(found.share)}"
    )
