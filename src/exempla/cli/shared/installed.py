"""What is installed here, found without loading any of it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from exempla.version import __version__

__all__ = ["core", "extras", "here"]

CORE = (
    "numpy", "scipy", "scikit-learn", "numba", "pandas", "pyarrow", "pillow", "tqdm",
    "shtab", "jinja2", "matplotlib", "array-api-compat", "charset-normalizer",
)  # fmt: skip
EXTRAS = {
    "torch": ("torch",),
    "hf": ("transformers", "datasets"),
    "ray": ("ray",),
    "review": ("fastapi", "uvicorn"),
    "excel": ("openpyxl",),
    "trees": ("lightgbm", "xgboost", "catboost"),
}


def here() -> dict[str, str]:
    """exempla, Python and the system.

    >>> here()["exempla"] == __version__
    True
    """
    return {
        "exempla": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def core() -> dict[str, str | None]:
    """The libraries exempla needs, with their versions; None for one that is missing."""
    return {name: _version(name) for name in CORE}


def extras() -> dict[str, dict[str, str | None]]:
    """The same for every extra."""
    return {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
