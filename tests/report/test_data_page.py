"""`data check --preview`, and what it warns of."""

import numpy as np
import pytest
from PIL import Image

from comastre.cli.main import dispatch
from comastre.data.hints import hints
from comastre.errors import UserError
from small_data import write_folder, write_mask


def check(root, *more):
    return dispatch(["data", "check", str(root), "--processes", "1", *map(str, more)])


def test_a_page_shows_samples_and_shares(tmp_path, capsys):
    root = write_folder(tmp_path / "my <data>", {"a": (0, 1), "b": (0, 0, 0, 2), "c<i>": (0, 0)})
    page = tmp_path / "pages" / "preview.html"
    assert check(root, "--preview", page) == 0
    said = capsys.readouterr().out
    assert str(page) in said and "PIXELS" in said
    # Halves and quarters of three images of one size.
    assert "16.67 %" in said and "8.33 %" in said
    text = page.read_text()
    assert text.count("<figure>") == 2 and "my &lt;data&gt;" in text and "75.0 % of the pixels are background" in text
    assert "16.67 %" in text and "8.33 %" in text and str(tmp_path) not in text
    mine = tmp_path / "mine.html"
    mine.write_text("a diary")
    with pytest.raises(UserError, match=r"--preview .*mine.html is there already and is not a report"):
        check(root, "--preview", mine)
    with pytest.raises(UserError, match=r"--preview .* is a folder: name a file"):
        check(root, "--preview", tmp_path)
    assert mine.read_text() == "a diary"


def test_the_labels_are_drawn_where_they_are(tmp_path):
    from comastre.class_table import palette
    from comastre.report.data_page import _drawn

    labels = np.array([[0, 1], [2, 255]], dtype=np.uint8)
    pixels = np.asarray(_drawn(labels, (2, 2)))
    assert pixels[0, 0, 3] == 0 and tuple(pixels[0, 1]) == (*palette(3)[1], 255)
    assert tuple(pixels[1, 0]) == (*palette(3)[2], 255) and tuple(pixels[1, 1]) == (255, 255, 255, 140)


def test_bad_images_cost_a_sentence_in_the_page(tmp_path):
    root = write_folder(tmp_path / "data", {"a": (0, 1), "b": (0, 2)})
    Image.fromarray(np.zeros((3, 3), dtype=np.uint8)).save(root / "masks" / "b.png")
    assert check(root, "--preview", tmp_path / "page.html") == 1
    assert "make them the same size" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("names", "presence", "said"),
    [
        (("cat", "dog", "cow"), [{1}, {1, 2}], "no mask holds 3, which is cow; if 0 is cat there"),
        (("cat", "dog", "cow"), [{3}, {1}], "listed, but shown by no image: dog"),
        (("Cat", "dog", "cat"), [{1}, {2}, {3}], "'cat' and 'Cat' are two classes"),
    ],
)
def test_what_looks_wrong_is_told(names, presence, said):
    (line,) = hints(names, presence)
    assert said in line


def test_good_data_gets_no_hint_and_dense_data_is_called_so(tmp_path, capsys):
    assert hints(("cat", "dog"), [{1}, {2}], (500, 200, 300)) == []
    (line,) = hints(("cat", "dog"), [{1}, {2}], (5, 500, 495), has_background=False)
    assert "0.5 % are void" in line and "--every_pixel true" in line
    root = write_folder(tmp_path / "data", {"a": (1, 2), "b": (2, 1)})
    write_mask(root / "masks" / "b.png", 1, 2, 255)
    assert check(root) == 0
    assert "warning: nearly every pixel is labelled (0.0 % are background)" in capsys.readouterr().out
