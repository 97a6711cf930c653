"""Write every training row of a file as a vector in the Fisher space of its model.

rows.npy holds one vector per training row; the product of two of them is the Fisher kernel, which
is what every answer of exempla is made of. Use them for your own nearest neighbours or clusters;
the report shows the neighbours of a few rows.

With --store DIR the vectors go to that folder as they are made, in several .npy files, and need not
fit in memory; killed at any moment, the same command goes on with what is missing. Several machines
share the work with --shard i/n, each with its own i and the same --store on a common disk; the
command without --shard then finds all parts, makes what is still missing, and writes the results.
With --ray the machines of a Ray cluster make the parts, and one command does all of it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exempla.cli.options import add_file_arguments, add_output, add_store, command_line, shard

if TYPE_CHECKING:
    from exempla.cli.userfile import UserFile

HELP = "your file's rows as vectors in Fisher space, for your own analysis"


def add_arguments(parser: ArgumentParser) -> None:
    """The file and the output."""
    add_file_arguments(parser)
    large = parser.add_argument_group("large files")
    add_store(large)
    large.add_argument(
        "--shard",
        metavar="I/N",
        type=shard,
        help="only add the I-th of N parts to the store, as one of N processes or machines",
    )
    large.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="",
        help="let the machines of a Ray cluster make the parts; without an address, of the cluster "
        "that runs here, or of this machine alone",
    )
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, embed; write rows.npy, which row is which, how it was made, and a page."""
    import numpy as np
    import pandas as pd

    from exempla.arrays import to_numpy
    from exempla.cli.output import contract, published, say_files, write_json
    from exempla.cli.userfile import reading
    from exempla.errors import ExemplaError
    from exempla.explainer import Explainer
    from exempla.store import StoredRows

    if options.shard and not options.store:
        raise ExemplaError("--shard adds a part to a store; name its folder with --store.")
    if options.ray is not None and (options.shard or not options.store):
        raise ExemplaError(
            "--ray makes all parts of a store: name its folder, which every machine sees, with "
            "--store, and leave --shard out."
        )
    with reading(options, 0.0, _FILES.values()) as (given, console, folder):
        explainer = Explainer(
            given.inner, store=options.store, seed=options.seed, progress=console.progress
        )
        if options.ray is not None:
            from exempla.distributed import OnRay, fit_on_ray

            fit_on_ray(explainer, given.train(), on=OnRay(options.ray or None))
        else:
            explainer.fit(given.train(), part=options.shard)
        if options.shard:
            i, n = options.shard
            console.say(
                f"Part {i} of {n} is in {options.store}. When all are, give the command without "
                "--shard."
            )
            return 0
        features = explainer.features
    stored = isinstance(features.rows, StoredRows)
    vectors: Any = features.rows if stored else to_numpy(features.rows)
    parts = given.parts
    made = contract(
        options,
        parts.train.tolist(),
        file=given.table.path.name,
        label=given.label.name,
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
        else:  # they are in the store, and may be too many to be there twice
            del paths["data"]
        table = pd.DataFrame({"index": parts.train, "label": parts.y_train})
        table.to_csv(paths["table"], index=False)
        write_json(stage, made)
        _write_page(paths["report"], given, vectors, made, options)
    console.say(f"{vectors.shape[0]:,} rows are now vectors of {vectors.shape[1]:,} numbers.")
    say_files(console, folder, paths)
    return 0


def _write_page(
    path: Path, given: UserFile, vectors: Any, made: dict[str, Any], options: Namespace
) -> None:
    """report.html: a few rows with their nearest neighbours, so that one sees what near means."""
    import numpy as np

    from exempla.arrays import row_squares
    from exempla.kernel.query import unit_rows
    from exempla.report import About, Listed, write_listing
    from exempla.report.words import percent

    rows = given.parts.train
    some = np.unique(np.linspace(0, len(rows) - 1, _SHOWN).astype(int))
    # the many are divided by their lengths last: no second copy of them
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
            question="Which rows are alike to the model?",
            answer=f"{made['rows']:,} rows are now vectors of {made['dimensions']:,} numbers: "
            f"{made['store'] or _FILES['data']} has them, in the order of {_FILES['table']}.",
            command=command_line(options),
            **given.facts(),
        ),
        trust=[
            ("Damping", f"{made['damping']:.3g}", made["damping_rule"]),
            ("Kept of the Fisher information", percent(made["share"]), ""),
        ],
        heading="Some rows, and the rows nearest to them in Fisher space",
        help="On the left rows from all over the file; on the right those whose vectors point most "
        "nearly the same way: learning from either moves the model alike.",
        seed=options.seed,
        word="cosine",
    )


_FILES = {
    "data": "rows.npy",
    "table": "explanation.csv",
    "result": "explanation.json",
    "report": "report.html",
}
"""The vectors; which row of the file each is, with its label; how they were made; a look."""
_SHOWN, _NEIGHBOURS = 24, 6
