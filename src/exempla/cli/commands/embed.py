"""Write every training row of a file as a vector in the Fisher space of its model.

rows.npy holds one vector per training row; the product of two of them is the Fisher kernel, which
is what every answer of exempla is made of. Use them for your own nearest neighbours or clusters;
the report shows the neighbours of a few rows.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exempla.cli.shared.options import add_file_arguments, add_output, command_line

if TYPE_CHECKING:
    import numpy as np

    from exempla.cli.shared.userfile import UserFile

HELP = "your file's rows as vectors in Fisher space, for your own analysis"


def add_arguments(parser: ArgumentParser) -> None:
    """The file and the output."""
    add_file_arguments(parser)
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, embed; write rows.npy, which row is which, how it was made, and a page."""
    import numpy as np
    import pandas as pd

    from exempla.arrays import to_numpy
    from exempla.cli.shared.output import published
    from exempla.cli.shared.userfile import reading
    from exempla.cli.shared.writing import contract, say_files, write_json
    from exempla.explainer import Explainer

    with reading(options, 0.0, FILES.values()) as (given, console, folder):
        explainer = Explainer(given.inner, seed=options.seed, progress=console.progress)
        features = explainer.fit(given.train()).features
    vectors: Any = to_numpy(features.rows)
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
        command=command_line(options),
    )
    with published(folder, options) as stage:
        paths = {name: stage / file for name, file in FILES.items()}
        np.save(paths["data"], vectors, allow_pickle=False)
        table = pd.DataFrame({"index": parts.train, "label": parts.y_train})
        table.to_csv(paths["table"], index=False)
        write_json(stage, made)
        _write_page(paths["report"], given, vectors, made, options)
    console.say(f"{vectors.shape[0]:,} rows are now vectors of {vectors.shape[1]:,} numbers.")
    say_files(console, folder, paths)
    return 0


def _write_page(
    path: Path, given: UserFile, vectors: np.ndarray, made: dict[str, Any], options: Namespace
) -> None:
    """report.html: a few rows with their nearest neighbours, so that one sees what near means."""
    import numpy as np

    from exempla.report import About, Listed, write_listing
    from exempla.report.sentences import percent
    from exempla.target import unit_rows

    rows = given.parts.train
    some = np.unique(np.linspace(0, len(rows) - 1, SHOWN).astype(int))
    # the many are divided by their lengths last: no second copy of them
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    cosines = unit_rows(vectors[some]) @ vectors.T / np.where(lengths > 0, lengths, 1.0)
    cosines[np.arange(len(some)), some] = -np.inf
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, : min(NEIGHBOURS, len(rows) - 1)]
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
            f"{FILES['data']} has them, in the order of {FILES['table']}.",
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


FILES = {
    "data": "rows.npy",
    "table": "explanation.csv",
    "result": "explanation.json",
    "report": "report.html",
}
"""The vectors; which row of the file each is, with its label; how they were made; a look."""
SHOWN, NEIGHBOURS = 24, 6
