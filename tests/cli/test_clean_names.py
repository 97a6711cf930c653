"""What `clean` calls the file it writes."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from exempla.cli.main import main


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [("data.2024.csv", "cleaned.csv"), ("data.2024.csv.gz", "cleaned.csv.gz")],
)
def test_a_date_in_the_name_is_no_part_of_the_format(name, cleaned, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    frame = pd.DataFrame(x.round(3), columns=["a", "b"])
    frame["y"] = np.where(x[:, 0] + rng.normal(size=80) > 0, "p", "q")
    data = frame.to_csv(index=False).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    out = tmp_path / "out"
    words = ["clean", str(tmp_path / name), "--label", "y", "-k", "4", "--quiet"]
    assert main([*words, "--out", str(out)]) == 0
    assert [path.name for path in out.glob("cleaned*")] == [cleaned]
    left = pd.read_csv(out / cleaned)
    assert len(left) < len(frame)
    assert len(left.merge(frame)) >= len(left)
