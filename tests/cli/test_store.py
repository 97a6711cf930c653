"""`--store` and `--shard`: rows on disk, shared between commands."""

import json

import numpy as np
import pytest

from exempla.cli.main import main


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr("exempla.store.folder._MIN_SHARD_BYTES", 1)
    monkeypatch.setattr("exempla.store.folder._MIN_SHARDS", 6)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{int(a + b > 0)}\n" for a, b in rng.standard_normal((120, 2))]
    (tmp_path / "a.csv").write_text("a,b,y\n" + "".join(lines))
    return tmp_path


def embed(*words):
    return main(["embed", "a.csv", "--label", "y", "--quiet", *words])


def test_parts_then_all(file, capsys):
    assert embed("--store", "s", "--shard", "2/2") == 0
    assert embed("--store", "s", "--shard", "1/2") == 0
    made = sorted(path.name for path in (file / "s" / "rows-0").glob("*.npy"))
    assert len(made) == 6
    assert embed("--store", "s", "--out", "o") == 0
    assert embed("--out", "plain") == 0
    said = json.loads((file / "o" / "explanation.json").read_text())
    assert not (file / "o" / "rows.npy").exists()
    white = [np.load(path) for path in sorted((file / said["store"]).glob("*.npy"))]
    np.testing.assert_allclose(np.concatenate(white), np.load("plain/rows.npy"))
    assert (file / "o" / "report.html").read_text() != ""
    assert embed("--store", "s", "--seed", "3") == 2
    assert "differs in seed=" in capsys.readouterr().err


def test_explain_with_a_store_gives_the_same_picks(file):
    words = ["explain", "a.csv", "--label", "y", "--ask", "all", "-k", "5", "--quiet"]
    assert main([*words, "--store", "s", "--out", "o"]) == 0
    assert main([*words, "--out", "plain"]) == 0
    found = [json.loads((file / o / "explanation.json").read_text()) for o in ("o", "plain")]
    assert found[0]["indices"] == found[1]["indices"]


@pytest.mark.parametrize("words", [["summarize", "-k", "9"], ["fix-labels", "--method", "sbq"]])
def test_other_commands_with_a_store_give_the_same_picks(file, words):
    words = [words[0], "a.csv", "--label", "y", "--quiet", *words[1:]]
    assert main([*words, "--store", "s", "--out", "o"]) == 0
    assert main([*words, "--out", "plain"]) == 0
    found = [json.loads((file / o / "explanation.json").read_text()) for o in ("o", "plain")]
    assert found[0]["indices"] == found[1]["indices"]
    assert list((file / "s").glob("*/*.npy"))


def test_a_part_without_a_store_and_no_part(file, capsys):
    assert embed("--shard", "1/2") == 2
    assert "give its folder with --store" in capsys.readouterr().err
    for wrong in ("0/2", "3/2", "1", "a/b", "1/2/3"):
        with pytest.raises(SystemExit):
            embed("--store", "s", "--shard", wrong)
