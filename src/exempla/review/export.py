"""Export the decision log: the decisions, a patch, and the corrected data set.

Each file is written atomically, never over an input, through a link, or over a file that exempla
did not write; one export at a time runs in a folder. Whatever fails here, the decisions are safe in
the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from exempla.errors import ExemplaError
from exempla.io import alone_in, write_bytes, write_text
from exempla.report.words import chance
from exempla.review.folder import FIRST_PART, Review, item_of, other_decisions, read_review, row_of
from exempla.review.log import DecisionLog, RowDecision, StorageError

# Tables are imported where they are used: the page starts without the packages they need.


class BusyError(ExemplaError):
    """Another export is running in the folder."""


@dataclass(frozen=True)
class FinalDecision:
    """The decision about one row, with its evidence.

    `action` is keep, relabel, remove, skip, or pending (a row that only has a note).
    """

    row: int
    id: str
    action: str
    old_label: str
    new_label: str | None
    note: str
    time: str
    evidence: str
    part: str = ""
    """The label or token of the row that the decision is about; "" for the row itself."""
    span: tuple[int, int] | None = None
    content: dict[str, str] = field(default_factory=dict)
    """The row as in the file, without its label."""


def export_decisions(directory: str | Path) -> list[FinalDecision]:
    """Write DIR/decisions.json and DIR/patch.csv and return the decisions, by row.

    decisions.json has every decision; patch.csv only those that change the data (row, id, column,
    old, new, action, time, evidence, note, fingerprint of the original, and the row's own columns
    as row.NAME; for a part of a row also its name and position). Cells are written unchanged: a
    spreadsheet may read one that begins with "=" as a formula.

    >>> import tempfile
    >>> from exempla.review import ReviewedFile, Suspect, export_decisions, write_review
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = write_review(folder.name, [Suspect(3, "ham", "spam", 0.9, 0.97)],
    ...                  source=ReviewedFile("mails.jsonl", "jsonl"), classes=["ham", "spam"])
    >>> export_decisions(folder.name)
    []
    >>> folder.cleanup()
    """
    review = read_review(directory)
    with _exporting(review) as log:
        return _write_decisions(review, log)


@dataclass(frozen=True)
class Exported:
    """The files of an export; if `corrected` is None, `problem` says why."""

    decisions: list[FinalDecision]
    corrected: Path | None
    problem: str = ""
    elsewhere: str = ""
    """A sentence about decisions in the folder that are about other data and were not used."""

    @property
    def changed(self) -> int:
        """The number of decisions that change the data."""
        return len(_changes(self.decisions))


def export_review(review: Review) -> Exported:
    """Write decisions.json, patch.csv and the corrected data, all from one state of the log.

    If the corrected data cannot be made (for example because the source file is missing), the other
    two are written and `problem` says why. Parts of rows have corrected data only if the file was
    read as several labels or as tokens.
    """
    with _exporting(review) as log:
        decisions, others = _write_decisions(review, log), other_decisions(log.others())
        corrected, problem = None, ""
        if "parts" in review.source.options or all(s.kind != "part" for s in review.suspects):
            try:
                corrected = write_corrected(review, log, decisions)
            except ExemplaError as error:
                problem = str(error)
    return Exported(decisions, corrected, problem, others)


@contextmanager
def _exporting(review: Review) -> Iterator[DecisionLog]:
    """Open the log, and let no other export run in the folder meanwhile."""
    busy = "Another export is being written into this folder; wait for it, then export again."
    with alone_in(review.directory, BusyError(busy)), closing(review.open_log()) as log:
        yield log


def final_decisions(review: Review, log: DecisionLog) -> list[FinalDecision]:
    """Return the state of every row that has a decision or a note, by row."""
    states = [state for state in log.states() if state.action != "pending" or state.note]
    return sorted((_final(review, s) for s in states), key=lambda d: (d.row, d.span or (), d.part))


def write_corrected(review: Review, log: DecisionLog, decisions: list[FinalDecision]) -> Path:
    """Write the corrected data set into the folder, in the format of the input.

    The file is called corrected.* with the input's suffix; an image folder becomes the folder
    `corrected`. An earlier export is replaced; a file or folder that exempla did not write, and a
    folder that was changed since, are refused.
    """
    from exempla.tables import corrections
    from exempla.tables.dataset import read_table

    path, target = review.source_path(), corrected_path(review)
    options = dict(review.source.options)
    layout = options.pop("parts", None)
    corrections.refuse_input(target, path)
    if not path.exists():
        raise ExemplaError(f"{path.name} is missing; restore the source file and export again.")
    table = None if layout else read_table(path, **options)
    # Of the bytes that were read: the file may be changing now.
    if corrections.fingerprint(path if table is None else table) != review.source.fingerprint:
        raise ExemplaError(
            f"{path.name} has changed since the analysis, so row numbers may no longer match; run "
            "the analysis again."
        )
    if not target.is_dir():  # folders carry a marker of their own
        _claim(log, target)
    with _storing(target.name):
        if table is None:
            return write_bytes(target, _corrected_parts(path, log, layout, options))
        corrections.remove_leftovers(target)
        chosen = [
            corrections.Decision(d.row, d.action, d.new_label, d.note, d.time)
            for d in _changes(decisions)
        ]
        return corrections.export(table, chosen, target, label=_label(review), replace_own=True)


def corrected_path(review: Review) -> Path:
    """Return DIR/corrected.csv.gz for mails.2024.csv.gz, DIR/corrected for a folder of images."""
    if review.source.format == "images":
        return review.directory / "corrected"
    from exempla.tables.formats.encoding import PACKINGS, format_suffix

    suffix = format_suffix(PurePath(review.source.path).name)
    bare = suffix.lower() in ("", *PACKINGS)  # the name does not say the format
    return review.directory / f"corrected{f'.{review.source.format}' if bare else ''}{suffix}"


@contextmanager
def _storing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{name} could not be written ({error.strerror or error}); free some space or make the "
            "folder writable, then export again. All decisions are saved."
        ) from error


def _write_decisions(review: Review, log: DecisionLog) -> list[FinalDecision]:
    """Write the list and the patch, and return the decisions."""
    from exempla.tables import corrections

    decisions = final_decisions(review, log)
    listing, patch = review.directory / "decisions.json", review.directory / "patch.csv"
    for path in (listing, patch):
        corrections.refuse_input(path, review.source_path())
        corrections.remove_leftovers(path)
    _claim(log, listing, patch)
    text = json.dumps([asdict(d) for d in decisions], indent=1, ensure_ascii=False)
    with _storing(listing.name):
        write_text(listing, f"{text}\n")
    lines = []
    for d in _changes(decisions):
        # Not the name of a column, so that a part's label is never applied to the row.
        column = _label(review) + (f"[{d.part}]" if d.part else "")
        line = {"row": d.row, "id": d.id, "column": column, "old": d.old_label, "new": d.new_label}
        line |= {"action": d.action, "time": d.time, "evidence": d.evidence, "note": d.note}
        line |= {"part": d.part} if d.part else {}
        line |= {"start": str(d.span[0]), "end": str(d.span[1])} if d.span else {}
        lines.append(line | {f"row.{name}": value for name, value in d.content.items()})
    with _storing(patch.name):
        corrections.write_patch(patch, lines, str(review.source.fingerprint))
    return decisions


def _claim(log: DecisionLog, *paths: Path) -> None:
    """Refuse to replace a file that no export wrote; the log has the names of exported files."""
    ours = set(json.loads(log.setting("exported") or "[]"))
    for path in paths:
        if (path.exists() or path.is_symlink()) and path.name not in ours:
            raise ExemplaError(
                f"{path} was not written by exempla and would be replaced; move it, then export "
                "again."
            )
    log.setting("exported", json.dumps(sorted(ours | {path.name for path in paths})))


def _changes(decisions: list[FinalDecision]) -> list[FinalDecision]:
    return [d for d in decisions if d.action in ("relabel", "remove")]


def _label(review: Review) -> str:
    return review.source.label or {"npz": "y"}.get(review.source.format, "label")


def _final(review: Review, state: RowDecision) -> FinalDecision:
    part = "" if state.row < FIRST_PART else "?"
    card: dict[str, Any] = {"row": row_of(state.row), "id": "", "given": "", "part": part}
    evidence, content = "no longer listed as a suspect", {}  # but by an earlier analysis
    new = state.label if state.action == "relabel" else None
    if state.row in review.lines:
        card = review.card(state.row)
        evidence, content = _evidence(card), _content(card)
        new = card["given"] if state.action == "keep" else new
    span = tuple(card["span"]) if card.get("span") else None
    return FinalDecision(
        card["row"], card["id"], state.action, card["given"], new, state.note, state.time,
        evidence, card.get("part", ""), span, content,
    )  # fmt: skip


def _content(card: dict[str, Any]) -> dict[str, str]:
    """Return the row's own columns or, if the folder lacks them, what the page shows."""
    content = card["content"]
    text, name = content.get("text", ""), content.get("name", "")
    if card.get("original"):
        return {column: text if value is None else value for column, value in card["original"]}
    shown = {column: value for column, value, _ in content.get("cells", [])}
    return shown | ({"text": text} if text else {}) | ({"file": name} if name else {})


def _evidence(card: dict[str, Any]) -> str:
    """Return one line: how suspicious, what the model says, which rows contradict."""
    parts = [f"{chance(card['probability'])} likely mislabelled"]
    if card.get("expected") is not None:
        spread = f" ± {card['spread']:.4g}" if card.get("spread") is not None else ""
        parts.append(f"expected {card['expected']:.6g}{spread}")
    else:
        parts.append(f"model gives {card['suggested']} {chance(card['model_probability'])}")
    rows = [f"#{r['row']} {r['label']} {r['weight']:.3g}" for r in card["contradicting"][:5]]
    if rows:
        parts.append("contradicted by " + ", ".join(rows))
    return "; ".join(parts)


def _corrected_parts(
    path: Path, log: DecisionLog, layout: dict[str, Any], options: dict[str, Any]
) -> bytes:
    """Return the reviewed file with the decisions about several labels or token labels."""
    from exempla.tables.corrections import changed
    from exempla.tables.dataset import read_tokens

    sentences, label = None, layout.get("labels")
    if layout["kind"] == "conll":
        label = str(layout["label"] + (layout["label"] >= 0))
    if layout["kind"] in ("conll", "tokens"):
        sentences = read_tokens(path, label)
    changes: dict[tuple[int, Any], str] = {}
    removed: set[int] = set()
    for state in log.states():
        if state.action == "remove":
            removed.add(row_of(state.row))
        elif state.action == "relabel":
            part = _part_of(state.row, layout, sentences)
            changes[row_of(state.row), part] = str(state.label)
    return changed(path, layout, changes, removed, **options)


def _part_of(item: int, layout: dict[str, Any], sentences: Any) -> Any:
    """Return the name of the label, or the place of the token, that an item is about."""
    row = row_of(item)
    if sentences is None:
        known = {item_of(row, name): name for name in layout["names"]}
    else:
        from exempla.tables.dataset import span_of

        tokens = sentences.tokens[row]
        known = {item_of(row, t or " ", span_of(tokens, i)): i for i, t in enumerate(tokens)}
    if item not in known:
        raise ExemplaError(
            f"A decision is about a part of row {row} that the file no longer has; run the "
            "analysis again."
        )
    return known[item]
