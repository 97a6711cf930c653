"""`exempla fix-labels`: judge labels; write the table, the report and the review folder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from exempla.cli.fitted import (
    Files,
    Fitted,
    column_kinds,
    decisive,
    fit_file,
    load_model,
    one_thread,
    read_files,
)
from exempla.cli.options import command_line, plain
from exempla.cli.output import Job, is_review, write_tables
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.progress import stage as start_stage
from exempla.report import About, write_label_report
from exempla.report.views import Content
from exempla.review import EvidenceRow, ReviewedFile, Suspect, read_review, write_review
from exempla.review.folder import LONGEST_TEXT, WRITTEN, other_decisions
from exempla.review.integrations import TOOL_FILES, export_review_items
from exempla.review.sampling import Strata, sample_rest
from exempla.tables import feature_frame, format_suffix, infer_columns, show_columns
from exempla.tables.corrections import fingerprint
from exempla.tables.dataset import (
    Dataset,
    RowView,
    indicator,
    is_conll,
    label_layout,
    read_tokens,
    span_of,
)
from exempla.tables.infer import label_values, same_labels
from exempla.tables.models.choose import preparation
from exempla.tables.split import marked_rows
from exempla.tables.table import show
from exempla.tasks.labels.fix_labels import fix_labels

STAGES = (("judging the labels", 8, 3),)
_REVIEW_FILES = (
    "review.json", "suspects.jsonl", "images", "decisions.sqlite", "decisions.json", "patch.csv",
)  # fmt: skip
"""Files of the review page."""
_PRESENCE = ("absent", "present")
_MIN_LISTED, _MAX_LISTED = 200, 2000
"""Suspects listed at least (in a small file a tenth of its rows, but 20) and at most, unless -k is
given. Without trusted rows the expected number of errors can be far too low while the order is
good: a list cut short would hide errors from the reviewer."""


def run(options: Namespace) -> int:
    """Judge every label and write the report and the review folder."""
    others = [*_REVIEW_FILES, f"corrected{format_suffix(options.file)}"]
    exported = [name for tool in options.export for name in TOOL_FILES[tool]]
    with Job.opened(options, exported, others) as job:
        files: Any = None
        layout, tokens, auto = None, None, options.task == "auto"
        if not (auto and is_conll(options.file)):
            files = read_files(job)
            layout = label_layout(files.table, options.label, options.label_separator)
        if auto and layout is None:
            tokens = read_tokens(options.file, options.label, files and files.table)
        if (layout or tokens) and options.original_column is not None:
            raise ExemplaError(
                "--original-column is for files with one label per row; leave it out for this one."
            )
        if tokens is not None:
            judged = _judge_tokens(tokens, job)
        elif layout is not None:
            judged = _judge_several_labels(files, layout, job)
        else:
            judged = _judge_rows(fit_file(job, files, 0.0), job)
    return judged.finish(job)


def _judge(job: Job, model: Any, train: Any, curated: Any, task: str, **how: Any) -> Any:
    """Judge the labels of all rows."""
    start_stage("judging the labels")
    options, progress = job.options, job.progress
    how |= {"seed": options.seed, "store": options.store, "task": task}
    with one_thread(train[0]):
        return fix_labels(model, train, curated, progress=progress, **how)


def _about(job: Job, dataset: Dataset, model: str) -> About:
    """Return what the report says about a file that has no single label column."""
    model = job.options.model or model
    return About(data=plain(dataset.name), model=model, command=command_line(job.options))


def _judge_rows(given: Fitted, job: Job) -> _Judged:
    """Judge rows with one label each."""
    parts, options, (model, prepare) = given.parts, job.options, given.head()
    curated = None
    if parts.X_curated is not None:
        curated = (prepare(parts.X_curated), parts.y_curated)
        job.say(f"{len(parts.curated):,} rows are trusted.")
    once = _original_labels(given, job)
    job.say(f"Judging {len(parts.train):,} labels, each by models that have not seen it.")
    k = None  # so that spot checks can be drawn from all rows
    if options.method == "sbq" and options.k is not None and not given.regression:
        k = min(options.k, len(parts.train))
    task, train = "regression" if given.regression else "classes", prepare(parts.X_train)
    fixes = _judge(
        job, model, (train, parts.y_train), curated, task,
        k=k, method=options.method, original_labels=once,
    )  # fmt: skip
    names = () if given.regression else tuple(str(c) for c in np.unique(parts.y_train))
    return _Judged(given.dataset, parts.train, fixes, names, given.about(), given)


def _judge_several_labels(files: Files, layout: dict[str, Any], job: Job) -> _Judged:
    """Judge every label of rows that have several."""
    options, table = job.options, files.table
    Y, known = indicator(table, layout)
    names = layout["names"]
    label_columns = names if layout["kind"] == "columns" else [layout["column"]]
    kinds = dict.fromkeys(label_columns, "ignored") | column_kinds(options, table)
    columns = infer_columns(table, None, options.text, kinds)
    job.say(show_columns(columns))
    trusted = marked_rows(table, options.curated_column) if options.curated_column else np.arange(0)
    rows = np.setdiff1d(np.flatnonzero(known), trusted)
    X = feature_frame(table, columns, rows)
    prepare: Any = preparation(columns, X)
    ready, curated = prepare.fit_transform(X), None
    if files.curated is not None:
        there = dict(layout)
        Yc, known = indicator(files.curated, there)
        trusted = np.flatnonzero(known)
        frame = pd.DataFrame(Yc[trusted], columns=there["names"])
        if unknown := [name for name in there["names"] if name not in names]:
            raise ExemplaError(
                f"The curated file has the label {unknown[0]!r}, which the main file does not have."
            )
        curated = feature_frame(files.curated, columns, trusted), frame.reindex(columns=names)
    elif len(trusted):
        curated = feature_frame(table, columns, trusted), pd.DataFrame(Y[trusted], columns=names)
    if curated is not None:
        curated = prepare.transform(curated[0]), curated[1].fillna(0).astype(np.int64)
        job.say(f"{len(curated[1]):,} rows are trusted.")
    job.say(
        f"Judging {len(rows) * len(names):,} labels ({_first(names)}), each by models that have "
        "not seen it."
    )
    model = load_model(options.model) if options.model else LogisticRegression(max_iter=1000)
    train = (ready, pd.DataFrame(Y[rows], columns=names))
    fixes, dataset = (
        _judge(job, model, train, curated, "multi-label"),
        Dataset(table, columns, layout),
    )
    about = _about(job, dataset, "logistic regression, one per label")
    return _Judged(dataset, rows, fixes, _PRESENCE, about)


def _judge_tokens(dataset: Dataset, job: Job) -> _Judged:
    """Judge the label of every token."""
    options, tokens = job.options, dataset.tokens
    labels = sorted({label for one in dataset.token_labels for label in one})
    job.say(
        f"Read {dataset.name}: {sum(map(len, tokens)):,} tokens in {len(tokens):,} rows, "
        f"{len(labels):,} labels ({_first(labels)})."
    )
    curated = None
    if options.curated:
        there = read_tokens(options.curated, options.label)
        if there is None:
            raise ExemplaError(f"{options.curated} has no token lists, unlike {dataset.name}.")
        curated = (there.tokens, there.token_labels)
    model = load_model(options.model) if options.model else None
    fixes = _judge(job, model, (tokens, dataset.token_labels), curated, "tokens")
    about = _about(job, dataset, "logistic regression on each token's window of words and shapes")
    return _Judged(dataset, np.arange(len(tokens)), fixes, tuple(labels), about)


def _first(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _original_labels(given: Fitted, job: Job) -> np.ndarray | None:
    """Return the labels that trusted rows had before correction; None if no column is named."""
    options, parts = job.options, given.parts
    if options.original_column is None:
        return None
    if given.regression:
        raise ExemplaError("--original-column needs classes as labels; leave it out.")
    if options.method != "calibrated":
        raise ExemplaError(
            f"--original-column has no effect with --method {options.method}; leave one out."
        )
    if parts.y_curated is None:
        raise ExemplaError(
            "--original-column holds the earlier labels of trusted rows, but no row is trusted: "
            "name such rows with --curated-column or --curated."
        )
    table = given.dataset.table if parts.curated_table is None else parts.curated_table
    column = table.names[table.position(options.original_column)]
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
    job.say(f"{changed:,} of the {len(once):,} trusted rows had another label before.")
    return once


@dataclass(frozen=True)
class _Judged:
    """A file whose labels were judged: classes, numbers, several labels per row, or tokens."""

    dataset: Dataset
    rows: np.ndarray
    """Row of the file of each judged example."""
    fixes: Any
    classes: tuple[str, ...]
    about: About
    given: Fitted | None = None
    """The fitted model, if every row has one label. For classes it gives the evidence."""

    def finish(self, job: Job) -> int:
        """Write everything, print where it is, and return the exit code."""
        options, everything = job.options, self.fixes.renumbered(self.rows)
        found = everything.first(self._worth_listing(everything, options.k))
        sample, stratum, strata = self._sample(everything, found)
        evidence = None
        if self.given is not None and found.task == "classes":
            evidence = _Evidence(self.given, [found, sample])
        view = self._view(found, why=evidence is not None)
        review = ("Review them and export the corrected file:", f"exempla review {job.folder}")
        warnings = () if self.given is None else self.given.warnings
        about = replace(self.about, warnings=warnings, steps=(review,))
        with job.published() as stage:
            paths = self._write_tables(stage, found, view, job)
            paths["report"] = write_label_report(
                found,
                stage / "report.html",
                train_view=view,
                contradicting_view=None if evidence is None else evidence.view,
                content=None if evidence else partial(self._content, view, found),
                about=about,
            )
            # Written in place, because decisions are beside it; its header says it is complete.
            rest = zip(stratum.tolist(), self._suspects(sample, evidence))
            self._write_review(job, found, self._suspects(found, evidence), rest, strata)
        job.say(found.finding)
        for warning in found.warnings if evidence is None else ():
            job.warn(warning)
        job.say_files(paths)
        self._announce_review(job)
        if not found.has_signal:  # then the upper end of the interval counts
            most = found.interval[1] / max(found.n_labels, 1)
            return job.verdict(most, "of the labels may be wrong, as far as is known")
        wrong = found.expected_errors / max(found.n_labels, 1)
        return job.verdict(wrong, f"of the {found.noun} are expected to be wrong")

    def _worth_listing(self, fixes: Any, k: int | None) -> int:
        """Return how many suspects are worth a person's time, or k."""
        if k is not None:
            return min(k, len(fixes))
        fewest = max(20, min(_MIN_LISTED, fixes.n_train // 10))
        return min(max(fewest, round(2 * fixes.expected_errors)), _MAX_LISTED, len(fixes))

    def _write_tables(self, stage: Path, found: Any, view: RowView, job: Job) -> dict[str, Path]:
        if found.task == "classes":
            # A listed label may be right; a reader who disagrees needs the best other label.
            other = np.where(found.suggested == found.given, found.alternative, found.suggested)
            found = replace(found, suggested=other)
        values = {
            **job.contract(found.indices.tolist(), damping=None, damping_rule=None),
            **found.to_dict(),
            "file": self.dataset.name,
            "label": self.dataset.label_name,
        }
        return write_tables(stage, found, view, values)

    def _write_review(
        self,
        job: Job,
        found: Any,
        suspects: Iterator[Suspect],
        rest: Iterator[tuple[int, Suspect]],
        strata: Strata | None,
    ) -> None:
        """Write the folder of the review page; no file that was read is replaced."""
        folder, table, layout = job.folder, self.dataset.table, self.dataset.layout
        for path in (folder / name for name in WRITTEN):
            if job.options.force and not is_review(folder) and path.is_file():
                path.unlink()  # announced when the folder was prepared
        write_review(
            folder,
            suspects,
            source=ReviewedFile(
                table.path,
                table.format,
                label=self.dataset.label_name,
                options=table.reading_options() | ({"parts": layout} if layout else {}),
                # Of what was read: the file may have changed while the model was trained.
                fingerprint=fingerprint(table),
            ),
            classes=self.classes,
            expected_wrong=float(found.expected_errors),
            question=f"Which {found.noun} are wrong?",
            rest=rest,
            strata=strata,
        )

    def _announce_review(self, job: Job) -> None:
        """Export for other tools if asked, and print how to start the review."""
        review, tools, force = read_review(job.folder), job.options.export, job.options.force
        written = export_review_items(review, job.folder, tools, force=force) if tools else {}
        for tool, path in written.items():
            job.say(f"  {path}  the suspects, for {tool}")
        job.say_review()
        if not (job.folder / "decisions.sqlite").exists():
            return
        try:
            with closing(review.open_log()) as log:
                warning = other_decisions(log.others())  # about another column or file
        except ExemplaError as error:  # the suspects are written all the same
            warning = str(error)
        if warning:
            job.warn(warning)

    def _view(self, fixes: Any, why: bool) -> RowView:
        """Return the view of these suspects' rows, by row number of the file."""
        given = self.given
        return self.dataset.view() if given is None else given.view(np.unique(fixes.indices), why)

    def _sample(self, everything: Any, found: Any) -> tuple[Any, np.ndarray, Strata | None]:
        """Return unlisted labels for spot checks, the stratum of each, and the strata."""
        if len(everything) < everything.n_labels:  # only the listed labels are known
            return found.at(np.arange(0)), np.arange(0), None
        strata, chosen, stratum = sample_rest(
            everything.probabilities[len(found) :], listed=len(found), seed=everything.seed
        )
        places = len(found) + chosen
        against = tuple(_against(everything, place) for place in places.tolist())
        return replace(everything.at(places), contradicting=against), stratum, strata

    def _content(self, view: RowView, found: Any, rank: int) -> Content:
        """Return what to show of a suspect: its row; for a token, its sentence with it marked."""
        row = int(found.indices[rank])
        shown = view.show(row)
        shown = replace(shown, label=None, predicted=None, name=shown.name or f"#{row}")
        if not self.dataset.tokens:
            return shown
        words, place = self.dataset.tokens[row], int(found.part[rank])
        pieces = [(" ".join(words[:place]) + " " * (place > 0), 0.0), (words[place], -1.0)]
        pieces.append(("".join(f" {word}" for word in words[place + 1 :]), 0.0))
        return replace(shown, pieces=tuple(piece for piece in pieces if piece[0]))

    def _suspects(self, found: Any, evidence: _Evidence | None) -> Iterator[Suspect]:
        view = replace(self._view(found, why=evidence is not None), longest=LONGEST_TEXT)
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
            own_id, content = shown.name.partition(" · ")[2], replace(shown, name=name)
            yield Suspect(row, probability=p, id=own_id, content=content, **more)

    def _judgement(self, found: Any, rank: int) -> dict[str, Any]:
        """Return the given and the suggested label, which differ, and which side is right."""
        row, given, better = int(found.indices[rank]), found.given[rank], found.suggested[rank]
        if found.spread is not None:
            cell = self.dataset.table.strings(self.dataset.label_name, [row])[0]
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
        if self.dataset.tokens:
            span = span_of(self.dataset.tokens[row], int(found.part[rank]))
            return words | part | {"span": span}
        now = int(given)
        side = "superfluous" if now else "missing"
        return part | {"given": _PRESENCE[now], "suggested": _PRESENCE[1 - now], "side": side}

    def _original(self, row: int, shown: Content) -> tuple[tuple[str, str | None], ...]:
        """Return the row as in the file; a cell that equals the shown text is None."""
        text = "".join(piece for piece, _ in shown.pieces)
        label = self.dataset.label_name
        cells = self.dataset.table.row(row).items()
        found = [(name, value or "") for name, value in cells if name != label]
        return tuple((name, None if value and value == text else value) for name, value in found)


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
