"""The memory of pictures decoded at one time has a bound over all threads."""

from __future__ import annotations

import threading

from backend.dataset.decode_budget import BYTES_A_PIXEL, DecodeBudget


def test_pictures_wait_for_each_other_and_a_huge_one_goes_alone() -> None:
    budget = DecodeBudget(100 * BYTES_A_PIXEL)
    lock, now, most = threading.Lock(), [0], [0]

    def decode(pixels: int) -> None:
        with budget.room(pixels, 1):
            with lock:
                now[0] += min(pixels, 100)
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.01)
            with lock:
                now[0] -= min(pixels, 100)

    threads = [threading.Thread(target=decode, args=(pixels,)) for pixels in (60, 60, 5000, 30, 30, 30, 5000, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert 60 <= most[0] <= 100
