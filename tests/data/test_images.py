"""Odd images are converted; bad files are one sentence with their name."""

import re

import numpy as np
import pytest
from PIL import Image

from comastre.data import images
from comastre.data.images import checked_size, image_size, read_image, read_mask
from comastre.data.sets.folder import folder
from comastre.errors import UserError
from small_data import mask_of, write_folder, write_image, write_mask


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("CMYK", ".jpg"), ("L", ".jpg"), ("RGBA", ".png"), ("LA", ".png"), ("P", ".gif"), ("1", ".png"), ("RGB", ".webp")],
)
def test_every_kind_of_image_becomes_rgb(tmp_path, mode, suffix):
    path = tmp_path / f"image{suffix}"
    Image.new("RGB", (16, 12), (255, 255, 255)).convert(mode).save(path)
    pixels, size = read_image(path)
    assert (pixels.shape, pixels.dtype, size) == ((12, 16, 3), np.uint8, (12, 16))
    assert pixels.min() > 250


def test_sixteen_bit_images_keep_their_brightness(tmp_path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 200 * 256, dtype=np.uint16)).save(path)
    assert read_image(path)[0][0, 0].tolist() == [200, 200, 200]


def test_exif_orientation_is_applied(tmp_path):
    path = tmp_path / "turned.jpg"
    picture = np.zeros((8, 32, 3), dtype=np.uint8)
    picture[:, :16] = 255  # bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees: the left goes up
    Image.fromarray(picture).save(path, exif=exif)
    pixels, size = read_image(path)
    assert pixels.shape == (32, 8, 3)
    assert size == image_size(path) == (32, 8)
    assert pixels[:12].mean() > 240
    assert pixels[20:].mean() < 15
    small, full = read_image(path, short_side=4)
    assert (small.shape, full) == ((16, 4, 3), (32, 8))
    assert small[:6].mean() > 240


def test_large_jpegs_come_smaller_but_never_too_small(tmp_path):
    path = write_image(tmp_path / "large.jpg", (400, 600))
    assert read_image(path, 400)[0].shape == (400, 600, 3)
    assert read_image(path, 201)[0].shape == (400, 600, 3)
    assert read_image(path, 200)[0].shape == (200, 300, 3)
    assert read_image(path, 60)[0].shape == (100, 150, 3)
    assert read_image(path, 900)[0].shape == (400, 600, 3)
    assert read_image(path, 60)[1] == (400, 600)
    lossless = write_image(tmp_path / "large.png", (400, 600))
    assert read_image(lossless, 60)[0].shape == (400, 600, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "cannot be read .*truncated"),
        (lambda path: path.write_bytes(b""), "not an image"),
        (lambda path: path.write_text("hello"), "not an image"),
        (lambda path: path.unlink(), "does not exist"),
    ],
)
def test_bad_images_are_named(tmp_path, damage, message):
    path = tmp_path / "bad.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    damage(path)
    with pytest.raises(UserError, match=f"bad.jpg.*{message}|{message}.*bad.jpg"):
        read_image(path)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp"])
def test_a_file_that_breaks_off_is_found_without_decoding_the_whole_ones(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"noise{suffix}"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 48, 3), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    decoded = []
    real = images.read_image
    monkeypatch.setattr(images, "read_image", lambda path: decoded.append(path) or real(path))
    assert checked_size(path) == (64, 48)
    assert len(decoded) == (suffix == ".bmp")  # has no end that could be looked for
    path.write_bytes(whole[:-200])
    with pytest.raises(UserError, match=rf"noise\{suffix} cannot be read"):
        checked_size(path)
    path.write_bytes(whole + bytes(100))  # what some cameras and servers append does no harm
    assert checked_size(path) == (64, 48)


def test_palette_grey_and_binary_masks_are_ids(tmp_path):
    values = mask_of(0, 1, 2, 255)
    grey = Image.fromarray(values)
    grey.save(tmp_path / "grey.png")
    coloured = grey.convert("L")
    coloured.putpalette([255 - value // 3 for value in range(768)])
    coloured.save(tmp_path / "palette.png")
    with Image.open(tmp_path / "palette.png") as opened:
        assert opened.mode == "P"
    for name in ("grey", "palette"):
        assert np.array_equal(read_mask(tmp_path / f"{name}.png"), values)
    Image.fromarray(mask_of(0, 255)).convert("1").save(tmp_path / "binary.png")
    assert set(np.unique(read_mask(tmp_path / "binary.png"))) == {0, 1}


def save(values):
    return lambda path: Image.fromarray(values).save(path)


RGB = np.zeros((12, 16, 3), dtype=np.uint8)
COLOURED = RGB.copy()
COLOURED[:, 8:] = (128, 0, 0)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (save(COLOURED), r"b\.png holds RGB colours .*replace every colour by its id"),
        (save(RGB), r"b\.png holds RGB colours .*keep one, as in .*getchannel\(0\)"),
        (save(mask_of(0, 1).astype(np.uint16)), r"b\.png has more than 8 bits .*astype\('uint8'\)"),
        (save(mask_of(0, 1, size=(12, 15))), r"b\.png is 15 x 12 but its image b\.jpg is 16 x 12"),
        (save(mask_of(0, 1, size=(16, 12))), r"b\.png is 12 x 16 but .* EXIF"),
        (save(mask_of(0, 3, 9)), r"b\.png holds the label 3, 9 but there are only the classes 1\.\.2"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), r"b\.png cannot be read"),
        (lambda path: path.write_text("no"), r"b\.png is not an image"),
    ],
)
def test_bad_masks_are_named_with_the_cure(tmp_path, write, message):
    write_folder(tmp_path, {"a": (1,), "b": (2, 1)})
    (tmp_path / "train.txt").write_text("a\nb\n")
    (tmp_path / "val.txt").write_text("a\n")
    dataset = folder(tmp_path, "train")
    write(tmp_path / "masks" / "b.png")
    dataset[0]
    with pytest.raises(UserError, match=message):
        dataset[1]


def test_reading_a_mask_that_went_away_says_so(tmp_path):
    path = write_mask(tmp_path / "gone.png", 1)
    path.unlink()
    with pytest.raises(UserError, match=re.escape(f"The mask {path} does not exist")):
        read_mask(path)
