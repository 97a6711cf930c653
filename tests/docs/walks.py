"""Run one of the walks of docs/architecture.md and print the files of exempla that it passes.

    python -m tests.docs.walks explain-sklearn      # a JSON list, in the order of first use
    python -m tests.docs.walks --write              # measure all walks and rewrite the page

A file counts when one of its functions runs. Importing a module does not count: its top level, its
class bodies and what they call are ignored.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import exempla

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = str(Path(exempla.__file__).parent) + os.sep


class Trace:
    """The files of exempla whose functions ran, in the order of their first call."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen or not code.co_filename.startswith(PACKAGE):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED or _during_import(frame):
            return  # not a function, or called by the top level of a module
        self._seen.add(code)
        self.files.setdefault(code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/"))

    def clear(self) -> None:
        """Forget what ran so far."""
        self.files.clear()
        self._seen.clear()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Record what runs in the block, in this thread and in threads started in it."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def _during_import(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def _iris() -> tuple[Any, Any]:
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    return X, y


def explain_sklearn(trace: Trace, folder: Path) -> None:
    """`exempla.explain` with a scikit-learn classifier."""
    from sklearn.linear_model import LogisticRegression

    X, y = _iris()
    model = LogisticRegression(max_iter=1000).fit(X[::2], y[::2])
    with trace.on():
        exempla.explain(model, (X[::2], y[::2]), (X[1::2], y[1::2]), k=5)


def explain_torch(trace: Trace, folder: Path) -> None:
    """`exempla.explain` with a torch classifier."""
    import torch

    X, y = _iris()
    inputs, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    for _ in range(200):  # by hand: importing torch.optim takes longer than the walk
        loss = torch.nn.functional.cross_entropy(model(inputs[::2]), labels[::2])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weights, gradient in zip(model.parameters(), gradients, strict=True):
                weights -= 0.1 * gradient
    with trace.on():
        exempla.explain(model, (inputs[::2], labels[::2]), (inputs[1::2], labels[1::2]), k=5)


def _mislabelled_csv(folder: Path) -> Path:
    """Iris as a CSV file in which every fifteenth label is wrong."""
    X, y = _iris()
    names = ["setosa", "versicolor", "virginica"]
    lines = ["a,b,c,d,species"]
    for i, (row, label) in enumerate(zip(X, y, strict=True)):
        name = names[(int(label) + (i % 15 == 0)) % 3]
        lines.append(",".join([*(f"{value:.1f}" for value in row), name]))
    path = folder / "iris.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def fix_labels_csv(trace: Trace, folder: Path) -> None:
    """`exempla fix-labels` on a CSV file."""
    from exempla.cli.main import main

    file = _mislabelled_csv(folder)
    with trace.on(), contextlib.redirect_stdout(sys.stderr):
        code = main(["fix-labels", str(file), "--label", "species", "--out", str(folder / "out")])
    if code:
        raise SystemExit(f"fix-labels ended with exit code {code}")


def review_decision(trace: Trace, folder: Path) -> None:
    """One decision on the review page, from the request to the log and back."""
    from tests.review.case import make_folder, served, signed_in

    body = {"row": 3, "action": "keep", "seen": 0, "once": "0123456789"}
    threading.setprofile(trace)  # the server's threads, not this one
    try:
        with served(make_folder(folder, 3)) as address, signed_in(address) as client:
            client.get("/api/review").raise_for_status()
            trace.clear()  # only the decision counts: neither starting the server ...
            client.post("/api/decide", json=body).raise_for_status()
            files = dict(trace.files)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    trace.files = files  # ... nor stopping it


def select_rows(trace: Trace, folder: Path) -> None:
    """`exempla.select` on a NumPy array."""
    import numpy as np

    rows = np.random.default_rng(0).normal(size=(200, 8))
    with trace.on():
        exempla.select(rows, rows.mean(axis=0), k=5)


WALKS: dict[str, Callable[[Trace, Path], None]] = {
    "explain-sklearn": explain_sklearn,
    "explain-torch": explain_torch,
    "fix-labels": fix_labels_csv,
    "review": review_decision,
    "select": select_rows,
}


def files_of(walk: str) -> list[str]:
    """Return the files that the walk passes in this process, in the order of first use."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        WALKS[walk](trace, Path(folder))
    return list(trace.files)


def measured(walk: str) -> list[str]:
    """Return the files that the walk passes in a fresh process without a GPU."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.docs.walks", walk]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the walk {walk} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


_BLOCK = r'(<!-- walk: {} -->\n```text title="(\d+) files"\n)(.*?)(```\n)'


def listed(walk: str) -> tuple[int, list[str]]:
    """Return the number of files that the page states for the walk, and the files it lists."""
    found = re.search(_BLOCK.format(walk), PAGE.read_text(encoding="utf-8"), re.S)
    if found is None:
        raise LookupError(f"{PAGE.name} has no walk {walk}")
    files = []
    for line in found.group(3).splitlines():
        folder, *names = line.split()
        files += [folder.removeprefix("./") + name for name in names]
    return int(found.group(2)), files


def _lines(files: list[str]) -> Iterator[str]:
    """Yield one line for each run of files in the same folder, at most 100 characters wide."""
    line = ""
    for file in files:
        folder, _, name = file.rpartition("/")
        start = f"{folder}/" if folder else "./"
        if not line.startswith(f"{start} ") or len(line) + len(name) + 2 > 100:
            if line:
                yield line
            line = f"{start:<22}"
        line += f"{'' if line.endswith(' ') else '  '}{name}"
    yield line


def write() -> None:
    """Measure every walk and rewrite its list on the page."""
    for walk in WALKS:
        files = measured(walk)
        block = (
            f'<!-- walk: {walk} -->\n```text title="{len(files)} files"\n'
            + "".join(f"{line}\n" for line in _lines(files))
            + "```\n"
        )
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            re.sub(_BLOCK.format(walk), lambda _, new=block: new, text, flags=re.S),
            encoding="utf-8",
        )
        print(walk, len(files))


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write()
    else:
        print(json.dumps(files_of(sys.argv[1])))
