"""Wrong labels of a user's file that are no single class: numbers, several labels, tokens.

job         what every such job writes: table, report, review folder
several     rows with several labels
tokens      rows of tokens

What every label job leaves in its folder: the table, the report, and the review page's files.

Rows with several labels: a column for each, or one column that lists them.

Rows of tokens: a CoNLL file, or JSON lines with a list of tokens and a list of labels.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exempla.cli.console import Console, plain
from exempla.cli.kinds import load_model
from exempla.cli.options import command_line, verdict
from exempla.cli.output import (
    contract,
    prepare_folder,
    published,
    say_files,
    say_review,
    write_json,
)
from exempla.cli.userfile import row_view
from exempla.errors import ExemplaError
from exempla.progress import showing
from exempla.report import About, write_job_report
from exempla.report.views import Content
from exempla.review import ReviewedFile, Suspect, write_review
from exempla.review.sampling import sample_rest
from exempla.tables import feature_frame, infer_columns, read_table, show_columns
from exempla.tables.corrections import fingerprint
from exempla.tables.formats.encoding import unpack
from exempla.tables.infer import FEATURES
from exempla.tables.label_parts import Sentences, indicator, is_conll, read_sentences
from exempla.tables.models.choose import preparation
from exempla.tables.table import Table

_PRESENCE = ("absent", "present")


@dataclass(frozen=True)
class JobFile:
    """The file that was judged, as far as writing the answer needs it."""

    path: Path
    format: str
    label: str
    fingerprint: str
    rows: np.ndarray
    """Row of the file that each judged example is."""
    show: Any
    """Row of the file → its Content."""
    facts: Mapping[str, Any]
    classes: tuple[str, ...] = ()
    tokens: Any = None
    """Lists of tokens, where those are labelled."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How the file is read again; `parts` says how it holds labels of parts."""
    cells: Any = None
    """Numbers as the file spells them, by row."""
    warnings: tuple[str, ...] = ()


@contextmanager
def job_folder(options: Namespace, others: list[str]) -> Iterator[tuple[Console, Path]]:
    """The console, which hears warnings, and the folder for the results; a new one does not stay
    behind if nothing is found."""
    console, new = Console.of(options), not options.out.exists()
    folder = prepare_folder(options, others=others)
    try:
        with console.hearing_warnings(), showing(console.progress):
            yield console, folder
    except BaseException:
        if new:
            with suppress(OSError):
                folder.rmdir()
        raise


def reading_options(options: Namespace) -> dict[str, Any]:
    """How a text file was read, for whoever reads it again."""
    header = {"yes": True, "no": False}.get(options.header)
    how = {"encoding": options.encoding, "delimiter": options.delimiter, "header": header}
    return {name: value for name, value in how.items() if value is not None}


def finish(console: Console, options: Namespace, folder: Path, file: JobFile, fixes: Any) -> int:
    """Write everything, say where it is, and give the exit code."""
    from exempla.cli.commands.fix_labels import decided_elsewhere, listed
    from exempla.cli.query import export_for_tools

    everything = fixes.renumbered(file.rows)
    found = listed(everything, None) if options.k is None else everything.first(options.k)
    rest, strata = _rest(file, everything, len(found), options.seed)
    about = About(**file.facts, command=command_line(options), warnings=file.warnings)
    with published(folder, options) as stage:
        table = stage / "explanation.csv"
        found.to_csv(table)
        values = {
            **contract(options, found.indices.tolist(), damping=None, damping_rule=None),
            **found.to_dict(),
            "file": file.path.name,
            "label": file.label,
        }
        paths = {"result": write_json(stage, values), "table": table}
        paths["report"] = write_job_report(
            found, stage / "report.html", view=lambda rank: _content(file, found, rank), about=about
        )
        write_review(
            folder,
            _suspects(file, found),
            source=ReviewedFile(
                file.path, file.format, label=file.label, options=dict(file.options),
                fingerprint=file.fingerprint,
            ),
            classes=file.classes,
            expected_wrong=float(found.expected_errors),
            question=f"Which {found.noun} are wrong?",
            rest=rest,
            strata=strata,
        )  # fmt: skip
    console.say(found.finding)
    for warning in found.warnings:
        console.warn(warning)
    say_files(console, folder, paths)
    export_for_tools(console, options, folder)
    say_review(console, folder)
    if kept := decided_elsewhere(folder):
        console.warn(kept)
    wrong = found.expected_errors / max(found.n_labels, 1)
    return verdict(console, options, wrong, f"of the {found.noun} are expected to be wrong")


def _rest(
    file: JobFile, everything: Any, count: int, seed: int
) -> tuple[Iterator[tuple[int, Suspect]], Any]:
    """Labels that are not listed, drawn for spot checks, and how many there are in all."""
    if len(everything) < everything.n_labels:  # the others are not known any more
        return iter(()), None
    strata, chosen, stratum = sample_rest(everything.probabilities[count:], listed=count, seed=seed)
    drawn = _suspects(file, everything.at(count + chosen))
    return zip(stratum.tolist(), drawn, strict=True), strata


def _content(file: JobFile, found: Any, rank: int) -> Content:
    """What to show of the suspect at a rank: its row; of a token, its sentence with it marked."""
    row = int(found.indices[rank])
    shown = file.show(row)
    if file.tokens is None:
        return shown
    words, place = file.tokens[row], int(found.part[rank])
    pieces = [(" ".join(words[:place]) + " " * (place > 0), 0.0), (words[place], -1.0)]
    pieces.append(("".join(f" {word}" for word in words[place + 1 :]), 0.0))
    return replace(shown, pieces=tuple(piece for piece in pieces if piece[0]))


def _suspects(file: JobFile, found: Any) -> Iterator[Suspect]:
    """The items of the review page."""
    for rank, row in enumerate(found.indices.tolist()):
        shown = file.show(row)
        p = float(np.clip(found.probabilities[rank], 0.0, 1.0))
        yield Suspect(
            row,
            **_labels(file, found, rank),
            probability=p,
            model_probability=0.0 if hasattr(found, "spread") else p,
            id=shown.name.partition(" · ")[2],
            content=replace(shown, name=""),
            **_kind(file, found, rank),
        )


def _differs(found: Any, rank: int) -> bool:
    return bool(found.given[rank] != found.suggested[rank])


def _labels(file: JobFile, found: Any, rank: int) -> dict[str, str]:
    """The given label, and the suggested one or, where that is the same, the best other one."""
    given, better = found.given[rank], found.suggested[rank]
    if hasattr(found, "spread"):
        spelt = file.cells(int(found.indices[rank])) if file.cells else f"{given:.10g}"
        better = found.expected[rank] if better == given else better
        return {"given": spelt, "suggested": f"{better:.6g}"}
    if getattr(found, "parts", "") == "labels":
        return {"given": _PRESENCE[int(given)], "suggested": _PRESENCE[1 - int(given)]}
    return {"given": str(given), "suggested": str(found.alternative[rank])}


def _kind(file: JobFile, found: Any, rank: int) -> dict[str, Any]:
    """What the page needs to know of a number or a part."""
    if hasattr(found, "spread"):
        expected = float(found.expected[rank])
        side = "too high" if found.given[rank] > expected else "too low"
        spread = float(found.spread[rank])
        return {"kind": "number", "expected": expected, "spread": spread, "side": side}
    if not hasattr(found, "part"):
        return {"side": "opponent" if _differs(found, rank) else "proponent"}
    name = str(found.name[rank]) or " "
    if file.tokens is None:
        side = "superfluous" if int(found.given[rank]) else "missing"
        return {"kind": "part", "part": name, "side": side}
    from exempla.tables.label_parts import span_of

    span = span_of(file.tokens[int(found.indices[rank])], int(found.part[rank]))
    side = "opponent" if _differs(found, rank) else "proponent"
    return {"kind": "part", "part": name, "span": span, "side": side}


def asked_for(options: Namespace) -> bool:
    """Whether the options name several labels."""
    if options.label_separator is not None:
        return True
    if options.label is None or "," not in options.label:
        return False
    try:
        return options.label not in _table(options).names
    except ExemplaError:  # told where the file is read
        return False


def several_labels(options: Namespace, others: list[str]) -> int:
    """Judge every label of every row."""
    with job_folder(options, others) as (console, folder):
        file, fixes = _judged(options, console)
    return finish(console, options, folder, file, fixes)


def _table(options: Namespace) -> Table:
    return read_table(options.file, **reading_options(options))


def _judged(options: Namespace, console: Console) -> tuple[JobFile, Any]:
    from exempla.tasks.labels.fix_labels import fix_labels

    table = _table(options)
    for note in table.notes:
        console.say(note)
    layout = _layout(table, options)
    Y, known = indicator(table, layout)
    kinds = dict.fromkeys(_label_columns(layout), "ignored")
    kinds |= dict(_told(given) for given in options.kind)
    if options.curated_column:
        kinds[options.curated_column] = "ignored"
    columns = infer_columns(table, None, options.text, kinds)
    console.say(show_columns(columns))
    if not any(column.kind in FEATURES for column in columns):
        raise ExemplaError("No column is left to judge the labels by; look at the table above.")
    trusted = _trusted(table, options)
    rows = np.setdiff1d(np.flatnonzero(known), trusted)
    X = feature_frame(table, columns, rows)
    prepare: Any = preparation(columns, X)
    ready, names = prepare.fit_transform(X), layout["names"]
    curated = None
    if options.curated:
        other = read_table(options.curated, **reading_options(options))
        layout_there = dict(layout)
        Yc, known_there = indicator(other, layout_there)
        Yc = _aligned(Yc, layout_there["names"], names)
        there = np.flatnonzero(known_there)
        curated = (prepare.transform(feature_frame(other, columns, there)),
                   pd.DataFrame(Yc[there], columns=names))  # fmt: skip
    elif len(trusted):
        curated = (prepare.transform(feature_frame(table, columns, trusted)),
                   pd.DataFrame(Y[trusted], columns=names))  # fmt: skip
    if curated is not None:
        console.say(f"{len(curated[1]):,} rows are trusted.")
    few = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    console.say(
        f"Judging {len(rows) * len(names):,} labels ({few}), each by models that have not seen it."
    )
    model, described = _model(options)
    fixes = fix_labels(
        model, (ready, pd.DataFrame(Y[rows], columns=names)), curated, seed=options.seed,
        progress=console.progress, task="multi-label",
    )  # fmt: skip
    view = row_view(table, columns)
    facts = {"data": plain(table.path.name), "model": described}
    file = JobFile(
        table.path, table.format, ", ".join(_label_columns(layout)), fingerprint(table), rows,
        view.show, facts, ("absent", "present"),
        options=reading_options(options) | {"parts": layout},
    )  # fmt: skip
    return file, fixes


def _layout(table: Table, options: Namespace) -> dict[str, Any]:
    if options.label is None:
        raise ExemplaError("Say which column lists the labels with --label COLUMN.")
    if options.label_separator is not None:
        name = table.names[table.position(options.label)]
        return {"kind": "delimited", "column": name, "separator": options.label_separator}
    asked = [name.strip() for name in options.label.split(",") if name.strip()]
    names = [table.names[table.position(name)] for name in asked]
    if len(set(names)) < 2:
        raise ExemplaError(f"--label {options.label} names one column; several labels need two.")
    return {"kind": "columns", "names": names}


def _label_columns(layout: dict[str, Any]) -> list[str]:
    return layout["names"] if layout["kind"] == "columns" else [layout["column"]]


def _told(given: str) -> tuple[str, str]:
    column, mark, kind = given.rpartition("=")
    if not mark:
        raise ExemplaError(f"--kind {given} is not understood; write --kind COLUMN=KIND.")
    return column, kind


def _trusted(table: Table, options: Namespace) -> np.ndarray:
    """Rows that the curated column marks."""
    if not options.curated_column:
        return np.arange(0)
    from exempla.tables.split import YES

    marks = table.strings(table.names[table.position(options.curated_column)])
    found = [i for i, mark in enumerate(marks) if mark and mark.strip().casefold() in YES]
    if not found:
        raise ExemplaError(
            f"No row is marked in the curated column {options.curated_column!r}; mark trusted rows "
            "with 1."
        )
    return np.array(found)


def _aligned(Y: np.ndarray, there: list[str], names: list[str]) -> np.ndarray:
    """The other file's labels in this one's order."""
    unknown = [name for name in there if name not in names]
    if unknown:
        raise ExemplaError(f"The curated file has labels that the other never has: {unknown[0]!r}.")
    out = np.zeros((len(Y), len(names)), dtype=np.int64)
    out[:, [names.index(name) for name in there]] = Y
    return out


def _model(options: Namespace) -> tuple[Any, str]:
    if options.model:
        return load_model(options.model), options.model
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000), "logistic regression, one for each label"


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
    from exempla.tasks.labels.fix_labels import fix_labels

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
