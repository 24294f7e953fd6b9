"""What names mean: mapping is by name, and nothing is guessed."""

import pytest

from comastre.data.names import looks_like
from comastre.errors import UserError
from comastre.learning.class_names import assign_roles, known_labels, read_pairs

OLD = ("disk", "star", "ring")


def test_ids_are_the_datas_own_and_mapped_by_name():
    # The data numbers ring 1, heart 2, disk 3: an order of its own.
    roles = assign_roles(OLD, ("ring", "heart", "disk"), {1, 2, 3})
    assert roles.labels == (3, 4, 1)
    assert roles.new == ("heart",) and roles.labelled_old == {"ring", "disk"}
    assert roles.names == ("disk", "star", "ring", "heart")
    assert roles.labelled == {"ring", "disk", "heart"}


def test_what_no_image_shows_is_neither_learned_nor_labelled():
    roles = assign_roles(OLD, ("ring", "heart", "bolt"), {3})
    assert roles.labels == (0, 0, 4)
    assert roles.new == ("bolt",) and roles.labelled_old == frozenset() and roles.unseen == ("ring", "heart")


def test_new_classes_that_are_not_asked_for_count_as_unlabelled():
    roles = assign_roles(OLD, ("heart", "bolt"), {1, 2}, only=("bolt",))
    assert roles.labels == (0, 4) and roles.new == ("bolt",) and roles.left_out == ("heart",)


@pytest.mark.parametrize("name", ["Disk", "DISK", " disk", "di sk", "di_sk", "di-sk"])
def test_names_that_differ_by_case_or_spaces_must_be_confirmed(name):
    with pytest.raises(UserError) as refused:
        assign_roles(OLD, (name,), {1})
    assert f'--same-class "{name}=disk"' in str(refused.value) and f'--new-class "{name}"' in str(refused.value)
    same = assign_roles(OLD, (name, "heart"), {1, 2}, same={name: "disk"})
    assert same.labels == (1, 4) and same.labelled_old == {"disk"} and same.new == ("heart",)
    new = assign_roles(OLD, (name,), {1}, confirmed=(name,))
    assert new.labels == (4,) and new.new == (name,)


def test_two_names_of_the_data_that_look_alike_must_be_confirmed():
    with pytest.raises(UserError, match="the data's own 'traffic light'"):
        assign_roles(OLD, ("traffic light", "traffic_light"), {1, 2})
    roles = assign_roles(OLD, ("traffic light", "traffic_light"), {1, 2}, confirmed=("traffic_light",))
    assert roles.labels == (4, 5)


def test_two_names_may_mean_one_old_class():
    roles = assign_roles(OLD, ("disk", "coin", "heart"), {1, 2, 3}, same={"coin": "disk"})
    assert roles.labels == (1, 1, 4)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"same": {"dog": "disk"}}, "--same-class names 'dog', which is not a class of the data"),
        ({"same": {"heart": "dog"}}, "--same-class names 'dog', which the model does not know"),
        ({"confirmed": ("dog",)}, "--new-class names 'dog'"),
        ({"confirmed": ("disk",)}, "--new-class names 'disk', which the model knows already"),
        ({"only": ("disk",)}, "--only names 'disk', which the model knows already"),
        ({"same": {"heart": "disk"}, "confirmed": ("heart",)}, "only one of them"),
    ],
)
def test_flags_that_make_no_sense_are_refused(choices, said):
    with pytest.raises(UserError, match=said):
        assign_roles(OLD, ("disk", "heart"), {1, 2}, **choices)


def test_data_for_scoring_is_mapped_by_name_too():
    assert known_labels(OLD, ("ring", "dog", "disk"), {}, (), "--val") == (3, 0, 1)
    assert known_labels(OLD, ("coin",), {"coin": "star"}, (), "--val") == (2,)
    with pytest.raises(UserError, match="--val labels none of the classes"):
        known_labels(OLD, ("dog",), {}, (), "--val")
    with pytest.raises(UserError, match="looks like the model's 'ring'"):
        known_labels(OLD, ("disk", "Ring"), {}, (), "--val")


def test_pairs_are_read_as_written():
    assert read_pairs(["Dog=dog", "big cat = cat"]) == {"Dog": "dog", "big cat": "cat"}
    for text in ("Dog", "=dog", "Dog="):
        with pytest.raises(UserError, match="NAME IN THE DATA=NAME IN THE MODEL"):
            read_pairs([text])


def test_names_look_alike_whatever_their_case_and_gaps():
    assert looks_like("Traffic_Light") == looks_like("traffic  light") == looks_like("traffic-light")
    assert looks_like("cat") != looks_like("cart")
