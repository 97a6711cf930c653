"""A made review folder and a real server process for it, shared by the review page's tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from exempla.report.views import mark_words
from exempla.review import Content, EvidenceRow, ReviewedFile, Suspect, read_review, write_review
from exempla.review.gate import Keys
from exempla.review.log import DecisionLog
from exempla.review.sampling import sample_rest
from exempla.review.server import listen, make_server
from exempla.review.session import ReviewSession

CLASSES = ("ham", "spam", "news")
START = (
    "import sys; from exempla.review import serve;"
    "serve(sys.argv[1], port=int(sys.argv[2]), open_browser=False, initial_sample=0)"
)


def make_folder(directory: Path, n: int = 12, *, hostile: str = "") -> Path:
    """A source file of 3n rows and a review folder with n suspects: row 3i is suspect i."""
    rng = np.random.default_rng(0)
    source = directory / "mails.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        for row in range(3 * n):
            line = {"id": f"m{row}", "text": f"message {row}", "label": CLASSES[row % 2]}
            file.write(json.dumps(line) + "\n")
    folder = directory / "review"
    suspects = [_suspect(3 * i, float(p), hostile) for i, p in enumerate(_falling(rng, n))]
    classes = (*CLASSES, hostile) if hostile else CLASSES
    write_review(
        folder,
        suspects,
        source=ReviewedFile(source, "jsonl", label="label"),
        classes=classes,
        expected_wrong=sum(s.probability for s in suspects) + 2,
        question=hostile or "Which labels are wrong?",
    )
    return folder


def plain(text: str) -> tuple[tuple[str, float], ...]:
    """The pieces of a text without decisive words."""
    return ((text, 0.0),)


def _falling(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.sort(rng.beta(2, 2, n))[::-1]


def _suspect(row: int, p: float, hostile: str) -> Suspect:
    given = CLASSES[row % 2]
    other = hostile or CLASSES[1 - row % 2]
    text = f"The meeting about message {row} moved; cheap pills, click here. {hostile}"
    pixels = np.linspace(0, 1, 28 * 28).reshape(28, 28) if row < 60 else None
    # As everywhere, a positive weight speaks for the label that the row carries.
    words = {"cheap pills": -0.4, "meeting": 0.2, hostile or "click here": -0.1}
    cells = (("hour", "03", -0.3), (hostile or "sender", hostile or "bob", 0.1))
    curated = EvidenceRow(
        row + 1,
        other,
        0.31,
        Content(pieces=plain(f"cheap pills for you {hostile}"), image=pixels, name=hostile),
        id=hostile,
        source="curated",
    )
    return Suspect(
        row,
        given,
        other,
        p,
        0.97,
        side=hostile or ("opponent" if row % 2 else "proponent"),
        id=hostile + f"m{row}",
        content=Content(
            image=pixels if row % 6 == 0 else None,
            pieces=mark_words(text, words),
            cells=cells,
            name=hostile,
        ),
        contradicting=(curated, EvidenceRow(row + 2, other, 0.22, Content(cells=cells))),
        supporters=(
            EvidenceRow(row + 4, given, 0.05, Content(pieces=plain("see you at the meeting"))),
        ),
    )


@dataclass
class Server:
    """A running `serve` process and the address it printed."""

    process: subprocess.Popen[str]
    address: str
    port: int
    output: list[str] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return self.address.split("token=")[1]

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, no goodbye."""
        self.process.kill()
        self.process.wait(timeout=10)

    def client(self) -> AbstractContextManager[httpx.Client]:
        """A client that has traded the token for the key, and sends what the page sends."""
        return signed_in(self.address)


@contextmanager
def signed_in(address: str) -> Iterator[httpx.Client]:
    """Trade the token in `address` for the session key, and send that from then on."""
    origin, token = address.split("/?token=")
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": origin}
    with httpx.Client(base_url=origin, headers=headers, trust_env=False) as client:
        answer = client.post("/api/session", json={}, headers={"X-Exempla": token})
        if answer.status_code != 200:
            raise RuntimeError(f"the token was refused: {answer.status_code} {answer.text}")
        client.headers["X-Exempla"] = answer.json()["session"]
        yield client


@contextmanager
def served(folder: Path, initial_sample: int = 0) -> Iterator[str]:
    """The page served by a thread of this process (quicker than a new one); its address."""
    review, keys = read_review(folder), Keys()
    log = DecisionLog(folder / "decisions.sqlite", review.key)
    listener = listen(0, log)
    port = listener.getsockname()[1]
    session = ReviewSession(review, log, initial_sample=initial_sample)
    server = make_server(session, port, keys)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/?token={keys.token}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        log.close()


def start_server(folder: Path, port: int = 0) -> Server:
    """Start `serve` in its own process and wait until it answers."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(folder), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    stream = process.stdout
    if stream is None:
        raise RuntimeError("the server has no output")
    first = stream.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", first)
    if found is None:
        process.kill()
        raise RuntimeError(f"the server did not start: {first}{stream.read()}")
    server = Server(process, found.group(0), int(found.group(1)))
    # Read on in the background, so that the server never waits for us.
    threading.Thread(target=lambda: server.output.extend(stream), daemon=True).start()
    return server


@contextmanager
def running(folder: Path, port: int = 0) -> Iterator[Server]:
    """`start_server`, ended at the end."""
    server = start_server(folder, port)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def make_framed(
    directory: Path, n: int = 12, rows: int = 400, *, wrong: frozenset[int] = frozenset()
) -> Path:
    """A review folder with a frame: the first n of `rows` mails are listed, the rest is sampled.

    Rows named in `wrong` say so in their text, so that a simulated person can tell.
    """
    source = directory / "mails.jsonl"
    lines = [
        {"id": f"m{row}", "text": _mail(row, row in wrong), "label": CLASSES[row % 2]}
        for row in range(rows)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    p = np.concatenate([np.linspace(0.9, 0.3, n), np.linspace(0.2, 0.001, rows - n)])

    def suspect(row: int) -> Suspect:
        given, other = CLASSES[row % 2], CLASSES[1 - row % 2]
        original = (("id", f"m{row}"), ("text", None))
        content = Content(pieces=plain(_mail(row, row in wrong)))
        return Suspect(
            row, given, other, float(p[row]), 0.6, content=content, original=original, id=f"m{row}"
        )

    strata, chosen, stratum = sample_rest(p[n:], listed=n, seed=5)
    rest = [(int(h), suspect(n + int(i))) for i, h in zip(chosen, stratum, strict=True)]
    folder = directory / "review"
    write_review(
        folder,
        [suspect(row) for row in range(n)],
        source=ReviewedFile(source, "jsonl", label="label"),
        classes=CLASSES,
        expected_wrong=float(p.sum()),
        rest=rest,
        strata=strata,
    )
    return folder


def _mail(row: int, wrong: bool) -> str:
    """A text longer than the page shows at first, whose last word tells the truth."""
    return f"mail number {row} " + "and so on " * 180 + ("MISLABELLED" if wrong else "fine")
