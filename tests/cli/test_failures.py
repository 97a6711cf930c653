"""Nothing ends in a traceback, and nothing a stranger named can speak to the terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from exempla import __version__
from exempla.cli.commands import explain
from exempla.cli.options import Console, plain
from tests.cli.case import run


@pytest.fixture
def raising(monkeypatch):
    """Makes `exempla explain` raise what it is given."""

    def prepare(error: BaseException) -> None:
        def work(options):
            raise error

        monkeypatch.setattr(explain, "run", work)

    return prepare


def test_the_unforeseen_is_one_sentence_and_a_report(raising, tmp_path, capsys):
    raising(ZeroDivisionError("a thing\nand more of it"))
    assert run("explain", "my file.csv", "--label", "y", "--out", tmp_path) == 3
    said = capsys.readouterr()
    assert said.out == ""
    (report,) = tmp_path.iterdir()
    assert said.err == (
        "exempla: error: Internal error (ZeroDivisionError: a thing); please report it with the "
        f"crash report in {report}.\n"
    )
    text = report.read_text()
    assert text.startswith(f"exempla explain 'my file.csv' --label y --out {tmp_path}\n")
    assert f"exempla {__version__}\n" in text
    assert f"numpy {np.__version__}\n" in text
    assert "Traceback (most recent call last)" in text
    assert "and more of it" in text
    assert report.stat().st_mode & 0o777 == 0o600


def test_without_a_folder_the_report_is_among_temporary_files(
    raising, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    raising(KeyError())
    assert run("explain", "a.csv", "--out", tmp_path / "absent") == 3
    (report,) = tmp_path.iterdir()
    assert f"(KeyError); please report it with the crash report in {report}." in (
        capsys.readouterr().err
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert run("explain", "a.csv", "--out", tmp_path / "absent") == 3
    assert "could not be written" in capsys.readouterr().err


def test_too_little_memory_has_a_sentence_of_its_own(raising, tmp_path, capsys):
    raising(MemoryError("Unable to allocate 3.2 TiB for an array"))
    assert run("explain", "a.csv", "--out", tmp_path) == 3
    error = capsys.readouterr().err
    assert "Not enough memory (Unable to allocate 3.2 TiB for an array): use" in error
    assert error.count("\n") == 1


def test_being_stopped_is_no_crash(raising, tmp_path, capsys):
    raising(KeyboardInterrupt())
    assert run("explain", "a.csv", "--out", tmp_path) == 130
    assert "stopped" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


ODD = "\x1b[2J\x07\x9b31m\u202egnp\u2066\x7f\r"


@pytest.mark.parametrize(
    "letter", [*map(chr, range(32)), *map(chr, range(127, 160)), *"\u202e\u2069"]
)
def test_nothing_a_terminal_obeys_is_printed(letter):
    shown = plain(f"a{letter}b")
    if letter in "\t\n":
        assert shown == f"a{letter}b"
    else:
        assert letter not in shown
        assert shown == f"a{ascii(letter)[1:-1]}b"


def test_letters_of_all_the_world_stay():
    for text in ("héllo", "日本語", "עברית", "R² ± 0.1 …", "👩‍🔬"):
        assert plain(text) == text


def test_what_the_stream_cannot_show_is_still_printed(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    Console(Namespace(quiet=False, json=False)).say("R² of \udcff.csv")
    assert stream.buffer.getvalue() == b"R\\xb2 of \\udcff.csv\n"


def obeyed(text: str) -> list[str]:
    return [letter for letter in ODD if letter in text and letter not in "gnp[2J31m"]


def test_names_of_files_columns_and_classes_are_neutralised(tmp_path, capsys):
    name = ODD.replace("\r", "")
    rows = "".join(f"{i % 7},{'ab'[i % 5 > 2]}{name}\n" for i in range(60))
    file = tmp_path / f"a{name}.csv"
    file.write_text(f"size{name},y{name}\n{rows}", encoding="utf-8")
    words = ("--label", f"y{name}", "-k", 3, "--out", tmp_path / f"out{name}", "--side", "both")
    assert run("explain", file, *words) == 0
    said = capsys.readouterr()
    assert f"a{ascii(name)[1:-1]}.csv" in said.out
    assert not obeyed(said.out + said.err)
    assert run("explain", file, "--label", f"x{name}", "--quiet", "--out", tmp_path / "o") == 2
    assert not obeyed(capsys.readouterr().err)
    with pytest.raises(SystemExit):
        run("explain", file, file, "--label", "y")
    assert not obeyed(capsys.readouterr().err)


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_file_name_that_is_no_text(tmp_path):
    file = os.fsencode(tmp_path) + b"/caf\xe9.csv"
    Path(os.fsdecode(file)).write_text(
        "size,y\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(60))
    )
    command = [sys.executable, "-m", "exempla.cli.main", "explain", file, "--label", "y"]
    done = subprocess.run([*command, "-k", "3", "--out", tmp_path / "out"], capture_output=True)
    assert done.returncode == 2, done.stderr
    assert b"caf\\udce9.csv' is not valid UTF-8" in done.stderr
    assert not (tmp_path / "out").exists()
