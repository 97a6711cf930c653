"""Write what `fix-labels` found: the table, the report, and the folder of the review page.

Rows with one label from a list of classes come with the evidence against each label (`Suspects`).
Numbers, several labels per row, token labels and very many classes share `finish_job`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
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
from exempla.report import About, write_job_report
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
    from exempla.review.log import DecisionLog

    path = folder / "decisions.sqlite"
    if not path.exists():
        return ""
    try:
        log = DecisionLog(path, read_review(folder).key)
    except ExemplaError as error:  # the suspects are written all the same
        return str(error)
    try:
        return other_decisions(log.others())
    finally:
        log.close()


@dataclass(frozen=True)
class Suspects:
    """The result of `fix_labels` for classes; its indices are positions in the training part."""

    given: Fitted
    fixes: Any
    everything: Any
    """The result before it was cut to the listed rows; spot checks come from the others."""

    @cached_property
    def train_view(self) -> RowView:
        """The view of listed rows, by row number of the file."""
        return self.given.view(self.given.parts.train[self.fixes.indices], why=True)

    @cached_property
    def contradicting_view(self) -> RowView:
        """The view of contradicting examples, by their index."""
        given = self.given
        X, labels, rows, table = self._evidence_source
        named = [
            fixes.contradicting[rank].indices
            for fixes in (self.fixes, self._sampled[1])
            for rank in range(len(fixes.indices))
        ]
        who = np.unique(np.concatenate([*named, np.empty(0, dtype=np.int64)]).astype(np.int64))
        why = decisive(given.model, take_rows(X, who), labels[who], who.tolist())
        return given.dataset.view(table, rows=rows, labels=labels, **why)

    @property
    def _evidence_source(self) -> tuple[Any, np.ndarray, np.ndarray, Any]:
        """Inputs, labels, row numbers and file of the examples that contradict labels."""
        parts = self.given.parts
        if parts.X_curated is None:
            return parts.X_train, parts.y_train, parts.train, None
        assert parts.y_curated is not None
        return parts.X_curated, parts.y_curated, parts.curated, parts.curated_table

    def write_review(self, folder: Path, options: Namespace) -> None:
        """Write everything that `exempla review` needs."""
        strata, rest, stratum = self._sampled
        write_suspects(
            folder,
            self.given.dataset,
            options,
            self._suspects(self.fixes),
            rest=zip(stratum.tolist(), self._suspects(rest)),
            strata=strata,
            classes=[str(c) for c in np.unique(self.given.parts.y_train)],
            expected_wrong=float(self.fixes.expected_errors),
        )

    @cached_property
    def _sampled(self) -> tuple[Strata, Any, np.ndarray]:
        """Rows for spot checks: how many there are, a sample of them, and its strata."""
        rest = self._unlisted()
        strata, chosen, stratum = sample_rest(
            rest.probabilities, listed=len(self.fixes), seed=self.fixes.seed
        )
        fields = {n: v[chosen] for n, v in vars(rest).items() if n != "contradicting"}
        contradicting = [rest.contradicting(int(place)) for place in chosen]
        return strata, SimpleNamespace(**fields, contradicting=contradicting), stratum

    def _unlisted(self) -> SimpleNamespace:
        """Return the judged rows that are not listed, with what is known about each."""
        listed, everything, labels = self.fixes, self.everything, self.given.parts.y_train
        first = len(listed)
        names = (
            "indices", "given", "suggested", "alternative", "alternative_chance", "probabilities",
        )  # fmt: skip
        if len(everything) == len(labels):
            found = {n: getattr(everything, n)[first:] for n in (*names, "alignment")}
            against = everything.contradicting
            return SimpleNamespace(
                **found,
                contradicting=lambda place: (
                    against[first + place] if first + place < len(against) else _NO_EVIDENCE
                ),
            )
        # Only the listed rows were judged: the others are equally likely to be wrong, and the
        # most frequent other class is the best guess.
        rows = np.setdiff1d(np.arange(len(labels)), listed.indices)
        expected = max(0.0, float(listed.expected_errors - np.sum(listed.probabilities)))
        share = np.full(len(rows), min(1.0, expected / max(1, len(rows))))
        given, zeros = np.asarray(labels)[rows], np.zeros(len(rows))
        classes, counts = np.unique(np.asarray(labels), return_counts=True)
        most, second = classes[np.argsort(-counts, kind="stable")[:2]]
        other = np.where(given == most, second, most)
        values = (rows, given, given, other, zeros, share)
        return SimpleNamespace(
            **dict(zip(names, values)), alignment=zeros, contradicting=lambda place: _NO_EVIDENCE
        )

    def _suspects(self, fixes: Any) -> Iterator[Suspect]:
        train, table = self.given.parts.train, self.given.dataset.table
        view = replace(
            self.given.view(np.sort(train[fixes.indices]), why=True), longest=LONGEST_TEXT
        )
        for rank, position in enumerate(fixes.indices.tolist()):
            row = int(train[position])
            shown = view.show(row)
            # The page shows the row's number and id itself; an image also has a file name.
            name = (table.row(row)["file"] or "") if table.format == "images" else ""
            yield Suspect(
                row,
                str(fixes.given[rank]),
                str(fixes.alternative[rank]),
                float(np.clip(fixes.probabilities[rank], 0.0, 1.0)),
                float(fixes.alternative_chance[rank]),
                model_label=str(fixes.suggested[rank]),
                side="opponent" if fixes.alignment[rank] < 0 else "proponent",
                id=shown.name.partition(" · ")[2],
                content=replace(shown, name=name),
                contradicting=tuple(self._evidence(fixes.contradicting[rank])),
                original=self._original(row, shown),
            )

    def _original(self, row: int, shown: Content) -> tuple[tuple[str, str | None], ...]:
        """Return the row as in the file; a cell that equals the shown text is None."""
        text = "".join(piece for piece, _ in shown.pieces)
        label = self.given.dataset.label.name
        cells = self.given.dataset.table.row(row).items()
        found = [(name, value or "") for name, value in cells if name != label]
        return tuple((name, None if value and value == text else value) for name, value in found)

    def _evidence(self, found: Any) -> Iterator[EvidenceRow]:
        _, labels, rows, _ = self._evidence_source
        source = "train" if self.given.parts.X_curated is None else "curated"
        for i, weight in zip(found.indices.tolist(), found.weights.tolist()):
            shown = replace(self.contradicting_view.show(i), name="")
            yield EvidenceRow(int(rows[i]), str(labels[i]), float(weight), shown, source=source)


_NO_EVIDENCE = SimpleNamespace(indices=np.empty(0, dtype=np.int64), weights=np.empty(0))


@dataclass(frozen=True)
class LabelJob:
    """A file whose numbers, several labels, token labels or many classes were judged."""

    dataset: Dataset
    rows: np.ndarray
    """Row of the file of each judged example."""
    view: View
    facts: Mapping[str, Any]
    classes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def finish(self, console: Console, options: Namespace, folder: Path, fixes: Any) -> int:
        """Write everything, print where it is, and return the exit code."""
        everything = fixes.renumbered(self.rows)
        found = worth_listing(everything, options.k)
        rest, strata = self._rest(everything, len(found), options.seed)
        about = About(**self.facts, command=command_line(options), warnings=self.warnings)
        with published(folder, options) as stage:
            table = stage / "explanation.csv"
            listed_rows(found, self.view).to_csv(table, index=False)
            values = {
                **contract(options, found.indices.tolist(), damping=None, damping_rule=None),
                **found.to_dict(),
                "file": self.dataset.name,
                "label": ", ".join(self.dataset.label_names),
            }
            paths = {"result": write_json(stage, values), "table": table}
            paths["report"] = write_job_report(
                found,
                stage / "report.html",
                view=lambda rank: self._content(found, rank),
                about=about,
            )
            write_suspects(
                folder,
                self.dataset,
                options,
                self._suspects(found),
                rest=rest,
                strata=strata,
                classes=self.classes,
                expected_wrong=float(found.expected_errors),
                question=f"Which {found.noun} are wrong?",
            )
        console.say(found.finding)
        for warning in found.warnings:
            console.warn(warning)
        say_files(console, folder, paths)
        announce_review(console, options, folder)
        wrong = found.expected_errors / max(found.n_labels, 1)
        return verdict(console, options, wrong, f"of the {found.noun} are expected to be wrong")

    def _rest(
        self, everything: Any, count: int, seed: int
    ) -> tuple[Iterator[tuple[int, Suspect]], Strata | None]:
        """Return labels for spot checks, drawn from those not listed, and how many there are."""
        if len(everything) < everything.n_labels:  # only the listed labels are known
            return iter(()), None
        strata, chosen, stratum = sample_rest(
            everything.probabilities[count:], listed=count, seed=seed
        )
        drawn = self._suspects(everything.at(count + chosen))
        return zip(stratum.tolist(), drawn, strict=True), strata

    def _content(self, found: Any, rank: int) -> Content:
        """Return what to show of a suspect: its row; for a token, its sentence with it marked."""
        row = int(found.indices[rank])
        shown = self.view.show(row)
        if self.dataset.sentences is None:
            return shown
        words, place = self.dataset.sentences.tokens[row], int(found.part[rank])
        pieces = [(" ".join(words[:place]) + " " * (place > 0), 0.0), (words[place], -1.0)]
        pieces.append(("".join(f" {word}" for word in words[place + 1 :]), 0.0))
        return replace(shown, pieces=tuple(piece for piece in pieces if piece[0]))

    def _suspects(self, found: Any) -> Iterator[Suspect]:
        for rank, row in enumerate(found.indices.tolist()):
            shown = self.view.show(row)
            p = float(np.clip(found.probabilities[rank], 0.0, 1.0))
            yield Suspect(
                row,
                probability=p,
                model_probability=0.0 if found.spread is not None else p,
                id=shown.name.partition(" · ")[2],
                content=replace(shown, name=""),
                **self._judgement(found, rank),
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


def job_on_rows(given: Fitted) -> LabelJob:
    """Return the job on numbers, or on very many classes."""
    train = given.parts.train
    names = () if given.regression else tuple(str(c) for c in np.unique(given.parts.y_train))
    return LabelJob(given.dataset, train, given.view(train), given.facts(), names, given.warnings)


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
    return LabelJob(dataset, rows, dataset.view(), facts, _PRESENCE), fixes


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
    return LabelJob(dataset, rows, dataset.view(), facts, tuple(labels)), fixes


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
