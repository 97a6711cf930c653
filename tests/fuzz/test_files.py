"""Broken files through the readers and through whole commands: an answer or one sentence."""

from __future__ import annotations

import hashlib
import os

import pytest

from exempla.cli.main import main
from exempla.errors import ExemplaError
from exempla.tables import read_table
from tests.fuzz.files import broken_file, broken_folder

FILES = int(os.environ.get("EXEMPLA_FUZZ_FILES", "60"))
RUNS = int(os.environ.get("EXEMPLA_FUZZ_RUNS", "8"))
"""Files read and commands run; `make fuzz` raises both."""
COMMANDS = ("explain", "clean", "summarize", "fix-labels", "attack", "embed")


def test_readers_read_or_refuse(tmp_path, record_property):
    record_property("files read", FILES)
    problems = {}
    for number in range(FILES):
        path = broken_file(tmp_path, number)
        try:
            table = read_table(path)
            for name in table.names:
                table.strings(name, range(min(len(table), 3)))
        except ExemplaError as error:
            if not str(error).strip() or "\n" in str(error).strip():
                problems[number] = f"not one sentence: {error}"
        except Exception as error:
            problems[number] = f"{path.name}: {type(error).__name__}: {error}"
    assert not problems


@pytest.mark.parametrize("number", range(RUNS))
def test_commands_answer_or_refuse(number, tmp_path, capsys, record_property):
    record_property("command runs", 1)
    images = number % 10 == 9
    path = broken_folder(tmp_path, number) if images else broken_file(tmp_path, number)
    before = _digest(path)
    command = COMMANDS[(number // 3) % len(COMMANDS)]
    wanted = [] if command in ("fix-labels", "attack", "embed", "explain") else ["-k", "4"]
    label = [] if images else ["--label", "y"]
    out = tmp_path / "out"
    code = main([command, str(path), *label, *wanted, "--out", str(out), "--quiet"])
    said = capsys.readouterr()
    assert code in (0, 1, 2), said.err
    assert "Traceback" not in said.err + said.out
    if code == 2:
        *warnings, last = said.err.splitlines()  # the model's accuracy is said before
        assert last.startswith("exempla: error: ")
        assert all(line.startswith("warning: ") for line in warnings)
    assert _digest(path) == before


def _digest(path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files if f.is_file())).hexdigest()
