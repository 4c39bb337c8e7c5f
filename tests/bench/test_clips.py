"""Clips in the bench: their sizes and counts, what is made of rows of several sizes, and the files of a rehearsal."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

import av
import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench.clip_table import read_sizes
from backend.bench.clips import exact_clips, parse_clips, static_counts
from backend.bench.estimate import step_bytes
from backend.bench.record import Record, read_rows
from backend.bench.rehearsal.clips import draw_clips
from backend.bench.step import Step
from backend.bench.table import render
from backend.bench.variants import VIDEO, Spec, variant
from backend.bench.work import Stream, build, frozen_shapes
from backend.bench.worker import _by_bucket, measure
from backend.families.spec import Geometry
from backend.plan.memory.weight_bytes import multiplied_in_8_bits
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.bench_rows import answer

WAN = Geometry(downscale=8, patch=2, latent_channels=16, frame_step=4)


def test_sizes_are_read_and_what_is_none_is_named() -> None:
    assert parse_clips("832x480x81, 832x480x49,") == ((832, 480, 81), (832, 480, 49))
    for text in ("832x480", "832x480xa", "0x480x81"):
        with pytest.raises(ValueError, match=f"--clips has '{text}'; write WIDTHxHEIGHTxFRAMES"):
            parse_clips(text)


def test_a_clip_is_padded_by_a_tenth_at_most_and_exact_clips_not_at_all() -> None:
    clips = [(832, 480, 81), (720, 544, 81), (832, 480, 49), (544, 720, 49), (1280, 720, 81)]
    tokens = [WAN.image_tokens(*clip) for clip in clips]
    assert tokens == [32760, 32130, 20280, 19890, 75600]
    assert static_counts(tokens) == (20280, 32760, 75600) and static_counts([]) == ()
    exact = exact_clips(clips, WAN)
    assert [WAN.image_tokens(*clip) for clip in exact] == [32760, 32760, 20280, 20280, 75600]
    assert exact[0] == clips[0] and [clip[2] for clip in exact] == [81, 81, 49, 49, 81]


def test_each_size_has_its_own_time_and_peak() -> None:
    times = [9.0, 9.0, 2.0, 1.0, 2.2, 1.2]
    row = _by_bucket(times, [10**9 * number for number in range(6)], 2, [(832, 480, 81), (832, 480, 49)])
    assert row["s_per_step"] == pytest.approx((2.1 + 1.1) / 2)
    assert row["bucket_ms"] == ["832x480x81=2100.0", "832x480x49=1100.0"]
    assert row["bucket_peak_gb"] == ["832x480x81=4.00", "832x480x49=5.00"]
    assert _by_bucket(times[:3], [], 2, [(8, 8, 9), (8, 8, 5)])["bucket_ms"] == ["8x8x9=2000.0"]


def test_the_table_compares_each_size_with_eager(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "wan-compile", "compile", [])
    rows = {
        "eager": (["720x544x81=1800", "720x544x49=900"], ["720x544x81=19.6", "720x544x49=12"]),
        "diffusers:auto": (["720x544x81=1600", "720x544x49=800"], []),
        "exact": (["640x624x81=1000", "720x544x49=450"], []),
    }
    for name, (seconds, peaks) in rows.items():
        record.add(Spec(name, size="wan"), 0, answer(1.0, bucket_ms=seconds, bucket_peak_gb=peaks))
    within = Spec("static:fa4", size="wan", checkpointing_kind="auto")
    record.add(within, 0, answer(1.0, bucket_ms=["720x544x81=900", "720x544x49=300"]))
    table = render(Record.open(tmp_path / "wan-compile", "compile", []).rows, "compile").split("\n\n")[1]
    assert "| variant | checkpointing | 720x544x81 | 720x544x49 |" in table
    assert "| eager | on | 1800 ms, 1.00 x, 19.6 GB | 900.0 ms, 1.00 x, 12.0 GB |" in table
    assert "| diffusers:auto | on | 1600 ms, 1.12 x | 800.0 ms, 1.12 x |" in table
    assert "| static:fa4 (checkpointing auto) | on | 900.0 ms, 2.00 x | 300.0 ms, 3.00 x |" in table
    assert "| exact | on | 1000 ms, 1.80 x, 640x624x81 | 450.0 ms, 2.00 x |" in table


def test_claims_of_others_stand_beside_what_we_offer_and_never_beside_their_way(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "hunyuan-compile", "compile", [])
    for name, seconds in (("eager", 1.0), ("diffusers:auto", 0.1), ("static:sdpa", 0.5)):
        record.add(Spec(name, size="hunyuan"), 0, answer(seconds))
    text = render(record.rows, "compile")
    assert "static:sdpa is 100 % faster than eager" in text and "20-35 % faster, with reduce-overhead" in text


def test_musubis_own_times_stand_beside_ours_on_their_work_alone(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "wan-compile", "compile", [])
    for spec in (Spec("static:sdpa", size="wan"), Spec("static:sdpa", size="wan-buckets", rank=8)):
        milliseconds = ["832x480x81=940.5", "832x480x49=1"]
        record.add(spec, 0, answer(1.0, bucket_ms=milliseconds[: 1 + (spec.rank == 8)], device="NVIDIA H200"))
    text = render(record.rows, "compile")
    assert "static:sdpa takes 940 ms a step, musubi-tuner's compiled Wan 1881 ms: 2.00 x." in text
    assert text.count("vs musubi") == 1


def test_our_shapes_make_the_planned_graphs_and_the_loss_of_diffusers_own_forward(tmp_path: Path) -> None:
    """Over 8 buckets of 4 sizes and 2 lengths: a graph for each length, and none after the warm-up."""
    rows = {}
    for name, clips in {"eager": "", "static:sdpa": "", "diffusers": "", "diffusers:auto": "128x80x5"}.items():
        torch._dynamo.reset()
        spec = Spec(name, size="tiny-wan", steps=1 if clips else 8, clips=clips, backend="eager", autocast=False)
        rows[name] = measure(replace(spec, cache_dir=str(tmp_path / "c")))
    eager, static, plain, theirs = rows.values()
    assert [static[name] for name in ("buckets", "graphs", "planned_graphs", "recompiles", "breaks")] == [8, 2, 2, 0, 0]
    for row in (static, plain):
        assert row["losses"] == pytest.approx(eager["losses"], rel=1e-4) and len(row["bucket_ms"]) == 8
    assert (theirs["graphs"], theirs["breaks"], theirs["planned_graphs"], plain["graphs"]) == (1, 0, None, 0)


@pytest.mark.parametrize("size", ["tiny-hunyuan", "tiny-framepack"])
def test_our_forward_is_diffusers_own_without_a_mask(size: str) -> None:
    spec = Spec("diffusers", size=size, checkpointing=False)
    stream = Stream(spec, torch.device("cpu"), exact=False)

    def losses(plain: bool) -> list[float]:
        model, _ = build(spec, torch.device("cpu"))
        step = Step(model, None, ShapeRuntime(), contextlib.nullcontext(), plain_forward=plain)
        return [step.forward(stream.batch(number)).item() for number in range(2)]

    # texts of 2 and of 10 tokens
    assert losses(False) == pytest.approx(losses(True), rel=1e-4)


def test_sizes_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "--clips is for video models, and flux is none": ["--clips", "832x480x81"],
        "80 frames are not 4 n + 1": ["--size", "wan", "--clips", "832x480x80"],
        "836x480 px is not a multiple of 16 px": ["--size", "wan", "--clips", "836x480x81"],
    }
    for text, command in wrong.items():
        with pytest.raises(SystemExit):
            bench.main(command)
        assert text in capsys.readouterr().err
    options = bench._parser().parse_args(["--size", "wan", "--checkpointing", "on"])
    assert [(spec.variant, spec.steps) for spec in bench.specs_of(options)] == [(name, 6) for name in VIDEO]


def test_drawn_clips_are_files_that_a_player_opens(tmp_path: Path) -> None:
    draw_clips(tmp_path, 2, (64, 48, 9), 16.0)
    with av.open(str(tmp_path / "clip_001.mp4")) as container:
        (stream,) = container.streams.video
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert stream.average_rate == 16 and len(frames) == 12 and frames[0].shape == (48, 64, 3)
    assert abs(frames[0].astype(int) - frames[5]).mean() > 1
    assert (tmp_path / "clip_001.txt").read_text().endswith("number 1")


def test_the_estimate_beside_a_peak_is_that_of_runs(tmp_path: Path) -> None:
    """Within 15 % of what was measured of Wan 14B's width on an H200, and beside it in the table."""
    measured = 0
    for name in ("wan", "wan-buckets"):
        for row in read_rows(bench.ROOT / "docs" / "benchmarks" / name):
            spec = Spec(row["variant"], size=row["size"], clips=row["clips"], checkpointing=row["checkpointing"] == "1")
            estimated = step_bytes(spec, variant(spec.variant), frozen_shapes(spec, torch.device("cpu")))
            for clip, peak in read_sizes(row, "bucket_peak_gb").items():
                assert estimated[parse_clips(clip)[0]] / 1e9 == pytest.approx(peak, rel=0.15), (spec.variant, clip)
                measured += 1
    assert measured == 14
    kept = replace(spec, checkpointing_kind="attention")
    more = step_bytes(kept, variant(kept.variant), frozen_shapes(kept, torch.device("cpu")))
    assert all(more[clip] > each for clip, each in estimated.items())
    shapes = frozen_shapes(spec, torch.device("cpu"))
    small, fast = (
        step_bytes(replace(spec, base_compute="fp8", base_products=each), variant(spec.variant), shapes)
        for each in ("small", "fast-rowwise")
    )
    copies = sum(math.prod(shape) for name, shape in shapes.items() if multiplied_in_8_bits(name, shape))
    assert copies and all(fast[clip] - each == copies for clip, each in small.items())
    record = Record.open(tmp_path / "wan-compile", "compile", [])
    row = {"bucket_ms": ["8x8x5=1000"], "bucket_peak_gb": ["8x8x5=10"], "bucket_estimated_gb": ["8x8x5=11"]}
    record.add(Spec("static:sdpa", size="wan"), 0, answer(1.0, **row))
    assert "10.0 GB (estimated 11.0, +10 %)" in render(record.rows, "compile")
