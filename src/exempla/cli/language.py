"""Explain completions of a language model: which rows of a file taught it these texts?

The file has a column of completions and optionally one of prompts, or a chat in `messages`. The
model is a folder or hub name that transformers can load, or the user's function that returns
(model, tokenizer). Nothing is trained here.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from pathlib import Path
from typing import Any

from exempla.cli.console import command_line, plain
from exempla.cli.fitted import blaming, named_object, read_files
from exempla.cli.output import Job, write_results
from exempla.data import Completions
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.progress import waiting
from exempla.report import About
from exempla.report.views import token_views
from exempla.report.words import answer
from exempla.tables import Table

_ANSWER = "\nassistant: "
"""What precedes the last answer in the text of a chat."""


def explain_texts(options: Namespace) -> int:
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
        train, test = (Completions(tokenizer, each) for each in pairs)
        explainer = Explainer(
            model, budget=options.budget, seed=options.seed, progress=job.progress
        )
        k = min(50 if options.k == "auto" else options.k, len(train))
        side = options.side or "proponents"
        explanation = explainer.fit(train).explain(test, k=k, side=side)
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
