"""Jobs that write files: what is there before, what is done, and what must hold after any fault.

The exit code tells how it ended: 0 done, 2 refused with a sentence, −9 killed. Whatever happened,
no file under a final name may be a part of one, and what was confirmed must be there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import exempla

X, Y = load_iris(return_X_y=True)


class Scenario:
    """One job; `prepare` and `check` run without faults."""

    def prepare(self, folder: Path) -> None:
        """The state before."""

    def act(self, folder: Path) -> int | None:
        """The job, under fault; its exit code."""
        raise NotImplementedError

    def check(self, folder: Path, code: int) -> list[str]:
        """What does not hold."""
        raise NotImplementedError


class Save(Scenario):
    """`Explainer.save` over a good file."""

    def __init__(self) -> None:
        model = LogisticRegression(max_iter=500).fit(X, Y)
        self.old = exempla.Explainer(model, progress=False, seed=1).fit((X, Y))
        self.new = exempla.Explainer(model, progress=False, seed=2).fit((X, Y))

    def prepare(self, folder: Path) -> None:
        self.old.save(folder / "kept")

    def act(self, folder: Path) -> None:
        self.new.save(folder / "kept")

    def check(self, folder: Path, code: int) -> list[str]:
        found = exempla.Explainer.load(folder / "kept")
        allowed = {2} if code == 0 else {1, 2}
        return [] if found.seed in allowed else [f"seed {found.seed} after exit code {code}"]


class Store(Scenario):
    """Rows that go to a store as they are made, and the whitened ones of a question about them."""

    def __init__(self) -> None:
        from exempla.store import folder

        folder._MIN_SHARD_BYTES, folder._MIN_SHARDS = 1, 12
        self.model = LogisticRegression(max_iter=500).fit(X, Y)
        plain = exempla.Explainer(self.model, progress=False).fit((X, Y))
        self.rows = np.array(plain.embeddings[0].rows)
        self.picks = plain.explain((X[:5], Y[:5]), k=4, side="both").indices.tolist()

    def fit(self, folder: Path) -> exempla.Explainer:
        return exempla.Explainer(self.model, store=folder / "store", progress=False).fit((X, Y))

    def act(self, folder: Path) -> None:
        self.fit(folder).explain((X[:5], Y[:5]), k=4, side="both")

    def check(self, folder: Path, code: int) -> list[str]:
        import warnings

        from exempla.io import verified

        before = {}
        for path in (folder / "store").rglob("*.npy"):
            verified(path)  # raises if it is not whole
            before[path] = path.stat().st_mtime_ns
        with warnings.catch_warnings():
            warnings.simplefilter("error", exempla.ExemplaWarning)  # nothing is made a second time
            again = self.fit(folder)
            picks = again.explain((X[:5], Y[:5]), k=4, side="both").indices.tolist()
        problems = []
        if not np.allclose(again.embeddings[0].rows[:], self.rows, rtol=1e-12):
            problems.append("other rows than in memory")
        if picks != self.picks:
            problems.append(f"picks {picks}")
        lost = [path.name for path, when in before.items() if path.stat().st_mtime_ns != when]
        left = [path.name for path in (folder / "store").rglob(".*")]
        problems += [f"made again: {lost}"] if lost else []
        return problems + ([f"left behind: {left}"] if left else [])


class Tables(Scenario):
    """`to_csv` and `to_json` over earlier ones."""

    def __init__(self) -> None:
        model = LogisticRegression(max_iter=500).fit(X, Y)
        explainer = exempla.Explainer(model, progress=False).fit((X, Y))
        self.old = explainer.explain((X[:5], Y[:5]), k=3)
        self.new = explainer.explain((X[:5], Y[:5]), k=9)

    def write(self, folder: Path, answer: exempla.Explanation) -> None:
        answer.to_csv(folder / "a.csv")
        answer.to_json(folder / "a.json")

    def prepare(self, folder: Path) -> None:
        self.write(folder, self.old)

    def act(self, folder: Path) -> None:
        self.write(folder, self.new)

    def check(self, folder: Path, code: int) -> list[str]:
        import json

        import pandas as pd

        rows = {
            "csv": len(pd.read_csv(folder / "a.csv")),
            "json": len(json.loads((folder / "a.json").read_text())["indices"]),
        }
        allowed = {9} if code == 0 else {3, 9}
        return [f"{name} has {n} rows" for name, n in rows.items() if n not in allowed]


class Command(Scenario):
    """A command over the results of an earlier run with another k."""

    words: tuple[str, ...] = ("explain", "--side", "both")
    how_many = "-k"

    def run(self, folder: Path, k: int) -> int:
        from exempla.cli.main import main

        out = ("--out", str(folder / "out"))
        what = (str(folder / "a.csv"), "--label", "y", self.how_many, str(k))
        return main([*self.words, *what, *out, "--quiet"])

    def prepare(self, folder: Path) -> None:
        rows = "".join(
            f"{i % 7},{(i * 5) % 11},{(i % 7 > 2) ^ (i % 13 == 0):d}\n" for i in range(80)
        )
        (folder / "a.csv").write_text("a,b,y\n" + rows)
        assert self.run(folder, 3) == 0

    def act(self, folder: Path) -> int:
        return self.run(folder, 5)

    def check(self, folder: Path, code: int) -> list[str]:
        import hashlib
        import json

        out = folder / "out"
        problems = []
        manifest = out / "manifest.json"
        if code == 0 and not manifest.exists():
            problems.append("done, but there is no manifest")
        if manifest.exists():
            for name, said in json.loads(manifest.read_text())["files"].items():
                if hashlib.sha256((out / name).read_bytes()).hexdigest() != said["sha256"]:
                    problems.append(f"{name} is not what the manifest says")
        wanted = {5} if code == 0 else {3, 5}
        if len(json.loads((out / "explanation.json").read_text())["indices"]) not in wanted:
            problems.append("explanation.json is of neither run")
        if not (out / "report.html").read_text().rstrip().endswith("</html>"):
            problems.append("half a report")
        before = (folder / "a.csv").read_text().count("\n")
        if before != 81:
            problems.append("the input was changed")
        return problems


class Clean(Command):
    """`exempla clean`, which also writes the data itself."""

    words = ("clean",)


class Summarize(Command):
    """`exempla summarize`."""

    words = ("summarize",)


class FixLabels(Command):
    """`exempla fix-labels`, which also writes what a review begins with."""

    words = ("fix-labels",)

    def check(self, folder: Path, code: int) -> list[str]:
        from exempla.review import read_review

        try:
            suspects = len(read_review(folder / "out").suspects)
        except exempla.ExemplaError:  # of two runs, and noticed
            return [*super().check(folder, code), *(["no review"] if code == 0 else [])]
        wanted = {5} if code == 0 else {3, 5}
        problems = [] if suspects in wanted else [f"a review of {suspects} suspects"]
        return [*super().check(folder, code), *problems]


class Attack(Command):
    """`exempla attack`."""

    words = ("attack",)
    how_many = "--points"


class Embed(Scenario):
    """`exempla embed` into a folder that holds the rows of another seed."""

    def run(self, folder: Path, seed: int) -> int:
        from exempla.cli.main import main

        out = ("--out", str(folder / "out"))
        words = ("embed", str(folder / "a.csv"), "--label", "y", "--seed", str(seed))
        return main([*words, *out, "--quiet"])

    def prepare(self, folder: Path) -> None:
        Command.prepare(self, folder)  # type: ignore[arg-type]

    def act(self, folder: Path) -> int:
        return self.run(folder, 5)

    def check(self, folder: Path, code: int) -> list[str]:
        shapes = {np.load(path).shape for path in (folder / "out").glob("*.npy")}
        return [] if shapes and all(shape[0] > 50 for shape in shapes) else [f"rows of {shapes}"]


class EmbedStore(Embed):
    """`exempla embed --store`, again after whatever happened."""

    def run(self, folder: Path, seed: int) -> int:
        from exempla.cli.main import main
        from exempla.store import folder as shards

        shards._MIN_SHARD_BYTES, shards._MIN_SHARDS = 1, 6
        out = ("--out", str(folder / "out"), "--store", str(folder / f"store-{seed}"))
        words = ("embed", str(folder / "a.csv"), "--label", "y", "--seed", str(seed))
        return main([*words, *out, "--quiet"])

    def check(self, folder: Path, code: int) -> list[str]:
        from exempla.io import verified

        before = {}
        for path in (folder / "store-5").rglob("*.npy"):
            verified(path)
            before[path] = path.stat().st_mtime_ns
        if self.run(folder, 5) != 0:
            return ["the same command does not go on"]
        lost = [path.name for path, when in before.items() if path.stat().st_mtime_ns != when]
        count = sum(len(np.load(path)) for path in (folder / "store-5" / "rows-0").glob("*.npy"))
        problems = [] if count == 80 else [f"{count} rows"]
        return problems + ([f"made again: {lost}"] if lost else [])


class Decide(Scenario):
    """Decisions into the log of a review: what was confirmed is there."""

    def prepare(self, folder: Path) -> None:
        from exempla.review import ReviewedFile, Suspect, write_review

        suspects = [Suspect(i, "ham", "spam", 0.9, 0.97) for i in range(6)]
        write_review(
            folder / "review", suspects, source=ReviewedFile("a.jsonl", "jsonl"),
            classes=["ham", "spam"],
        )  # fmt: skip

    def log(self, folder: Path):
        from exempla.review.folder import read_review
        from exempla.review.log import DecisionLog

        review = read_review(folder / "review")
        return DecisionLog(review.directory / "decisions.sqlite", review.key)

    def act(self, folder: Path) -> None:
        from exempla.review.log import RowDecision

        folder.with_suffix(".confirmed").unlink(missing_ok=True)
        log = self.log(folder)
        for row in range(6):
            log.decide(RowDecision(row, "relabel", "spam"), seen=0, once=str(row))
            with open(folder.with_suffix(".confirmed"), "a") as file:
                file.write(f"{row}\n")
        log.close()

    def check(self, folder: Path, code: int) -> list[str]:
        told = folder.with_suffix(".confirmed")
        confirmed = set(map(int, told.read_text().split())) if told.exists() else set()
        told.unlink(missing_ok=True)
        try:
            log = self.log(folder)
        except exempla.ExemplaError as error:  # noticed, and told how to go on
            return [f"{len(confirmed)} confirmed, but: {error}"] if confirmed else []
        log.refresh()
        kept = {state.row for state in log.states() if state.action == "relabel"}
        log.close()
        lost = sorted(confirmed - kept)
        return [f"confirmed decisions about rows {lost} are lost"] if lost else []


class Export(Decide):
    """The files of a review, over those of an earlier export."""

    names = ("decisions.json", "patch.csv", "corrected.jsonl")

    def prepare(self, folder: Path) -> None:
        from exempla.review.log import RowDecision

        (folder / "review").mkdir()
        lines = [f'{{"text": "mail {i}", "label": "ham"}}' for i in range(6)]
        (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
        super().prepare(folder)
        log = self.log(folder)
        log.decide(RowDecision(1, "remove"), seen=0, once="1")
        self.export(folder)
        log.decide(RowDecision(2, "relabel", "spam"), seen=0, once="2")
        log.close()

    def export(self, folder: Path) -> None:
        from exempla.review import read_review
        from exempla.review.export import export_review

        export_review(read_review(folder / "review"))

    def contents(self, folder: Path) -> dict[str, bytes]:
        found = {name: folder / "review" / name for name in self.names}
        return {name: path.read_bytes() for name, path in found.items() if path.exists()}

    def act(self, folder: Path) -> None:
        self.export(folder)

    def check(self, folder: Path, code: int) -> list[str]:
        left = self.contents(folder)
        old = self.contents(folder.parent / "ready")
        self.export(folder)
        new = self.contents(folder)
        return [
            f"{name} is neither" for name in left if left[name] not in (old.get(name), new[name])
        ]


class Record(Scenario):
    """A training that goes on into the folder of its run, every snapshot written at once."""

    def train(self, folder: Path, steps: int) -> None:
        from sklearn.linear_model import SGDClassifier

        from exempla.recorder import recorder

        recorder._WAITING_BYTES = 0
        model = SGDClassifier(loss="log_loss", random_state=0)
        with exempla.Recorder(model, folder / "run", keep=3, resume=True) as record:
            for _ in range(steps):
                model.partial_fit(X, Y, classes=[0, 1, 2])
                record.step()

    def prepare(self, folder: Path) -> None:
        self.train(folder, 3)

    def act(self, folder: Path) -> None:
        self.train(folder, 7)

    def check(self, folder: Path, code: int) -> list[str]:
        from exempla.recorder.snapshots import read_run

        model = LogisticRegression(max_iter=500).fit(X, Y)
        used = exempla.Explainer([model, folder / "run"], progress=False)  # it can be used
        last = max(one.step for one in read_run(folder / "run").snapshots)
        self.train(folder, 7)  # and training goes on
        run = read_run(folder / "run")
        left = {path.name for path in (folder / "run").iterdir()}
        problems = [] if len(used.oracles) > 1 else ["no snapshot"]
        if left != {"run.json", *(one.file for one in run.snapshots)}:
            problems.append(f"left behind: {sorted(left)}")
        if run.snapshots[-1].step != last + 7:
            problems.append(f"step {run.snapshots[-1].step} after {last} + 7")
        return problems


SCENARIOS: dict[str, type[Scenario]] = {
    "save": Save,
    "store": Store,
    "tables": Tables,
    "explain": Command,
    "clean": Clean,
    "summarize": Summarize,
    "fix-labels": FixLabels,
    "attack": Attack,
    "embed": Embed,
    "embed-store": EmbedStore,
    "decide": Decide,
    "export": Export,
    "record": Record,
}
