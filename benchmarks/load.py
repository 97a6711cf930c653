"""Mixed load on one machine: commands one after the other, and people deciding on the review page.

    python -m benchmarks.load --minutes 30 --out docs/experiments/load.csv

A real `exempla review` server is asked by several people at once, each deciding about rows of their
own, again and again, while `explain` and `fix-labels` run in processes of their own. At the end the
server exports: the last decision of every row that it confirmed must stand in decisions.json.
Resident memory of the server and of this driver, requests and commands are noted every five minutes
(more often in a short run).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

ROOT = Path(__file__).parents[1]
ENV = {
    **os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
}  # fmt: skip
EXEMPLA = [sys.executable, "-m", "exempla.cli.main"]
PAUSE = 0.2
"""Seconds between two requests of one person: a fast person, some thirty times over."""


@dataclass
class Counts:
    """What happened so far, by whichever thread."""

    sent: int = 0
    answered: int = 0
    refused: int = 0
    """Answers other than 200."""
    lost: int = 0
    """Requests that nobody answered."""
    decisions: int = 0
    commands: int = 0
    failed: int = 0
    slowest: float = 0.0
    peak: int = 0
    """KiB of the largest command."""
    confirmed: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def tables(folder: Path) -> None:
    """Two files with some wrong labels."""
    rng = np.random.default_rng(0)
    cells = load_breast_cancer(as_frame=True).frame
    wrong = rng.choice(len(cells), 25, replace=False)
    cells.loc[wrong, "target"] = 1 - cells.loc[wrong, "target"]
    cells.to_csv(folder / "cells.csv", index=False)
    X, y = load_digits(return_X_y=True)
    wrong = rng.choice(len(y), 90, replace=False)
    y[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
    frame = pd.DataFrame(X.astype(int), columns=[f"pixel{i}" for i in range(64)])
    frame.assign(digit=[f"d{v}" for v in y]).to_csv(folder / "digits.csv", index=False)


COMMANDS = (
    ["explain", "cells.csv", "--label", "target"],
    ["fix-labels", "cells.csv", "--label", "target"],
    ["explain", "digits.csv", "--label", "digit"],
    ["fix-labels", "digits.csv", "--label", "digit"],
)


def commands(folder: Path, counts: Counts, over: threading.Event) -> None:
    """One command after the other, in turn, until it is over."""
    turn = 0
    while not over.is_set():
        words = COMMANDS[turn % len(COMMANDS)]
        out = folder / f"out-{turn % len(COMMANDS)}"
        process = subprocess.Popen(
            [*EXEMPLA, *words, "--quiet", "--out", str(out)], cwd=folder, env=ENV,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        sound = process.returncode == 0 and (out / "explanation.json").exists()
        with counts.lock:
            counts.commands += 1
            counts.failed += not sound
            counts.peak = max(counts.peak, used.ru_maxrss)
        if not sound:
            print("a command failed:", words, said[-500:], flush=True)
        turn += 1


class Page:
    """A person's connection to the server."""

    def __init__(self, port: int, key: str, counts: Counts) -> None:
        self.port, self.key, self.counts = port, key, counts

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer; (0, None) where none came."""
        host = f"127.0.0.1:{self.port}"
        head = {"Host": host, "X-Exempla": self.key}
        data = None
        if body is not None:
            data = json.dumps(body)
            head |= {
                "Content-Type": "application/json", "Origin": f"http://{host}",
                "Sec-Fetch-Site": "same-origin",
            }  # fmt: skip
        counts, start = self.counts, time.monotonic()
        with counts.lock:
            counts.sent += 1
        try:
            line = HTTPConnection("127.0.0.1", self.port, timeout=120)
            line.request(method, path, data, head)
            answer = line.getresponse()
            status, text = answer.status, answer.read()
            line.close()
        except (OSError, HTTPException) as problem:
            print("no answer:", method, path, repr(problem), flush=True)
            with counts.lock:
                counts.lost += 1
            return 0, None
        with counts.lock:
            counts.answered += 1
            counts.refused += status != 200
            counts.slowest = max(counts.slowest, time.monotonic() - start)
        return status, json.loads(text) if text[:1] in (b"{", b"[") else text


def person(page: Page, items: list[dict[str, Any]], over: threading.Event, seed: int) -> None:
    """Reads, decides, undoes nothing, and looks at the order now and then."""
    rng = np.random.default_rng(seed)
    seen = dict.fromkeys((item["item"] for item in items), 0)
    while not over.is_set():
        item = items[int(rng.integers(len(items)))]
        row = item["item"]
        page.ask("GET", f"/api/suspect/{row}")
        time.sleep(PAUSE)
        action = str(rng.choice(["keep", "remove", "skip", "relabel"]))
        label = item.get("suggested") if action == "relabel" else None
        action = "keep" if action == "relabel" and label is None else action
        wish = {"row": row, "action": action, "seen": seen[row], "once": str(uuid4()), "note": ""}
        if label is not None:
            wish["label"] = label
        status, answer = page.ask("POST", "/api/decide", wish)
        if status == 200:
            seen[row] = answer["state"]["version"]
            with page.counts.lock:
                page.counts.decisions += 1
                page.counts.confirmed[row] = action, label
        elif status == 409 and answer["current"]:
            seen[row] = answer["current"]["version"]
        time.sleep(PAUSE)
        if rng.random() < 0.1:
            page.ask("GET", "/api/order")
            page.ask("GET", f"/api/state?since={max(0, max(seen.values()) - 5)}")


def resident(pid: int) -> float:
    """MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found.group(1)) / 1024 if found else 0.0


def served(folder: Path) -> tuple[subprocess.Popen[str], int, str]:
    """A running server, its port, and the token it printed."""
    process = subprocess.Popen(
        [*EXEMPLA, "review", str(folder), "--no-browser", "--json"], env=ENV, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    parts = urlsplit(address)
    token = (parts.query or parts.fragment).partition("=")[2]
    assert parts.port is not None
    return process, parts.port, token


def kept(folder: Path) -> dict[int, tuple[str, str | None]]:
    """What decisions.json says of every row."""
    said = json.loads((folder / "decisions.json").read_text(encoding="utf-8"))
    rows = said["decisions"] if isinstance(said, dict) else said
    return {int(one["row"]): (one["action"], one.get("new_label")) for one in rows}


def load(minutes: float, people: int, out: Path | None) -> int:
    """Run it; how many confirmed decisions are missing or other than confirmed."""
    counts, over = Counts(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="exempla-load-") as name:
        folder = Path(name)
        tables(folder)
        words = [*COMMANDS[3], "--quiet", "--out", str(folder / "review")]
        subprocess.run([*EXEMPLA, *words], cwd=folder, env=ENV, check=True)
        server, port, token = served(folder / "review")
        try:
            _, session = Page(port, token, counts).ask("POST", "/api/session", {})
            page = Page(port, session["session"], counts)
            said = page.ask("GET", "/api/review")[1]
            suspects = [dict(zip(said["fields"], one, strict=True)) for one in said["suspects"]]
            print(f"{len(suspects)} suspects; for example {suspects[0]}", flush=True)
            jobs = [threading.Thread(target=commands, args=(folder, counts, over))]
            for i in range(people):
                one = Page(port, page.key, counts)
                jobs.append(
                    threading.Thread(target=person, args=(one, suspects[i::people], over, i))
                )
            for job in jobs:
                job.start()
            lines = watched(minutes, counts, server.pid, len(jobs), out)
            over.set()
            for job in jobs:
                job.join()
            status, made = page.ask("POST", "/api/export", {})
            found = kept(folder / "review")
        finally:
            server.terminate()
            server.wait()
        wrong = [
            row
            for row, (action, label) in counts.confirmed.items()
            if found.get(row, ("", None))[0] != action
            or (action == "relabel" and found[row][1] != label)
        ]
        lines.append(line(minutes, counts, 0.0, resident(os.getpid()), len(wrong)))
        write(lines, out)
        print(f"export: {status} {made}; {len(counts.confirmed)} rows confirmed, "
              f"{len(wrong)} of them not as confirmed", flush=True)  # fmt: skip
    return len(wrong) + counts.lost + counts.failed


def watched(
    minutes: float, counts: Counts, server: int, threads: int, out: Path | None
) -> list[dict[str, Any]]:
    """A line at the start and every five minutes, kept at once."""
    every = min(300.0, minutes * 60 / 4)
    start, lines = time.monotonic(), []
    for turn in range(int(minutes * 60 / every) + 1):
        time.sleep(max(0.0, start + turn * every - time.monotonic()))
        passed = (time.monotonic() - start) / 60
        lines.append(line(passed, counts, resident(server), resident(os.getpid()), ""))
        print(lines[-1], flush=True)
        write(lines, out)
    return lines


def line(
    minute: float, counts: Counts, server: float, driver: float, missing: int | str
) -> dict[str, Any]:
    with counts.lock:
        return {
            "minute": round(minute, 1),
            "server_mib": round(server, 1) or "",
            "driver_mib": round(driver, 1),
            "sent": counts.sent, "answered": counts.answered, "lost": counts.lost,
            "refused": counts.refused, "decisions_confirmed": counts.decisions,
            "rows_confirmed": len(counts.confirmed), "missing_in_export": missing,
            "slowest_s": round(counts.slowest, 2),
            "commands": counts.commands, "commands_failed": counts.failed,
            "largest_command_mib": counts.peak // 1024,
        }  # fmt: skip


def write(lines: list[dict[str, Any]], out: Path | None) -> None:
    if out is not None:
        with out.open("w", newline="") as file:
            table = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.exit(1 if load(options.minutes, options.people, options.out) else 0)


if __name__ == "__main__":
    main()
