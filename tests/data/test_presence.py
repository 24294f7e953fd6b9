"""The class-presence index: once, cached, rebuilt when the data changes, the same in any number of processes."""

import os

import pytest

from comastre.data import parallel, presence
from comastre.data.sets.folder import folder
from comastre.errors import UserError
from small_data import write_folder, write_mask


@pytest.fixture
def dataset(tmp_path):
    write_folder(tmp_path, {"a": (1,), "b": (0, 2), "c": (255,)})
    for split in ("train", "val"):
        (tmp_path / f"{split}.txt").write_text("a\nb\nc\n")
    return folder(tmp_path, "train")


def forbid_work(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the index was worked out again")

    monkeypatch.setattr(presence, "each_in_parallel", refuse)


def test_the_second_time_comes_from_the_cache(dataset, own_cache, monkeypatch):
    assert dataset.presence() == [{1}, {2}, set()]
    (file,) = own_cache.iterdir()
    assert file.name.startswith("presence-folder-train-")
    forbid_work(monkeypatch)
    assert dataset.presence() == [{1}, {2}, set()]


@pytest.mark.parametrize("change", ["size", "time", "image", "list", "classes"])
def test_any_change_of_the_data_rebuilds_it(dataset, tmp_path, own_cache, monkeypatch, change):
    dataset.presence()
    mask = tmp_path / "masks" / "a.png"
    if change == "size":
        state = mask.stat()
        write_mask(mask, 1, 2, 0, 1, 2)
        assert mask.stat().st_size != state.st_size
        os.utime(mask, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif change == "time":
        os.utime(mask, ns=(1, 1))
    elif change == "image":  # it may be another size now, or broken
        os.utime(tmp_path / "images" / "a.jpg", ns=(1, 1))
    elif change == "list":
        (tmp_path / "train.txt").write_text("b\na\nc\n")
    else:
        (tmp_path / "classes.txt").write_text("cat\ndog\ncow\n")
    changed = folder(tmp_path, "train")
    expected = {"size": [{1, 2}, {2}, set()], "list": [{2}, {1}, set()]}.get(change, [{1}, {2}, set()])
    with monkeypatch.context() as patched, pytest.raises(AssertionError, match="again"):
        forbid_work(patched)
        changed.presence()
    assert changed.presence() == expected
    assert len(list(own_cache.iterdir())) == 1  # the old index is replaced, and nothing half-written stays


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fingerprint": 1}'])
def test_a_damaged_cache_is_worked_out_again(dataset, own_cache, content):
    dataset.presence()
    (file,) = own_cache.iterdir()
    file.write_text(content)
    assert dataset.presence() == [{1}, {2}, set()]


def test_a_cache_that_cannot_be_written_is_done_without(dataset, own_cache, monkeypatch):
    (own_cache / "file").write_text("")
    monkeypatch.setenv("COMASTRE_CACHE", str(own_cache / "file" / "below"))
    assert dataset.presence() == [{1}, {2}, set()]


def test_the_first_bad_file_is_named_and_the_others_counted(dataset, tmp_path, own_cache):
    write_mask(tmp_path / "masks" / "b.png", 9)
    write_mask(tmp_path / "masks" / "c.png", 9)
    with pytest.raises(UserError, match=r"b\.png holds the label 9.*1 more files are bad"):
        dataset.presence()
    assert not list(own_cache.iterdir())
    (tmp_path / "masks" / "a.png").unlink()
    with pytest.raises(UserError, match=r"a\.png does not exist"):
        dataset.presence()


def odd_is_bad(index):
    if index % 100 == 99:
        raise UserError(f"{index} is bad")
    return index * index


def test_processes_change_nothing():
    alone = parallel.each_in_parallel(odd_is_bad, 300, "", processes=1)
    together = parallel.each_in_parallel(odd_is_bad, 300, "", processes=2)
    assert [str(answer) for answer in together] == [str(answer) for answer in alone]
    assert [str(answer) for answer in together if isinstance(answer, UserError)] == [
        "99 is bad",
        "199 is bad",
        "299 is bad",
    ]
    assert together[250] == 62500


def broken(index):
    raise ZeroDivisionError("a mistake of ours")


def test_mistakes_of_ours_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        parallel.each_in_parallel(broken, 300, "", processes=2)
