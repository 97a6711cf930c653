"""A virtual environment for each peer, made once, with this project's torch pinned."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

__all__ = ["PEERS", "make_environment"]

ROOT = Path(__file__).parents[2]

PEERS: dict[str, list[list[str]]] = {
    # kronfluence names torchvision, which only its examples import and which would replace torch
    # by a CUDA build where no CPU build is offered: so its other needs are named here instead.
    "kronfluence": [
        ["torch", "numpy", "accelerate", "einops", "einconv", "opt-einsum", "safetensors", "tqdm"],
        ["--no-deps", "kronfluence==1.0.1"],
    ],
    "pydvl": [["pyDVL[influence]==0.10.0"]],
    "captum": [["captum==0.9.0"]],
    "traker": [["traker==0.3.2"]],
    # dattri leaves torch to its user.
    "dattri": [["torch", "dattri==0.3.0"]],
}
LABEL_PEERS: dict[str, list[list[str]]] = {"cleanlab": [["cleanlab==2.9.0"]]}
"""Those that look at labels alone and need no torch; `label_noise --peer` takes their Python.
For each peer the pip calls that install it."""

SHARED = ("kronfluence", "traker", "cleanlab")
"""Peers that work with the packages of this project: their environments see those, and hold what
is not among them."""

CHECK = """
import importlib.metadata as m, torch
cuda = [d.name for d in m.distributions() if d.name and d.name.lower().startswith("nvidia")]
assert not cuda and torch.version.cuda is None, f"CUDA packages came along: {cuda}"
print(torch.__version__)
"""
CHECK_SHARED = """
import sys, torch
assert not torch.__file__.startswith(sys.prefix), "a second torch came along"
print(torch.__version__)
"""


def torch_pin() -> str:
    """The tested torch alone: a peer may need another numpy than ours (pyDVL one below 2)."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("torch==")) + "\n"


def make_environment(peer: str, folder: Path) -> Path:
    """The environment's Python; made if it is not there. Raises RuntimeError saying why not."""
    home = folder / peer
    python, done = home / "bin" / "python", home / "installed"
    if done.exists():
        return python
    _call([sys.executable, "-m", "venv", str(home)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = home / "constraints.txt"
    pinned.write_text(torch_pin())
    if peer in SHARED:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = home / "lib" / version / "site-packages" / "shared.pth"
        own.write_text(sysconfig.get_paths()["purelib"] + "\n")
    for packages in (PEERS | LABEL_PEERS)[peer]:
        _call([*pip, "-c", str(pinned), *packages])
    done.write_text(_call([str(python), "-c", CHECK_SHARED if peer in SHARED else CHECK]))
    return python


def _call(command: list[str]) -> str:
    """The command's output; RuntimeError with its last line of complaint if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"{command[0]} failed")
    return done.stdout
