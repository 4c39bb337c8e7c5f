"""Buckets: the three tables, and how a picture comes to its bucket."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config.family_defaults import SHAPE_MODES, ShapeMode
from backend.config.schema import Config
from backend.dataset.buckets import (
    Bucket,
    area_buckets,
    bucket_table,
    exact_buckets,
    exact_token_counts,
    fit_to,
    table_for,
    token_buckets,
)
from backend.families.hunyuan_video.sections import SectionGeometry
from backend.families.spec import Geometry

FLUX = Geometry(downscale=8, patch=2, latent_channels=16)
TINY = Geometry(downscale=4, patch=2, latent_channels=4)


def sizes(buckets: tuple[Bucket, ...]) -> set[tuple[int, int]]:
    return {(bucket.width, bucket.height) for bucket in buckets}


def test_seed_000s_table() -> None:
    """4096 tokens of 16 px in steps of 64 px up to 4:1: 17 buckets, the four printed ones, at most 1.6 % padding."""
    table = token_buckets(4096, 64, 4.0, FLUX)
    assert len(table) == 17
    assert {(1024, 1024), (960, 1088), (1088, 960), (2048, 512)} <= sizes(table)
    tokens = {(b.width, b.height): b.tokens for b in table}
    assert tokens[1024, 1024] == tokens[2048, 512] == 4096 and tokens[960, 1088] == 4080
    assert all(0 <= 1 - bucket.tokens / 4096 <= 0.016 for bucket in table)
    assert all((b.height, b.width) in sizes(table) for b in table)
    assert all(b.width % 16 == 0 and b.height % 16 == 0 and b.tokens == b.width * b.height // 256 for b in table)


@settings(deadline=None)
@given(st.integers(16, 20_000), st.sampled_from([8, 16, 32, 64]), st.floats(1.0, 8.0))
def test_token_tables_stay_below_their_count_and_limit(tokens: int, divisor: int, limit: float) -> None:
    try:
        table = token_buckets(tokens, divisor, limit, FLUX)
    except ValueError as error:
        # Only where not even the squarest one fits.
        assert "bucket" in str(error)
        return
    for bucket in table:
        short, long = sorted((bucket.width, bucket.height))
        assert bucket.tokens <= tokens
        assert long <= short * limit
        # Less is left over than one more column of the short side.
        assert tokens - bucket.tokens < short // 16


@pytest.mark.parametrize(
    ("tokens", "expected"), [(4096, (4032, 4200)), (1024, (1008, 1020)), (2304, (2240, 2340)), (16, (15, 16))]
)
def test_exact_counts_are_the_most_divisible_ones(tokens: int, expected: tuple[int, ...]) -> None:
    """For 4096 these are 4032 and 4200."""
    smallest = 256 if tokens > 16 else 16
    counts = exact_token_counts(tokens, 16, smallest, 2048)
    assert counts == expected
    table = exact_buckets(counts, FLUX, smallest, 2048)
    assert {bucket.tokens for bucket in table} == set(expected)
    assert all(smallest <= side <= 2048 for bucket in table for side in (bucket.width, bucket.height))


def test_exact_counts_of_4096_hold_the_known_buckets() -> None:
    table = sizes(exact_buckets((4032, 4200), FLUX, 256, 2048))
    assert {(1008, 1024), (896, 1152), (768, 1344), (512, 2016), (960, 1120), (560, 1920)} <= table
    assert len(table) == 24


def test_area_buckets_are_those_of_sd_scripts() -> None:
    """The known table for 1024 px in steps of 64 px (256 to 2048), here its half with the portrait sizes."""
    portrait = {
        (256, 2048), (320, 2048), (384, 2048), (448, 2048), (512, 2048), (576, 1792), (640, 1600), (704, 1472),
        (768, 1344), (832, 1216), (896, 1152), (960, 1088), (1024, 1024),
    }  # fmt: skip
    buckets = sizes(area_buckets(1024, 256, 2048, 64, FLUX))
    assert portrait <= buckets
    assert all(width * height <= 1024 * 1024 for width, height in buckets)
    assert all(side % 64 == 0 and 256 <= side <= 2048 for size in buckets for side in size)


def test_limits_that_leave_no_bucket_are_an_error_with_a_fix() -> None:
    with pytest.raises(ValueError, match="min_bucket_size"):
        area_buckets(256, 512, 1024, 64, FLUX)
    with pytest.raises(ValueError, match="max_bucket_size"):
        token_buckets(4096, 64, 4.0, FLUX, longest=512)
    with pytest.raises(ValueError, match="min_bucket_size"):
        exact_token_counts(256, 16, 1024, 2048)


def test_cut_is_the_middle_and_keeps_the_short_side_whole() -> None:
    fit = fit_to(2000, 1000, Bucket(1024, 1024, 4096))
    assert fit.box == (500.0, 0.0, 1500.0, 1000.0)
    assert fit.scale == pytest.approx(1.024) and fit.crop == pytest.approx(0.5)


SIDES = st.integers(1, 12_000)


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES, st.sampled_from(SHAPE_MODES), st.booleans(), st.sampled_from([16, 64]))
def test_any_picture_fits_its_bucket(width: int, height: int, mode: ShapeMode, native: bool, step: int) -> None:
    table = bucket_table(1024, 256, 2048, step, FLUX, native, mode)
    fit = table.assign(width, height)
    left, top, right, bottom = fit.box
    slack = 1e-6 * max(width, height)
    assert -slack <= left < right <= width + slack and -slack <= top < bottom <= height + slack
    # The cut has the bucket's aspect ratio, touches two opposite edges and lies in the middle.
    assert (right - left) / (bottom - top) == pytest.approx(fit.bucket.width / fit.bucket.height)
    assert min(left + (width - right), top + (height - bottom)) == pytest.approx(0, abs=slack)
    assert left == pytest.approx(width - right, abs=slack) and top == pytest.approx(height - bottom, abs=slack)
    assert 0 <= fit.crop < 1
    assert fit.bucket.tokens == FLUX.image_tokens(fit.bucket.width, fit.bucket.height) <= table.budget
    if native and mode != "exact_buckets":
        assert fit.scale <= 1.0 or min(width, height) < step


@settings(deadline=None)
@given(st.integers(300, 6000), st.floats(0.26, 3.9), st.sampled_from(SHAPE_MODES))
def test_no_bucket_would_lose_less(side: int, ratio: float, mode: ShapeMode) -> None:
    width, height = side, max(1, round(side / ratio))
    table = bucket_table(1024, 256, 2048, 64, FLUX, False, mode)
    best = min(fit_to(width, height, bucket).crop for bucket in table.buckets)
    assert table.assign(width, height).crop == pytest.approx(best, abs=1e-9)


def test_portrait_and_landscape_are_mirrored() -> None:
    for mode in SHAPE_MODES:
        table = bucket_table(1024, 256, 2048, 16, FLUX, False, mode)
        for width, height in ((1920, 1080), (1234, 987), (4000, 600)):
            one, other = table.assign(width, height).bucket, table.assign(height, width).bucket
            assert (one.width, one.height) == (other.height, other.width)


def test_pictures_beyond_the_limits_are_flagged() -> None:
    table = bucket_table(1024, 256, 2048, 16, FLUX, False, "static")
    long = table.assign(6000, 1000)
    assert long.beyond and long.crop == pytest.approx(1 - 4 / 6)
    assert not table.assign(2048, 512).beyond and not table.assign(1000, 1001).beyond


def test_no_upscale_keeps_small_pictures_at_their_size() -> None:
    table = bucket_table(1024, 256, 2048, 16, FLUX, True, "off")
    small = table.assign(517, 333)
    assert (small.bucket.width, small.bucket.height) == (512, 320)
    assert small.scale <= 1.0
    assert table.assign(4000, 4000).bucket == Bucket(1024, 1024, 4096)
    # Smaller than a token: nothing to round down to.
    assert table.assign(5, 5).bucket == Bucket(16, 16, 1)
    assert table.assign(2000, 30).bucket == Bucket(2000, 16, 125)
    upscaled = bucket_table(1024, 256, 2048, 16, FLUX, False, "off").assign(517, 333)
    assert upscaled.scale > 1.5 and upscaled.bucket.tokens > 3900


def test_no_upscale_counts_the_tokens_of_one_frame_of_a_section() -> None:
    sections = SectionGeometry(downscale=8, patch=2, latent_channels=16, frame_step=4)
    native = bucket_table(640, 256, 1024, 16, sections, True, "off").assign(517, 333)
    assert native.bucket == Bucket(512, 320, sections.image_tokens(512, 320))


@settings(deadline=None)
@given(SIDES, SIDES, st.integers(64, 4096), st.booleans())
def test_static_count_below_the_resolution_scales_to_fit(width: int, height: int, count: int, native: bool) -> None:
    table = bucket_table(1024, 256, 2048, 16, FLUX, native, "static", static_token_count=count)
    assert table.assign(width, height).bucket.tokens <= count


def test_static_count_above_the_resolution_leaves_the_buckets() -> None:
    usual = bucket_table(1024, 256, 2048, 16, FLUX, False, "static")
    assert bucket_table(1024, 256, 2048, 16, FLUX, False, "static", 8000).buckets == usual.buckets
    fewer = bucket_table(1024, 256, 2048, 16, FLUX, False, "static", 1024)
    assert fewer.assign(1000, 1000).bucket == Bucket(512, 512, 1024)
    # Wide pictures still have wide buckets: the smallest side shrinks along.
    assert fewer.assign(2000, 1000).crop < 0.05


def test_step_is_raised_to_whole_tokens() -> None:
    table = bucket_table(512, 256, 1024, 24, FLUX)
    assert table.step == 32
    assert all(bucket.width % 32 == 0 for bucket in table.buckets)
    assert bucket_table(64, 16, 128, 1, TINY).step == 8


def test_table_of_a_config() -> None:
    cfg = Config.model_validate(
        {"dataset": {"resolution": 512, "bucket_step": 64}, "compile": {"static_token_count": 900}}
    )
    assert table_for(cfg, FLUX, "static").budget == 900
    assert table_for(cfg, FLUX, "off").buckets == area_buckets(512, 256, 2048, 64, FLUX)
    assert math.isclose(table_for(cfg, FLUX, "exact_buckets").budget, 1024, rel_tol=0.03)
