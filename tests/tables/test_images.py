"""Image folders: what is read, what is refused, and the models made for them."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from exempla import ExemplaError
from exempla.tables import (
    Decision,
    export,
    image_features,
    load_images,
    read_table,
    safe_path,
    thumbnail,
    tuned_classifier,
)
from exempla.tables.models.image import PatchFeatures


def folder(root: Path, names: list[str], size: tuple[int, int] = (8, 8), mode: str = "L") -> Path:
    for shade, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, (shade * 20) if mode == "L" else (shade * 20, 0, 0)).save(root / name)
    return root


def test_classes_are_folders_and_order_is_natural(tmp_path):
    root = folder(tmp_path / "d", ["dog/10.png", "dog/9.png", "cat/1.png", "cat/sub/2.png"])
    (root / "notes.txt").write_text("hello")
    (root / "cat" / ".hidden.png").write_bytes(b"x")
    table = read_table(root)
    assert table.strings("file") == ["cat/1.png", "cat/sub/2.png", "dog/9.png", "dog/10.png"]
    assert table.strings("label") == ["cat", "cat", "dog", "dog"]
    assert any("notes.txt" in note for note in table.notes)
    images = load_images(table, rows=[3, 0])
    assert images.labels.tolist() == ["dog", "cat"]
    assert images.pixels.shape == (2, 8, 8)
    assert images.pixels[:, 0, 0].tolist() == [0, 40]


def test_sizes_and_modes_are_made_one(tmp_path):
    root = folder(tmp_path / "d", ["a/1.png", "a/2.png"])
    folder(root, ["b/1.jpg"], size=(16, 4), mode="RGB")
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(root / "b" / "2.png")
    Image.fromarray(np.full((8, 8), 65_535, np.uint16)).save(root / "b" / "3.png")
    images = load_images(root)
    assert images.pixels.shape == (5, 8, 8, 3)
    assert images.pixels.dtype == np.uint8
    assert any("1 image(s) of another size were scaled to 8×8" in note for note in images.notes)
    assert (images.pixels[3] == 255).all()  # transparent is white
    assert (images.pixels[4] == 255).all()  # 16 bits stretched to 8
    assert load_images(root, size=(3, 5)).pixels.shape == (5, 3, 5, 3)


def test_unreadable_files_are_named_and_svg_is_refused(tmp_path):
    root = folder(tmp_path / "d", ["a/1.png", "b/1.png"])
    (root / "a" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (root / "b" / "x.svg").write_text("<svg onload='alert(1)'/>")
    (root / "b" / "fake.png").write_text("<svg onload='alert(1)'/>")
    table = read_table(root)
    assert any("b/x.svg" in note for note in table.notes)
    images = load_images(table)
    assert len(images) == 2
    assert any("a/broken.png" in note and "b/fake.png" in note for note in images.notes)
    with pytest.raises(ExemplaError, match="can contain scripts"):
        thumbnail(root / "b" / "x.svg")
    with pytest.raises(ExemplaError, match="None of the images"):
        load_images(table, rows=[1])


@pytest.mark.parametrize("make", ["file", "folder"])
def test_links_out_of_the_folder_are_refused(tmp_path, make):
    folder(tmp_path / "secret", ["s/1.png"])
    root = folder(tmp_path / "d", ["a/1.png", "b/1.png"])
    target = tmp_path / "secret" / "s" / ("1.png" if make == "file" else "")
    (root / "b" / "link.png").symlink_to(target)
    with pytest.raises(ExemplaError, match=r"'b/link\.png' in d is a link that leads out"):
        read_table(root)


def test_a_link_made_after_listing_is_refused_too(tmp_path):
    folder(tmp_path / "secret", ["s/1.png"])
    root = folder(tmp_path / "d", ["a/1.png", "b/1.png"])
    table = read_table(root)
    (root / "b" / "1.png").unlink()
    (root / "b" / "1.png").symlink_to(tmp_path / "secret" / "s" / "1.png")
    with pytest.raises(ExemplaError, match="leads outside its folder"):
        load_images(table)
    with pytest.raises(ExemplaError, match="leads outside its folder"):
        export(table, [], tmp_path / "out", label="label")


@pytest.mark.parametrize(
    "name",
    [
        "../x.png", "a/../../x.png", "/etc/passwd", "%2e%2e/x.png", "%252e%252e/x.png", "..\\x.png",
        "%2Fetc%2Fpasswd", "C:\\x.png", "file:///etc/passwd", "~/x.png", "", "a\x00b.png",
    ],
)  # fmt: skip
def test_paths_out_of_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ExemplaError, match="leads outside its folder"):
        safe_path(tmp_path, name)


def test_paths_inside_are_allowed(tmp_path):
    assert safe_path(tmp_path, "a/100%.png") == tmp_path.resolve() / "a" / "100%.png"
    assert safe_path(tmp_path, "a..b/c.png").name == "c.png"


def test_folders_that_are_no_image_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExemplaError, match="no images in class folders"):
        read_table(tmp_path / "empty")
    root = folder(tmp_path / "parts", ["train/a/1.png", "test/a/1.png"])
    with pytest.raises(ExemplaError, match="holds the parts 'test', 'train'"):
        read_table(root)


def test_export_moves_images(tmp_path):
    root = folder(tmp_path / "d", ["a/1.png", "a/2.png", "b/3.png", "b/4.png"])
    table = read_table(root)
    decisions = [Decision(1, "relabel", "b"), Decision(3, "remove")]
    export(table, decisions, tmp_path / "out", label="label")
    made = tmp_path / "out"
    found = {p.relative_to(made).as_posix(): p for p in made.rglob("*.png")}
    assert sorted(found) == ["a/1.png", "b/2.png", "b/3.png"]
    assert found["b/2.png"].read_bytes() == (root / "a" / "2.png").read_bytes()
    with pytest.raises(ExemplaError, match="cannot be the name of a folder"):
        export(table, [Decision(0, "relabel", "../x")], tmp_path / "bad", label="label")
    with pytest.raises(ExemplaError, match="is not empty"):
        export(table, [], tmp_path / "out", label="label")
    with pytest.raises(ExemplaError, match="inside the folder that is exported"):
        export(table, [], root / "out", label="label")


def test_two_images_never_share_a_name_after_relabelling(tmp_path):
    table = read_table(folder(tmp_path / "d", ["a/1.png", "b/1.png"]))
    with pytest.raises(ExemplaError, match=r"two images would be called 'b/1\.png'"):
        export(table, [Decision(0, "relabel", "b")], tmp_path / "out", label="label")


@pytest.mark.parametrize("shape", [(300, 200), (20, 30, 3), (28, 28, 1)])
def test_thumbnails_are_small_webp(shape):
    made = Image.open(io.BytesIO(thumbnail(np.full(shape, 128, np.uint8))))
    assert made.format == "WEBP"
    assert max(made.size) == min(128, max(shape[:2]))
    assert made.getpixel((1, 1)) == pytest.approx((128, 128, 128), abs=3)
    with pytest.raises(ExemplaError, match="An image must have shape"):
        thumbnail(np.zeros((3, 3, 7), np.uint8))


def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return (data.images * 15.9).astype(np.uint8)[:700], data.target[:700].astype(str)


def accuracy(kind: str) -> float:
    """On 200 digits, of a tuned classifier on features learned from 500 others."""
    pixels, labels = digits()
    features = image_features(pixels[:500], labels[:500], kind=kind).fit(pixels[:500])
    X, held = features.transform(pixels[:500]), features.transform(pixels[500:])
    return tuned_classifier(X, labels[:500]).fit(X, labels[:500]).score(held, labels[500:])


def test_pixels_are_enough_for_digits():
    assert accuracy("pixels") > 0.8


def test_patch_features_suit_digits_and_colour_photographs_and_repeat():
    assert accuracy("patches") > 0.92
    rng = np.random.default_rng(0)
    photos = rng.integers(0, 100, (40, 32, 32, 3), dtype=np.uint8)
    photos[::2, :, :, 0] += 100
    large = photos.repeat(3, axis=1).repeat(3, axis=2)
    for images in (photos, large, photos[:, :4, :3]):
        found = PatchFeatures(255.0).fit_transform(images)
        assert found.shape[0] == 40
        assert np.array_equal(found, PatchFeatures(255.0).fit(images).transform(images))
        assert np.isfinite(found).all()
        assert abs(found[::2].mean(axis=0) - found[1::2].mean(axis=0)).max() > 1, "red is seen"
    assert PatchFeatures(255.0).fit(photos).transform(photos[:0]).shape == (0, 40)


def test_image_models_are_refused_clearly():
    with pytest.raises(ExemplaError, match="at least two classes"):
        image_features(np.zeros((2, 8, 8)), ["a", "a"])
    with pytest.raises(ExemplaError, match="no image model 'vit'"):
        image_features(np.zeros((2, 8, 8)), ["a", "b"], kind="vit")


def test_importing_the_package_leaves_torch_alone():
    code = "import exempla.tables, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
