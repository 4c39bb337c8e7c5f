"""Steps, epochs and batches: the sum that a person checks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.dataset.batches import Group, epoch_batches
from backend.plan.steps import StepPlan, plan_steps
from tests.tiny.plan_items import finding, kinds, plan_of, scan_of

# 63 pictures in 8 buckets, of which 7 remainders: 4*2 + 4*2 + 4*2 + 4*2 + ... as below
R7_COUNTS = [9, 9, 9, 9, 9, 8, 5, 5]
R7_SIZES = [(1024, 1024), (1152, 896), (896, 1152), (1344, 768), (768, 1344), (1536, 640), (640, 1536), (1216, 832)]


def steps(counts: list[int], **changes: object) -> StepPlan:
    groups, place = [], 0
    for count in counts:
        groups.append(Group(str(count), tuple(range(place, place + count))))
        place += count
    values = {
        "images": place,
        "buckets": len(counts),
        "groups": groups,
        "batch_size": 4,
        "sample_ratio": 1.0,
        "accumulation": 1,
        "max_steps": None,
        "max_epochs": 25,
        **changes,
    }
    return plan_steps(**values)  # type: ignore[arg-type]


def test_r7_real_batches_are_counted_and_the_sum_is_shown() -> None:
    """63 images, 8 buckets, batch 4, 25 epochs are not 63 / 4 x 25 = 393 steps."""
    counts = steps(R7_COUNTS, accumulation=2)
    assert (counts.batches_per_epoch, counts.left_per_epoch, counts.steps) == (14, 7, 175)
    assert counts.sentence() == (
        "63 images x 1 repeat -> 8 buckets -> 14 batches of 4 (7 dropped each epoch) x 25 epochs = 350 batches "
        "/ accumulation 2 = 175 steps"
    )


def test_r7_through_the_whole_plan() -> None:
    sizes = [size for size, count in zip(R7_SIZES, R7_COUNTS, strict=True) for _ in range(count)]
    sections = {
        "dataset": {"batch_size": 4},
        "training": {"max_train_epochs": 25, "gradient_accumulation_steps": 2},
    }
    plan = plan_of(scan_of(sizes), compile={"shape_mode": "off"}, **sections)
    assert plan.steps.sentence() == steps(R7_COUNTS, accumulation=2).sentence()
    assert [len(plan.batches(epoch)) for epoch in range(3)] == [14] * 3
    # In static mode all sizes share batches, and only three turns are left.
    static = plan_of(scan_of(sizes), **sections)
    assert (static.steps.batches_per_epoch, static.steps.left_per_epoch) == (15, 3)


def test_each_process_takes_batches_of_its_own() -> None:
    counts = steps([12], max_epochs=5, accumulation=2, processes=3)
    assert (counts.steps, counts.batches_over, counts.images_per_step) == (2, 3, 24)
    assert counts.sentence().endswith("= 15 batches / accumulation 2 x 3 processes = 2 steps (3 left over)")
    assert steps([8], max_steps=4, max_epochs=None, processes=2).epochs == 4


def test_steps_asked_for() -> None:
    counts = steps([8, 8], max_steps=100, max_epochs=None, accumulation=3)
    assert (counts.steps, counts.batches, counts.batches_over) == (100, 300, 0)
    assert counts.epochs == 75
    assert counts.sentence().endswith("100 steps x accumulation 3 = 300 batches = 75 epochs")
    assert steps([8], max_steps=2, max_epochs=None).sentence().endswith("= 2 batches = 1 epoch")


def test_accumulation_runs_on_over_epochs_and_the_rest_is_said() -> None:
    counts = steps([12], max_epochs=5, accumulation=4)
    assert (counts.steps, counts.batches_over) == (3, 3)
    assert "(3 left over)" in counts.sentence()


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 4), st.integers(1, 5), st.floats(0.1, 1.0))
def test_counts_are_those_of_the_real_batches(counts: list[int], size: int, accumulation: int, ratio: float) -> None:
    counted = steps(counts, batch_size=size, accumulation=accumulation, sample_ratio=ratio, max_epochs=3)
    groups, place = [], 0
    for count in counts:
        groups.append(range(place, place + count))
        place += count
    for epoch in range(3):
        batches = epoch_batches(groups, size, 1, epoch, ratio >= 1, ratio)
        assert len(batches) == counted.batches_per_epoch
        assert sum(map(len, batches)) == counted.entries - counted.left_per_epoch
    assert counted.steps * accumulation + counted.batches_over == 3 * counted.batches_per_epoch
    assert counted.batches_over < accumulation or not counted.steps


def test_what_makes_no_step_is_an_error_with_a_fix() -> None:
    plan = plan_of(scan_of([(1024, 1024)] * 3), dataset={"batch_size": 4})
    notice = finding(plan, "no_batches")
    assert notice.severity == "error" and "batch_size" in notice.remedy and plan.steps.steps == 0
    plan = plan_of(scan_of([(1024, 1024)] * 3), training={"max_train_epochs": 1, "gradient_accumulation_steps": 4})
    notice = finding(plan, "no_steps")
    assert notice.severity == "error" and "gradient_accumulation_steps" in notice.remedy
    assert plan.problems[0].path == "training.gradient_accumulation_steps"


def test_run_shorter_than_an_epoch_is_said() -> None:
    plan = plan_of(scan_of([(1024, 1024)] * 100), training={"max_train_steps": 40})
    assert "40%" in finding(plan, "short_run").text and "100" in finding(plan, "short_run").remedy
    assert "short_run" not in kinds(plan_of(scan_of([(1024, 1024)] * 100), training={"max_train_steps": 100}))


@pytest.mark.parametrize(("ratio", "entries", "left"), [(1.0, 20, 0), (0.5, 20, 10), (0.33, 20, 13)])
def test_sample_ratio_counts(ratio: float, entries: int, left: int) -> None:
    plan = plan_of(scan_of([(1024, 1024)] * 10, repeats=2), dataset={"sample_ratio": ratio, "batch_size": 4})
    assert (plan.steps.entries, plan.steps.left_per_epoch) == (entries, left)
    assert ("sampled" in kinds(plan)) is (left > 0)
    assert ("partial_batches" in kinds(plan)) is (left > 0)


@pytest.mark.parametrize("buckets", [None, [16, 512]], ids=["whole text", "trimmed"])
def test_incomplete_batches_that_sample_ratio_keeps_are_planned(buckets: list[int] | None) -> None:
    """Of 8 pictures in batches of 3, all keep a last batch of 2: in steps, batches and shapes alike."""
    for ratio, sizes in ((1.0, [3, 3]), (0.99, [2, 3, 3])):
        plan = plan_of(
            scan_of([(1024, 1024)] * 8), lambda text: 10, dataset={"batch_size": 3, "sample_ratio": ratio},
            compile={"caption_buckets": buckets}, training={"max_train_epochs": 2},
        )  # fmt: skip
        batches = plan.batches(0)
        assert sorted(map(len, batches)) == sizes and plan.steps.batches_per_epoch == len(batches)
        assert {shape.batch for shape in plan.graphs.training} == set(sizes)
        assert ("partial_batches" in kinds(plan)) == (ratio < 1)
