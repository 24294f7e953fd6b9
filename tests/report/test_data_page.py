"""`data check --preview`, and what it warns of."""

import numpy as np
import pytest
from PIL import Image

from comastre.cli.main import dispatch
from comastre.data.hints import hints
from comastre.errors import UserError
from small_data import write_folder, write_image, write_instances, write_mask


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
    capsys.readouterr()
    with pytest.raises(UserError, match=r"--preview .*mine.html is there already and is not a report"):
        check(root, "--preview", mine)
    with pytest.raises(UserError, match=r"--preview .* is a folder: name a file"):
        check(root, "--preview", tmp_path)
    assert mine.read_text() == "a diary" and not capsys.readouterr().out.strip(), "refused before anything is read"


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


DENSE_FROM_0 = {"a": (0, 1, 2, 3, 4), "b": (1, 0, 3, 2, 4), "c": (3, 1, 2, 4, 0), "d": (4, 2, 1, 3), "e": (2, 4, 1, 3)}
NAMES = ("road", "pavement", "car", "tree", "sky")


def warnings_of(capsys, data):
    check(data)
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize("names", [NAMES, ("road", "pavement", "car", "tree", "person", "sky")])
def test_masks_whose_0_is_like_a_class_are_taken_for_masks_that_count_from_0(tmp_path, capsys, names):
    """Also where a second class is missing; the names that are missing are told in any case."""
    lines = warnings_of(capsys, write_folder(tmp_path, DENSE_FROM_0, names))
    missing = ", ".join(names[4:])
    assert lines[0].startswith(f"warning: listed, but shown by no image: {missing}; the masks may count")
    assert f"no mask holds {len(names)}, which is sky; if 0 is road there" in lines[0]


@pytest.mark.parametrize(
    "masks",
    [
        {"a": (0, 1, 0, 2), "b": (0, 3, 0, 4), "c": (1, 0), "d": (0,)},  # objects on a background
        {"a": (0, 1, 2, 0), "b": (0, 3, 4, 0), "c": (0, 1, 3, 2, 0)},  # which touch each other
        {"a": (1, 2, 3, 4), "b": (4, 2, 1, 3)},  # labelled everywhere
    ],
)
def test_a_last_class_that_is_merely_not_used_shifts_nothing(tmp_path, capsys, masks):
    lines = warnings_of(capsys, write_folder(tmp_path, masks, NAMES))
    assert lines[0] == "warning: listed, but shown by no image: sky"


def test_void_in_shreds_between_classes_is_no_class(tmp_path, capsys):
    root = write_folder(tmp_path, {"a": (1, 2, 3, 4)}, NAMES)
    labels = np.kron(np.array([[1, 2, 3, 4], [2, 3, 4, 1], [3, 4, 1, 2]]), np.ones((4, 4))).astype(np.uint8)
    labels[::3, ::3] = 0
    Image.fromarray(labels).save(root / "masks" / "a.png")
    (line,) = warnings_of(capsys, root)
    assert line == "warning: listed, but shown by no image: sky"


def test_lists_that_say_what_0_is_are_believed(tmp_path, capsys):
    lines = warnings_of(capsys, write_folder(tmp_path, DENSE_FROM_0, ("background", *NAMES)))
    assert lines == ["warning: listed, but shown by no image: sky"]


def test_objects_have_names_and_count_from_nothing(tmp_path, capsys):
    """Two categories, of which the last is not used: no mask holds an id there."""
    car = {"category_id": 3, "segmentation": [[0, 0, 8, 0, 8, 8, 0, 8]]}
    file = write_instances(tmp_path / "train.json", [car])
    write_image(tmp_path / "one.jpg")
    lines = warnings_of(capsys, file)
    assert lines == ["warning: listed, but shown by no image: dog"]


def test_data_that_calls_0_void_has_no_background_however_much_is_void(tmp_path, capsys):
    (line,) = hints(("cat", "dog"), [{1}, {2}], has_background=False)
    assert "no background: what is not labelled is void: predict with --every_pixel true" in line
    lines = warnings_of(capsys, write_folder(tmp_path, {"a": (0, 1, 2, 1), "b": (2, 1)}, ("void", "cat", "dog")))
    assert len(lines) == 1
    assert "no background: what is not labelled is void (12.5 % of the pixels): predict with --every_pixel" in lines[0]
