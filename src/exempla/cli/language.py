"""Texts for a language model: which lines of a file taught it these completions?

The file has a column of completions and, if wanted, one of prompts. The model is a folder (or a hub
name) that Hugging Face's transformers can load, or the user's own function that returns
(model, tokenizer). Nothing is trained here."""

from __future__ import annotations

import inspect
from argparse import Namespace
from pathlib import Path
from typing import Any

from exempla.cli.console import plain
from exempla.cli.kinds import blaming, named_object
from exempla.cli.label_jobs import job_folder, reading_options
from exempla.cli.options import command_line
from exempla.cli.output import published, say_files, write_results
from exempla.data import Completions
from exempla.errors import ExemplaError
from exempla.report.evidence import token_views
from exempla.tables import Table, read_table


def explain_texts(options: Namespace) -> int:
    """Read both files, load the model, explain, write."""
    from exempla.explainer import Explainer
    from exempla.progress import showing, waiting
    from exempla.report import About
    from exempla.report.words import answer

    if not options.model:
        raise ExemplaError(
            "--completion asks about a language model: give it with --model, as a folder that "
            "transformers can load or as package.module:name of a function that returns "
            "(model, tokenizer)."
        )
    if not options.test:
        raise ExemplaError(
            "--completion asks about texts of a file of their own: give it with --test, with the "
            "same columns."
        )
    with job_folder(options, []) as (console, folder):
        files = [
            read_table(path, **reading_options(options)) for path in (options.file, options.test)
        ]
        for table in files:
            for note in table.notes:
                console.say(note)
        pairs = [_pairs(table, options) for table in files]
        with waiting("loading the model"):
            model, tokenizer = _load_language_model(options.model)
        train, test = (Completions(tokenizer, each) for each in pairs)
        explainer = Explainer(model, seed=options.seed, progress=console.progress)
        k = min(50 if options.k == "auto" else options.k, len(train))
        side = options.side or "proponents"
        explanation = explainer.fit(train).explain(test, k=k, side=side)
    if not len(explanation):
        raise ExemplaError(f"No text is among the {side} of these completions; try --side both.")
    about = About(
        question="Which training texts are behind these completions?",
        data=plain(files[0].path.name),
        model=plain(options.model),
        command=command_line(options),
        noun="completions",
    )
    with published(folder, options) as stage, showing(console.progress):
        views = token_views(explanation)
        paths = write_results(
            stage, explanation, train_view=views[0], test_view=views[1], about=about,
            extra={"file": files[0].path.name, "model": options.model},
        )  # fmt: skip
    console.say(answer(explanation, about))
    say_files(console, folder, paths)
    return 0


def _pairs(table: Table, options: Namespace) -> list[tuple[str, str]]:
    """(prompt, completion) of every row."""
    columns = [table.strings(table.names[table.position(options.completion)])]
    if options.prompt:
        columns.insert(0, table.strings(table.names[table.position(options.prompt)]))
    else:
        columns.insert(0, [""] * len(table))
    empty = [row for row, text in enumerate(columns[1]) if not text]
    if empty:
        raise ExemplaError(
            f"Row {empty[0]} of {table.path.name} has no {options.completion}; fill it, or leave "
            "that row out."
        )
    return [(prompt or "", text or "") for prompt, text in zip(*columns, strict=True)]


def _load_language_model(place: str) -> tuple[Any, Any]:
    """The model and its tokenizer, from a folder, a hub name, or the user's own code."""
    if ":" in place and not Path(place).exists():
        found = named_object(place, made=lambda named: not inspect.isroutine(named))
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
        # weights as safetensors alone: other files can run code
        model = AutoModelForCausalLM.from_pretrained(place, use_safetensors=True)
        return model.eval(), AutoTokenizer.from_pretrained(place)
