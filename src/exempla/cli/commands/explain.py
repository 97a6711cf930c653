"""Explain a model's errors on your own file: which training rows are responsible for them?

A model that suits the columns is trained (or your own is taken), its cross-validated accuracy is
printed, and the training rows most responsible for its errors on the test rows are picked.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from exempla.cli.options import (
    add_fail_above,
    add_file_arguments,
    add_output,
    add_store,
    command_line,
    verdict,
)

_SEEDS = 3
"""Trainings per arm of --verify."""


def _count(text: str) -> int | str:
    """Return a number of rows, or "auto"."""
    return text if text == "auto" else int(text)


HELP = "which rows of your file are responsible for a model's errors?"


def add_arguments(parser: ArgumentParser) -> None:
    """The file, the question, the output."""
    add_file_arguments(parser)
    question = parser.add_argument_group("the question")
    question.add_argument(
        "--ask",
        metavar="WHAT",
        default="errors",
        help="which rows to ask about: errors (default: test rows predicted wrongly), "
        "errors:TRUE->SAID (one confusion, such as errors:spam->ham), all (all test rows), row "
        "numbers such as 3,17 or 5-9, 'COLUMN contains TEXT', or a file of new rows; named rows "
        "are held out of the training by themselves",
    )
    question.add_argument(
        "--side",
        choices=("opponents", "proponents", "both"),
        help="rows that push against the true labels (default), for them, or either",
    )
    question.add_argument(
        "-k",
        type=_count,
        default="auto",
        help="how many training rows to pick; copies of a row count once (default: auto, the "
        "smallest set that has most of the effect)",
    )
    question.add_argument(
        "--surrogate",
        action="store_true",
        help="explain a model fitted to the predictions of --model, where that one has no scores; "
        "how far the two agree is measured and said first",
    )
    question.add_argument(
        "--verify",
        action="store_true",
        help="train again without the picked rows and show what was predicted beside what happened",
    )
    add_fail_above(question, "a larger share of the test rows is predicted wrongly")
    language = parser.add_argument_group(
        "language models",
        "which texts of FILE taught the model the texts of --test? --model is then a folder that "
        "transformers can load, or a function that returns (model, tokenizer)",
    )
    language.add_argument(
        "--completion", metavar="COLUMN", help="the text that was learned and is asked about"
    )
    language.add_argument(
        "--prompt", metavar="COLUMN", help="the text before it, which is given and not learned"
    )
    add_store(parser)
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, say how good the model is, explain, write."""
    from functools import partial

    from exempla.cli.output import published, say_files, write_results
    from exempla.cli.query import asked_file, choose_questions, held_out, refuse_question
    from exempla.cli.userfile import reading
    from exempla.errors import ExemplaError
    from exempla.explainer import Explainer
    from exempla.progress import showing
    from exempla.report import About, evidence_of, layout_of
    from exempla.report.words import answer, signed
    from exempla.tasks.explain import explain_from

    if options.completion:
        from exempla.cli.language import explain_texts

        return explain_texts(options)
    if options.prompt:
        raise ExemplaError("--prompt stands before a completion; name its column: --completion.")
    if options.surrogate and not options.model:
        raise ExemplaError("--surrogate stands in for a model of your own; give it with --model.")
    options = asked_file(options)
    check, named = partial(refuse_question, options.ask), partial(held_out, options.ask)
    with reading(options, 0.2, check=check, held_out=named) as (given, console, folder):
        stand_in = _surrogate(given, console, options)
        asked = choose_questions(given, options.ask, options.side)
        for note in asked.notes:
            console.say(note)
        model, note = given.recorded() if stand_in is None else (stand_in.model, None)
        if note:
            console.say(note)
        explainer = Explainer(
            model, store=options.store, seed=options.seed, progress=console.progress
        )
        k = options.k if options.k == "auto" else given.at_most(options.k)
        started = time.perf_counter()
        explanation = explain_from(
            explainer.fit(given.train()),
            given.data(given.parts.X_test, given.parts.y_test),
            k,
            side=asked.side,
            ask=asked.positions,
            errors=asked.noun == "errors",
            fit=given.fit,
            started=started,
        )
        everything, asked = asked, asked.limited_to(explanation.question.rows)
    if not len(explanation):
        raise ExemplaError(
            f"No training row is among the {asked.side} of these {asked.noun}; choose another "
            "--side, or --side both."
        )
    checked = _checked(given, explanation, console, options)
    evidence, layout = evidence_of(explanation), layout_of(explanation)
    # From positions in the training part to rows of the file.
    explanation = explanation.renumbered(given.parts.train)
    about = About(
        **given.facts(),
        command=command_line(options),
        notes=(*(() if stand_in is None else (stand_in.sentence,)), *asked.notes),
        warnings=(given.accuracy.warning,) if given.accuracy.warning else (),
        noun=asked.noun,
        steps=_steps(given, explanation, asked, options),
    )
    with published(folder, options) as stage, showing(console.progress):
        paths = write_results(
            stage,
            explanation,
            train_view=given.view(explanation.indices, why=True),
            test_view=asked.test_view(),
            about=about,
            evidence=evidence,
            layout=layout,
            verification=checked,
            extra=_extra(given, everything, stand_in),
        )
    if given.accuracy.warning:
        console.say(f"Careful: {given.accuracy.warning}")
    console.say(answer(explanation, about))
    if checked is not None:
        console.say(
            f"Trained again without them: log-likelihood {signed(checked.retrained)}, "
            f"predicted was {signed(checked.predicted)}."
        )
    for why, command in about.steps[:1]:
        console.say(f"{why} {command}")
    say_files(console, folder, paths)
    return verdict(console, options, asked.error_share, "of the test rows are predicted wrongly")


def _checked(given: Any, explanation: Any, console: Any, options: Namespace) -> Any:
    """What retraining without the picked rows does, if that was asked for."""
    from exempla.progress import showing, waiting

    if not options.verify:
        return None
    with showing(console.progress), waiting(f"training again, {3 * _SEEDS} times"):
        return explanation.verify(fit=given.fit, seeds=_SEEDS)


def _steps(given: Any, explanation: Any, asked: Any, options: Namespace) -> tuple[Any, ...]:
    """What to do with the answer, and what to type for it."""
    from exempla.cli.options import command_for
    from exempla.report.words import DIFFUSE_ADVICE, doubtful

    steps, picked = [], explanation.indices
    if explanation.test_labels.get("rows"):
        file = options.test or options.file
        steps.append((
            "Check the test labels that look wrong:",
            command_for(Namespace(**{**vars(options), "file": file, "test": None}), "fix-labels",
                        "--out", "suspects"),
        ))  # fmt: skip
    if explanation.diffuse:
        steps.append((DIFFUSE_ADVICE, ""))
    doubted = doubtful(explanation, given.view(picked))
    if doubted and not given.regression:
        steps.append((
            f"{doubted:,} of these rows may be labelled wrongly. Find such labels and decide row "
            "by row:", command_for(options, "fix-labels", "--out", "suspects"),
        ))  # fmt: skip
    if asked.noun != "predictions":
        steps.append((
            "See what happens to the test rows without these rows:",
            command_for(options, "clean", "-k", str(len(picked)), "--out", "cleaned"),
        ))  # fmt: skip
    if not options.verify and given.parts.y_test is not None:
        steps.append((
            "Check the prediction by training again:",
            command_for(options, "explain", "--ask", str(options.ask), "--verify"),
        ))  # fmt: skip
    if given.parts.test_table is None and len(asked.rows) > 1:
        one = str(int(asked.rows[0]))
        steps.append((
            "Ask about one row alone, and both sides:",
            command_for(options, "explain", "--ask", one, "--side", "both", "-k", "10"),
        ))  # fmt: skip
    return tuple(steps)


def _surrogate(given: Any, console: Any, options: Namespace) -> Any:
    """The model that is explained in place of the user's own, if that was asked for."""
    from exempla.cli.kinds import has_images
    from exempla.errors import ExemplaError
    from exempla.tables.models.surrogate import CLOSE, surrogate

    if not options.surrogate:
        return None
    if has_images(given.table):
        raise ExemplaError("--surrogate stands in for models of tables and texts, not of images.")
    found = surrogate(given.model, given.parts.X_train, given.parts.y_train, seed=options.seed)
    (console.say if found.agreement.mean >= CLOSE else console.warn)(found.sentence)
    return found


def _extra(given: Any, asked: Any, stand_in: Any) -> dict[str, Any]:
    surrogate = None
    if stand_in is not None:
        surrogate = {"model": stand_in.name, "agreement": stand_in.agreement.mean}
    return {
        "surrogate": surrogate,
        "file": given.table.path.name,
        "label": given.label.name,
        "model": given.described,
        "cross_validated_accuracy": given.accuracy.mean,
        "compared": [one.to_dict() for one in given.compared],
        "error_share": asked.error_share,
        "questioned": asked.rows.tolist(),
    }
