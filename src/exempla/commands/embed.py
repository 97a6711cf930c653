"""Write every training row of a file as a vector in the Fisher space of its model.

rows.npy holds one vector per training row; the product of two of them is the Fisher kernel, which
is what every answer of exempla is made of. Use them for your own nearest neighbours or clusters.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from exempla.commands.arguments import add_file_arguments
from exempla.commands.options import add_output, command_line

HELP = "your file's rows as vectors in Fisher space, for your own analysis"


def add_arguments(parser: ArgumentParser) -> None:
    """The file and the output."""
    add_file_arguments(parser)
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, embed, write rows.npy, a table of which row is which, and explanation.json."""
    import json

    import numpy as np
    import pandas as pd

    from exempla.commands.userfile import reading
    from exempla.commands.writing import say_files
    from exempla.explainer import Explainer
    from exempla.linalg import to_numpy
    from exempla.version import __version__

    with reading(options, test_size=0.0) as (given, console, folder):
        explainer = Explainer(given.inner, seed=options.seed, progress=console.progress)
        features = explainer.fit(given.train()).features
    vectors: Any = to_numpy(features.rows)
    paths = {name: folder / file for name, file in FILES.items()}
    np.save(paths["data"], vectors, allow_pickle=False)
    parts = given.parts
    table = pd.DataFrame({"index": parts.train, "label": parts.y_train})
    table.to_csv(paths["table"], index=False)
    manifest = {
        "file": given.table.path.name,
        "label": given.label.name,
        "model": given.described,
        "cross_validated_accuracy": given.accuracy.mean,
        "rows": vectors.shape[0],
        "dimensions": vectors.shape[1],
        "dtype": str(vectors.dtype),
        "damping": features.damping,
        "damping_rule": features.damping_rule,
        "share": features.share,
        "command": command_line(options),
        "seed": options.seed,
        "version": __version__,
    }
    paths["result"].write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    console.say(f"{vectors.shape[0]:,} rows are now vectors of {vectors.shape[1]:,} numbers.")
    say_files(console, paths)
    return 0


FILES = {"data": "rows.npy", "table": "explanation.csv", "result": "explanation.json"}
"""The vectors; which row of the file each is, with its label; how they were made."""
