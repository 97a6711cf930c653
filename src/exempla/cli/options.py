"""The arguments of every command: a function adds those of one, and its docstring is the help.

`Console` prints as --quiet and --json say; `command_line` and `command_for` return a command to be
pasted. Imports nothing heavy, so that `exempla --help` is fast.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
import warnings
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from exempla.errors import ExemplaWarning
from exempla.progress import clear_line

_TOOLS = ("label-studio", "fiftyone", "cleanlab", "spotlight")
"""Tools that suspects can be exported to."""


def _add(
    parser: Any,
    name: str,
    metavar: str | None,
    help: str,
    path: Literal["FILE", "DIRECTORY"] | None = None,
    **how: Any,
) -> None:
    """Add an argument; with `path`, shells complete it with files or folders."""
    if metavar is not None:
        how["metavar"] = metavar
    action = parser.add_argument(name, help=help, **how)
    # Only the completion command loads shtab, which takes 60 ms.
    if path is not None and (shtab := sys.modules.get("shtab")):
        action.complete = getattr(shtab, path)


# fmt: off
def _file(parser: ArgumentParser) -> None:
    """Add the arguments about the user's file and the model."""
    data = parser.add_argument_group("data")
    many: dict[str, Any] = {"action": "append", "default": []}
    _add(data, "file", "FILE",
         "CSV, TSV, JSONL, Parquet, Excel, NPZ (X, y), or a folder of images", "FILE")
    _add(data, "--label", "COLUMN", "the column to predict")
    _add(data, "--merge-labels", "MAP",
         "merge spellings of a label: auto (case, spaces and typing errors), or OLD=NEW,OLD=NEW")
    _add(data, "--text", "COLUMN", "treat this column as text", **many)
    _add(data, "--kind", "COLUMN=KIND",
         "set the kind of a column: number, category, text, date, id or ignored", **many)
    _add(data, "--task", None,
         "whether the label is a class or a number (default: inferred from its values)",
         choices=("auto", "classes", "regression"), default="auto")
    _add(data, "--test", "FILE", "test rows in a separate file with the same columns", "FILE")
    _add(data, "--test-size", "SHARE",
         "without --test, hold out this fraction of the rows (default: 0.2; 0 for fix-labels)",
         type=float)
    _add(data, "--curated", "FILE", "rows with trusted labels, in a separate file", "FILE")
    _add(data, "--curated-column", "COLUMN", "a column that marks trusted rows with 1 or yes")
    _add(data, "--encoding", None, "encoding of a text file (default: detected)")
    _add(data, "--delimiter", None, "delimiter of a text file (default: detected)")
    _add(data, "--header", None,
         "whether the first row of a text file names the columns (default: detected)",
         choices=("auto", "yes", "no"), default="auto")
    _add(data, "--model", "MODULE:NAME",
         "your own scikit-learn model, or a function that returns one, as package.module:name; "
         "THIS RUNS THE CODE of that module (default: a model that suits the columns)")


def _budget(parser: Any) -> None:
    _add(parser, "--budget", "EPOCHS",
         "largest cost of embedding the training rows of a network, in epochs of its training "
         "(default: 3, and no limit for language models; exact: no limit)", type=_epochs,
         default="auto")


def _store(parser: Any) -> None:
    _add(parser, "--store", "DIR",
         "keep the vectors of the rows in this folder instead of in memory; if the command is "
         "interrupted, run it again to continue", "DIRECTORY", type=Path)


def _fail_above(parser: Any, finding: str) -> None:
    """Add --fail-above; `finding` completes the sentence "exit with code 1 if …"."""
    _add(parser, "--fail-above", "SHARE", f"exit with code 1 if {finding}", type=share)


def _output(parser: ArgumentParser, default: str = "exempla-out") -> None:
    """Add --out, --force, --quiet, --json and --seed."""
    _add(parser, "--out", "DIR", f"folder for the results (default: {default})", "DIRECTORY",
         type=Path, default=Path(default))
    _add(parser, "--force", None,
         "overwrite files in the results folder that exempla did not write", action="store_true")
    _add(parser, "--quiet", None, "print only warnings and errors", action="store_true")
    _add(parser, "--json", None, "print the result as JSON; messages go to stderr",
         action="store_true")
    _add(parser, "--seed", None, "random seed (default: 0)", type=int, default=0)


def _demo(parser: ArgumentParser) -> None:
    """Train a classifier on scikit-learn's handwritten digits and explain its mistakes.

    The report shows each mistake beside the training images that are responsible for it.
    """
    _add(parser, "-k", None, "how many training images to pick (default: 50)", type=int, default=50)
    _output(parser, "demo-out")


def _explain(parser: ArgumentParser) -> None:
    """Explain a model's errors on your own file: which training rows are responsible for them?

    A model that suits the columns is trained (or your own is used), its cross-validated accuracy is
    printed, and the training rows most responsible for its errors on the test rows are listed.
    """
    _file(parser)
    query = parser.add_argument_group("query")
    _add(query, "--ask", "WHAT",
         "which rows to ask about: errors (default: misclassified test rows), errors:TRUE->SAID "
         "(one confusion, such as errors:spam->ham), all (all test rows), row numbers such as "
         "3,17 or 5-9, 'COLUMN contains TEXT', or a file of new rows; rows you name are held out "
         "of training", default="errors")
    _add(query, "--side", None,
         "list rows that push against the true labels (default), towards them, or both",
         choices=("opponents", "proponents", "both"))
    _add(query, "-k", None,
         "how many training rows to list; copies of a row count once (default: auto, the smallest "
         "set that has most of the effect)", type=_count, default="auto")
    _add(query, "--surrogate", None,
         "explain a model fitted to the predictions of --model, if that model is not supported; "
         "reports first how often the two agree", action="store_true")
    _add(query, "--verify", None,
         "retrain without the listed rows and compare the predicted effect with the real one",
         action="store_true")
    _fail_above(query, "a larger share of the test rows is misclassified")
    language = parser.add_argument_group(
        "language models",
        "which texts of FILE taught the model the texts of --test? Here, --model is a folder that "
        "transformers can load, or a function that returns (model, tokenizer)")
    _add(language, "--completion", "COLUMN", "the column of texts to explain (or chat messages)")
    _add(language, "--prompt", "COLUMN", "the column of texts that precede the completions")
    _add(language, "--snapshots", "DIR",
         "the folder of a Recorder with snapshots of the model's training; they count as well",
         path="DIRECTORY")
    _store(parser)
    _budget(parser)
    _output(parser)


def _fix_labels(parser: ArgumentParser) -> None:
    """Find labels that are probably wrong, suggest better ones, and prepare the review page.

    Rows whose labels you trust (--curated, --curated-column) make the result much better.
    Afterwards `exempla review DIR` lets you decide row by row and writes the corrected file.
    """
    _file(parser)
    _add(parser, "-k", None,
         "how many suspects to list (default: twice the expected number of errors, but at least a "
         "tenth of the rows or 200)", type=int)
    _add(parser, "--method", None,
         "calibrated probabilities from all evidence (default), or the paper's SBQ ranking",
         choices=("calibrated", "sbq"), default="calibrated")
    _add(parser, "--original-column", "COLUMN",
         "a column with the earlier labels of trusted rows that were corrected (empty: the label "
         "was right); it shows what kind of errors the file has")
    _add(parser, "--label-separator", "MARK",
         "the label column lists several labels separated by MARK; if there is one column per "
         "label, use --label a,b,c instead")
    _add(parser, "--export", "TOOLS",
         "also write the suspects for other tools: label-studio, fiftyone, cleanlab, spotlight, "
         "separated by commas (import decisions with exempla review --import)",
         type=_tools, default=())
    _store(parser)
    _fail_above(parser, "a larger share of the labels is expected to be wrong")
    _output(parser)


def _review(parser: ArgumentParser) -> None:
    """Decide about suspicious labels, row by row, on a local page.

    DIR is a folder that `exempla fix-labels` wrote. Every decision is saved at once. Export the
    corrected file from the page, or with --export.
    """
    _add(parser, "folder", "DIR", "the folder that exempla fix-labels wrote", "DIRECTORY",
         type=Path)
    _add(parser, "--port", None, "port on 127.0.0.1 (default: any free one)", type=int, default=0)
    _add(parser, "--no-browser", None, "print the address and open no browser",
         action="store_true")
    _add(parser, "--export", None, "write the corrected file and exit", action="store_true")
    _add(parser, "--import", "FILE",
         "import decisions from Label Studio (JSON) or FiftyOne (CSV), and exit", "FILE",
         type=Path, dest="import_from")
    _add(parser, "--stop-below", "SHARE",
         "tell you to stop when spot checks show that at most this share of all rows is still "
         "wrong (default: 0.01, or the last value used)", type=float)
    _add(parser, "--recover", None,
         "recover the readable part of a damaged decisions.sqlite; the damaged file is kept",
         action="store_true")
    _add(parser, "--quiet", None, "print only the address", action="store_true")
    _add(parser, "--json", None, "print the address, or what --export wrote, as JSON",
         action="store_true")


def _clean(parser: ArgumentParser) -> None:
    """Find the training rows whose removal should correct the model's errors on the test rows.

    Removing them corrects the errors you ask about; it does not raise accuracy in general. The
    model is retrained without these rows, and the effect on the test rows is reported.
    """
    _file(parser)
    _add(parser, "-k", None, "how many rows to remove (default: 50)", type=int, default=50)
    _budget(parser)
    _fail_above(parser, "removal fixes more than this share of the errors")
    _output(parser)


def _summarize(parser: ArgumentParser) -> None:
    """Summarise a file: k weighted rows from which the model learns nearly as much as from all.

    A model trained on the summary alone is compared with one trained on all rows, on test rows that
    neither has seen.
    """
    _file(parser)
    _add(parser, "-k", None, "how many rows to keep (default: 100)", type=int, default=100)
    _add(parser, "--total", None,
         "what the weights sum to: chosen on held-out rows (default), k, or the number of rows",
         choices=("auto", "k", "n"), default="auto")
    _store(parser)
    _fail_above(parser, "the summary loses more accuracy than this")
    _output(parser)


def _acquire(parser: ArgumentParser) -> None:
    """Find the rows of a pool that would correct the model's errors once they are labelled.

    FILE holds the training rows, POOL the candidates, with the same columns. If the pool has no
    labels, the rows most worth labelling are chosen; if it has, the rows most worth training on.

    The results hold the chosen rows (acquired.csv, and tasks.json for Label Studio). Label them
    with `exempla review DIR`, or fill in the label column of acquired.csv, and pass the labelled
    file back with --labels to see what really changed.
    """
    _file(parser)
    _add(parser, "pool", "POOL", "the candidates, with the same columns", "FILE")
    _add(parser, "-k", None, "how many rows to choose (default: 50)", type=int, default=50)
    _add(parser, "--ask", None,
         "which test predictions should improve: errors (default), all, errors:TRUE->PREDICTED",
         default="errors")
    _add(parser, "--costs", "COLUMN", "a column of POOL: the cost of each row")
    _add(parser, "--labels", "FILE",
         "acquired.csv with its label column filled in (corrected.csv of `exempla review`)", "FILE")
    _output(parser)


def _attack(parser: ArgumentParser) -> None:
    """Measure how fragile a model is: move a few training rows slightly, retrain, count the flips.

    The target is a set of test rows that are predicted correctly: rows you name with --ask, or the
    ten least certain rows of one class. The report lists the training rows that are easiest to
    attack and that you should protect first. Columns must be numbers. Predictions of trees do not
    change under small moves, so their training rows get wrong labels instead.
    """
    _file(parser)
    how = parser.add_argument_group("the attack")
    _add(how, "--ask", "ROWS", "target rows, such as 3,17 (default: see above)")
    _add(how, "--points", "N", "training rows to move (default: 2)", type=int, default=2)
    _add(how, "--budget", "SIZE",
         "how far each value may move: in standard deviations of a column, or in pixel values "
         "between 0 and 1 (default: 0.5)", type=float, default=0.5)
    _fail_above(how, "a larger share of the target predictions flips")
    _output(parser)


def _embed(parser: ArgumentParser) -> None:
    """Write every training row of a file as a vector in the Fisher space of its model.

    rows.npy holds one vector per training row; the dot product of two vectors is the Fisher kernel,
    on which all answers of exempla are based. Use them for your own nearest neighbours or clusters;
    the report shows the nearest neighbours of a few rows.

    With --store DIR the vectors are written to that folder as they are computed, in several .npy
    files, and need not fit in memory. If the command is interrupted, run it again to continue.

    Several machines can share the work with --shard i/n, each with its own i and the same --store
    on a shared disk; the command without --shard then collects all parts, computes missing ones,
    and writes the results. With --ray the machines of a Ray cluster compute the parts in one
    command.
    """
    _file(parser)
    large = parser.add_argument_group("large files")
    _store(large)
    _budget(large)
    _add(large, "--shard", "I/N",
         "compute only the I-th of N parts, as one of N processes or machines", type=shard)
    _add(large, "--ray", "ADDRESS",
         "compute the parts on a Ray cluster; without an address, on the cluster that runs here, "
         "or on this machine alone", nargs="?", const="")
    _output(parser)


def _checkout(parser: ArgumentParser) -> None:
    """Run the benchmarks (`exempla bench`) or the experiments (`exempla reproduce`) of a checkout.

    Benchmarks measure speed, with --out also whole jobs beside other libraries. Experiments produce
    the tables and figures of the paper and of this project. This needs a checkout of exempla's
    source: neither is part of the installed package. There, --help lists every option, and
    `exempla reproduce list` names the experiments.
    """
    _add(parser, "words", "…", "see above", nargs="*")
    parser.prefix_chars = ""  # nothing begins an option: all words are passed on


def _doctor(parser: ArgumentParser) -> None:
    """Print versions, devices and installed libraries, as a bug report needs them.

    With files, print how each one is read and the inferred kinds of its columns; the exit code is 2
    if one cannot be read.
    """
    _add(parser, "file", "FILE", "data files to look at", "FILE", nargs="*")
    _add(parser, "--json", None, "print as JSON", action="store_true")
    _add(parser, "--quiet", None, "print nothing; use the exit code", action="store_true")


def _completion(parser: ArgumentParser) -> None:
    """Print a completion script for your shell, generated from the commands by shtab.

    bash:  exempla completion bash > ~/.local/share/bash-completion/completions/exempla
    zsh:   exempla completion zsh  > ~/.zfunc/_exempla      (with ~/.zfunc in your fpath)
    fish:  exempla completion fish > ~/.config/fish/completions/exempla.fish
    tcsh:  exempla completion tcsh > ~/.exempla.tcsh   (with `source ~/.exempla.tcsh` in ~/.tcshrc)
    PowerShell:  exempla completion powershell >> $PROFILE
    """
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh", "powershell"))
# fmt: on


COMMANDS: dict[str, tuple[Callable[[ArgumentParser], None], str]] = {
    "demo": (_demo,
             "a real model, its real mistakes, and the training images behind them (under 30 s)"),
    "explain": (_explain, "which rows in your file are responsible for a model's errors?"),
    "fix-labels": (_fix_labels, "which labels in your file are wrong?"),
    "review": (_review,
               "decide about suspicious labels in your browser, and export the corrected file"),
    "clean": (_clean, "which rows in your file harm the model, and what happens without them?"),
    "summarize": (_summarize, "reduce your file to k weighted rows"),
    "acquire": (_acquire, "which rows should you label or add next?"),
    "attack": (_attack, "which rows could be changed slightly to flip predictions?"),
    "embed": (_embed, "write the rows of your file as vectors in Fisher space"),
    "reproduce": (_checkout,
                  "run the paper's experiments again (needs a checkout of the source)"),
    "bench": (_checkout,
              "measure speed, beside other libraries too (needs a checkout of the source)"),
    "doctor": (_doctor,
               "print versions, devices and what is installed, or what exempla makes of a file"),
    "completion": (_completion,
                   "print a completion script for bash, zsh, fish, tcsh or PowerShell"),
}  # fmt: skip
"""What adds the arguments of each command, and its line in the help, in order."""


def _number(text: str) -> float:
    """Parse a number; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    if not 0 <= (value := _number(text)) <= 1:
        raise ArgumentTypeError(f"{text!r} is not a fraction; give a number from 0 to 1")
    return value


def _epochs(text: str) -> str | float:
    """Parse a number of epochs above 0, "auto" or "exact"."""
    if text in ("auto", "exact"):
        return text
    if not (value := _number(text)) > 0:
        raise ArgumentTypeError(f"{text!r} is not a budget; give a number of epochs or exact")
    return value


def _count(text: str) -> int | str:
    """Parse a number of rows, or "auto"."""
    return text if text == "auto" else int(text)


def shard(text: str) -> tuple[int, int]:
    """Parse I/N: which part of how many."""
    first, _, second = text.partition("/")
    if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
        raise ArgumentTypeError(f"{text!r} is not a part; give i/n with i from 1 to n, such as 2/8")
    return int(first), int(second)


def _tools(text: str) -> tuple[str, ...]:
    """Parse names of tools, separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in _TOOLS]
    if unknown or not names:
        what = repr(unknown[0]) if unknown else "an empty list"
        raise ArgumentTypeError(f"{what} is not a known tool; choose from {', '.join(_TOOLS)}")
    return names


_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the direction of text
    "\u2028\u2029\ud800-\udfff]"  # line separators and surrogates
)


def plain(text: str, stream: TextIO | None = None) -> str:
    """Return the text with control characters escaped.

    File, column and class names come from untrusted files and must not control the terminal. If a
    stream is given, characters that its encoding lacks are escaped too.
    """
    shown = _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


class Console:
    """Print messages to standard output, or to standard error with --json."""

    def __init__(self, options: Namespace) -> None:
        self.options, self.progress = options, not options.quiet
        self.started = getattr(options, "started", time.perf_counter())

    def say(self, text: str = "") -> None:
        """Print a message unless --quiet is given."""
        if self.progress:
            clear_line()
            stream = sys.stderr if self.options.json else sys.stdout
            print(plain(text, stream), file=stream, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning, even with --quiet."""
        clear_line()
        line = " ".join(text.split())
        print(plain(f"warning: {line}", sys.stderr), file=sys.stderr, flush=True)

    def result(self, values: dict[str, Any]) -> None:
        """Print the machine-readable result if --json is given."""
        if self.options.json:
            print(json.dumps(values, indent=2, allow_nan=False), flush=True)

    def seconds(self) -> float:
        """Return the seconds since the command started."""
        return time.perf_counter() - self.started

    @contextmanager
    def hearing_warnings(self) -> Iterator[None]:
        """Print warnings of exempla once each; hide those of other libraries."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        said: set[str] = set()
        for warning in caught:
            text = str(warning.message)
            ours = issubclass(warning.category, ExemplaWarning)
            if text not in said and (ours or warning.category.__name__ == "ConvergenceWarning"):
                said.add(text)
                self.warn(text.split("\n")[0])


_SAME_FILE = (
    "label", "merge_labels", "task", "test", "curated", "curated_column", "encoding", "delimiter",
    "header", "model",
)  # fmt: skip
"""Options that describe the file and so apply to every command on it."""


def command_for(options: Namespace, command: str, *words: str) -> str:
    """Return another command on the same file, ready to be pasted."""
    out = ["exempla", command, str(options.file)]
    for name in _SAME_FILE:
        value = getattr(options, name, None)
        if value is not None and value != "auto":
            out += [f"--{name.replace('_', '-')}", str(value)]
    for name in ("text", "kind"):
        for value in getattr(options, name, []):
            out += [f"--{name}", value]
    return plain(shlex.join([*out, *words]))


def command_line(options: Namespace) -> str:
    """Return the command as the user typed it, ready to be pasted."""
    return plain(shlex.join(["exempla", *options.arguments]))
