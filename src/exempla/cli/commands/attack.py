"""How fragile is a model? Move a few training rows a little, train again, count flipped answers.

For your own models. The target is a set of test rows that are predicted rightly: rows you name
with --ask, or the ten least sure ones of one class. The rows that would be the cheapest to attack,
and are the first to protect, are listed. Columns must be numbers; images need PyTorch. Trees answer
in steps, so that nothing can be moved a little: their rows are given wrong labels instead.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exempla.cli.options import (
    add_fail_above,
    add_file_arguments,
    add_output,
    command_line,
    verdict,
)

if TYPE_CHECKING:
    from exempla.cli.userfile import UserFile

HELP = "which rows of your file could be moved to flip predictions?"

_TARGETS = 10
"""Test rows attacked together where the user names none."""
_SHOWN = 50
"""Weak rows on the page; the table has all of them."""


def add_arguments(parser: ArgumentParser) -> None:
    """The file, the attack, the output."""
    add_file_arguments(parser)
    how = parser.add_argument_group("the attack")
    how.add_argument("--ask", metavar="ROWS", help="target rows, such as 3,17 (default: see above)")
    how.add_argument(
        "--points", metavar="N", type=int, default=2, help="training rows to move (default: 2)"
    )
    how.add_argument(
        "--budget",
        metavar="SIZE",
        type=float,
        default=0.5,
        help="how far each value may move, in the units the model sees: standard deviations of a "
        "column, or pixels as they are fed to the network (default: 0.5)",
    )
    add_fail_above(how, "a larger share of the target predictions flips")
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, attack, retrain, write."""
    from exempla.cli.output import contract, published, say_files, write_json
    from exempla.cli.userfile import reading
    from exempla.data import take_rows
    from exempla.oracles.trees import is_trees
    from exempla.report.words import percent
    from exempla.tasks.attack import attack, weak_points

    with reading(options, 0.2, linear=True) as (given, console, folder):
        model, prepare = given.head(options.model is None)
        labels = is_trees(model)  # nothing of theirs can be moved a little
        _check(given, model, labels)
        positions, what = _target(given, options.ask)
        parts: Any = given.parts
        train = given.data(prepare(parts.X_train), parts.y_train)
        target = given.data(prepare(take_rows(parts.X_test, positions)), parts.y_test[positions])
        console.say(f"Target: {what}.")
        shared = {"budget": options.budget, "seed": options.seed}
        how = "labels" if labels else "train"
        found: Any = attack(
            model, train, target, k=options.points, perturb=how, fit=given.fit, **shared
        )
        weak = found.weak_points() if labels else weak_points(model, train, target, **shared)
        check = found.verify(fit=given.fit, seeds=3 if given.fit is None else 1)
    flipped, by_chance = check.mean("attacked"), check.mean("random direction")
    rows = parts.train[found.indices].tolist()
    if labels:
        answer = (
            f"Giving {len(rows)} of {len(parts.train):,} training rows wrong labels and training "
            f"again flips {percent(flipped)} of these predictions; as many wrong labels at random, "
            f"{percent(by_chance)}."
        )
        change, budget = found.effect, None
    else:
        answer = (
            f"Moving {len(rows)} of {len(parts.train):,} training rows by at most "
            f"{options.budget:g} and training again flips {percent(flipped)} of these predictions; "
            f"moving them as far at random, {percent(by_chance)}."
        )
        change, budget = found.after - found.before, found.budget
    weak["label"] = parts.y_train[weak["index"]]
    weak["index"] = parts.train[weak["index"]]
    # Moved, each of them pushes against the target: its weight is what that costs, to first order.
    values = contract(
        options, rows, weights=change.tolist(), side="opponents",
        damping=float(found.damping), damping_rule=getattr(found, "damping_rule", "auto"),
        file=given.table.path.name, answer=answer, rows=rows, budget=budget,
        target=parts.test[positions].tolist(), expected=found.expected,
        flipped=flipped, flipped_by_chance=by_chance,
    )  # fmt: skip
    with published(folder, options) as stage:
        paths = {"result": write_json(stage, values), "table": stage / "explanation.csv"}
        weak.to_csv(paths["table"], index=False)
        paths["report"] = _write_page(stage, given, weak, rows, answer, what, options, labels)
    said = "Rows relabelled" if labels else "Rows moved"
    console.say(f"{answer} {said}: {', '.join(map(str, rows))}.")
    say_files(console, folder, paths)
    return verdict(console, options, flipped, "of these predictions flip")


def _check(given: Any, model: Any, labels: bool) -> None:
    """Refuse what cannot be moved a little."""
    from exempla.cli.kinds import ImageClassifier
    from exempla.errors import ExemplaError
    from exempla.tables.infer import FEATURES

    if given.regression:
        raise ExemplaError("attack flips predictions of classes, not of numbers.")
    if labels or isinstance(given.model, ImageClassifier):
        return
    fixed = [c.name for c in given.columns if c.kind in FEATURES and c.kind != "number"]
    if fixed:
        raise ExemplaError(
            f"attack moves numbers a little, and {fixed[0]!r} holds none; leave such columns out "
            f"with --kind {fixed[0]}=ignored."
        )
    numbers = sum(c.kind == "number" for c in given.columns)
    if getattr(model, "n_features_in_", numbers) != numbers:
        raise ExemplaError("attack needs columns without missing values; fill them in first.")


def _target(given: Any, ask: str | None) -> tuple[Any, str]:
    """Positions among the test rows, and what they are in words."""
    import numpy as np

    from exempla.cli.query import choose_questions
    from exempla.errors import ExemplaError

    parts = given.parts
    if ask is not None:
        positions = choose_questions(given, ask, None).positions
        return positions, f"{len(positions)} test rows, as told"
    if parts.X_test is None or parts.y_test is None:
        raise ExemplaError("There are no test rows to attack; give --test or --test-size.")
    chances = given.model.predict_proba(parts.X_test)
    predicted = np.asarray(given.model.classes_)[chances.argmax(1)]
    right = np.flatnonzero(predicted.astype(str) == parts.y_test.astype(str))
    if not len(right):
        raise ExemplaError("The model predicts no test row rightly: nothing is left to flip.")
    unsure = right[np.argsort(chances.max(1)[right], kind="stable")]
    label = predicted[unsure[0]]
    chosen = unsure[predicted[unsure] == label][:_TARGETS]
    return chosen, f"the {len(chosen)} least sure test rows rightly predicted as {label}"


def _write_page(
    stage: Path,
    given: UserFile,
    weak: Any,
    moved: list[int],
    answer: str,
    what: str,
    options: Namespace,
    labels: bool,
) -> Path:
    """report.html: the rows that are the cheapest to attack, and those that were moved."""
    from exempla.report import About, Listed, write_listing

    shown = weak.head(_SHOWN)
    done, how = "moved", "by moving this row alone within the budget"
    trust = [("Budget", f"{options.budget:g}", "how far each value may move")]
    if labels:
        done, how, trust = "relabelled", "by giving this row alone a wrong label", []
    rows = [
        Listed(
            int(row), f"{label} · reach {reach:.2g}" + (f" · {done} here" if row in moved else "")
        )
        for row, label, reach in shown[["index", "label", "reach"]].itertuples(index=False)
    ]
    return write_listing(
        stage / "report.html",
        rows,
        view=given.view(shown["index"].to_numpy()),
        about=About(
            question=f"Which rows could be {done} to flip predictions?",
            answer=answer,
            notes=(f"Target: {what}.",),
            command=command_line(options),
            **given.facts(),
        ),
        trust=trust,
        heading=f"The {len(rows)} rows that are the cheapest to attack",
        help="The first to protect or to look at. Reach is how much the mean log-likelihood of the "
        f"target can be made to fall, to first order, {how}.",
        seed=options.seed,
    )
