"""The sentences of a report: the answer, how far to trust it, and how it was computed.

Sentences are made from what the explanation contains; printing an answer never trains a model.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from exempla import __version__
from exempla.data import Completions
from exempla.quality import Judged, disagreement, judge_examples, judge_test, poor_sentence, spaced
from exempla.report.views import View
from exempla.results import Answer, Explanation, Selection

_SHOWN = ("numpy", "scipy", "scikit-learn", "pandas", "torch")


@dataclass(frozen=True)
class About:
    """What a report says about the data, the model and the question.

    Attributes
    ----------
    question, answer : str
        Sentences that replace the standard ones.
    data, model : str
        The training data and the model.
    accuracy : str
        The accuracy on unseen rows, in a few words; "" if it was not measured.
    command : str
        The command that repeats the analysis.
    notes : tuple of str
        Facts such as the number of errors, or rows that were left out.
    warnings : tuple of str
        Reasons not to trust the answer.
    steps : tuple of (why, command)
        What to do next: a sentence and a command ("" if there is none).
    noun : str
        The queried predictions, in the plural ("errors", "predictions").

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
    """Return the versions of Python and of libraries that can change a result."""
    found = [("Python", platform.python_version()), ("exempla", __version__)]
    for name in _SHOWN:
        with suppress(PackageNotFoundError):
            found.append((name, version(name)))
    return found


def chance(p: float) -> str:
    """Return a probability in per cent, never 0 or 100; dom.js has the same function.

    >>> chance(0.255), chance(0.997), chance(1.0), chance(0.004)
    ('26 %', '> 99 %', '> 99 %', '< 1 %')
    """
    if p > 0.99:
        return "> 99 %"
    return "< 1 %" if p < 0.01 else f"{math.floor(100 * p + 0.5)} %"


def on_unseen_rows(explanation: Explanation) -> Judged | None:
    """Return the model's quality on unseen rows, if it is known.

    It was measured on the test rows of a query about errors, on training rows held out from a copy
    of the model, or on the queried rows unless all of them are wrong. Nothing is trained here.
    """
    question, embeddings = explanation.question, _embeddings(explanation)
    if question is None or not embeddings:
        return None
    if question.quality is not None:
        return question.quality
    oracle = embeddings[0].oracle
    if question.rows is not None:
        return judge_test(oracle, question.test, "test rows")
    asked = judge_test(oracle, question.test, "the predictions asked about")
    return asked._replace(chosen=True) if asked and asked.classes and asked.score > 0 else None


def _embeddings(explanation: Explanation) -> Sequence[Any]:
    """Return the embeddings of the question; () if its model can no longer predict."""
    return getattr(getattr(explanation.question, "explainer", None), "embeddings", ())


_CLEAR_EFFECT = 3.0
"""Standard deviations of random removals from which an effect is called clear."""
_OVERFITTING_GAP = 0.1
"""Difference between training and test score from which overfitting is mentioned."""


def poor_model(explanation: Explanation) -> str:
    """Return a sentence if the model contradicts its training labels or is no better than the
    baseline on unseen rows; "" otherwise, or if that is unknown."""
    embeddings = _embeddings(explanation)
    if embeddings and (said := disagreement(embeddings[0])):
        return said
    unseen = on_unseen_rows(explanation)
    if unseen is None or not unseen.poor:
        return ""
    if unseen.chosen:
        return poor_sentence(
            unseen, f"on {unseen.rows}", "unless these were chosen for being hard, "
        )
    where = f"on {len(unseen.labels):,} {unseen.rows}"
    train = embeddings[0].train
    some = train.take(spaced(len(train)))
    learned = judge_examples(embeddings[0].oracle, some, "its training rows")
    if learned is not None and learned.score - unseen.score > _OVERFITTING_GAP:
        by_heart = f"its training rows (R² {learned.score:.2f})"
        if learned.classes:
            by_heart = f"{learned.score:.1%} of its training rows"
        where += f", though right on {by_heart}"
    return poor_sentence(unseen, where)


def stands_out(explanation: Explanation) -> float | None:
    """Return the effect's distance from the random mean, in standard deviations of random
    removals."""
    effect = explanation.removal
    if not effect or not effect["random_sd"] > 0:
        return None
    return abs(effect["log_likelihood"] - effect["random_baseline"]) / effect["random_sd"]


def trust_sentences(explanation: Explanation, about: About, train_view: View | None) -> list[str]:
    """Return what speaks for and against the answer, most important first."""
    out = [f"The model: {about.accuracy}, {about.model}."]
    if not about.accuracy:
        model = f"The model is {about.model}. " if about.model else ""
        out = [model + _how_good(explanation)]
    if (far := stands_out(explanation)) is not None:
        effect = "measured effect" if explanation.removal.get("measured") else "predicted effect"
        out.append(
            f"The {effect} is clear: {far:.0f} standard deviations of random removals."
            if far >= _CLEAR_EFFECT
            else f"The {effect} is not clear: {far:.1f} standard deviations of random removals. "
            "Random rows could do as much."
        )
    if explanation.share < 0.9995:
        out.append("The model is large: the answer uses a compressed view of its parameters.")
    if doubted := doubtful(explanation, train_view):
        have = "has a label" if doubted == 1 else "have labels"
        out.append(
            f"{doubted:,} of the {len(explanation):,} examples {have} the model disagrees with: "
            "look at these first."
        )
    out.append(
        "Ranked by influence: how much the queried predictions gain if the row is removed. Some "
        "rows rank high for many questions."
        if "effect" in explanation.to_dict()
        else "Ranked by relative influence: how specifically a row speaks to these predictions. "
        "For the rows whose removal changes most, run clean."
    )
    return out


def _how_good(explanation: Explanation) -> str:
    """Say how good the model is on rows it has not seen, if that is known."""
    found = on_unseen_rows(explanation)
    if found is None or found.chosen:
        return "The model's accuracy was not measured: trust the answer as far as the model."
    n = f"{len(found.labels):,} {found.rows}"
    if not found.classes:
        return f"The model has an R² of {found.score:.2f} on {n}."
    return (
        f"The model is right for {found.score:.1%} of {n}; majority-class baseline: "
        f"{found.baseline:.1%}."
    )


def next_steps(explanation: Explanation, about: About) -> tuple[tuple[str, str], ...]:
    """Return what to do with the answer, each step with what to type."""
    if about.steps:
        return about.steps
    steps = []
    if explanation.test_labels.get("rows"):
        steps.append(("Check the test labels that look wrong:", "exempla.fix_labels(model, test)"))
    if explanation.diffuse:
        steps.append((DIFFUSE_ADVICE, ""))
    if explanation.question is not None:
        steps.append(("Retrain without these examples and compare:", "answer.verify()"))
        steps.append(("Save the list as a table:", 'answer.to_csv("explanation.csv")'))
    return tuple(steps)


DIFFUSE_ADVICE = (
    "Removing rows does not help here. Collect more data like these errors (`exempla acquire` says "
    "which), try a better model or better features, or check the test labels."
)


Trust = tuple[str, str, str]
"""(heading, value, remark) of one line of the trust section."""


def percent(share: float) -> str:
    """Return a share in per cent, like `chance`, but 0 % and 100 % if they are exact."""
    return f"{100 * share:.0f} %" if share in (0, 1) else chance(share)


def question(explanation: Selection, about: About) -> str:
    """Return the question of the report."""
    if about.question or not isinstance(explanation, Explanation):
        return about.question
    verb = {"opponents": "pushed the model towards", "proponents": "support"}.get(
        explanation.side, "are most responsible for"
    )
    noun, n = about.noun, explanation.n_test
    these = f"this {noun.removesuffix('s')}" if n == 1 else f"these {n:,} {noun}"
    return f"Which training examples {verb} {these}?"


def answer(found: Selection, about: About) -> str:
    """Return the answer in one sentence."""
    if about.answer:
        return about.answer
    return removal_sentence(found, about.noun) if isinstance(found, Explanation) else found.finding


def removal_sentence(explanation: Explanation, noun: str = "predictions") -> str:
    """Return the finding: wrong test labels first, then what removing the examples does.

    Measured effects are stated as facts, predicted ones with "should" and a 90 % interval.
    """
    first = explanation.test_labels.get("sentence", "")
    return f"{first} {_removal_effect(explanation, noun)}".strip()


def _removal_effect(explanation: Explanation, noun: str) -> str:
    effect, n, rows = explanation.removal, explanation.n_test, len(explanation.removed)
    of = f"of {explanation.n_train:,} training rows"
    if not effect:
        return f"{len(explanation):,} {of} {'was' if len(explanation) == 1 else 'were'} picked."
    measured = effect.get("measured", False)
    if not measured and "low" in effect and effect["low"] is None:
        return (
            f"{rows:,} {of} are most responsible. How much their removal changes cannot be "
            "predicted for trees: answer.verify() retrains and measures it."
        )
    answers = "the correct answer"
    if isinstance(getattr(explanation.question, "test", None), Completions):
        answers = "the completion"
    elif effect["n_fixed"] is None:
        answers = "the true value"
    answers += "s" * (n != 1)
    become = "becomes" if n == 1 else "become"
    if explanation.labels != "true":
        answers, become = "the model's predictions", "become"
    size = "1 random row" if rows == 1 else f"{rows:,} random rows"
    size += f": {_percent_change(effect['random_baseline'])}"
    if not measured and "low" in effect:
        low, high = (_percent_change(effect[end]) for end in ("low", "high"))
        size += f"; 90 % interval {low} to {high}" if low != high else ""
    found = f"{'Retrained without' if measured else 'Without'} {'this' if rows == 1 else 'these'} "
    found += f"{rows:,} {of}, {answers} {become if measured else 'should become'} "
    found += f"{_how_likely(effect['log_likelihood'])} ({size})."
    noun = "errors" if explanation.test_labels and noun == "predictions" else noun
    found += _turned(effect["n_fixed"], effect["n_broken"], n, noun, measured)
    if explanation.diffuse:
        start = "R" if measured else "Even w"
        found = f"No small set of rows causes these {noun}. {start}{found[1:]}"
    return found


def _how_likely(change: float) -> str:
    """Describe a change of log-likelihood."""
    if abs(change) < 0.005:
        return "hardly more or less likely"
    if change < math.log(1.8):
        more = "more" if change > 0 else "less"
        return f"{percent(abs(math.expm1(change)))} {more} likely".replace("< 1", "less than 1")
    factor = math.exp(min(change, 99.0))
    if factor > 1000:
        return "more than 1,000 times as likely"
    return "about twice as likely" if factor < 2.2 else f"{factor:.2g} times as likely"


def _percent_change(change: float) -> str:
    """Return a change of log-likelihood as a signed per cent, or as a factor if it is large."""
    if change > math.log(2):
        return f"× {math.exp(min(change, 99.0)):.2g}"
    value = round(100 * math.expm1(change))
    return f"{value:+d} %".replace("-", "−") if value else "± 0 %"


def _turned(fixed: int | None, broken: int | None, n: int, noun: str, measured: bool) -> str:
    """Say how many predictions become right or wrong, with a leading space; "" if none."""
    if not fixed and not broken:
        return ""
    be, become = ("would be",) * 2, ("would become",) * 2
    if measured:
        be, become = ("is", "are"), ("becomes", "become")
    if n == 1:
        return f" It {be[0]} corrected." if fixed else f" It {become[0]} wrong."
    which = f"of the {n:,} {noun}"
    parts = [f"{fixed:,} {which} {be[fixed != 1]} corrected"] if fixed else []
    if broken:
        parts.append(f"{broken:,} {'' if fixed else which + ' '}{become[broken != 1]} wrong")
    return f" {', '.join(parts)}.".replace("  ", " ")


def signed(change: float) -> str:
    """Return a change with its sign, in plain decimals."""
    return f"{change:+.2g}" if abs(change) >= 1e-4 else "0.0000"


def within(value: float, spread: float) -> str:
    """Return a change ± its spread, both rounded to two digits of the spread."""
    if not spread > 0:
        return f"{value:.2g} ± 0"
    digits = max(0, 1 - math.floor(math.log10(spread)))
    rounded = round(value, digits) + 0.0  # no minus sign before a zero
    return f"{rounded:.{digits}f} ± {spread:.{digits}f}"


def doubtful(explanation: Explanation, train_view: View | None) -> int:
    """Return how many of the picked examples have a label the model disagrees with."""
    if train_view is None:
        return 0
    return sum(View.show(train_view, row).doubted for row in explanation.indices.tolist())


def trust_in_model(about: About) -> list[Trust]:
    """Return the line about the model; none if nothing is known about it."""
    if about.accuracy:
        return [("Model", about.accuracy, about.model)]
    return [("Model", about.model, "its accuracy was not measured")] if about.model else []


def trust(found: Selection, about: About) -> list[Trust]:
    """Return the facts behind the answer: model, damping, sketch, selection, certificate."""
    lines = trust_in_model(about)
    noise = f", noise {found.noise:g}" if found.noise else ""
    if not isinstance(found, Explanation):
        return [*lines, ("Selection", f"{found.selector}{noise}", found.finding)]
    lines.append(("Damping", f"{found.damping:.3g}", found.damping_rule))
    kept, rest = percent(found.share), "the residual of the sketch is not used"
    if found.share >= 0.9995:
        kept, rest = "all", "exact"
    elif found.residual_used:
        rest = "the residual is included, with its mean eigenvalue"
    lines.append(("Kept of the Fisher information", kept, rest))
    if found.given_up:
        lines.append(("Approximated", "to stay within the budget", found.given_up))
    side = "both sides" if found.side == "both" else f"{found.side} only"
    selected = f"{side}, queried under their {found.labels} labels"
    if found.k > len(found):
        selected += f"; {found.k - len(found):,} fewer than asked for"
    lines.append(("Selection", f"{found.selector}{noise}", selected))
    of = "of the squared norm of the mean embedding" + ("; conservative" if found.noise else "")
    lines.append(("Explained share", percent(found.explained), of))
    statements = {line["name"]: line for line in found.certificate.get("statements", [])}
    proved = statements.get("share_of_best_set")
    # The lower bound that is proved for the picks as a set.
    if proved and proved["status"] == "certified" and 0 < proved["value"] < math.inf:
        r = int(found.certificate.get("r", len(found)))
        rivals = f"{r:,} example{'s' * (r != 1)}"
        meaning = f"proved: of what the best possible set of {rivals} could explain"
        lines.append(("Certificate", f"at least {percent(float(proved['value']))}", meaning))
    return lines


def terminal_text(found: Answer, rows: int = 10) -> str:
    """Return an answer as a few lines of plain text: the finding, then the first rows."""
    frame, lines, last, poor = found.to_frame(), [found.finding], [], ""
    if isinstance(found, Explanation):
        frame = frame.drop(columns=["alignment", "gain"])
        copies = frame.pop("copies")
        if (copies > 1).any():
            frame["copies"] = [f"× {n}" if n > 1 else "" for n in copies]
        if poor := poor_model(found):
            lines.insert(0, f"warning: {poor}")
        if found.diffuse:
            lines.append(DIFFUSE_ADVICE)
        last = ["How this was computed: answer.details"]
    lines += [f"warning: {warning}" for warning in found.warnings if warning != poor]
    lines.append(frame.head(rows).to_string(index=False, float_format="{:.3g}".format))
    if len(found) > rows:
        lines.append(f"… and {len(found) - rows:,} more")
    return "\n".join(lines + last)


def computed(found: Explanation) -> str:
    """Return the technical choices behind an explanation, in one line."""
    return (
        f"side {found.side} · labels {found.labels} · selector {found.selector} (noise "
        f"{found.noise:g}) · damping {found.damping:.3g} ({found.damping_rule}) · Fisher kept "
        f"{percent(found.share)}" + (f" ({found.given_up})" if found.given_up else "")
    )
