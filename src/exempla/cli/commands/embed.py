"""`exempla embed`: every training row as a vector in the Fisher space of its model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exempla.arrays import row_squares, to_numpy
from exempla.cli.fitted import Fitted, reading
from exempla.cli.output import write_json
from exempla.errors import ExemplaError
from exempla.kernel.embed import unit_rows
from exempla.report import Listed, write_listing
from exempla.report.words import percent
from exempla.store import StoredRows

STAGES = (("embedding the rows", 4, 2),)
_VECTORS = "rows.npy"
_SHOWN, _NEIGHBOURS = 24, 6


def run(options: Namespace) -> int:
    """Embed the training rows; write rows.npy, the row numbers, and a report."""
    if options.shard and not options.store:
        raise ExemplaError("--shard adds a part to a store; give its folder with --store.")
    if options.ray is not None and (options.shard or not options.store):
        raise ExemplaError(
            "--ray computes all parts of a store: give its folder, which every machine must see, "
            "with --store, and leave out --shard."
        )
    with reading(options, 0.0, [_VECTORS]) as (given, job):
        explainer = job.explainer(given.model)
        if options.ray is not None:
            from exempla.distributed import OnRay, fit_on_ray

            fit_on_ray(explainer, given.train, on=OnRay(options.ray or None))
        else:
            explainer.fit(given.train, part=options.shard)
        if options.shard:
            i, n = options.shard
            job.say(
                f"Part {i} of {n} is in {options.store}. When all parts are there, run the command "
                "without --shard."
            )
            return 0
        features = explainer.features
    stored = isinstance(features.rows, StoredRows)
    vectors: Any = features.rows if stored else to_numpy(features.rows)
    parts, about = given.parts, given.about()
    made = job.contract(
        parts.train.tolist(),
        file=given.dataset.name,
        label=given.dataset.label_name,
        model=given.described,
        cross_validated_accuracy=given.accuracy.mean,
        rows=vectors.shape[0],
        dimensions=vectors.shape[1],
        dtype=str(vectors.dtype),
        damping=features.damping,
        damping_rule=features.damping_rule,
        share=features.share,
        store=None if options.store is None else str(vectors.shards[0].path.parent),
        command=about.command,
    )
    what = f"Embedded {vectors.shape[0]:,} rows as vectors of {vectors.shape[1]:,} numbers."
    with job.published() as stage:
        paths = {"table": stage / "explanation.csv", "report": stage / "report.html"}
        if options.store is None:  # otherwise a second copy may not fit on the disk
            paths["data"] = stage / _VECTORS
            np.save(paths["data"], vectors, allow_pickle=False)
        table = pd.DataFrame({"index": parts.train, "label": parts.y_train})
        table.to_csv(paths["table"], index=False)
        paths["result"] = write_json(stage, made)
        _write_page(paths["report"], given, vectors, made, what)
    job.say(what)
    job.say_files(paths)
    return 0


def _write_page(path: Path, given: Fitted, vectors: Any, made: dict[str, Any], what: str) -> None:
    """Write report.html: a few rows with their nearest neighbours."""
    rows = given.parts.train
    some = np.unique(np.linspace(0, len(rows) - 1, _SHOWN).astype(int))
    # divide by the norms last, so that the vectors are not copied
    lengths = np.sqrt(row_squares(vectors))
    cosines = (vectors @ unit_rows(vectors[some]).T).T
    cosines /= np.where(lengths > 0, lengths, 1.0)
    cosines[np.arange(len(some)), some] = -np.inf
    near = min(_NEIGHBOURS, len(rows) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :near]
    listed = [
        Listed(int(rows[i]), neighbours=tuple((int(rows[j]), f"{line[j]:+.2f}") for j in near))
        for i, near, line in zip(some, nearest, cosines, strict=True)
    ]
    shown = np.unique(rows[np.concatenate([some, nearest.ravel()])])
    write_listing(
        path,
        listed,
        view=given.view(shown),
        about=given.about(
            question="Which rows are similar for the model?",
            answer=f"{what} They are in {made['store'] or _VECTORS}, in the order of "
            "explanation.csv.",
        ),
        trust=[
            ("Damping", f"{made['damping']:.3g}", made["damping_rule"]),
            ("Share of the Fisher information kept", percent(made["share"]), ""),
        ],
        heading="Some rows, and the rows nearest to them in Fisher space",
        help="Left: rows from the whole file. Right: the rows whose vectors have the largest "
        "cosine with them; training on either changes the model in a similar way.",
        seed=given.options.seed,
        word="cosine",
    )
