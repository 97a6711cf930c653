"""Rows larger than memory: what selecting from them takes in a process that may not hold them.

    python -m benchmarks.out_of_core --folder DIR [--only labels] [--out …/out_of_core.csv]

Four jobs, each in a process of its own whose memory is capped (by a control group, anonymous memory
and page cache together; where none can be made, by RLIMIT_DATA, anonymous memory alone):

select   10 million rows of 256 numbers (10.2 GB, made in DIR and deleted afterwards), k = 50, 4 GiB
fit      `Explainer(store=…).fit → explain` of 300 000 examples in a sketch of 512 directions (1.2
         GB of rows, as many whitened), 1 GiB
labels   `fix_labels(method="sbq", store=…)` of 150 000 rows with scores of 960 numbers, 1 GiB
summary  `summarize(store=…)`, 20 of 100 000 candidates (by default 5000 are drawn; their rows would
         fit), 1 GiB

What is recorded: seconds, readings of all rows, the most anonymous memory (resident, not shared
with a file), the cap, and whether the picks equal those made in memory (for `select` on the first
500 000 rows, as the whole does not fit; for `fit` on the whole, by a process without a cap).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

ROWS, WIDTH, PICKS = 10_000_000, 256, 50
SHARD = 250_000
CHECKED = 500_000
EXAMPLES, FEATURES, CLASSES, SKETCH = 300_000, 100, 20, 512
LABELS, CANDIDATES = 150_000, 100_000
NAMES = ("select", "fit", "labels", "summary")
GIB = 2**30


# ---- the cap


def control_group(name: str, most: int) -> Path | None:
    """A new group whose processes may hold so many bytes; None if that is not allowed here."""
    for base, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(base) / f"{name}-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(most))
            return group
        except OSError:
            if group.is_dir():
                group.rmdir()
    return None


def capped(words: list[str], most: int) -> tuple[dict, str]:
    """What the job printed as its last line, and what was capped."""
    group = control_group("exempla-out-of-core", most)

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    command = [sys.executable, "-m", "benchmarks.out_of_core", *words]
    done = subprocess.run(command, preexec_fn=enter, stdout=subprocess.PIPE, text=True, check=False)
    if group is not None:
        time.sleep(1)
        group.rmdir()
    if done.returncode:
        raise SystemExit(f"{words[0]} ended with {done.returncode}")
    what = "control group" if group is not None else "RLIMIT_DATA"
    return json.loads(done.stdout.splitlines()[-1]), what


class Peak:
    """The most anonymous memory of this process, looked at twenty times a second."""

    def __init__(self) -> None:
        self.most, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        while not self.over.wait(0.05):
            self.most = max(self.most, self.now())

    def now(self) -> int:
        """Bytes at the moment."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def end(self) -> float:
        """GiB at the most."""
        self.over.set()
        self.thread.join()
        return self.most / GIB


# ---- the jobs


def make_rows(folder: Path) -> list[Path]:
    """Unit rows whose spectrum falls as the square root, as whitened scores' may, in some files."""
    paths, scale = [], (1.0 / np.sqrt(np.arange(1, WIDTH + 1))).astype(np.float32)
    for i in range(ROWS // SHARD):
        path = folder / f"rows-{i:04d}.npy"
        paths.append(path)
        if path.exists():
            continue
        rows = np.random.default_rng(i).standard_normal((SHARD, WIDTH), dtype=np.float32)
        rows *= scale
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        np.save(path.with_suffix(".part.npy"), rows)
        os.replace(path.with_suffix(".part.npy"), path)
    for path in paths:
        forget(path)
    return paths


def forget(path: Path) -> None:
    """Written out and dropped from the system's cache, which no cap of a reader would count."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def target_of(rows: object) -> np.ndarray:
    """The mean of a hundred rows, as that of a hundred questioned predictions."""
    return np.asarray(rows[np.arange(0, 100_000, 1000)]).mean(0)  # type: ignore[index]


def job_select(folder: Path, count: int, in_memory: bool) -> dict:
    import exempla
    from exempla.selection.select import as_rows
    from exempla.store import StoredRows

    paths = sorted(folder.glob("rows-*.npy"))[: count // SHARD]
    stored = StoredRows.of(paths)
    target = target_of(stored)
    peak, start = Peak(), time.perf_counter()
    rows = as_rows(np.concatenate([np.load(path) for path in paths]) if in_memory else stored)
    found = exempla.select(rows, target, PICKS, exempla.SBQ(noise=10.0))
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "readings": getattr(rows, "readings", ""),
        "anonymous_gib": round(peak.end(), 2),
        "picks": found.indices.tolist(),
    }


def job_fit(folder: Path, in_memory: bool) -> dict:
    from sklearn.linear_model import LogisticRegression

    import exempla

    rng = np.random.default_rng(0)
    X = rng.standard_normal((EXAMPLES, FEATURES))
    y = np.argmax(X[:, :CLASSES] + rng.gumbel(size=(EXAMPLES, CLASSES)), axis=1)
    model = LogisticRegression(max_iter=50).fit(X[:5_000], y[:5_000])
    peak, start = Peak(), time.perf_counter()
    store = None if in_memory else folder / "store"
    explainer = exempla.Explainer(model, store=store, sketch=SKETCH).fit((X, y))
    fitted = time.perf_counter()
    found = explainer.explain((X[:50], y[:50]), k=PICKS, side="both")
    again = time.perf_counter()
    explainer.explain((X[50:100], y[50:100]), k=PICKS, side="both")
    return {
        "seconds": round(again - start, 1),
        "seconds_fit": round(fitted - start, 1),
        "seconds_next_question": round(time.perf_counter() - again, 1),
        "anonymous_gib": round(peak.end(), 2),
        "picks": found.indices.tolist(),
    }


def job_labels(folder: Path, in_memory: bool) -> dict:
    from sklearn.linear_model import LogisticRegression

    import exempla

    rng = np.random.default_rng(0)
    X = rng.standard_normal((LABELS + 2_000, 15))
    y = np.argmax(X @ rng.standard_normal((15, 60)) + 2 * rng.gumbel(size=(len(X), 60)), axis=1)
    trusted = X[LABELS:], y[LABELS:]
    peak, start = Peak(), time.perf_counter()
    found = exempla.fix_labels(
        LogisticRegression(max_iter=10), (X[:LABELS], y[:LABELS]), trusted, k=PICKS, method="sbq",
        store=None if in_memory else folder / "labels",
    )  # fmt: skip
    seconds = round(time.perf_counter() - start, 1)
    return {
        "seconds": seconds,
        "anonymous_gib": round(peak.end(), 2),
        "picks": found.indices.tolist(),
    }


def job_summary(folder: Path, in_memory: bool) -> dict:
    from unittest import mock

    from sklearn.linear_model import LogisticRegression

    import exempla

    rng = np.random.default_rng(0)
    X = rng.standard_normal((CANDIDATES, 100), dtype=np.float32)
    y = (X[:, :10].sum(1) + 3 * rng.standard_normal(CANDIDATES) > 0).astype(int)
    model = LogisticRegression(max_iter=50).fit(X, y)
    peak, start = Peak(), time.perf_counter()
    name = "exempla.tasks.summarize.posterior."
    many = mock.patch(name + "_FEWEST_CANDIDATES", CANDIDATES)
    with many, mock.patch(name + "ROW_BYTES", 2**40):
        found = exempla.summarize(
            model, (X, y), 20, "n", store=None if in_memory else folder / "summary"
        )
    seconds = round(time.perf_counter() - start, 1)
    return {
        "seconds": seconds,
        "anonymous_gib": round(peak.end(), 2),
        "picks": found.indices.tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("job", nargs="?", choices=NAMES, help="one alone, uncapped")
    parser.add_argument("--only", choices=NAMES, help="measure one; keep the others' lines")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int, default=ROWS)
    parser.add_argument("--in-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/out_of_core.csv"))
    parser.add_argument("--keep", action="store_true", help="do not delete the rows")
    options = parser.parse_args()
    if options.job == "select":
        print(json.dumps(job_select(options.folder, options.count, options.in_memory)))
    elif options.job:
        job = {"fit": job_fit, "labels": job_labels, "summary": job_summary}[options.job]
        print(json.dumps(job(options.folder, options.in_memory)))
    else:
        record(options)


def record(options: argparse.Namespace) -> None:
    """The jobs, and what they are held against."""
    folder, out = options.folder, options.out
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    if options.only and out.exists():
        with open(out, newline="") as file:
            lines = [line for line in csv.DictReader(file) if not _is(line["job"], options.only)]
    try:
        if options.only in (None, "select"):
            make_rows(folder)
        here = ["--folder", str(folder)]
        for what, words, cap, size in (
            ("select, 10 000 000 × 256 float32", ["select", *here], 4 * GIB, ROWS * WIDTH * 4),
            (
                "select, 500 000 × 256 float32",
                ["select", *here, "--count", str(CHECKED)], 4 * GIB, CHECKED * WIDTH * 4,
            ),
            (
                "fit and explain, 300 000 × 512 float64",
                ["fit", *here], GIB, EXAMPLES * SKETCH * 8,
            ),
            (
                "labels, 150 000 × 960 float64", ["labels", *here], GIB, LABELS * 960 * 8,
            ),
            (
                "summary, 100 000 × 3032 float32", ["summary", *here], GIB, CANDIDATES * 3032 * 4,
            ),
        ):  # fmt: skip
            if options.only and not _is(what, options.only):
                continue
            found, how = capped(words, cap)
            same = ""
            if "10 000 000" not in what:
                plain, _ = capped([*words, "--in-memory"], 20 * GIB)
                same = found["picks"] == plain["picks"]
                found["seconds_in_memory"] = plain["seconds"]
                found["in_memory_gib"] = plain["anonymous_gib"]
            found.pop("picks")
            lines.append({
                "job": what, "rows_gib": round(size / GIB, 2), "cap_gib": round(cap / GIB, 2),
                "capped_by": how, **found, "same_picks_as_in_memory": same,
            })  # fmt: skip
            print(lines[-1], flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    names = list(dict.fromkeys(name for line in lines for name in line))
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _is(job: str, name: str) -> bool:
    return job.partition(",")[0].startswith(name)


if __name__ == "__main__":
    main()
