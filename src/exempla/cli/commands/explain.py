"""`exempla explain`: the training rows most responsible for a model's errors on a file."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from exempla.cli.console import command_for
from exempla.cli.fitted import Fitted, reading
from exempla.cli.language import explain_texts
from exempla.cli.output import Job, write_results
from exempla.cli.query import QueryRows, ask_about_file, check_query, choose_query, held_out
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.progress import showing, waiting
from exempla.progress import stage as start_stage
from exempla.report import evidence_of
from exempla.report.words import DIFFUSE_ADVICE, answer, doubtful, signed
from exempla.tables.models.surrogate import CLOSE, Surrogate, surrogate
from exempla.tasks.explain import explain_from

_SEEDS = 3
"""Retrainings per arm of --verify."""
STAGES = (("explaining the predictions", 4, 4), ("retraining", 2, 0))


def run(options: Namespace) -> int:
    """Fit a model, report its accuracy, explain, and write the results."""
    if options.completion:
        return explain_texts(options)
    if options.prompt:
        raise ExemplaError("--prompt needs --completion: name the column of completions too.")
    if options.surrogate and not options.model:
        raise ExemplaError("--surrogate replaces a model of your own; give it with --model.")
    options = ask_about_file(options)
    check, named = partial(check_query, options.ask), partial(held_out, options.ask)
    with reading(options, 0.2, check=check, held_out=named) as (given, job):
        stand_in = _surrogate(given, job)
        asked = choose_query(given, options.ask, options.side)
        for note in asked.notes:
            job.say(note)
        explainer = Explainer(
            given.model if stand_in is None else stand_in.model,
            store=options.store,
            budget=options.budget,
            seed=options.seed,
            progress=job.progress,
        )
        k = options.k if options.k == "auto" else min(options.k, len(given.parts.train))
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
        everything, asked = asked, replace(asked, positions=np.asarray(query.rows))
    if not len(explanation):
        raise ExemplaError(
            f"No training row is among the {asked.side} of these {asked.noun}; try another "
            "--side, or --side both."
        )
    checked = None
    if options.verify:
        start_stage("retraining")
        with showing(job.progress), waiting(f"retraining {3 * _SEEDS} times"):
            checked = explanation.verify(seeds=_SEEDS)
    evidence = evidence_of(explanation)
    # From positions in the training part to row numbers of the file.
    explanation = explanation.renumbered(given.parts.train)
    about = given.about(
        notes=(*(() if stand_in is None else (stand_in.sentence,)), *asked.notes),
        warnings=given.warnings,
        noun=asked.noun,
        steps=_steps(given, explanation, asked),
    )
    with job.published() as stage:
        paths = write_results(
            stage,
            explanation,
            train_view=given.view(explanation.indices, why=True),
            test_view=asked.test_view(),
            about=about,
            evidence=evidence,
            verification=checked,
            extra=_extra(given, everything, stand_in),
        )
    if given.accuracy.warning:
        job.say(f"Note: {given.accuracy.warning}")
    job.say(answer(explanation, about))
    if checked is not None:
        job.say(
            f"Retrained without them: log-likelihood {signed(checked.retrained)}, predicted "
            f"{signed(checked.predicted)}."
        )
    for why, command in about.steps[:1]:
        job.say(f"{why} {command}")
    job.say_files(paths)
    return job.verdict(asked.error_share, "of the test rows are misclassified")


def _steps(given: Fitted, explanation: Any, asked: QueryRows) -> tuple[tuple[str, str], ...]:
    """Return the next steps: what to do and the command for it."""
    options, picked = given.options, explanation.indices
    doubted = 0 if given.regression else doubtful(explanation, given.view(picked))
    test_file = Namespace(**{**vars(options), "file": options.test or options.file, "test": None})
    first = ",".join(map(str, asked.rows[:1].tolist()))
    steps = (
        (explanation.test_labels.get("rows"), "Check the test labels that look wrong:",
         command_for(test_file, "fix-labels", "--out", "suspects")),
        (explanation.diffuse, DIFFUSE_ADVICE, ""),
        (doubted,
         f"{doubted:,} of these rows may have wrong labels. Find such labels and review them:",
         command_for(options, "fix-labels", "--out", "suspects")),
        (asked.noun != "predictions", "Retrain without these rows and see what changes:",
         command_for(options, "clean", "-k", str(len(picked)), "--out", "cleaned")),
        (given.parts.test_table is None and len(asked.rows) > 1,
         "Ask about a single row, on both sides:",
         command_for(options, "explain", "--ask", first, "--side", "both", "-k", "10")),
    )  # fmt: skip
    return tuple((why, command) for applies, why, command in steps if applies)


def _surrogate(given: Fitted, job: Job) -> Surrogate | None:
    """Return the model that is explained in place of the user's own, if --surrogate is given."""
    if not given.options.surrogate:
        return None
    if given.dataset.is_images:
        raise ExemplaError("--surrogate works for tables and texts, not for images.")
    found = surrogate(given.model, *given.train, seed=given.options.seed)
    (job.say if found.agreement.mean >= CLOSE else job.warn)(found.sentence)
    return found


def _extra(given: Fitted, asked: QueryRows, stand_in: Surrogate | None) -> dict[str, Any]:
    named = stand_in and {"model": stand_in.name, "agreement": stand_in.agreement.mean}
    return {
        "surrogate": named,
        "file": given.dataset.name,
        "label": given.dataset.label.name,
        "model": given.described,
        "cross_validated_accuracy": given.accuracy.mean,
        "compared": [one.to_dict() for one in given.compared],
        "error_share": asked.error_share,
        "questioned": asked.rows.tolist(),
    }
