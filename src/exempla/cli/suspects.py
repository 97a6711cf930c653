"""Suspicious rows of the user's file, for the report and for the review page."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.userfile import RowView, UserFile, decisive, row_view
from exempla.data import take_rows
from exempla.report.views import Content
from exempla.review import EvidenceRow, ReviewedFile, Suspect, write_review
from exempla.review.folder import WRITTEN
from exempla.review.sampling import Strata, sample_rest
from exempla.review.suspects import LONGEST_TEXT
from exempla.tables.corrections import fingerprint, refuse_input


@dataclass(frozen=True)
class _Rest:
    """Judged rows that are not listed, with what is known of each."""

    indices: np.ndarray
    given: np.ndarray
    suggested: np.ndarray
    alternative: np.ndarray
    alternative_chance: np.ndarray
    probabilities: np.ndarray
    alignment: np.ndarray
    contradicting: Any

    @classmethod
    def beside(cls, listed: Any, everything: Any, labels: Any) -> _Rest:
        """What `everything` says beyond `listed`; without more, each row is as likely as the other.

        `labels` are those of all training rows.
        """
        first, rows = len(listed.indices), len(everything.indices)
        if rows == len(labels):
            ranks = [_Rank(everything.contradicting, rank) for rank in range(first, rows)]
            return cls(
                everything.indices[first:],
                everything.given[first:],
                everything.suggested[first:],
                everything.alternative[first:],
                everything.alternative_chance[first:],
                everything.probabilities[first:],
                everything.alignment[first:],
                ranks,
            )
        indices = np.setdiff1d(np.arange(len(labels)), listed.indices)
        expected = max(0.0, float(listed.expected_errors - np.sum(listed.probabilities)))
        share = np.full(len(indices), min(1.0, expected / max(1, len(indices))))
        given, nothing = np.asarray(labels)[indices], np.zeros(len(indices))
        other, ranks = _another(given, labels), [_Rank()] * len(indices)
        return cls(indices, given, given, other, nothing, share, nothing, ranks)

    def at(self, places: np.ndarray) -> _Rest:
        """Some of them; only what contradicts those is worked out."""
        return _Rest(
            self.indices[places],
            self.given[places],
            self.suggested[places],
            self.alternative[places],
            self.alternative_chance[places],
            self.probabilities[places],
            self.alignment[places],
            [self.contradicting[place].found for place in places],
        )


def _another(given: np.ndarray, labels: Any) -> np.ndarray:
    """The commonest other label, where nothing is known of a row but the label it has."""
    names, counts = np.unique(np.asarray(labels), return_counts=True)
    first, second = names[np.argsort(-counts, kind="stable")[:2]]
    return np.where(given == first, second, first)


@dataclass(frozen=True)
class _Rank:
    """What contradicts the row of one rank, worked out when asked for."""

    among: Any = None
    rank: int = 0

    @property
    def found(self) -> Any:
        if self.among is None or self.rank >= len(self.among):
            return _NOTHING
        return self.among[self.rank]


@dataclass(frozen=True)
class _Nothing:
    indices: np.ndarray
    weights: np.ndarray


_NOTHING = _Nothing(np.empty(0, dtype=np.int64), np.empty(0))


@dataclass(frozen=True)
class Suspects:
    """The result of `fix_labels`, whose indices are positions in the training part."""

    given: UserFile
    fixes: Any
    everything: Any = None
    """The same result before it was cut to the rows listed; spot checks come from the others."""

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
        named = [
            fixes.contradicting[rank].indices
            for fixes in (self.fixes, self._sampled[1])
            for rank in range(len(fixes.indices))
        ]
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
        strata, rest, stratum = self._sampled
        return write_review(
            folder,
            self._suspects(self.fixes),
            source=source,
            classes=classes,
            expected_wrong=float(self.fixes.expected_errors),
            rest=zip(stratum.tolist(), self._suspects(rest)),
            strata=strata,
        )

    @cached_property
    def _sampled(self) -> tuple[Strata, _Rest, np.ndarray]:
        """The rows that spot checks are drawn from: how many, a sample of them, its strata."""
        fixes, labels = self.fixes, self.given.parts.y_train
        rest = _Rest.beside(fixes, fixes if self.everything is None else self.everything, labels)
        strata, chosen, stratum = sample_rest(
            rest.probabilities, listed=len(fixes.indices), seed=fixes.seed
        )
        return strata, rest.at(chosen), stratum

    def _suspects(self, fixes: Any) -> Iterator[Suspect]:
        parts = self.given.parts
        suggestions = self._suggestions(fixes)
        view = replace(
            self.given.view(np.sort(parts.train[fixes.indices]), why=True), longest=LONGEST_TEXT
        )
        for rank, position in enumerate(fixes.indices.tolist()):
            row = int(parts.train[position])
            shown = view.show(row)
            yield Suspect(
                row,
                str(fixes.given[rank]),
                suggestions[rank][0],
                float(np.clip(fixes.probabilities[rank], 0.0, 1.0)),
                suggestions[rank][1],
                side="opponent" if fixes.alignment[rank] < 0 else "proponent",
                id=shown.name.partition(" · ")[2],
                # the page has the row's number and id anyway
                content=replace(shown, name=self._file_name(row)),
                contradicting=tuple(self._contradicting_rows(fixes.contradicting[rank])),
                original=self._original(row, shown),
                model_label=str(fixes.suggested[rank]),
            )

    def _file_name(self, row: int) -> str:
        """Of an image; other rows have none of their own."""
        table = self.given.table
        return (table.row(row)["file"] or "") if table.format == "images" else ""

    def _original(self, row: int, shown: Content) -> tuple[tuple[str, str | None], ...]:
        """The row as the file has it; what is shown as its text is not kept twice."""
        text = "".join(piece for piece, _ in shown.pieces)
        values = self.given.table.row(row)
        label = self.given.label.name
        found = [(name, value or "") for name, value in values.items() if name != label]
        return tuple((name, None if value and value == text else value) for name, value in found)

    def _contradicting_rows(self, found: Any) -> Iterator[EvidenceRow]:
        parts = self.given.parts
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

    def _suggestions(self, fixes: Any) -> list[tuple[str, float]]:
        """Another label for each suspect, and its probability by models that have not seen the
        label the row was given.

        A row that is probably right may be listed too; its best label is then the one it has, and
        a person who decides otherwise needs the best other one.
        """
        return [
            (str(label), float(chance))
            for label, chance in zip(fixes.alternative, fixes.alternative_chance)
        ]
