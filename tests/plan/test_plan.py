"""The plan as a whole: buckets, what happens to pictures, advice, and the documents made of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from backend.config.schema import Config
from backend.dataset.items import DatasetScan, Scan
from backend.families.flux.facts import FACTS
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.plan.make_plan import fitting_size, plan_for
from backend.plan.terminal import render
from backend.plan.texts import token_counter
from tests.tiny.plan_items import FLUX, TEN_SIZES, config, finding, kinds, plan_of, scan_of

code = load_family("flux")


def test_d9_small_buckets_are_counted_and_never_silently_dropped() -> None:
    """Ten shapes with three pictures each, batch 4: nothing could be trained at native sizes, all of it in static."""
    sizes = TEN_SIZES * 3
    off = plan_of(scan_of(sizes), dataset={"batch_size": 4}, compile={"shape_mode": "off"})
    assert off.steps.batches_per_epoch == 0
    assert finding(off, "no_batches").severity == "error"
    assert {row["images"] for row in off.bucket_rows()} == {3} and len(off.bucket_rows()) == 10
    static = plan_of(scan_of(sizes), dataset={"batch_size": 4})
    assert (static.steps.batches_per_epoch, static.steps.left_per_epoch) == (7, 2)
    assert "2 images left over" in finding(static, "left_over").text and not static.chosen.never


def test_pictures_that_are_never_trained_are_listed() -> None:
    sizes = [(1024, 1024)] * 9 + [(1344, 768)] * 2
    plan = plan_of(scan_of(sizes), dataset={"batch_size": 4}, compile={"shape_mode": "dynamic"})
    notice = finding(plan, "never_trained")
    assert notice.severity == "warning" and "2 images" in notice.text and "static" in notice.remedy
    assert notice.files == ("/pictures/00009.png", "/pictures/00010.png")
    assert finding(plan, "left_over").text.startswith("1 image ")
    assert plan.chosen.never == (9, 10)


def test_batches_are_real_and_complete() -> None:
    plan = plan_of(scan_of(TEN_SIZES * 3, repeats=2), dataset={"batch_size": 4})
    for epoch in range(3):
        batches = plan.batches(epoch)
        assert len(batches) == plan.steps.batches_per_epoch == 15
        assert sorted(index for batch in batches for index in batch) == sorted(list(range(30)) * 2)
    assert plan.batches(0) != plan.batches(1)


def test_mode_does_not_change_the_first_batch_of_one() -> None:
    """Batch 1, one size: every mode trains the same pictures in the same order."""
    plans = [plan_of(scan_of([(1024, 1024)] * 8), compile={"shape_mode": m}) for m in ("static", "off", "dynamic")]
    assert plans[0].batches(0) == plans[1].batches(0) == plans[2].batches(0)


def test_static_count_is_the_largest_bucket_in_use() -> None:
    assert plan_of(scan_of([(960, 1088)] * 3)).static_token_count == 4080
    # A held-out picture counts, a sample hardly larger raises it, a much larger one does not.
    assert plan_of(scan_of([(960, 1088)] * 3, {"v": [(1024, 1024)]})).static_token_count == 4096
    sampling = {"prompts": [{"prompt": "a"}, {"prompt": "b", "width": 2048}]}
    assert plan_of(scan_of([(960, 1088)] * 3), sampling=sampling).static_token_count == 4096
    assert plan_of(scan_of([(960, 1088)] * 3), compile={"static_token_count": 5000}).static_token_count == 5000
    small = plan_of(scan_of([(512, 512)] * 3), dataset={"no_upscale": True})
    assert small.static_token_count == 1024


def test_every_bucket_fits_the_static_count() -> None:
    for count in (500, 1024, 4000, None):
        plan = plan_of(scan_of([*TEN_SIZES, (400, 300)]), compile={"static_token_count": count})
        assert all(fit.bucket.tokens <= plan.static_token_count for fit in plan.fits)


def test_pictures_scaled_to_fit_the_static_count_are_listed() -> None:
    scan = scan_of([(1024, 1024), (1344, 768), (300, 300)])
    plan = plan_of(scan, dataset={"no_upscale": True}, compile={"static_token_count": 2048})
    notice = finding(plan, "scaled_to_fit")
    assert "2 images" in notice.text and notice.files == ("/pictures/00000.png", "/pictures/00001.png")
    assert "4096" in notice.remedy
    assert "scaled_to_fit" not in kinds(plan_of(scan, compile={"static_token_count": 4096}))


def test_enlarged_and_cropped_pictures_are_listed() -> None:
    plan = plan_of(scan_of([(1024, 1024), (400, 400), (900, 900), (6000, 1000), (300, 4000)]))
    enlarged = finding(plan, "enlarged")
    assert enlarged.severity == "warning" and "2.56 times" in enlarged.text
    assert [Path(name).stem for name in enlarged.files] == ["00001", "00004", "00002"]
    beyond = finding(plan, "beyond_limits")
    assert "4 to 1" in beyond.text and "70%" in beyond.text and len(beyond.files) == 2
    assert beyond.setting == "dataset.max_bucket_size" and "raise max_bucket_size to 3744" in beyond.remedy.lower()
    # Only the smallest side is in the way here: a longer one would change nothing.
    small = finding(plan_of(scan_of([(900, 300)] * 2), dataset={"resolution": 256}), "beyond_limits")
    assert small.setting == "dataset.min_bucket_size" and small.remedy.startswith(
        "Lower min_bucket_size to 144 or less,"
    )
    mended = plan_of(scan_of([(900, 300)] * 2), dataset={"resolution": 256, "min_bucket_size": 144})
    assert "beyond_limits" not in kinds(mended)
    kept = plan_of(scan_of([(400, 400)]), dataset={"no_upscale": True})
    assert "enlarged" not in kinds(kept)
    exact = plan_of(scan_of([(400, 400)]), dataset={"no_upscale": True}, compile={"shape_mode": "exact_buckets"})
    assert "does not work with exact_buckets" in finding(exact, "enlarged").remedy


def test_cropping_by_the_step_is_listed() -> None:
    plan = plan_of(scan_of([(1175, 1000)] * 2), compile={"shape_mode": "exact_buckets"}, dataset={"bucket_step": 64})
    assert plan.chosen.crop < 0.02
    coarse = plan_of(scan_of([(1000, 600)]), dataset={"bucket_step": 512}, compile={"shape_mode": "off"})
    assert finding(coarse, "cropped").files == ("/pictures/00000.png",)


def test_padding_and_crop_shares() -> None:
    plan = plan_of(scan_of([(1024, 1024)] * 3 + [(512, 512)]), dataset={"no_upscale": True})
    assert plan.chosen.padding == pytest.approx(1 - (3 * 4096 + 1024) / (4 * 4096))
    assert plan.modes["off"].padding == 0.0
    assert plan.chosen.crop == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("sizes", "sections", "expected", "word"),
    [
        (TEN_SIZES, {}, "static", "become one"),
        ([(1024, 1024)] * 5, {}, "static", "already have one shape"),
        ([(1024, 1024), (256, 256), (300, 500), (512, 512)], {"dataset": {"no_upscale": True}}, "dynamic", "pad"),
        (TEN_SIZES, {"compile": {"compile": False}}, "off", "Nothing is compiled"),
        (TEN_SIZES * 3, {"dataset": {"batch_size": 4}}, "static", "share batches"),
        ([], {}, "static", "one graph"),
    ],
)
def test_recommended_mode_and_reason(sizes: list, sections: dict, expected: str, word: str) -> None:
    plan = plan_of(scan_of(sizes), **sections)
    assert plan.recommended == expected
    assert word in plan.reason


def test_limits_without_a_bucket_are_an_error_and_no_crash() -> None:
    plan = plan_of(scan_of(TEN_SIZES), dataset={"resolution": 512, "min_bucket_size": 1024})
    notice = finding(plan, "no_buckets")
    assert notice.severity == "error" and "min_bucket_size" in notice.text
    assert plan.steps.steps == 0 and plan.planned_graphs == 0 and plan.static_token_count is None
    assert json.dumps(plan.to_dict()) and plan.lines()


def test_no_pictures_is_no_crash() -> None:
    plan = plan_of(DatasetScan(Scan(), {}), sampling={"prompts": [{"prompt": "a"}]})
    assert plan.steps.steps == 0 and plan.batches(0) == []
    assert json.dumps(plan.to_dict()) and plan.lines()


def test_document_is_plain_data_with_short_lists() -> None:
    sizes = [(400 + number % 300, 400) for number in range(3000)]
    plan = plan_of(scan_of(sizes), dataset={"no_upscale": True}, compile={"shape_mode": "off"})
    text = json.dumps(plan.to_dict())
    assert len(text) < 200_000
    document = json.loads(text)
    assert document["steps"]["sentence"] == plan.steps.sentence()
    assert document["graphs"]["planned"] == plan.planned_graphs
    assert {mode["mode"] for mode in document["modes"]} == {"static", "exact_buckets", "dynamic", "off"}
    assert document["recommended"] == plan.recommended and document["reason"]
    assert sum(row["images"] for row in document["buckets"]) == 3000
    larger = plan_of(scan_of(sizes)).to_dict()
    (enlarged,) = [each for each in larger["findings"] if each["kind"] == "enlarged"]
    assert enlarged["count"] == 3000 and len(enlarged["files"]) == 20


def test_report_for_the_terminal() -> None:
    console = Console(width=140, file=io.StringIO())
    plan = plan_of(scan_of(TEN_SIZES * 3), dataset={"batch_size": 4})
    console.print(render(plan))
    text = console.file.getvalue()
    assert "30 images x 1 repeat -> 10 buckets -> 7 batches of 4" in text
    assert "1024x1024" in text and "> static" in text and "Recommended: static" in text
    assert "note: 2 images left over by incomplete batches" in text


def test_a_recompile_limit_below_the_plan_is_said() -> None:
    asked = {"shape_mode": "off", "compile_dynamic": "false", "compile_cache_size_limit": 2}
    low = plan_of(scan_of(TEN_SIZES), compile=asked)
    assert low.graphs.per_class > 2 and low.recompile_limit == 2
    assert f"recompile limit 2 as set (the plan needs {low.needed_limit})" in "\n".join(low.lines())
    assert low.to_dict()["graphs"]["recompile_limit"] == 2
    assert f"the {low.graphs.per_class} graphs that a block class needs" in finding(low, "low_limit").text
    enough = plan_of(scan_of(TEN_SIZES), compile={**asked, "compile_cache_size_limit": low.graphs.per_class})
    assert "low_limit" not in {entry.kind for entry in enough.findings}


def test_bucket_step_that_is_no_whole_token_is_said() -> None:
    plan = plan_of(scan_of(TEN_SIZES), dataset={"bucket_step": 24})
    assert "32 is used" in finding(plan, "bucket_step").text


def test_sample_sizes_are_rounded_down_to_tokens_and_said() -> None:
    assert fitting_size(1000, 7, FLUX) == (992, 16)
    plan = plan_of(scan_of(TEN_SIZES), sampling={"prompts": [{"prompt": "a", "width": 1000, "height": 1030}]})
    assert "992x1024" in finding(plan, "sample_size").text
    assert plan.graphs.sampling[0].image_tokens == 4096


def test_geometry_and_tokens_come_from_the_base_model(tiny_flux: Path, tmp_path: Path) -> None:
    cfg = config(model={"base_model": str(tiny_flux)}, dataset={"resolution": 64, "min_bucket_size": 16})
    plan = plan_for(cfg, scan_of([(64, 64)]))
    assert plan.geometry == code_geometry(tiny_flux) and "usual_geometry" not in kinds(plan)
    lost = plan_for(config(model={"base_model": str(tmp_path / "gone")}), scan_of([(64, 64)]))
    assert lost.geometry == FACTS.default_geometry and finding(lost, "usual_geometry").setting == "model.base_model"
    assert plan_for(Config(), scan_of([(64, 64)])).geometry == FACTS.default_geometry


def code_geometry(base: Path) -> object:
    from backend.families.flux.facts import FACTS

    return FACTS.geometry(base)


def test_token_counts_are_the_encoders_own(tiny_flux: Path) -> None:
    import torch

    count = token_counter(tiny_flux, FACTS)
    assert count is not None
    captions = ["", "a red ring", "two blue squares and a dot", "Größe, 猫!", "a " * 40]
    stack = code.load_text(tiny_flux, LoadOptions(torch.float32, torch.device("cpu")))
    lengths = [int(encoded["length"]) for encoded in stack.encode(captions, 128)]
    assert [count(caption) for caption in captions] == lengths


def test_no_or_broken_tokenizer_counts_nothing(tmp_path: Path) -> None:
    assert token_counter(tmp_path, FACTS) is None
    (tmp_path / "tokenizer_2").mkdir()
    (tmp_path / "tokenizer_2" / "tokenizer.json").write_text("{}")
    assert token_counter(tmp_path, FACTS) is None


def test_layers_that_diffusers_would_leave_out_are_told_in_the_plan(tiny_flux: Path) -> None:
    """Read from the base model's headers; in diffusers' own layout there is nothing to tell."""
    network = {"targets_include": ["attn.to_q", "x_embedder", "norm_out.linear"]}
    base = {"base_model": str(tiny_flux)}
    findings = plan_for(config(model=base, network=network), scan_of([(64, 64)])).findings
    (notice,) = (finding for finding in findings if finding.kind == "diffusers_leaves_out")
    assert "2 layers" in notice.text and "x_embedder" in notice.text and "norm_out.linear" in notice.text
    own = config(model=base, network=network, saving={"save_layout": "diffusers"})
    assert not any(f.kind == "diffusers_leaves_out" for f in plan_for(own, scan_of([(64, 64)])).findings)
