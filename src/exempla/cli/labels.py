"""Judge labels for `fix-labels`, and write the table, the report and the review folder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exempla.cli.console import Console, plain
from exempla.cli.fitted import Files, Fitted, column_kinds, decisive
from exempla.cli.models import load_model
from exempla.cli.options import command_line, verdict
from exempla.cli.output import (
    contract,
    is_review,
    listed_rows,
    published,
    say_files,
    say_review,
    write_json,
)
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.report import About, write_job_report, write_label_report
from exempla.report.views import Content, View
from exempla.review import EvidenceRow, ReviewedFile, Suspect, write_review
from exempla.review.folder import WRITTEN
from exempla.review.sampling import Strata, sample_rest
from exempla.review.suspects import LONGEST_TEXT
from exempla.tables import feature_frame, infer_columns, show_columns
from exempla.tables.corrections import refuse_input
from exempla.tables.dataset import Dataset, RowView
from exempla.tables.infer import FEATURES, label_values, same_labels
from exempla.tables.label_parts import indicator, read_sentences, span_of
from exempla.tables.models.choose import preparation
from exempla.tables.split import marked_rows
from exempla.tables.table import show

_PRESENCE = ("absent", "present")
_MIN_LISTED, _MAX_LISTED = 200, 2000
"""Suspects listed at least (in a small file a tenth of its rows, but 20) and at most, unless -k is
given. Without trusted rows the expected number of errors can be far too low while the order is
good: a list cut short would hide errors from the reviewer."""


def worth_listing(fixes: Any, k: int | None) -> Any:
    """Return the suspects worth a person's time, or the first k."""
    if k is not None:
        return fixes.first(min(k, len(fixes)))
    fewest = max(20, min(_MIN_LISTED, fixes.n_train // 10))
    count = min(max(fewest, round(2 * fixes.expected_errors)), _MAX_LISTED, len(fixes))
    return fixes.first(count)


def write_suspects(
    folder: Path,
    dataset: Dataset,
    options: Namespace,
    suspects: Iterator[Suspect],
    *,
    rest: Iterator[tuple[int, Suspect]],
    strata: Strata | None,
    classes: Sequence[str],
    expected_wrong: float,
    question: str = "Which labels are wrong?",
) -> None:
    """Write the folder of the review page; no file that was read is replaced."""
    for name in WRITTEN:
        for other in filter(None, (options.curated, options.test)):
            refuse_input(folder / name, other)
        if options.force and not is_review(folder) and (folder / name).is_file():
            (folder / name).unlink()  # announced when the folder was prepared
    write_review(
        folder,
        suspects,
        source=ReviewedFile(
            dataset.table.path,
            dataset.table.format,
            label=", ".join(dataset.label_names),
            options=dataset.reading(),
            # Of what was read: the file may have changed while the model was trained.
            fingerprint=dataset.fingerprint(),
        ),
        classes=classes,
        expected_wrong=expected_wrong,
        question=question,
        rest=rest,
        strata=strata,
    )


def announce_review(console: Console, options: Namespace, folder: Path) -> None:
    """Export for other tools if asked, and print how to start the review."""
    if options.export:
        from exempla.review import read_review
        from exempla.review.integrations import export_review_items

        written = export_review_items(
            read_review(folder), folder, options.export, force=options.force
        )
        for tool, path in written.items():
            console.say(f"  {path}  the suspects, for {tool}")
    say_review(console, folder)
    if warning := _decisions_elsewhere(folder):
        console.warn(warning)


def _decisions_elsewhere(folder: Path) -> str:
    """Return a warning if the folder holds decisions about another column or file."""
    from exempla.review import read_review
    from exempla.review.folder import other_decisions

    if not (folder / "decisions.sqlite").exists():
        return ""
    try:
        with closing(read_review(folder).open_log()) as log:
            return other_decisions(log.others())
    except ExemplaError as error:  # the suspects are written all the same
        return str(error)


@dataclass(frozen=True)
class LabelJob:
    """A file whose labels were judged: classes, numbers, several labels per row, or tokens."""

    dataset: Dataset
    rows: np.ndarray
    """Row of the file of each judged example."""
    facts: Mapping[str, Any]
    classes: tuple[str, ...] = ()
    given: Fitted | None = None
    """The fitted model, if every row has one label. For classes it gives the evidence."""

    def finish(self, console: Console, options: Namespace, folder: Path, fixes: Any) -> int:
        """Write everything, print where it is, and return the exit code."""
        everything = fixes.renumbered(self.rows)
        found = worth_listing(everything, options.k)
        sample, stratum, strata = self._sample(everything, found)
        evidence = None
        if self.given is not None and fixes.task == "classes":
            evidence = _Evidence(self.given, [found, sample])
        about = About(
            **self.facts,
            command=command_line(options),
            warnings=() if self.given is None else self.given.warnings,
            steps=(("Review them and export the corrected file:", f"exempla review {folder}"),),
        )
        view = self._view(found, why=evidence is not None)
        with published(folder, options) as stage:
            paths = self._write_tables(stage, found, view, options)
            paths["report"] = stage / "report.html"
            if evidence is not None:
                write_label_report(
                    found, paths["report"], train_view=view, contradicting_view=evidence.view,
                    about=about,
                )  # fmt: skip
            else:
                write_job_report(
                    found, paths["report"], view=lambda rank: self._content(view, found, rank),
                    about=about,
                )  # fmt: skip
            # Written in place, because decisions are beside it; its header says it is complete.
            write_suspects(
                folder,
                self.dataset,
                options,
                self._suspects(found, evidence),
                rest=zip(stratum.tolist(), self._suspects(sample, evidence)),
                strata=strata,
                classes=self.classes,
                expected_wrong=float(found.expected_errors),
                question=f"Which {found.noun} are wrong?",
            )
        console.say(found.finding)
        for warning in found.warnings if evidence is None else ():
            console.warn(warning)
        say_files(console, folder, paths)
        announce_review(console, options, folder)
        if not found.has_signal:  # then the upper end of the interval counts
            most = found.interval[1] / max(found.n_labels, 1)
            return verdict(console, options, most, "of the labels may be wrong, as far as is known")
        wrong = found.expected_errors / max(found.n_labels, 1)
        return verdict(console, options, wrong, f"of the {found.noun} are expected to be wrong")

    def _write_tables(
        self, stage: Path, found: Any, view: View, options: Namespace
    ) -> dict[str, Path]:
        if found.task == "classes":
            # A listed label may be right; a reader who disagrees needs the best other label.
            other = np.where(found.suggested == found.given, found.alternative, found.suggested)
            found = replace(found, suggested=other)
        values = {
            **contract(options, found.indices.tolist(), damping=None, damping_rule=None),
            **found.to_dict(),
            "file": self.dataset.name,
            "label": ", ".join(self.dataset.label_names),
        }
        table = stage / "explanation.csv"
        listed_rows(found, view).to_csv(table, index=False)
        return {"result": write_json(stage, values), "table": table}

    def _view(self, fixes: Any, why: bool = False, longest: int | None = None) -> RowView:
        """Return the view of these suspects' rows, by row number of the file."""
        if self.given is None:
            view = self.dataset.view()
        else:
            view = self.given.view(np.unique(fixes.indices), why=why)
        return view if longest is None else replace(view, longest=longest)

    def _sample(self, everything: Any, found: Any) -> tuple[Any, np.ndarray, Strata | None]:
        """Return unlisted labels for spot checks, the stratum of each, and the strata."""
        others, first = everything, len(found)
        if len(everything) < everything.n_labels:  # only the listed labels are known
            if self.given is None or everything.task != "classes":
                return found.at(np.arange(0)), np.arange(0), None
            others, first = _unjudged(found, self.rows, self.given.parts.y_train), 0
        strata, chosen, stratum = sample_rest(
            others.probabilities[first:], listed=len(found), seed=everything.seed
        )
        places = first + chosen
        against = tuple(_against(others, place) for place in places.tolist())
        return replace(others.at(places), contradicting=against), stratum, strata

    def _content(self, view: RowView, found: Any, rank: int) -> Content:
        """Return what to show of a suspect: its row; for a token, its sentence with it marked."""
        row = int(found.indices[rank])
        shown = view.show(row)
        if self.dataset.sentences is None:
            return shown
        words, place = self.dataset.sentences.tokens[row], int(found.part[rank])
        pieces = [(" ".join(words[:place]) + " " * (place > 0), 0.0), (words[place], -1.0)]
        pieces.append(("".join(f" {word}" for word in words[place + 1 :]), 0.0))
        return replace(shown, pieces=tuple(piece for piece in pieces if piece[0]))

    def _suspects(self, found: Any, evidence: _Evidence | None) -> Iterator[Suspect]:
        view = self._view(found, why=evidence is not None, longest=LONGEST_TEXT)
        table = self.dataset.table
        for rank, row in enumerate(found.indices.tolist()):
            shown = view.show(row)
            p = float(np.clip(found.probabilities[rank], 0.0, 1.0))
            # The page shows the row's number and id itself; an image also has a file name.
            name = (table.row(row)["file"] or "") if table.format == "images" else ""
            more: dict[str, Any] = {"model_probability": 0.0 if found.spread is not None else p}
            more |= self._judgement(found, rank)
            if evidence is not None:
                more |= {
                    "suggested": str(found.alternative[rank]),
                    "model_probability": float(found.alternative_chance[rank]),
                    "model_label": str(found.suggested[rank]),
                    "side": "opponent" if found.alignment[rank] < 0 else "proponent",
                    "contradicting": tuple(evidence.rows(found, rank)),
                    "original": self._original(row, shown),
                }
            yield Suspect(
                row,
                probability=p,
                id=shown.name.partition(" · ")[2],
                content=replace(shown, name=name),
                **more,
            )

    def _judgement(self, found: Any, rank: int) -> dict[str, Any]:
        """Return the given and the suggested label, which differ, and which side is right."""
        row, given, better = int(found.indices[rank]), found.given[rank], found.suggested[rank]
        if found.spread is not None:
            cell = self.dataset.table.strings(self.dataset.label.name, [row])[0]
            expected, spread = float(found.expected[rank]), float(found.spread[rank])
            better = expected if better == given else better
            side = "too high" if given > expected else "too low"
            return {"given": cell or f"{given:.10g}", "suggested": f"{better:.6g}", "side": side,
                    "kind": "number", "expected": expected, "spread": spread}  # fmt: skip
        side = "opponent" if given != better else "proponent"
        words = {"given": str(given), "suggested": str(found.alternative[rank]), "side": side}
        if found.part is None:
            return words
        part = {"kind": "part", "part": str(found.name[rank]) or " "}
        if self.dataset.sentences is not None:
            span = span_of(self.dataset.sentences.tokens[row], int(found.part[rank]))
            return words | part | {"span": span}
        now = int(given)
        side = "superfluous" if now else "missing"
        return part | {"given": _PRESENCE[now], "suggested": _PRESENCE[1 - now], "side": side}

    def _original(self, row: int, shown: Content) -> tuple[tuple[str, str | None], ...]:
        """Return the row as in the file; a cell that equals the shown text is None."""
        text = "".join(piece for piece, _ in shown.pieces)
        label = self.dataset.label.name
        cells = self.dataset.table.row(row).items()
        found = [(name, value or "") for name, value in cells if name != label]
        return tuple((name, None if value and value == text else value) for name, value in found)


def _unjudged(found: Any, rows: np.ndarray, labels: np.ndarray) -> Any:
    """Return the rows that a ranking of k rows left out, for spot checks.

    They are equally likely to be wrong, and the most frequent other class is the best guess.
    """
    others = ~np.isin(rows, found.indices)
    count, given = int(others.sum()), np.asarray(labels)[others]
    expected = max(0.0, float(found.expected_errors - np.sum(found.probabilities)))
    classes, counts = np.unique(np.asarray(labels), return_counts=True)
    most, second = classes[np.argsort(-counts, kind="stable")[:2]]
    nothing = np.array([])
    return replace(
        found,
        indices=rows[others],
        probabilities=np.full(count, min(1.0, expected / max(1, count))),
        given=given,
        suggested=given,
        alternative=np.where(given == most, second, most),
        alternative_chance=np.zeros(count),
        given_chance=nothing,
        verdict=nothing.astype(str),
        weights=nothing,
        alignment=nothing,
        contradicting=(),
    )


def _against(fixes: Any, rank: int) -> Any:
    """Return the examples that contradict the label at this rank; None if they are unknown."""
    return fixes.contradicting[rank] if rank < len(fixes.contradicting) else None


class _Evidence:
    """The examples that contradict the labels of suspects: trusted rows, or training rows."""

    def __init__(self, given: Fitted, found: Sequence[Any]) -> None:
        parts = given.parts
        X, labels, self._rows, table = parts.X_train, parts.y_train, parts.train, None
        self._source = "train"
        if parts.X_curated is not None:
            assert parts.y_curated is not None
            X, labels, self._rows = parts.X_curated, parts.y_curated, parts.curated
            table, self._source = parts.curated_table, "curated"
        self._labels = labels
        against = [_against(fixes, rank) for fixes in found for rank in range(len(fixes))]
        named = [each.indices for each in against if each is not None]
        who = np.unique(np.concatenate([*named, np.empty(0, dtype=np.int64)]).astype(np.int64))
        why = decisive(given.model, take_rows(X, who), labels[who], who.tolist())
        self.view = given.dataset.view(table, rows=self._rows, labels=labels, **why)
        """Shows them by their index."""

    def rows(self, fixes: Any, rank: int) -> Iterator[EvidenceRow]:
        """Yield the examples that contradict the suspect at this rank."""
        found = _against(fixes, rank)
        if found is None:
            return
        for i, weight in zip(found.indices.tolist(), found.weights.tolist()):
            shown = replace(self.view.show(i), name="")
            yield EvidenceRow(
                int(self._rows[i]), str(self._labels[i]), float(weight), shown, source=self._source
            )


def job_on_rows(given: Fitted) -> LabelJob:
    """Return the job on rows with one label each."""
    names = () if given.regression else tuple(str(c) for c in np.unique(given.parts.y_train))
    return LabelJob(given.dataset, given.parts.train, given.facts(), names, given)


def judge_several_labels(
    files: Files, layout: dict[str, Any], options: Namespace, console: Console
) -> tuple[LabelJob, Any]:
    """Judge every label of rows that have several."""
    from exempla.tasks.labels.fix_labels import fix_labels

    table = files.table
    names_of = layout["names"] if layout["kind"] == "columns" else [layout["column"]]
    Y, known = indicator(table, layout)
    kinds = dict.fromkeys(names_of, "ignored") | column_kinds(options, table)
    dataset = Dataset(table, infer_columns(table, None, options.text, kinds), layout)
    columns, names = dataset.columns, layout["names"]
    console.say(show_columns(columns))
    if not any(column.kind in FEATURES for column in columns):
        raise ExemplaError(
            "No usable feature column. Try `--kind COLUMN=text` or another kind from the table "
            "above."
        )
    trusted = marked_rows(table, options.curated_column) if options.curated_column else np.arange(0)
    rows = np.setdiff1d(np.flatnonzero(known), trusted)
    X = feature_frame(table, columns, rows)
    prepare: Any = preparation(columns, X)
    ready, curated = prepare.fit_transform(X), None
    if files.curated is not None:
        there = dict(layout)
        Yc, known = indicator(files.curated, there)
        Yc, trusted = _aligned(Yc, there["names"], names), np.flatnonzero(known)
        curated = feature_frame(files.curated, columns, trusted), Yc[trusted]
    elif len(trusted):
        curated = feature_frame(table, columns, trusted), Y[trusted]
    if curated is not None:
        curated = prepare.transform(curated[0]), pd.DataFrame(curated[1], columns=names)
        console.say(f"{len(curated[1]):,} rows are trusted.")
    console.say(
        f"Judging {len(rows) * len(names):,} labels ({_first(names)}), each by models that have "
        "not seen it."
    )
    if options.model:
        model, described = load_model(options.model), options.model
    else:
        from sklearn.linear_model import LogisticRegression

        model, described = LogisticRegression(max_iter=1000), "logistic regression, one per label"
    fixes = fix_labels(
        model, (ready, pd.DataFrame(Y[rows], columns=names)), curated, seed=options.seed,
        progress=console.progress, task="multi-label",
    )  # fmt: skip
    facts = {"data": plain(dataset.name), "model": described}
    return LabelJob(dataset, rows, facts, _PRESENCE), fixes


def _aligned(Y: np.ndarray, there: list[str], names: list[str]) -> np.ndarray:
    """Return the curated file's labels in the order of the main file."""
    unknown = [name for name in there if name not in names]
    if unknown:
        raise ExemplaError(
            f"The curated file has the label {unknown[0]!r}, which the main file does not have."
        )
    out = np.zeros((len(Y), len(names)), dtype=np.int64)
    out[:, [names.index(name) for name in there]] = Y
    return out


def judge_tokens(dataset: Dataset, options: Namespace, console: Console) -> tuple[LabelJob, Any]:
    """Judge the label of every token."""
    from exempla.tasks.labels.fix_labels import fix_labels

    found = dataset.sentences
    assert found is not None
    labels = sorted({label for one in found.labels for label in one})
    console.say(
        f"Read {dataset.name}: {sum(map(len, found.tokens)):,} tokens in {len(found.tokens):,} "
        f"rows, {len(labels):,} labels ({_first(labels)})."
    )
    curated = None
    if options.curated:
        there = read_sentences(Path(options.curated), options.label)
        if there is None:
            raise ExemplaError(f"{options.curated} has no token lists, unlike {dataset.name}.")
        curated = (there.tokens, there.labels)
    model = load_model(options.model) if options.model else None
    fixes = fix_labels(
        model, (found.tokens, found.labels), curated, seed=options.seed,
        progress=console.progress, task="tokens",
    )  # fmt: skip
    described = options.model or "logistic regression on each token's window of words and shapes"
    facts = {"data": plain(dataset.name), "model": described}
    rows = np.arange(len(found.tokens))
    return LabelJob(dataset, rows, facts, tuple(labels)), fixes


def _first(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def original_labels(given: Fitted, options: Namespace, console: Console) -> np.ndarray | None:
    """Return the labels that trusted rows had before correction; None if no column is named.

    Where a label was corrected, the column holds the earlier label; an empty cell means that it was
    right from the start.
    """
    name, parts = options.original_column, given.parts
    if name is None:
        return None
    if given.regression:
        raise ExemplaError("--original-column needs classes as labels; leave it out.")
    if options.method != "calibrated":
        raise ExemplaError(
            f"--original-column has no effect with --method {options.method}; leave one of them "
            "out."
        )
    if parts.y_curated is None:
        raise ExemplaError(
            "--original-column holds the earlier labels of trusted rows, but no row is trusted: "
            "name such rows with --curated-column or --curated."
        )
    table = given.dataset.table if parts.curated_table is None else parts.curated_table
    column = table.names[table.position(name)]
    known = ~table.missing(column)[parts.curated]
    once = parts.y_curated.copy()
    if known.any():
        rows, classes = parts.curated[known], np.unique(parts.y_train)
        earlier = label_values(table, column, "classes", rows).astype(str)
        both, seen, _ = same_labels(np.concatenate([earlier, classes.astype(str)]), classes)
        earlier, seen = both[: len(rows)], seen[: len(rows)]
        if not seen.all():
            strange = sorted({str(v) for v in table.strings(column, rows[~seen])})
            raise ExemplaError(
                f"Column {column!r} holds {show(strange, 3)}, which is not a label of any training "
                "row; spell labels there as in the label column."
            )
        once[known] = earlier
    changed = int((once != parts.y_curated).sum())
    console.say(f"{changed:,} of the {len(once):,} trusted rows had another label before.")
    return once
