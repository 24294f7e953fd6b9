"""Threads beside the model: in order, bounded, and never silent about what went wrong."""

from __future__ import annotations

import threading
import time

import pytest

from comastre.prediction.beside import InOrder, one_ahead


def test_the_next_item_is_made_while_one_is_used() -> None:
    made: list[int] = []

    def work(number: int) -> int:
        made.append(number)
        return number * number

    for number, square in one_ahead(range(5), work):
        assert square == number * number
        deadline = time.monotonic() + 5
        while len(made) < min(number + 2, 5) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(made) == min(number + 2, 5)  # the next one, and no more
    assert made == list(range(5))
    assert list(one_ahead([], work)) == []


def test_what_making_raises_comes_with_its_item() -> None:
    def work(number: int) -> int:
        return 1 // (2 - number)

    found = one_ahead(range(4), work)
    assert [next(found)[0], next(found)[0]] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_items_are_done_in_order_and_the_block_waits_for_them() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        time.sleep(0.002)
        done.append(number)

    with InOrder(work, most=3) as worker:
        for number in range(10):
            worker.add(number, 1)
    assert done == list(range(10))


def test_no_more_waits_than_may() -> None:
    release, sizes, waiting = threading.Event(), [5, 1, 1, 9, 1], 0
    most_seen: list[int] = []
    lock = threading.Lock()

    def work(size: int) -> None:
        nonlocal waiting
        release.wait(5)
        with lock:
            most_seen.append(waiting)
            waiting -= size

    with InOrder(work, most=6) as worker:
        timer = threading.Timer(0.05, release.set)
        timer.start()
        for size in sizes:
            worker.add(size, size)
            with lock:
                waiting += size
    assert len(most_seen) == len(sizes) and waiting == 0
    assert max(most_seen) <= 9  # 6, or one item that is larger alone


@pytest.mark.parametrize("error", [ValueError("disk"), KeyboardInterrupt()])
def test_an_error_is_raised_here_and_nothing_more_is_done(error: BaseException) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 2:
            raise error
        done.append(number)

    with pytest.raises(type(error)), InOrder(work, most=1) as worker:
        for number in range(100):
            worker.add(number, 1)
    assert done == [0, 1]
    with pytest.raises(type(error)), InOrder(work, most=100) as worker:  # told at the end of the block at the latest
        worker.add(2, 1)


def test_a_block_that_fails_leaves_what_waits_undone_and_ends_its_thread() -> None:
    done: list[int] = []
    begun, release = threading.Event(), threading.Event()

    def work(number: int) -> None:
        begun.set()
        release.wait(5)
        done.append(number)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), InOrder(work, most=100) as worker:
        for number in range(5):
            worker.add(number, 1)
        begun.wait(5)
        threading.Timer(0.02, release.set).start()
        raise KeyboardInterrupt
    assert done == [0]  # what was in work
    time.sleep(0.05)
    assert threading.active_count() <= before
