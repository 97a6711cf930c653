"""Suspicious rows of the user's file, for the report and for the review page."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.shared.rows import RowView, decisive, row_view
from exempla.cli.shared.userfile import UserFile
from exempla.data import take_rows
from exempla.review import EvidenceRow, ReviewedFile, Suspect, write_review
from exempla.review.folder import WRITTEN
from exempla.tables.corrections.export import refuse_input
from exempla.tables.corrections.fingerprint import fingerprint

__all__ = ["Suspects"]


@dataclass(frozen=True)
class Suspects:
    """The result of `fix_labels`, whose indices are positions in the training part."""

    given: UserFile
    fixes: Any

    def in_file_rows(self) -> Any:
        """The same with indices that are rows of the file."""
        return self.fixes.renumbered(self.given.parts.train)

    @cached_property
    def _train(self) -> RowView:
        return self.given.view(self.given.parts.train[self.fixes.indices], why=True)

    def train_view(self) -> RowView:
        """How to show a row of the file."""
        return self._train

    @cached_property
    def _contradicting(self) -> RowView:
        given, parts = self.given, self.given.parts
        own: Any = parts.X_train if parts.X_curated is None else parts.X_curated
        labels = parts.y_train if parts.y_curated is None else parts.y_curated
        table = given.table if parts.curated_table is None else parts.curated_table
        named = [self.fixes.contradicting[rank].indices for rank in range(len(self.fixes.indices))]
        who = np.unique(np.concatenate([*named, np.empty(0, dtype=np.int64)]).astype(np.int64))
        why = (
            decisive(given.model, take_rows(own, who), labels[who], who.tolist())
            if len(who)
            else {}
        )
        return row_view(
            table,
            given.columns,
            rows=parts.train if parts.X_curated is None else parts.curated,
            labels=labels,
            **why,
        )

    def contradicting_view(self) -> RowView:
        """How to show the row that the index of a contradicting example means."""
        return self._contradicting

    def write_review(self, folder: Path, options: Namespace) -> Path:
        """Everything `exempla review` needs."""
        table, label = self.given.table, self.given.label.name
        header = {"yes": True, "no": False}.get(options.header)
        reading = {"encoding": options.encoding, "delimiter": options.delimiter, "header": header}
        if not table.header and table.format in ("csv", "tsv"):
            reading["names"] = list(table.names)  # they may be those of the test file
        text = table.format in ("csv", "tsv", "jsonl")
        source = ReviewedFile(
            table.path,
            table.format,
            label=label,
            options={k: v for k, v in reading.items() if v is not None} if text else {},
            # Of what was read: the file may have changed while the model was trained.
            fingerprint=fingerprint(table),
        )
        for other in filter(None, (options.curated, options.test)):
            for name in WRITTEN:  # the file itself is looked after by write_review
                refuse_input(folder / name, other)
        classes = [str(c) for c in np.unique(self.given.parts.y_train)]
        return write_review(
            folder,
            self._suspects(),
            source=source,
            classes=classes,
            expected_wrong=float(self.fixes.expected_errors),
        )

    def _suspects(self) -> Iterator[Suspect]:
        fixes, parts = self.fixes, self.given.parts
        suggestions = self._suggestions()
        for rank, position in enumerate(fixes.indices.tolist()):
            row = int(parts.train[position])
            shown = self._train.show(row)
            yield Suspect(
                row,
                str(fixes.given[rank]),
                suggestions[rank][0],
                float(np.clip(fixes.probabilities[rank], 0.0, 1.0)),
                suggestions[rank][1],
                side="opponent" if fixes.alignment[rank] < 0 else "proponent",
                id=shown.name.partition(" · ")[2],
                content=replace(shown, name=""),  # the page has the row's number and id anyway
                contradicting=tuple(self._contradicting_rows(rank)),
            )

    def _contradicting_rows(self, rank: int) -> Iterator[EvidenceRow]:
        parts, found = self.given.parts, self.fixes.contradicting[rank]
        curated = parts.X_curated is not None
        own = parts.curated if curated else parts.train
        labels: Any = parts.y_curated if curated else parts.y_train
        for i, weight in zip(found.indices.tolist(), found.weights.tolist()):
            yield EvidenceRow(
                int(own[i]),
                str(labels[i]),  # as the file has it, not as the model numbers it
                float(weight),
                replace(self._contradicting.show(i), name=""),
                source="curated" if curated else "train",
            )

    def _suggestions(self) -> list[tuple[str, float]]:
        """Another label for each suspect, and its probability by models that have not seen the
        label the row was given.

        A row that is probably right may be listed too; its best label is then the one it has, and
        a person who decides otherwise needs the best other one.
        """
        fixes = self.fixes
        return [
            (str(label), float(chance))
            for label, chance in zip(fixes.alternative, fixes.alternative_chance)
        ]
