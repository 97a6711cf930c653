"""Single precision with all its digits, for as long as two ways to one gradient are compared.

On recent GPUs torch rounds what enters a convolution, and on request a matrix product, to TF32:
10 bits of mantissa instead of 23. Where a gradient is a small difference of large terms, two
orders of summation then disagree by per cents, and a sound layer looks like a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple

import torch

__all__ = ["full_precision"]

_ALONE = RLock()
"""The switches are the whole process's: two threads must not restore each other's values."""


class Switch(NamedTuple):
    """One setting of torch, and its value for full precision."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    full: Any


def older_switches() -> list[Switch]:
    """The settings of matrix products and of cuDNN as a whole; writing one writes the newer too."""
    matmul = Switch(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
    )
    return [matmul, attribute(torch.backends.cudnn, "allow_tf32", False)]


def newer_switches() -> list[Switch]:
    """A setting for each operation of each library; "none" means that the library's decides."""
    backends: Any = torch.backends
    operations = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    operations += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    return [attribute(one, "fp32_precision", "ieee") for one in operations]


def attribute(owner: Any, name: str, full: Any) -> Switch:
    """A setting that is an attribute of a module of torch."""
    return Switch(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), full)


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 nor bfloat16 inside float32 operations; every setting is put back at the end.

    >>> with full_precision():
    ...     torch.backends.cudnn.allow_tf32
    False
    """
    with _ALONE:
        newer = [(switch, switch.read()) for switch in newer_switches()]
        older = readable(older_switches())
        try:
            for switch, _ in older + newer:
                switch.write(switch.full)
            yield
        finally:
            for switch, value in older:
                switch.write(value)
            for switch, value in newer:
                switch.write("none")  # as found, where what it inherits is what was found
                if switch.read() != value:
                    switch.write(value)


def readable(wanted: list[Switch]) -> list[tuple[Switch, Any]]:
    """The switches with their values, less those of which torch refuses to say one, because the
    newer settings below them contradict each other."""
    found = []
    for switch in wanted:
        try:
            found.append((switch, switch.read()))
        except RuntimeError:
            continue
    return found
