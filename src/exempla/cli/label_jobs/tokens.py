"""Rows of tokens: a CoNLL file, or JSON lines with a list of tokens and a list of labels."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.label_jobs.job import JobFile, finish, job_folder
from exempla.cli.shared.console import plain
from exempla.cli.userdata.models import load_model
from exempla.errors import ExemplaError
from exempla.report.views import Content
from exempla.tables.corrections.fingerprint import fingerprint
from exempla.tables.formats.encoding import unpack
from exempla.tables.label_parts import Sentences, is_conll, read_sentences

__all__ = ["sentences_of", "token_labels"]


def sentences_of(options: Namespace) -> Sentences | None:
    """The token lists of the file; None if it holds none."""
    path = Path(options.file)
    if options.task in ("classes", "regression") or not (is_conll(path) or _has_lists(path)):
        return None
    return read_sentences(path, options.label)


def _has_lists(path: Path) -> bool:
    """Whether the first line is a JSON object with a list of tokens; the whole file is read, and
    what is wrong with it told, elsewhere."""
    if ".json" not in path.name or not path.is_file():
        return False
    try:
        content = unpack(path.read_bytes(), path.name)[0]
        first = json.loads(content.lstrip().split(b"\n", 1)[0])
    except (ExemplaError, OSError, ValueError):
        return False
    return isinstance(first, dict) and isinstance(first.get("tokens"), list)


def token_labels(options: Namespace, found: Sentences, others: list[str]) -> int:
    """Judge the label of every token."""
    from exempla.tasks.fix_labels import fix_labels

    path = Path(options.file)
    with job_folder(options, others) as (console, folder):
        labels = sorted({label for one in found.labels for label in one})
        count = sum(len(one) for one in found.tokens)
        console.say(
            f"Read {path.name}: {count:,} tokens in {len(found.tokens):,} rows, "
            f"{len(labels):,} labels ({', '.join(labels[:8])}{', …' if len(labels) > 8 else ''})."
        )
        curated = None
        if options.curated:
            there = read_sentences(Path(options.curated), options.label)
            if there is None:
                raise ExemplaError(f"{options.curated} holds no token lists as {path.name} does.")
            curated = (there.tokens, there.labels)
        model = load_model(options.model) if options.model else None
        fixes = fix_labels(
            model, (found.tokens, found.labels), curated, seed=options.seed,
            progress=console.progress, task="tokens",
        )  # fmt: skip
    described = options.model or "softmax regression on each token's window of words and shapes"
    file = JobFile(
        path, "conll" if found.layout["kind"] == "conll" else "jsonl",
        str(found.layout.get("labels", "label")), fingerprint(path),
        np.arange(len(found.tokens)), _shown(found), {"data": plain(path.name), "model": described},
        tuple(labels), tokens=found.tokens, options={"parts": found.layout},
    )  # fmt: skip
    return finish(console, options, folder, file, fixes)


def _shown(found: Sentences) -> Any:
    def show(row: int) -> Content:
        return Content(pieces=((" ".join(found.tokens[row]), 0.0),), name=f"#{row}")

    return show
