"""Write every training row of a file as a vector in the Fisher space of its model.

rows.npy holds one vector per training row; the dot product of two vectors is the Fisher kernel, on
which all answers of exempla are based. Use them for your own nearest neighbours or clusters; the
report shows the nearest neighbours of a few rows.

With --store DIR the vectors are written to that folder as they are computed, in several .npy files,
and need not fit in memory. If the command is interrupted, run it again to continue.

Several machines can share the work with --shard i/n, each with its own i and the same --store on a
shared disk; the command without --shard then collects all parts, computes missing ones, and writes
the results. With --ray the machines of a Ray cluster compute the parts in one command.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exempla.cli.options import (
    add_budget,
    add_file_arguments,
    add_output,
    add_store,
    command_line,
    shard,
    stages,
)

if TYPE_CHECKING:
    from exempla.cli.fitted import Fitted

STAGES = stages(("embedding the rows", 4, 2))


def add_arguments(parser: ArgumentParser) -> None:
    """Add the file, the store, and the output."""
    add_file_arguments(parser)
    large = parser.add_argument_group("large files")
    add_store(large)
    add_budget(large)
    large.add_argument(
        "--shard",
        metavar="I/N",
        type=shard,
        help="compute only the I-th of N parts, as one of N processes or machines",
    )
    large.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="",
        help="compute the parts on a Ray cluster; without an address, on the cluster that runs "
        "here, or on this machine alone",
    )
    add_output(parser)


def run(options: Namespace) -> int:
    """Embed the training rows; write rows.npy, the row numbers, and a report."""
    import numpy as np
    import pandas as pd

    from exempla.arrays import to_numpy
    from exempla.cli.fitted import reading
    from exempla.cli.output import contract, published, say_files, write_json
    from exempla.errors import ExemplaError
    from exempla.explainer import Explainer
    from exempla.store import StoredRows

    if options.shard and not options.store:
        raise ExemplaError("--shard adds a part to a store; give its folder with --store.")
    if options.ray is not None and (options.shard or not options.store):
        raise ExemplaError(
            "--ray computes all parts of a store: give its folder, which every machine must see, "
            "with --store, and leave out --shard."
        )
    with reading(options, 0.0, _FILES.values()) as (given, console, folder):
        explainer = Explainer(
            given.model,
            store=options.store,
            budget=options.budget,
            seed=options.seed,
            progress=console.progress,
        )
        if options.ray is not None:
            from exempla.distributed import OnRay, fit_on_ray

            fit_on_ray(explainer, given.train, on=OnRay(options.ray or None))
        else:
            explainer.fit(given.train, part=options.shard)
        if options.shard:
            i, n = options.shard
            console.say(
                f"Part {i} of {n} is in {options.store}. When all parts are there, run the command "
                "without --shard."
            )
            return 0
        features = explainer.features
    stored = isinstance(features.rows, StoredRows)
    vectors: Any = features.rows if stored else to_numpy(features.rows)
    parts = given.parts
    made = contract(
        options,
        parts.train.tolist(),
        file=given.dataset.name,
        label=given.dataset.label.name,
        model=given.described,
        cross_validated_accuracy=given.accuracy.mean,
        rows=vectors.shape[0],
        dimensions=vectors.shape[1],
        dtype=str(vectors.dtype),
        damping=features.damping,
        damping_rule=features.damping_rule,
        share=features.share,
        store=None if options.store is None else str(vectors.shards[0].path.parent),
        command=command_line(options),
    )
    with published(folder, options) as stage:
        paths = {name: stage / file for name, file in _FILES.items()}
        if options.store is None:
            np.save(paths["data"], vectors, allow_pickle=False)
        else:  # they are in the store; a second copy may not fit on the disk
            del paths["data"]
        table = pd.DataFrame({"index": parts.train, "label": parts.y_train})
        table.to_csv(paths["table"], index=False)
        write_json(stage, made)
        _write_page(paths["report"], given, vectors, made, options)
    console.say(f"Embedded {vectors.shape[0]:,} rows as vectors of {vectors.shape[1]:,} numbers.")
    say_files(console, folder, paths)
    return 0


def _write_page(
    path: Path, given: Fitted, vectors: Any, made: dict[str, Any], options: Namespace
) -> None:
    """Write report.html: a few rows with their nearest neighbours."""
    import numpy as np

    from exempla.arrays import row_squares
    from exempla.kernel.embed import unit_rows
    from exempla.report import About, Listed, write_listing
    from exempla.report.words import percent

    rows = given.parts.train
    some = np.unique(np.linspace(0, len(rows) - 1, _SHOWN).astype(int))
    # divide by the norms last, so that the vectors are not copied
    lengths = np.sqrt(row_squares(vectors))
    cosines = (vectors @ unit_rows(vectors[some]).T).T
    cosines /= np.where(lengths > 0, lengths, 1.0)
    cosines[np.arange(len(some)), some] = -np.inf
    near = min(_NEIGHBOURS, len(rows) - 1)
    nearest = np.stack([np.argsort(-line, kind="stable")[:near] for line in cosines])
    listed = [
        Listed(int(rows[i]), neighbours=tuple((int(rows[j]), f"{line[j]:+.2f}") for j in near))
        for i, near, line in zip(some, nearest, cosines, strict=True)
    ]
    shown = np.unique(rows[np.concatenate([some, nearest.ravel()])])
    write_listing(
        path,
        listed,
        view=given.view(shown),
        about=About(
            question="Which rows are similar for the model?",
            answer=f"Embedded {made['rows']:,} rows as vectors of {made['dimensions']:,} numbers. "
            f"They are in {made['store'] or _FILES['data']}, in the order of {_FILES['table']}.",
            command=command_line(options),
            **given.facts(),
        ),
        trust=[
            ("Damping", f"{made['damping']:.3g}", made["damping_rule"]),
            ("Share of the Fisher information kept", percent(made["share"]), ""),
        ],
        heading="Some rows, and the rows nearest to them in Fisher space",
        help="Left: rows from the whole file. Right: the rows whose vectors have the largest "
        "cosine with them; training on either changes the model in a similar way.",
        seed=options.seed,
        word="cosine",
    )


_FILES = {
    "data": "rows.npy",
    "table": "explanation.csv",
    "result": "explanation.json",
    "report": "report.html",
}
"""Vectors; row numbers and labels; how they were computed; report."""
_SHOWN, _NEIGHBOURS = 24, 6
