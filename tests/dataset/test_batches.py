"""Batches: order, what falls out, and that nothing else than the arguments decides."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.dataset.batches import epoch_batches, group, kept
from backend.dataset.buckets import Bucket, Fit

EPOCH_0 = [[1, 2], [7, 8], [0, 4], [5, 6]]
EPOCH_1 = [[3, 0], [4, 1], [5, 7], [6, 8]]
SINGLE = [[2], [5], [3], [0], [1], [4]]

GROUPS = st.lists(st.integers(0, 12), max_size=5).map(
    lambda counts: [list(range(sum(counts[:i]), sum(counts[: i + 1]))) for i in range(len(counts))]
)


def fit(width: int, height: int) -> Fit:
    return Fit(Bucket(width, height, width * height // 256), (0, 0, 1, 1), 1.0, 0.0)


def test_order_is_this_one_on_every_machine() -> None:
    """Fixed: a resumed run, another Python or another machine must see the same batches."""
    assert epoch_batches([range(5), range(5, 9)], 2, 42, 0) == EPOCH_0
    assert epoch_batches([range(5), range(5, 9)], 2, 42, 1) == EPOCH_1
    assert epoch_batches([range(6)], 1, 7, 0) == SINGLE


@settings(deadline=None)
@given(GROUPS, st.integers(1, 5), st.integers(0, 2**32), st.integers(0, 40))
def test_whole_batches_of_one_group_each_used_once(groups: list[list[int]], size: int, seed: int, epoch: int) -> None:
    batches = epoch_batches(groups, size, seed, epoch)
    assert all(len(batch) == size for batch in batches)
    used = [index for batch in batches for index in batch]
    assert len(used) == len(set(used)) == sum(len(members) // size * size for members in groups)
    home = {index: number for number, members in enumerate(groups) for index in members}
    assert all(len({home[index] for index in batch}) == 1 for batch in batches)


@settings(deadline=None)
@given(GROUPS, st.integers(1, 5), st.integers(0, 2**32), st.integers(0, 40), st.floats(0.05, 0.95))
def test_sample_ratio_keeps_incomplete_batches(
    groups: list[list[int]], size: int, seed: int, epoch: int, ratio: float
) -> None:
    batches = epoch_batches(groups, size, seed, epoch, drop_last=False, sample_ratio=ratio)
    used = [index for batch in batches for index in batch]
    expected = sum(max(1, round(len(members) * ratio)) for members in groups if members)
    assert len(used) == len(set(used)) == expected
    assert sum(len(batch) < size for batch in batches) <= len(groups)


@pytest.mark.parametrize(("count", "size"), [(7, 4), (9, 2), (11, 8), (5, 3)])
def test_what_falls_out_changes_each_epoch_and_evens_out(count: int, size: int) -> None:
    left = []
    for epoch in range(count):
        used = {index for batch in epoch_batches([range(count)], size, 3, epoch) for index in batch}
        left.append(frozenset(range(count)) - used)
    assert all(len(out) == count % size for out in left)
    assert all(before != after for before, after in zip(left, left[1:], strict=False))
    # Over as many epochs as there are pictures each falls out equally often.
    assert set(Counter(index for out in left for index in out).values()) == {count % size}


def test_epochs_and_seeds_differ() -> None:
    orders = [epoch_batches([range(30)], 2, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({str(order) for order in orders}) == 4
    # The same number in another group must not be in the same order.
    flat = [batch[0] for batch in epoch_batches([range(20), range(20, 40)], 1, 1, 0)]
    first, second = [i for i in flat if i < 20], [i - 20 for i in flat if i >= 20]
    assert first != second and first != sorted(first)


def test_batches_of_groups_are_mixed() -> None:
    homes = ["a" if batch[0] < 40 else "b" for batch in epoch_batches([range(40), range(40, 80)], 4, 5, 0)]
    assert sum(one != other for one, other in zip(homes, homes[1:], strict=False)) > 1


def test_groups_by_mode() -> None:
    fits = [fit(1024, 1024), fit(512, 2048), fit(960, 1088), fit(1024, 1024)]
    repeats = [1, 2, 1, 1]
    (whole,) = group("static", fits, repeats)
    assert whole.indices == (0, 1, 1, 2, 3)
    assert {each.name: each.indices for each in group("exact_buckets", fits, repeats)} == {
        "4080 tokens": (2,),
        "4096 tokens": (0, 1, 1, 3),
    }
    for mode in ("dynamic", "off"):
        assert {each.name: each.indices for each in group(mode, fits, repeats)} == {
            "512x2048": (1, 1),
            "960x1088": (2,),
            "1024x1024": (0, 3),
        }
    assert group("static", [], []) == ()


@pytest.mark.parametrize(
    ("size", "batch", "drop", "ratio", "expected"),
    [
        (10, 4, True, 1.0, 8),
        (10, 4, False, 1.0, 10),
        (10, 4, False, 0.5, 5),
        (3, 4, True, 1.0, 0),
        (3, 4, False, 0.1, 1),
    ],
)
def test_kept(size: int, batch: int, drop: bool, ratio: float, expected: int) -> None:
    assert kept(size, batch, drop, ratio) == expected
