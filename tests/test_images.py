"""One decoder: the model, the report and the review page get the same pixels of every picture."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import exempla.images
from exempla import ExemplaError
from exempla.images import ImageError, as_image, as_pixels, thumbnail
from exempla.report.plots import Gallery
from exempla.review.folder import image_bytes, write_image
from exempla.tables import load_images

RAMP = (np.arange(16 * 12).reshape(12, 16) + 30).astype(np.uint8)
COLOURS = np.stack([RAMP, RAMP[::-1], 255 - RAMP], axis=2)
SIDEWAYS = Image.Exif()
SIDEWAYS[0x0112] = 6  # the camera was turned: rotate by 90° clockwise to see it upright


def grey16(path: Path) -> np.ndarray:
    deep = (np.arange(192).reshape(12, 16) * 341).astype(np.uint16)
    Image.fromarray(deep).save(path)
    return np.rint(deep / 65_535 * 255)


def rotated(path: Path) -> np.ndarray:
    Image.fromarray(COLOURS).save(path, exif=SIDEWAYS, lossless=True)
    return np.rot90(COLOURS, -1)


def palette(path: Path) -> np.ndarray:
    Image.fromarray(COLOURS).quantize(16).save(path)
    return np.asarray(Image.fromarray(COLOURS).quantize(16).convert("RGB"))


def palette_with_a_clear_colour(path: Path) -> np.ndarray:
    image = Image.frombytes("P", (16, 12), (RAMP % 2).astype(np.uint8).tobytes())
    image.putpalette([200, 10, 10, 0, 0, 0])
    image.save(path, transparency=1)
    return np.where((RAMP % 2)[:, :, None] == 1, 255, np.array([200, 10, 10]))


def alpha(path: Path) -> np.ndarray:
    Image.fromarray(np.dstack([COLOURS, np.where(RAMP > 100, 255, 0)]).astype(np.uint8)).save(path)
    return np.where((RAMP > 100)[:, :, None], COLOURS, 255)


def grey_alpha(path: Path) -> np.ndarray:
    image = Image.fromarray(RAMP)
    image.putalpha(Image.fromarray(np.where(RAMP > 100, 255, 0).astype(np.uint8)))
    image.save(path)
    return np.repeat(np.where(RAMP > 100, RAMP, 255)[:, :, None], 3, axis=2)


def grey_with_a_clear_shade(path: Path) -> np.ndarray:
    Image.fromarray(RAMP).save(path, transparency=100)
    return np.where(RAMP == 100, 255, RAMP)


def bits(path: Path) -> np.ndarray:
    Image.fromarray(RAMP > 100).save(path)
    return np.where(RAMP > 100, 255, 0)


def floats(path: Path) -> np.ndarray:
    Image.fromarray((RAMP / 255).astype(np.float32)).save(path)
    return RAMP


def plain(path: Path) -> np.ndarray:
    Image.fromarray(RAMP).save(path)
    return RAMP


KINDS = {
    "16-bit.png": grey16, "16-bit.tif": grey16, "turned.png": rotated, "turned.webp": rotated,
    "palette.png": palette, "palette.gif": palette, "clear.png": palette_with_a_clear_colour,
    "alpha.png": alpha, "grey-alpha.png": grey_alpha, "grey-clear.png": grey_with_a_clear_shade,
    "bits.png": bits, "floats.tif": floats, "grey.bmp": plain, "grey.pgm": plain,
}  # fmt: skip


def opened(data: bytes) -> np.ndarray:
    """A WebP as a browser shows it: colours, always."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def coloured(pixels: np.ndarray) -> np.ndarray:
    return pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)


def on_the_page(picture: object) -> np.ndarray:
    gallery = Gallery()
    gallery.add(picture)
    return opened(base64.b64decode(gallery.encoded()[0][1].partition(",")[2]))


def in_the_review(picture: object, folder: Path) -> np.ndarray:
    assert write_image(folder / "images", "train", 3, picture)
    data = image_bytes(folder, "train", 3)
    assert data is not None
    return opened(data)


@pytest.mark.parametrize("name", KINDS)
def test_the_model_and_the_person_see_the_same_pixels(name, tmp_path):
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "b").mkdir()
    path = tmp_path / "data" / "a" / name
    expected = KINDS[name](path)
    Image.fromarray(RAMP).save(tmp_path / "data" / "b" / "1.png")
    images = load_images(tmp_path / "data", rows=[0])
    assert np.array_equal(images.pixels[0], expected)
    for seen in (on_the_page(path), in_the_review(path, tmp_path)):
        assert np.array_equal(seen, coloured(images.pixels[0]))
    # The same picture as an array is the same picture.
    for seen in (on_the_page(images.pixels[0]), in_the_review(images.pixels[0], tmp_path)):
        assert np.array_equal(seen, coloured(images.pixels[0]))


def test_a_photograph_is_the_same_up_to_its_size_and_loss(tmp_path):
    x = np.linspace(0, 255, 1800)
    photo = np.dstack(np.broadcast_arrays(x[None, :], x[:1200, None], 128)).astype(np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.jpg", exif=SIDEWAYS, quality=95)
    whole = Image.fromarray(as_pixels(tmp_path / "photo.jpg"))
    assert whole.size == (1200, 1800)
    for seen in (
        on_the_page(tmp_path / "photo.jpg"),
        in_the_review(tmp_path / "photo.jpg", tmp_path),
    ):
        size = (seen.shape[1], seen.shape[0])
        small = np.asarray(whole.resize(size, Image.Resampling.BICUBIC)).astype(int)
        assert np.abs(seen - small).mean() < 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 128, 255]], np.uint8), [0, 128, 255]),
        (np.array([[0, 128, 255]], np.int64), [0, 128, 255]),
        (np.array([[0.0, 0.5, 1.0]]), [0, 128, 255]),
        (np.array([[0.0, 0.5, 1.0]], ">f4"), [0, 128, 255]),
        (np.array([[0.0, 1.0, 2.0]]), [0, 128, 255]),
        (np.array([[False, True]]), [0, 255]),
        (np.array([[0, 1]], np.int32), [0, 255]),
        (np.array([[0, 32_768, 65_535]], np.uint16), [0, 128, 255]),
        (np.array([[0, 32_768, 65_535]], ">u2"), [0, 128, 255]),
        (np.array([[-1.0, 0.0, 1.0]]), [0, 128, 255]),
        (np.array([[np.nan, 1.0, np.inf]]), [0, 255, 255]),
        (np.array([[-1e308, 0.0, 1e308]]), [0, 0, 0]),
    ],
)
def test_numbers_of_every_kind_become_bytes(values, expected):
    assert as_pixels(values)[0].tolist() == expected
    assert as_pixels(values[:, :, None])[0].tolist() == expected


def test_files_and_arrays_of_the_same_numbers_agree(tmp_path):
    deep = np.array([[0, 300, 65_535]], np.uint16)
    shares = np.array([[0.0, 0.3, 0.9]], np.float32)
    for values in (deep, shares):
        Image.fromarray(values).save(tmp_path / "x.tif")
        assert np.array_equal(as_pixels(tmp_path / "x.tif"), as_pixels(values))


@pytest.mark.parametrize("suffix", ["ico", "icns", "tga", "eps", "pcx", "svg"])
def test_other_formats_are_refused_everywhere(suffix, tmp_path):
    path = tmp_path / f"x.{suffix}"
    if suffix == "svg":
        path.write_text("<svg onload='alert(1)'/>")
    else:
        Image.fromarray(COLOURS).save(path)
    for show in (as_image, thumbnail, Gallery().add):
        with pytest.raises(ImageError):
            show(path)
    with pytest.warns(match="cannot be shown"):
        assert not write_image(tmp_path / "images", "train", 0, path)


def test_the_number_of_pixels_is_limited_everywhere(tmp_path, monkeypatch):
    Image.fromarray(COLOURS).save(tmp_path / "x.png")
    opened_image = Image.open(tmp_path / "x.png")
    monkeypatch.setattr(exempla.images, "MOST_PIXELS", 100)
    for picture in (tmp_path / "x.png", opened_image, COLOURS):
        with pytest.raises(ImageError, match="pixels"):
            as_image(picture)


def test_what_is_no_picture_is_one_sentence(tmp_path):
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    Image.fromarray(COLOURS).save(tmp_path / "whole.png")
    (tmp_path / "short.png").write_bytes((tmp_path / "whole.png").read_bytes()[:60])
    masked = np.ma.masked_greater(RAMP, 100)
    for wrong in (
        tmp_path / "cut.png", tmp_path / "short.png", tmp_path / "absent.png", tmp_path, masked,
        np.zeros((3, 3), complex), np.array([["a"]]), np.zeros((3, 3, 7), np.uint8),
        np.zeros((0, 3), np.uint8), np.zeros(3), None, Image.open(tmp_path / "short.png"),
    ):  # fmt: skip
        with pytest.raises(ExemplaError) as found:
            as_image(wrong)
        assert str(found.value).count("\n") == 0
    assert np.array_equal(as_pixels(np.ma.array(RAMP)), RAMP), "nothing is masked"


def test_only_pixels_survive(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "x.png", exif=SIDEWAYS, icc_profile=b"secret")
    for data in (thumbnail(tmp_path / "x.png"), thumbnail(Image.open(tmp_path / "x.png"))):
        shown = Image.open(io.BytesIO(data))
        assert not {"exif", "icc_profile", "xmp"} & set(shown.info)
        assert b"secret" not in data
    before = Image.open(tmp_path / "x.png")
    as_image(before)
    assert before.size == (16, 12), "the caller's image is left alone"
