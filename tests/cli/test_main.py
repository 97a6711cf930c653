"""The command line as a user meets it: files in, three files out, clear sentences, exit codes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from exempla import __version__
from exempla.cli.main import build_parser
from tests.cli.case import CONTRACT, pictures, run

COMMANDS = [
    "demo", "explain", "fix-labels", "review", "clean", "summarize", "attack", "embed",
    "reproduce", "bench", "doctor", "completion",
]  # fmt: skip
FILES = {"explanation.json", "explanation.csv", "report.html", "manifest.json"}


@pytest.fixture(scope="module")
def cancer():
    """A table with an id, five measurements and words for labels."""
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.iloc[:, [0, 1, 4, 7, 20]].copy()
    frame.insert(0, "case_id", [f"c{i:03d}" for i in range(len(frame))])
    frame["diagnosis"] = np.where(data.target == 1, "benign", "malignant")
    return frame


@pytest.fixture(scope="module")
def table(cancer, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "cancer.csv"
    cancer.to_csv(path, index=False)
    return path


def result(folder) -> dict:
    return json.loads((folder / "explanation.json").read_text())


def test_demo_shows_its_work(tmp_path, capsys):
    assert run("demo", "--out", tmp_path, "-k", 12) == 0
    said = capsys.readouterr().out
    assert "mistakes" in said
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"mistakes.png"}
    for name in FILES - {"manifest.json"} | {"mistakes.png"}:
        assert str(tmp_path / name) in said
    found = result(tmp_path)
    assert found.keys() >= CONTRACT
    assert len(found["indices"]) == 12
    assert all(value < 0 for value in found["alignment"]), "opponents only"
    assert (tmp_path / "mistakes.png").read_bytes().startswith(b"\x89PNG")


def test_explain_csv_names_rows_of_the_file(table, cancer, tmp_path, capsys):
    assert run("explain", table, "--label", "diagnosis", "-k", 8, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert said.index("cross-validated accuracy") < said.index(
        "Retrained without these 8 of 456 training rows, the correct"
    )
    found = result(tmp_path)
    assert found.keys() >= CONTRACT
    listed = pd.read_csv(tmp_path / "explanation.csv")
    assert listed["index"].tolist() == found["indices"]
    # Rows of the file, not positions in the training part: the labels must match.
    assert listed["label"].tolist() == cancer["diagnosis"].iloc[found["indices"]].tolist()
    assert not set(found["indices"]) & set(found["questioned"])
    page = (tmp_path / "report.html").read_text()
    assert "c" + f"{found['indices'][0]:03d}" in page
    assert "exempla explain" in re.sub("<[^>]*>", "", page)  # words stand apart, not to be broken


def test_same_seed_same_answer(table, tmp_path):
    for name in ("a", "b"):
        run("explain", table, "--label", "diagnosis", "-k", 5, "--quiet", "--out", tmp_path / name)
    assert result(tmp_path / "a") == result(tmp_path / "b")


def test_json_is_all_that_standard_output_holds(table, tmp_path, capsys):
    run("explain", table, "--label", "diagnosis", "-k", 3, "--json", "--out", tmp_path)
    said = capsys.readouterr()
    assert len(json.loads(said.out)["indices"]) == 3
    assert "cross-validated" in said.err


def test_quiet_says_nothing(table, tmp_path, capsys):
    run("explain", table, "--label", "diagnosis", "-k", 3, "--quiet", "--out", tmp_path)
    said = capsys.readouterr()
    assert said.out == ""
    assert "Model:" not in said.err


def test_explain_npz_of_rows(tmp_path):
    X, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "digits.npz", X=X[:400], y=y[:400])
    out = tmp_path / "out"
    assert run("explain", tmp_path / "digits.npz", "-k", 4, "--quiet", "--out", out) == 0
    assert len(result(out)["indices"]) == 4


def test_explain_a_folder_of_images(tmp_path, capsys):
    pictures(tmp_path / "pictures", 30)
    out = tmp_path / "out"
    assert run("explain", tmp_path / "pictures", "-k", 4, "--ask", "all", "--out", out) == 0
    assert "60 images in 2 classes" in capsys.readouterr().out
    listed = pd.read_csv(out / "explanation.csv")
    # Files are rows in order of their folders: the first 30 are dark.
    assert listed["label"].tolist() == np.where(listed["index"] < 30, "dark", "light").tolist()
    assert (out / "report.html").read_text().count("<image id=") >= 4


def test_ask_chosen_rows_on_both_sides(table, tmp_path):
    run("explain", table, "--label", "diagnosis", "-k", 3, "--quiet", "--out", tmp_path / "a")
    row = result(tmp_path / "a")["questioned"][0]
    more = ("--ask", row, "--side", "both", "--quiet", "--out", tmp_path / "b")
    assert run("explain", table, "--label", "diagnosis", "-k", 3, *more) == 0
    assert result(tmp_path / "b")["questioned"] == [row]
    assert result(tmp_path / "b")["side"] == "both"


def test_test_file_of_its_own(cancer, tmp_path):
    cancer[:400].to_csv(tmp_path / "train.csv", index=False)
    cancer[400:].to_csv(tmp_path / "test.csv", index=False)
    files = (tmp_path / "train.csv", "--test", tmp_path / "test.csv")
    assert (
        run("explain", *files, "--label", "diagnosis", "-k", 3, "--quiet", "--out", tmp_path) == 0
    )
    assert result(tmp_path)["n_train"] == 400
    assert max(result(tmp_path)["questioned"]) < len(cancer) - 400


def test_own_model_and_fail_above(table, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_for_exempla.py").write_text(
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.compose import make_column_selector, make_column_transformer\n"
        "from sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import StandardScaler\n"
        "def make():\n"
        "    numbers = make_column_selector(dtype_include='number')\n"
        "    scale = make_column_transformer((StandardScaler(), numbers))\n"
        "    return make_pipeline(scale, LogisticRegression(C=0.01))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ("explain", table, "--label", "diagnosis", "-k", 3, "--out", tmp_path / "out")
    assert run(*words, "--model", "mine_for_exempla:make", "--fail-above", 0) == 1
    assert "which is above --fail-above 0" in capsys.readouterr().err
    assert result(tmp_path / "out")["model"] == "mine_for_exempla:make"
    assert run(*words, "--fail-above", 0.9, "--quiet") == 0


BROKEN = {
    "syntax": ("def make(:", "cannot be imported (SyntaxError: "),
    "raises": ("1 / 0", "cannot be imported (ZeroDivisionError: division by zero)"),
    "lacks": ("import no_such_library", "(ModuleNotFoundError: No module named 'no_such_library')"),
    "leaves": ("import sys; sys.exit('bye')", "cannot be imported (SystemExit: bye)"),
    "factory": ("def make():\n  raise KeyError('gone')", "arguments (KeyError: 'gone')"),
    "needs": ("def make(depth): pass", "missing 1 required positional argument: 'depth'"),
    "words": (
        "from sklearn.linear_model import LogisticRegression as make",
        "cannot be trained on this file (ValueError: could not convert string to float",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_is_one_sentence(kind, table, tmp_path, monkeypatch, capsys):
    code, sentence = BROKEN[kind]
    (tmp_path / f"broken_{kind}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    words = ("explain", table, "--label", "diagnosis", "--kind", "case_id=category", "--quiet")
    assert run(*words, "--model", f"broken_{kind}:make") == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_files_of_the_current_folder_pass_for_no_library(table, tmp_path):
    """Neither one that is loaded later (by the report, by plots) nor an optional one."""
    planted = "open('ran', 'w'); raise SystemExit('planted code ran')"
    for name in ("jinja2", "matplotlib", "cupy", "sklearn", "shtab"):
        (tmp_path / f"{name}.py").write_text(planted)
    (tmp_path / "helper.py").write_text("C = 0.5")
    (tmp_path / "mine.py").write_text(
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import make_pipeline\n"
        "import helper\n"
        "def make():\n"
        "    return LogisticRegression(C=helper.C, max_iter=2000)\n"
    )
    code = (
        "import os, sys; from exempla.cli.main import main; before = list(sys.path)\n"
        "os.chdir(sys.argv[1])\n"
        "code = main(sys.argv[2:]); assert sys.path == before; sys.exit(code)"
    )
    words = ["explain", str(table), "--label", "diagnosis", "--quiet", "--out", "out", "--model"]
    for model in ("sklearn.linear_model:LogisticRegression", "mine:make"):
        command = [sys.executable, "-P", "-c", code, str(tmp_path), *words, model]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
    assert json.loads((tmp_path / "out" / "explanation.json").read_text())["model"] == "mine:make"


def test_clean_leaves_something_to_learn_from(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    y = np.where(X[:, 0] + 1.2 * rng.normal(size=20) > 0, "a", "b")
    pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "y": y}).to_csv(tmp_path / "few.csv", index=False)
    codes = set()
    for seed in range(6):
        words = ("--label", "y", "-k", 50, "--seed", seed, "--out", tmp_path / "out", "--quiet")
        codes.add(run("clean", tmp_path / "few.csv", *words))
        error = capsys.readouterr().err.splitlines()
        if any("is left to train on; choose a smaller -k" in line for line in error):
            return
    pytest.fail(f"no file was small enough: {codes}")


@pytest.fixture(scope="module")
def noisy(cancer, tmp_path_factory):
    """20 wrong labels among the rows that are not trusted."""
    folder = tmp_path_factory.mktemp("noisy")
    frame = cancer.copy()
    order = np.random.default_rng(0).permutation(len(frame))
    wrong = order[150:170]
    other = {"benign": "malignant", "malignant": "benign"}
    frame.loc[wrong, "diagnosis"] = frame.loc[wrong, "diagnosis"].map(other)
    frame["trusted"] = np.where(np.isin(np.arange(len(frame)), order[:150]), "yes", "")
    frame.to_csv(folder / "noisy.csv", index=False)
    out = folder / "out"
    code = run(
        "fix-labels", folder / "noisy.csv", "--label", "diagnosis", "--curated-column", "trusted",
        "-k", 30, "--quiet", "--out", out, "--fail-above", 0.5,
    )  # fmt: skip
    assert code == 0
    return folder / "noisy.csv", out, set(wrong.tolist())


def test_fix_labels_finds_what_was_flipped(noisy):
    _, out, wrong = noisy
    found = result(out)
    assert len(wrong & set(found["indices"][:20])) >= 12
    assert 5 < found["expected_errors"] < 60
    assert {path.name for path in out.iterdir()} >= FILES | {"review.json", "suspects.jsonl"}
    assert "Which labels are wrong?" in (out / "report.html").read_text()


def test_curated_rows_from_a_file_of_their_own(noisy, tmp_path):
    source, _, wrong = noisy
    frame = pd.read_csv(source)
    trusted = frame["trusted"] == "yes"
    frame[trusted].to_csv(tmp_path / "curated.csv", index=False)
    frame[~trusted].to_csv(tmp_path / "rest.csv", index=False)
    words = ("--curated", tmp_path / "curated.csv", "--label", "diagnosis", "--quiet")
    more = ("--kind", "trusted=ignored", "-k", 20, "--out", tmp_path / "out")
    assert run("fix-labels", tmp_path / "rest.csv", *words, *more) == 0
    rows = np.flatnonzero(~trusted)[result(tmp_path / "out")["indices"]]
    assert len(wrong & set(rows.tolist())) >= 12
    first = json.loads((tmp_path / "out" / "suspects.jsonl").read_text().splitlines()[0])
    assert {row["source"] for row in first["contradicting"]} == {"curated"}


def test_nothing_decided_exports_the_same_bytes(noisy, capsys):
    source, out, _ = noisy
    assert run("review", out, "--export", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["changed"] == 0
    assert (out / "corrected.csv").read_bytes() == source.read_bytes()


def test_suspects_carry_their_evidence(noisy):
    _, out, _ = noisy
    cards = [json.loads(line) for line in (out / "suspects.jsonl").read_text().splitlines()]
    cards = cards[: json.loads((out / "review.json").read_text())["suspects"]]  # then the rest
    assert len(cards) == 30
    assert [card["row"] for card in cards] == result(out)["indices"]
    assert all(card["content"]["cells"] for card in cards)
    first = cards[0]
    assert first["contradicting"]
    assert all(row["label"] != first["given"] for row in first["contradicting"])


def test_clean_writes_the_file_without_the_named_rows(noisy, tmp_path, capsys):
    source, _, _ = noisy
    words = ("--label", "diagnosis", "--kind", "trusted=ignored", "-k", 10, "--out", tmp_path)
    assert run("clean", source, *words) == 0
    assert "its accuracy on all test rows goes from" in capsys.readouterr().out
    before, after = pd.read_csv(source), pd.read_csv(tmp_path / "cleaned.csv")
    gone = set(before["case_id"]) - set(after["case_id"])
    assert gone == {f"c{i:03d}" for i in result(tmp_path)["indices"]}


def test_summarize_writes_weighted_rows(table, cancer, tmp_path, capsys):
    assert run("summarize", table, "--label", "diagnosis", "-k", 15, "--out", tmp_path) == 0
    assert "15 weighted rows summarise" in capsys.readouterr().out
    rows = pd.read_csv(tmp_path / "summary.csv")
    assert (rows["weight"] > 0).all()
    assert rows["case_id"].tolist() == cancer["case_id"].iloc[rows["row"]].tolist()
    assert result(tmp_path)["accuracy_summary"] > 0.8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain", "absent.csv", "--label", "y"], "no file 'absent.csv'"),
        (["explain", "TABLE"], "--label COLUMN"),
        (["explain", "TABLE", "--label", "diagnosi"], "did you mean 'diagnosis'"),
        (["explain", "TABLE", "--label", "diagnosis", "-k", "0"], "k is 0; ask for at least one"),
        (["explain", "TABLE", "--label", "diagnosis", "--kind", "oops"], "COLUMN=KIND"),
        (["explain", "TABLE", "--label", "diagnosis", "--ask", "some"], "errors, all"),
        (["explain", "TABLE", "--label", "diagnosis", "--model", "nowhere:x"], "'nowhere'"),
        (["explain", "TABLE", "--label", "diagnosis", "--model", "math:pi"], "give a model"),
        (["explain", "TABLE", "--label", "diagnosis", "--model", "math"], "package.module:name"),
        (["explain", "TABLE", "--label", "diagnosis", "--test-size", "0"], "no test rows"),
        (["demo", "-k", "-3"], "k is -3; ask for at least one"),
        (["demo", "-k", "5000"], "k is 5000, but there are only 898"),
        (["demo", "--seed", "-1"], "seed is -1"),
        (
            ["summarize", "TABLE", "--label", "diagnosis", "--seed", str(2**33)],
            "seed is 8589934592",
        ),
        (["explain", "TABLE", "--label", "diagnosis", "--model", "../x:y"], "package.module:name"),
        (["explain", "TABLE", "--label", "diagnosis", "--model", ".x:y"], "package.module:name"),
        (["explain", "TABLE", "--label", "diagnosis", "--model", "x:y:z"], "package.module:name"),
        (["explain", "TABLE", "--label", "diagnosis", "--model", ":y"], "package.module:name"),
        (["review", "nowhere"], "has no review.json"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*[table if word == "TABLE" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("exempla: error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_a_folder_that_cannot_be_made(table, tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert run("explain", table, "--label", "diagnosis", "--out", tmp_path / "taken" / "x") == 2
    assert "--out" in capsys.readouterr().err


def test_shares_are_checked_by_the_parser(table, capsys):
    with pytest.raises(SystemExit) as stop:
        run("explain", table, "--fail-above", "7")
    assert stop.value.code == 2
    assert "a number from 0 to 1" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        run("--version")
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"exempla {__version__}"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("reproduce", "bench")])
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run(command, "--help")
    assert stop.value.code == 0
    assert len(capsys.readouterr().out) > 150


def test_help_says_that_a_model_runs_code():
    text = " ".join(
        build_parser()._subparsers._group_actions[0].choices["explain"].format_help().split()
    )  # pyright: ignore
    assert "RUNS THE CODE" in text


def test_doctor_knows_the_core(capsys):
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exempla"] == __version__
    assert found["core"]["numpy"] == np.__version__


def test_parser_imports_nothing_heavy():
    code = (
        "import sys; from exempla.cli.main import build_parser; build_parser();"
        "print([m for m in ('numpy', 'sklearn', 'torch', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh", "powershell"])
def test_completion_is_valid_and_whole(shell, capsys):
    assert run("completion", shell) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert "fail-above" in script
    if shutil.which(shell) is None:
        return
    done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_only_completion_loads_shtab():
    code = "import sys; from exempla.cli.main import main; main(sys.argv[1:]);"
    code += "print('shtab' in sys.modules)"
    for words, loaded in ((["review", "nowhere"], "False"), (["completion", "tcsh"], "True")):
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == loaded


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_paths(tmp_path, capsys):
    run("completion", "bash")
    script = capsys.readouterr().out
    (tmp_path / "mails.csv").touch()
    (tmp_path / "mails").mkdir()
    for words, expected in (
        ("fix", ["fix-labels"]),
        ("explain --curated-", ["--curated-column"]),
        ("explain --side op", ["opponents"]),
        ("explain mai", ["mails", "mails.csv"]),
        ("explain mails.csv --out mai", ["mails"]),
    ):
        typed = ["exempla", *words.split()]
        probe = (
            f"{script}\nCOMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; "
            '_shtab_exempla exempla "${COMP_WORDS[COMP_CWORD]}" 2>/dev/null; echo "${COMPREPLY[@]}"'
        )
        command = ["bash", "-c", probe]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert sorted(done.stdout.split()) == expected
