"""`exempla explain`: the training rows most responsible for a model's errors on a file.

With --completion, the rows that taught a language model some texts. The file then has a column of
completions and optionally one of prompts, or a chat in `messages`. The model is a folder or hub
name that transformers can load, or the user's function that returns (model, tokenizer). Nothing is
trained in that case.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from exempla.cli.fitted import Fitted, blaming, named_object, read_files, reading
from exempla.cli.options import command_for, command_line, plain
from exempla.cli.output import Job, write_results
from exempla.cli.query import QueryRows, ask_about_file, check_query, choose_query, held_out
from exempla.data import Completions
from exempla.errors import ExemplaError
from exempla.progress import showing, waiting
from exempla.progress import stage as start_stage
from exempla.report import About, evidence_of
from exempla.report.views import token_views
from exempla.report.words import DIFFUSE_ADVICE, answer, doubtful, signed
from exempla.tables import Table
from exempla.tables.models.surrogate import CLOSE, Surrogate, surrogate
from exempla.tasks.explain import explain_from

_ANSWER = "\nassistant: "
"""What precedes the last answer in the text of a chat."""
_SEEDS = 3
"""Retrainings per arm of --verify."""
STAGES = (("explaining the predictions", 4, 4), ("retraining", 2, 0))


def run(options: Namespace) -> int:
    """Fit a model, report its accuracy, explain, and write the results."""
    if options.completion:
        return _explain_completions(options)
    for name in ("prompt", "snapshots"):
        if getattr(options, name):
            raise ExemplaError(f"--{name} needs --completion: name the column of completions too.")
    if options.surrogate and not options.model:
        raise ExemplaError("--surrogate replaces a model of your own; give it with --model.")
    options = ask_about_file(options)
    check, named = partial(check_query, options.ask), partial(held_out, options.ask)
    with reading(options, 0.2, check=check, held_out=named) as (given, job):
        stand_in = _surrogate(given, job)
        asked = choose_query(given, options.ask, options.side)
        for note in asked.notes:
            job.say(note)
        everything, explainer = (
            asked,
            job.explainer(given.model if stand_in is None else stand_in.model),
        )
        explanation, asked = asked.answered(explain_from, explainer, options.k, side=asked.side)
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
        extra = _extra(given, everything, stand_in)
        paths = asked.write(
            stage, explanation, about, evidence=evidence, verification=checked, extra=extra
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
        "label": given.dataset.label_name,
        "model": given.described,
        "cross_validated_accuracy": given.accuracy.mean,
        "compared": [one.to_dict() for one in given.compared],
        "error_share": asked.error_share,
        "questioned": asked.rows.tolist(),
    }


def _explain_completions(options: Namespace) -> int:
    """Read both files, load the model, explain, and write the results."""
    if not options.model:
        raise ExemplaError(
            "--completion needs a language model: give --model, either a folder that transformers "
            "can load or package.module:name of a function that returns (model, tokenizer)."
        )
    if not options.test:
        raise ExemplaError(
            "--completion needs the texts to ask about: give them with --test, in a file with the "
            "same columns."
        )
    with Job.opened(options) as job:
        files = read_files(job)
        assert files.test is not None
        pairs = [_pairs(table, options) for table in (files.table, files.test)]
        with waiting("loading the model"):
            model, tokenizer = _load_language_model(options.model)
        models = [model, options.snapshots] if options.snapshots else model
        train, test = (Completions(tokenizer, each) for each in pairs)
        k = min(50 if options.k == "auto" else options.k, len(train))
        side = options.side or "proponents"
        explanation = job.explainer(models).fit(train).explain(test, k=k, side=side)
    if not len(explanation):
        raise ExemplaError(f"No text is among the {side} of these completions; try --side both.")
    about = About(
        question="Which training texts are behind these completions?",
        data=plain(files.table.path.name),
        model=plain(options.model),
        command=command_line(options),
        noun="completions",
    )
    with job.published() as stage:
        views = token_views(explanation)
        assert views is not None
        paths = write_results(
            stage, explanation, train_view=views[0], test_view=views[1], about=about,
            extra={"file": files.table.path.name, "model": options.model},
        )  # fmt: skip
    job.say(answer(explanation, about))
    job.say_files(paths)
    return 0


def _pairs(table: Table, options: Namespace) -> list[tuple[str, str]]:
    """Return (prompt, completion) of every row; of a chat, the last answer is the completion."""
    texts = table.strings(table.names[table.position(options.completion)])
    if options.prompt:
        prompts = table.strings(table.names[table.position(options.prompt)])
    elif table.format == "jsonl" and all(text and _ANSWER in text for text in texts):
        split = [(text or "").rpartition(_ANSWER) for text in texts]
        prompts, texts = [f"{before}{mark}" for before, mark, _ in split], [s[2] for s in split]
    else:
        prompts = [""] * len(table)
    empty = [row for row, text in enumerate(texts) if not text]
    if empty:
        raise ExemplaError(
            f"Row {empty[0]} of {table.path.name} has no {options.completion}; fill it in or "
            "remove the row."
        )
    return [(prompt or "", text or "") for prompt, text in zip(prompts, texts, strict=True)]


def _load_language_model(place: str) -> tuple[Any, Any]:
    """Return the model and its tokenizer, from a folder, a hub name, or the user's own code."""
    if ":" in place and not Path(place).exists():
        found = named_object(place, is_ready=lambda named: not inspect.isroutine(named))
        if hasattr(found, "model") and hasattr(found, "tokenizer"):  # a pipeline
            found = found.model, found.tokenizer
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise ExemplaError(
                f"--model {place} gives {type(found).__name__}; return (model, tokenizer)."
            )
        return found[0], found[1]
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise ExemplaError(
            "transformers, which loads language models, is not installed: pip install "
            "'exempla[hf]'."
        ) from None
    with blaming(f"transformers cannot load a language model from {place}"):
        # Only safetensors: other weight files can run code.
        model = AutoModelForCausalLM.from_pretrained(place, use_safetensors=True)
        return model.eval(), AutoTokenizer.from_pretrained(place)
