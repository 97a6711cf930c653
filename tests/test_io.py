"""Files whole or not at all; sets of files with their manifest or recognisably without it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from exempla.errors import ExemplaError
from exempla.io import MANIFEST, make_folder, probe, publishing, write_text

NAMES = ("a.csv", "b.json", "c.html")


def publish(folder: Path, word: str, names: tuple[str, ...] = NAMES, force: bool = False) -> None:
    with publishing(folder, {"command": word}, force=force) as stage:
        for name in names:
            (stage / name).write_text(f"{word} {name}")


def whole(folder: Path) -> str | None:
    """Which run the manifest speaks of, every file being as it says; None without a manifest."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, stated in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert len(data) == stated["size"]
        assert hashlib.sha256(data).hexdigest() == stated["sha256"]
    return manifest["command"]


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_a_set_comes_with_its_manifest(tmp_path):
    publish(tmp_path, "one")
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, MANIFEST}
    assert whole(tmp_path) == "one"
    assert set(json.loads((tmp_path / MANIFEST).read_text())["files"]) == set(NAMES)
    publish(tmp_path, "two", ("a.csv",))
    assert whole(tmp_path) == "two"


def test_files_of_others_are_not_replaced(tmp_path):
    publish(tmp_path, "one", ("b.json",))
    (tmp_path / "a.csv").write_text("mine")
    for changed in (False, True):
        with pytest.raises(ExemplaError, match=r"already holds a\.csv.*--force"):
            publish(tmp_path, "two")
        assert (tmp_path / "a.csv").read_text() == "mine"
        assert (tmp_path / "b.json").read_text() == ("edited" if changed else "one b.json")
        (tmp_path / "b.json").write_text("edited")
    with pytest.raises(ExemplaError, match=r"a\.csv, b\.json"):
        publish(tmp_path, "two")
    publish(tmp_path, "two", force=True)
    assert whole(tmp_path) == "two"


def test_files_of_an_earlier_command_may_be_replaced_by_it(tmp_path):
    publish(tmp_path, "one", ("a.csv", "b.json"))
    publish(tmp_path, "two", ("b.json",))
    publish(tmp_path, "three", ("a.csv",))
    assert whole(tmp_path) == "three"


STEPS = ("mkdir", "open", "fsync", "chmod", "replace", "unlink")
"""Calls that touch the disk."""


def killed_publishing(folder: Path, step: int) -> bool:
    """Publish in a process that is killed at the given step; False if it was done before."""
    child = os.fork()
    if child == 0:
        left = iter(range(step))

        def counted(function):
            def call(*arguments, **options):
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return call

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        publish(folder, "two")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_killed_at_every_step_it_is_the_old_set_or_none(tmp_path):
    seen = []
    publish(tmp_path, "one")
    while killed_publishing(tmp_path, len(seen)):
        seen.append(whole(tmp_path))
        publish(tmp_path, "one")
        assert whole(tmp_path) == "one"
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {*NAMES, MANIFEST}, "what the dead run left is gone"
    assert len(seen) > 20
    assert seen == sorted(seen, key=["one", None, "two"].index)
    assert set(seen) == {"one", None, "two"}


def fail(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def publish_but(folder: Path, last: Callable[[], None]) -> None:
    with publishing(folder) as stage:
        (stage / "a.csv").write_text("half of")
        last()


@pytest.mark.parametrize("call", ["write", "fsync", "chmod"])
def test_a_full_disk_changes_nothing(call, tmp_path, monkeypatch):
    publish(tmp_path, "one")
    last = fail if call == "write" else lambda: monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        publish_but(tmp_path, last)
    monkeypatch.undo()
    assert whole(tmp_path) == "one"
    assert (tmp_path / "a.csv").read_text() == "one a.csv"
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, MANIFEST}


def test_a_living_run_keeps_its_stage(tmp_path):
    with publishing(tmp_path, {"command": "slow"}) as stage:
        (stage / "a.csv").write_text("slow")
        publish(tmp_path, "quick")
        assert stage.exists()
        assert whole(tmp_path) == "quick"
    assert whole(tmp_path) == "slow"


def test_links_are_replaced_and_not_followed(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("precious")
    folder = tmp_path / "out"
    folder.mkdir()
    for name in (*NAMES, "d.txt"):
        (folder / name).symlink_to(other)
    with pytest.raises(ExemplaError, match="which exempla did not write"):
        publish(folder, "one")
    assert all((folder / name).is_symlink() for name in NAMES)
    publish(folder, "one", force=True)
    write_text(folder / "d.txt", "new")
    assert other.read_text() == "precious"
    assert not any((folder / name).is_symlink() for name in (*NAMES, "d.txt"))


def test_results_are_private(tmp_path):
    old = os.umask(0)
    try:
        folder = make_folder(tmp_path / "new" / "out")
        publish(folder, "one")
        write_text(folder / "d.txt", "new")
    finally:
        os.umask(old)
    assert mode(tmp_path / "new") == mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def test_a_folder_shared_with_a_group_stays_shared(tmp_path):
    tmp_path.chmod(0o2770)
    folder = make_folder(tmp_path / "new" / "out")
    publish(folder, "one")
    assert folder.stat().st_mode & 0o7777 == 0o2770
    assert {mode(path) for path in folder.iterdir()} == {0o660}
    tmp_path.chmod(0o1777)  # as /tmp: open to all the world, not to a group
    assert mode(make_folder(tmp_path / "mine")) == 0o700
    assert mode(write_text(tmp_path / "e.txt", "")) == 0o600


def test_what_is_not_ours_is_not_replaced(tmp_path):
    (tmp_path / MANIFEST).write_text('{"name": "a web page"}')
    with pytest.raises(ExemplaError, match=r"manifest\.json was not written by exempla"):
        publish(tmp_path, "one")
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]
    (tmp_path / MANIFEST).unlink()
    (tmp_path / "b.json").mkdir()
    with pytest.raises(ExemplaError, match="is a folder"):
        publish(tmp_path, "one")
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_a_probe_leaves_nothing_and_notices_a_full_disk(tmp_path, monkeypatch):
    probe(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        probe(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_is_whole_or_the_old_one(tmp_path, monkeypatch):
    write_text(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_text(tmp_path / "a", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_every_rename_is_followed_by_a_flush_of_its_folder(tmp_path, monkeypatch):
    """Without it a power cut could undo the rename of a file that was reported as written."""
    calls: list[str] = []
    real_replace, real_fsync = os.replace, os.fsync

    def replace(source, target):
        calls.append("rename")
        real_replace(source, target)

    def fsync(handle):
        place = os.fstat(handle)
        calls.append("folder" if os.path.samestat(place, tmp_path.stat()) else "file")
        real_fsync(handle)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a.txt", "one")
    assert calls == ["file", "rename", "folder"]
    calls.clear()
    publish(tmp_path, "one")
    last = len(calls) - 1 - calls[::-1].index("rename")
    assert calls[last + 1 :] == ["folder"]  # behind the manifest, which comes last
    assert calls[last - 1] == "folder"  # behind the files it speaks of
