"""The list of mutations is true: each text occurs once, and each test exists."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, SOURCE


@pytest.mark.parametrize("path", sorted({mutant.path for mutant in MUTANTS}))
def test_every_mutation_applies_to_one_place(path):
    text = (SOURCE / path).read_text(encoding="utf-8")
    for mutant in MUTANTS:
        if mutant.path == path:
            assert text.count(mutant.old) == 1, mutant
            assert mutant.new != mutant.old
            compile(text.replace(mutant.old, mutant.new), path, "exec")


def test_every_test_that_is_named_exists():
    for target in {target for mutant in MUTANTS for target in mutant.targets}:
        file, _, name = target.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, target


def test_the_list_is_long_and_has_no_mutation_twice():
    assert len(set(MUTANTS)) == len(MUTANTS) >= 60
