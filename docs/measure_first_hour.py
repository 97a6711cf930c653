"""The first hour of a new user, done literally: `EXEMPLA_DATA=… python docs/measure_first_hour.py`.

An empty folder, a fresh environment, a file of mails of which one label in twenty is wrong; then
the commands of docs/studies/first-hour.md, the review page by keyboard in Chromium, a network, and
a report for a colleague. Wall and processor seconds of every step, and what the command itself
said at its end, go to docs/experiments/first_hour.csv.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
MAILS, WRONG = 1500, 75
NETWORK = """
import exempla, torch
from sklearn.datasets import load_digits
from torch import nn

X, y = load_digits(return_X_y=True)
images, labels = torch.tensor(X / 16).float().reshape(-1, 1, 8, 8), torch.tensor(y)
cnn = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
optimizer = torch.optim.Adam(cnn.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(cnn(images[:900]), labels[:900]).backward()
    optimizer.step()
answer = exempla.explain_errors(cnn, (images[:900], labels[:900]), (images[900:], labels[900:]))
print(answer)
from exempla.report import ImageView, write_report
wrong = answer.question.rows
write_report(
    answer, "network.html",
    train_view=ImageView(X[:900].reshape(-1, 8, 8), labels=y[:900]),
    test_view=ImageView(X[900:][wrong].reshape(-1, 8, 8), labels=y[900:][wrong]),
)
"""


class Hour:
    """The folder, what was done in it, and how long it took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, []
        self.bin = folder / "venv" / "bin"

    def run(self, step: str, *words: str, shown: str = "") -> str:
        """One command as typed; its wall seconds are written down."""
        path = f"{self.bin}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        start, busy = time.perf_counter(), children()
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        took = time.perf_counter() - start
        self.note(step, shown or " ".join(words), took, done.stdout, children() - busy)
        if done.returncode:
            raise SystemExit(f"{step} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def note(
        self, step: str, typed: str, seconds: float, said: str = "", busy: float | None = None
    ) -> None:
        told = re.search(r"Done in (\d+) s", said)
        cpu = "" if busy is None else f"{busy:.1f}"
        self.lines.append((step, typed, f"{seconds:.1f}", cpu, told.group(1) if told else ""))
        print(f"{seconds:7.1f} s ({cpu}, said {self.lines[-1][-1]})  {step}: {typed}", flush=True)


def children() -> float:
    """Processor seconds of all that was started and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def mails(folder: Path) -> list[int]:
    """mails.csv: what a user has. Gives the rows whose labels are wrong."""
    source = Path(os.environ["EXEMPLA_DATA"]) / "enron1" / "enron1.jsonl.gz"
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(0).shuffle(rows)
    table = pd.DataFrame(rows[:MAILS])[["subject", "body", "label"]]
    wrong = sorted(random.Random(1).sample(range(MAILS), WRONG))
    flipped = table["label"].where(~table.index.isin(wrong), 1 - table["label"])
    table["label"] = flipped.map({0: "ham", 1: "spam"})
    table.to_csv(folder / "mails.csv", index=False)
    return wrong


def review(hour: Hour, wrong: set[int]) -> int:
    """The page by keyboard, by one who knows the truth: R where a label is wrong, K where not."""
    from playwright.sync_api import expect, sync_playwright

    start = time.perf_counter()
    command = [str(hour.bin / "exempla"), "review", "suspects", "--no-browser"]
    server = subprocess.Popen(command, cwd=hour.folder, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split()[-1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        hour.note("open the review page", "exempla review suspects", time.perf_counter() - start)
        start = time.perf_counter()
        decisions = 0
        while (here := page.get_attribute("#card", "data-row")) is not None and decisions < 300:
            page.keyboard.press("r" if int(here) in wrong else "k")
            expect(page.locator("#card")).not_to_have_attribute("data-row", here)
            decisions += 1
        page.click("#export")
        page.wait_for_selector("#export-result a")
        browser.close()
    server.terminate()
    server.wait()
    hour.note(
        f"{decisions} decisions by keyboard, and Export", "R or K", time.perf_counter() - start
    )
    return decisions


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        hour = Hour(Path(name))
        wrong = set(mails(hour.folder))
        subprocess.run(["git", "clone", "-q", str(ROOT), "exempla"], cwd=name, check=True)
        pip = ("pip", "install", "-q", "-c", "exempla/constraints.txt")
        hour.run("a fresh environment", sys.executable, "-m", "venv", "venv",
                 shown="python3 -m venv venv")  # fmt: skip
        hour.run("install the core", *pip, "./exempla", shown="pip install .")
        hour.run("what is there", "exempla", "--help")
        hour.run("the demonstration", "exempla", "demo")
        explain = ("exempla", "explain", "mails.csv", "--label", "label")
        hour.run("why is the model wrong?", *explain)
        hour.run("which labels are wrong?", "exempla", "fix-labels", "mails.csv", "--label",
                 "label", "--out", "suspects")  # fmt: skip
        hour.run("install the page", *pip, "./exempla[review]", shown="pip install '.[review]'")
        decisions = review(hour, wrong)
        before, after = (
            pd.read_csv(hour.folder / path).label
            for path in ("mails.csv", "suspects/corrected.csv")
        )
        changed = set(before.index[before != after])
        again = (
            "exempla",
            "explain",
            "suspects/corrected.csv",
            "--label",
            "label",
            "--out",
            "after",
        )
        hour.run("a report on the corrected file", *again)
        hour.run("install torch", *pip, "./exempla[torch]", shown="pip install '.[torch]'")
        (hour.folder / "network.py").write_text(NETWORK, encoding="utf-8")
        hour.run("explain a network, and write its report", "python", "network.py")
        size = (hour.folder / "after" / "report.html").stat().st_size / 1024
        errors = [
            json.loads((hour.folder / out / "explanation.json").read_text())["error_share"]
            for out in ("exempla-out", "after")
        ]
        found = [("decisions", decisions), ("corrected", len(changed & wrong)),
                 ("changed wrongly", len(changed - wrong)), ("planted", len(wrong)),
                 ("report KiB", round(size)), ("errors before", round(300 * errors[0])),
                 ("errors after", round(300 * errors[1]))]  # fmt: skip
    total = sum(float(line[2]) for line in hour.lines)
    with (ROOT / "docs/experiments/first_hour.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("step", "typed", "value", "processor", "said"))
        table.writerows([*hour.lines, ("all steps", "", f"{total:.1f}", "", "")])
        table.writerows([(what, "", value, "", "") for what, value in found])
    print(found, f"{total:.0f} s in all")


if __name__ == "__main__":
    main()
