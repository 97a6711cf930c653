"""Explain a model's errors on your own file: which training rows are responsible for them?

A model that suits the columns is trained (or your own is used), its cross-validated accuracy is
printed, and the training rows most responsible for its errors on the test rows are listed.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from exempla.cli.options import (
    add_budget,
    add_fail_above,
    add_file_arguments,
    add_output,
    add_store,
    command_line,
    stages,
    verdict,
)

_SEEDS = 3
"""Retrainings per arm of --verify."""
STAGES = stages(("explaining the predictions", 4, 4), ("retraining", 2, 0))


def _count(text: str) -> int | str:
    """Return a number of rows, or "auto"."""
    return text if text == "auto" else int(text)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the file, the query, and the output."""
    add_file_arguments(parser)
    question = parser.add_argument_group("query")
    question.add_argument(
        "--ask",
        metavar="WHAT",
        default="errors",
        help="which rows to ask about: errors (default: misclassified test rows), "
        "errors:TRUE->SAID (one confusion, such as errors:spam->ham), all (all test rows), row "
        "numbers such as 3,17 or 5-9, 'COLUMN contains TEXT', or a file of new rows; rows you "
        "name are held out of training",
    )
    question.add_argument(
        "--side",
        choices=("opponents", "proponents", "both"),
        help="list rows that push against the true labels (default), towards them, or both",
    )
    question.add_argument(
        "-k",
        type=_count,
        default="auto",
        help="how many training rows to list; copies of a row count once (default: auto, the "
        "smallest set that has most of the effect)",
    )
    question.add_argument(
        "--surrogate",
        action="store_true",
        help="explain a model fitted to the predictions of --model, if that model is not "
        "supported; reports first how often the two agree",
    )
    question.add_argument(
        "--verify",
        action="store_true",
        help="retrain without the listed rows and compare the predicted effect with the real one",
    )
    add_fail_above(question, "a larger share of the test rows is misclassified")
    language = parser.add_argument_group(
        "language models",
        "which texts of FILE taught the model the texts of --test? Here, --model is a folder that "
        "transformers can load, or a function that returns (model, tokenizer)",
    )
    language.add_argument(
        "--completion", metavar="COLUMN", help="the column of texts to explain (or chat messages)"
    )
    language.add_argument(
        "--prompt", metavar="COLUMN", help="the column of texts that precede the completions"
    )
    add_store(parser)
    add_budget(parser)
    add_output(parser)


def run(options: Namespace) -> int:
    """Fit a model, report its accuracy, explain, and write the results."""
    from dataclasses import replace
    from functools import partial

    from exempla.cli.fitted import reading
    from exempla.cli.output import published, say_files, write_results
    from exempla.cli.query import ask_about_file, check_query, choose_query, held_out
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
        raise ExemplaError("--prompt needs --completion: name the column of completions too.")
    if options.surrogate and not options.model:
        raise ExemplaError("--surrogate replaces a model of your own; give it with --model.")
    options = ask_about_file(options)
    check, named = partial(check_query, options.ask), partial(held_out, options.ask)
    with reading(options, 0.2, check=check, held_out=named) as (given, console, folder):
        stand_in = _surrogate(given, console, options)
        asked = choose_query(given, options.ask, options.side)
        for note in asked.notes:
            console.say(note)
        model = given.model if stand_in is None else stand_in.model
        explainer = Explainer(
            model,
            store=options.store,
            budget=options.budget,
            seed=options.seed,
            progress=console.progress,
        )
        k = options.k if options.k == "auto" else given.at_most(options.k)
        started, y_test = time.perf_counter(), given.parts.y_test
        explanation = explain_from(
            explainer.fit(given.train),
            given.parts.X_test if y_test is None else (given.parts.X_test, y_test),
            k,
            side=asked.side,
            ask=asked.positions,
            errors=asked.noun == "errors",
            started=started,
        )
        query: Any = explanation.question
        everything, asked = asked, asked.limited_to(query.rows)
    if not len(explanation):
        raise ExemplaError(
            f"No training row is among the {asked.side} of these {asked.noun}; try another "
            "--side, or --side both."
        )
    checked = _checked(given, explanation, console, options)
    evidence, layout = evidence_of(explanation), layout_of(explanation)
    # From positions in the training part to row numbers of the file.
    explanation = explanation.renumbered(given.parts.train)
    if layout is not None:
        layout = replace(layout, rows=given.parts.train[layout.rows])
    about = About(
        **given.facts(),
        command=command_line(options),
        notes=(*(() if stand_in is None else (stand_in.sentence,)), *asked.notes),
        warnings=given.warnings,
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
        console.say(f"Note: {given.accuracy.warning}")
    console.say(answer(explanation, about))
    if checked is not None:
        console.say(
            f"Retrained without them: log-likelihood {signed(checked.retrained)}, predicted "
            f"{signed(checked.predicted)}."
        )
    for why, command in about.steps[:1]:
        console.say(f"{why} {command}")
    say_files(console, folder, paths)
    return verdict(console, options, asked.error_share, "of the test rows are misclassified")


def _checked(given: Any, explanation: Any, console: Any, options: Namespace) -> Any:
    """Return the effect of retraining without the listed rows, if --verify is given."""
    from exempla.progress import showing, stage, waiting

    if not options.verify:
        return None
    stage("retraining")
    with showing(console.progress), waiting(f"retraining {3 * _SEEDS} times"):
        return explanation.verify(seeds=_SEEDS)


def _steps(given: Any, explanation: Any, asked: Any, options: Namespace) -> tuple[Any, ...]:
    """Return the next steps: what to do and the command for it."""
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
            f"{doubted:,} of these rows may have wrong labels. Find such labels and review them:",
            command_for(options, "fix-labels", "--out", "suspects"),
        ))  # fmt: skip
    if asked.noun != "predictions":
        steps.append((
            "Retrain without these rows and see what changes:",
            command_for(options, "clean", "-k", str(len(picked)), "--out", "cleaned"),
        ))  # fmt: skip
    measured = explanation.removal.get("measured", False)
    if not options.verify and not measured and given.parts.y_test is not None:
        steps.append((
            "Check the predicted effect by retraining:",
            command_for(options, "explain", "--ask", str(options.ask), "--verify"),
        ))  # fmt: skip
    if given.parts.test_table is None and len(asked.rows) > 1:
        one = str(int(asked.rows[0]))
        steps.append((
            "Ask about a single row, on both sides:",
            command_for(options, "explain", "--ask", one, "--side", "both", "-k", "10"),
        ))  # fmt: skip
    return tuple(steps)


def _surrogate(given: Any, console: Any, options: Namespace) -> Any:
    """Return the model that is explained in place of the user's own, if --surrogate is given."""
    from exempla.errors import ExemplaError
    from exempla.tables.models.surrogate import CLOSE, surrogate

    if not options.surrogate:
        return None
    if given.dataset.is_images:
        raise ExemplaError("--surrogate works for tables and texts, not for images.")
    found = surrogate(given.model, given.parts.X_train, given.parts.y_train, seed=options.seed)
    (console.say if found.agreement.mean >= CLOSE else console.warn)(found.sentence)
    return found


def _extra(given: Any, asked: Any, stand_in: Any) -> dict[str, Any]:
    surrogate = None
    if stand_in is not None:
        surrogate = {"model": stand_in.name, "agreement": stand_in.agreement.mean}
    return {
        "surrogate": surrogate,
        "file": given.dataset.name,
        "label": given.dataset.label.name,
        "model": given.described,
        "cross_validated_accuracy": given.accuracy.mean,
        "compared": [one.to_dict() for one in given.compared],
        "error_share": asked.error_share,
        "questioned": asked.rows.tolist(),
    }
