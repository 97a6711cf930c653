"""What every label job leaves in its folder: the table, the report, and the review page's files."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.shared.console import Console
from exempla.cli.shared.options import command_line, verdict
from exempla.cli.shared.output import prepare_folder, published
from exempla.cli.shared.writing import contract, say_files, say_review, write_json
from exempla.progress import showing
from exempla.report import About, Content, write_job_report
from exempla.review import ReviewedFile, Suspect, write_review
from exempla.review.design.frame import sample_rest

__all__ = ["JobFile", "finish", "job_folder", "reading_options"]

PRESENCE = ("absent", "present")


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
    from exempla.cli.userdata.exchange import export_for_tools

    everything = fixes.renumbered(file.rows)
    found = listed(everything, None) if options.k is None else everything.first(options.k)
    rest, frame = _rest(file, everything, len(found), options.seed)
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
            frame=frame,
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
    frame, chosen, strata = sample_rest(everything.probabilities[count:], listed=count, seed=seed)
    drawn = _suspects(file, everything.at(count + chosen))
    return zip(strata.tolist(), drawn, strict=True), frame


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
        return {"given": PRESENCE[int(given)], "suggested": PRESENCE[1 - int(given)]}
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
