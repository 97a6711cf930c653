"""What tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from exempla.cli.main import main

CONTRACT = {
    "indices", "weights", "side", "explained", "variance", "damping", "damping_rule", "k", "seed",
    "version",
}  # fmt: skip
"""What every explanation.json holds."""


def run(*words: object) -> int:
    """One command, its words as a user would type them."""
    return main([str(word) for word in words])


def pictures(folder: Path, each: int, side: int = 6) -> Path:
    """A folder of noisy images, dark ones first, then light ones."""
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = np.clip(rng.normal(level, 90, (side, side)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder
