"""Threads get a GPU one at a time, in the order in which they asked."""

from __future__ import annotations

import threading
import time

from ridgeline.serve.device_turns import Turns, take_turn


def test_turns_come_in_order_and_one_at_a_time():
    turns, order, inside = Turns(), [], []

    def work(number):
        with turns:
            inside.append(number)
            assert len(inside) == 1
            order.append(number)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    with turns:
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(turns._waiting) < number:
                time.sleep(0.0005)
    for thread in threads:
        thread.join()
    assert order == list(range(20))
    with turns:
        assert turns._taken
    assert not turns._taken


def test_a_turn_ends_with_an_error_and_cpus_are_shared():
    for _ in range(2):
        try:
            with take_turn("cuda:7"):
                raise ValueError
        except ValueError:
            pass
    with take_turn("cpu"), take_turn("cpu"), take_turn("cuda:8"), take_turn("cuda:7"):
        pass
