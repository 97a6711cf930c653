"""The explanation in words: the question, the answer in one sentence, and how far to trust it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from exempla.report.views import View
from exempla.report.words.about import About
from exempla.report.words.chance import chance
from exempla.report.words.trusting import poor_model
from exempla.results import Answer, Explanation, Selection

__all__ = [
    "Trust",
    "answer",
    "by_how_much",
    "computed",
    "percent",
    "question",
    "removal_sentence",
    "terminal_text",
    "trust",
    "trust_in_model",
]

Trust = tuple[str, str, str]
"""(heading, value, remark) of one line of the trust section."""


def percent(share: float) -> str:
    """A share as every page and every printed answer writes it: as `chance`, and exactly none or
    all where it is.

    >>> percent(0.8149), percent(0.997), percent(0.0042), percent(1.0), percent(0.0)
    ('81 %', '> 99 %', '< 1 %', '100 %', '0 %')
    """
    return f"{100 * share:.0f} %" if share in (0, 1) else chance(share)


def plural(count: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "error"), plural(1200, "errors")
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
    these_many = plural(explanation.n_test, about.noun)
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
    right = "the true values of" if effect["mended"] is None else "the right answers to"
    answers = right if explanation.labels == "true" else "the model's answers to"
    which = f"{answers} these {n:,} {noun}" if n > 1 else "this prediction"
    this = "this" if len(explanation) == 1 else "these"
    parts = [
        f"Removing {this} {picked} is predicted to {'raise' if change >= 0 else 'lower'} the "
        f"likelihood of {which} by {by_how_much(change)} (log-likelihood {signed(change)}; as many "
        f"random ones: {within(effect['by_chance'], effect['by_chance_sd'])})"
    ]
    parts += turned(effect["mended"], "right", n) + turned(effect["spoiled"], "wrong", n)
    return "; ".join(parts) + "."


def by_how_much(change: float) -> str:
    """A change of log-likelihood as the share by which a likelihood rises or falls.

    >>> by_how_much(0.24), by_how_much(-0.5), by_how_much(1.5), by_how_much(9.0), by_how_much(0.001)
    ('27 %', '39 %', 'a factor of 4.5', 'a factor of over 1,000', 'less than 1 %')
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
        if found.beyond_sketch
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
    rivals = plural(int(explanation.certificate.get("r", len(explanation))), "examples")
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
