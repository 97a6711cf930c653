"""What the commands write: never over what is read, whole or not at all, for nobody else's eyes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from exempla.cli import fitted, output
from exempla.version import __version__
from tests.cli.case import pictures, run

OWN = {
    "explain": ["explanation.json", "explanation.csv", "report.html", "manifest.json"],
    "summarize": ["summary.csv", "summary.parquet"],
    "clean": ["cleaned.csv"],
    "embed": ["rows.npy", "explanation.csv"],
    "attack": ["explanation.csv", "report.html"],
    "fix-labels": ["explanation.csv", "suspects.jsonl", "patch.csv", "corrected.csv"],
}
"""Names each command writes to; explain's are everybody's."""


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.iloc[:150, [0, 1, 4, 7]].copy()
    frame["y"] = np.where(data.target[:150] == 1, "benign", "malignant")
    return frame


@pytest.fixture
def no_work(monkeypatch):
    """Reading anything fails the test: the mistake must be noticed before."""

    def work(*arguments, **options):
        pytest.fail("work was done before the mistake was noticed")

    monkeypatch.setattr(fitted, "read_files", work)


def refusal(capsys) -> str:
    error = capsys.readouterr().err
    assert error.startswith("exempla: error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(("command", "name"), [(c, n) for c, names in OWN.items() for n in names])
@pytest.mark.parametrize("how", ["itself", "link to it", "link from it", "same inode", "test file"])
def test_no_output_is_an_input(command, name, how, tmp_path, monkeypatch, capsys, no_work):
    monkeypatch.chdir(tmp_path)
    given, out = Path(name), Path("out")
    out.mkdir()
    if how == "itself":
        given.write_text("precious")
        out = Path()
    elif how == "link to it":
        given.write_text("precious")
        (out / name).symlink_to(given.resolve())
    elif how == "link from it":
        (out / name).write_text("precious")
        given.symlink_to(out / name)
    elif how == "same inode":
        given.write_text("precious")
        (out / name).hardlink_to(given)
    else:
        (out / name).write_text("precious")
        given = out / name
    words = [given] if how != "test file" else ["train" + given.suffix, "--test", given]
    if how == "test file":
        Path("train" + given.suffix).write_text("x,y\n")
    assert run(command, *words, "--label", "y", "--out", out) == 2
    assert "choose another folder with --out" in refusal(capsys)
    assert given.read_text() == "precious"


@pytest.mark.parametrize("out", ["pictures", "pictures/cat", "pictures/new", "link"])
def test_no_results_among_the_images(out, tmp_path, monkeypatch, capsys, no_work):
    monkeypatch.chdir(tmp_path)
    Path("pictures/cat").mkdir(parents=True)
    Path("link").symlink_to("pictures")
    assert run("explain", "pictures", "--out", out) == 2
    assert "outside it with --out" in refusal(capsys)
    assert os.listdir("pictures") == ["cat"]


def test_images_are_not_written_over(tmp_path, monkeypatch, capsys, no_work):
    monkeypatch.chdir(tmp_path)
    Path("images/cat").mkdir(parents=True)
    assert run("fix-labels", "images", "--out", ".") == 2
    assert "images would be written over it" in refusal(capsys)


def test_a_link_in_the_folder_is_not_followed(frame, tmp_path):
    frame.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "other.csv").write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("explanation.json", "explanation.csv", "report.html", "summary.csv"):
        (out / name).symlink_to(tmp_path / "other.csv")
    words = ("summarize", tmp_path / "a.csv", "--label", "y", "-k", 5, "--out", out, "--quiet")
    assert run(*words) == 2, "links are not ours either"
    assert run(*words, "--force") == 0
    assert (tmp_path / "other.csv").read_text() == "precious"
    assert not any(path.is_symlink() for path in out.iterdir())


@pytest.mark.parametrize("command", sorted(OWN))
def test_results_are_whole_listed_and_private(command, frame, tmp_path):
    frame.to_csv(tmp_path / "a.2024.csv", index=False)
    out = tmp_path / "new" / "out"
    words = [command, tmp_path / "a.2024.csv", "--label", "y", "--out", out, "--quiet"]
    old = os.umask(0)
    try:
        assert run(*words) == 0
    finally:
        os.umask(old)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["version"] == __version__
    assert manifest["command"] == "exempla " + " ".join(map(str, words))
    there = {path.name: path for path in out.iterdir() if path.is_file()}
    review = {"review.json", "suspects.jsonl"} if command == "fix-labels" else set()
    assert set(manifest["files"]) == there.keys() - review - {"manifest.json"}
    for name, stated in manifest["files"].items():
        data = there[name].read_bytes()
        assert (stated["size"], stated["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert {path.stat().st_mode & 0o777 for path in there.values()} == {0o600}
    assert out.stat().st_mode & 0o777 == out.parent.stat().st_mode & 0o777 == 0o700
    assert command != "clean" or "cleaned.csv" in there


def unwritable(folder: Path) -> None:
    raise OSError(errno.EACCES, "Permission denied", str(folder))


def full(folder: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("out", "broken", "reason"),
    [
        ("taken", None, "taken is not a folder"),
        ("taken/x", None, "taken is not a folder"),
        ("/proc/nowhere/x", None, "No such file"),
        ("fine", unwritable, "Permission denied"),
        ("fine", full, "No space left"),
    ],
)
@pytest.mark.parametrize("command", ["demo", "explain"])
def test_an_unusable_folder_is_noticed_first(
    command, out, broken, reason, tmp_path, monkeypatch, capsys, no_work
):
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("a file")
    if broken is not None:
        monkeypatch.setattr(output, "probe", broken)
    words = [] if command == "demo" else ["a.csv", "--label", "y"]
    assert run(command, *words, "--out", out) == 2
    error = refusal(capsys)
    assert f"written to {out} (" in error
    assert reason in error
    assert "--out" in error


def test_a_folder_or_manifest_in_the_way_is_noticed_first(tmp_path, capsys, no_work):
    words = ("explain", "a.csv", "--label", "y", "--out", tmp_path)
    (tmp_path / "report.html").mkdir()
    assert run(*words) == 2
    assert "report.html is a folder" in refusal(capsys)
    (tmp_path / "report.html").rmdir()
    (tmp_path / "manifest.json").write_text("{}")
    assert run(*words) == 2
    assert "not written by exempla" in refusal(capsys)


@pytest.mark.parametrize("command", sorted(OWN))
def test_files_of_the_user_are_not_overwritten(command, frame, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame.to_csv("d.csv", index=False)
    unwritten = ("manifest.json", "summary.parquet", "patch.csv", "corrected.csv")
    mine = [name for name in (*OWN["explain"][:3], *OWN[command]) if name not in unwritten]
    for name in mine:
        Path(name).write_text("mine")
    words = (command, "d.csv", "--label", "y", "--out", ".", "--quiet")
    assert run(*words) == 2
    error = refusal(capsys)
    assert "which exempla did not write" in error
    assert "--force" in error
    assert all(Path(name).read_text() == "mine" for name in mine)
    assert run(*words, "--force") == 0
    said = capsys.readouterr().err
    assert "warning: --force: overwriting explanation.json" in said
    assert Path("report.html").read_text() != "mine"
    assert run(*words) == 0, "now they are ours"


def test_a_mistake_leaves_no_empty_folder(tmp_path, capsys):
    assert run("explain", tmp_path / "absent.csv", "--label", "y", "--out", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


LIMITED = """
import resource, signal, sys
from exempla.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("command", ["embed", "summarize", "clean", "fix-labels"])
def test_no_room_for_the_results_changes_nothing(command, frame, tmp_path):
    """Files may grow to 5,000 bytes, as if the disk were full then."""
    frame.to_csv(tmp_path / "a.csv", index=False)
    out = tmp_path / "out"
    words = [command, str(tmp_path / "a.csv"), "--label", "y", "--quiet", "--out", str(out)]
    assert run(*words) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    start = [sys.executable, "-c", LIMITED, "5000"]
    done = subprocess.run([*start, *words], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"exempla: error: The results cannot be written to {out} (")
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_images_beside_the_results_are_fine(tmp_path):
    pictures(tmp_path / "pictures", 20)
    words = ("embed", tmp_path / "pictures", "--out", tmp_path, "--quiet")
    assert run(*words) == 0
    assert len(json.loads((tmp_path / "explanation.json").read_text())["indices"]) == 40
