"""Graphs as dynamo counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.plan.graphs import Dynamic, GraphPlan, Shape, count_graphs
from backend.plan.memory.parts import read_parts
from backend.plan.trained_blocks import graph_variants, trained_blocks
from tests.tiny.plan_items import TEN_SIZES, config, finding, kinds, plan_of, scan_of


def shapes(*tokens: int, batch: int = 1, text: int = 512) -> list[Shape]:
    return [Shape(count, text, batch) for count in tokens]


@pytest.mark.parametrize(
    ("dynamic", "training", "later", "expected"),
    [
        # One shape is one graph, and one more without gradient, whatever torch is told.
        ("auto", shapes(4096), shapes(4096), (1, 1)),
        ("false", shapes(4096), shapes(4096), (1, 1)),
        ("true", shapes(4096), shapes(4096), (1, 1)),
        # Fixed sizes: a graph each.
        ("false", shapes(1, 2, 3, 4), shapes(2, 4, 9), (4, 3)),
        # The second size opens the axis, and the open graph takes all others.
        ("auto", shapes(4096, 4080, 4056, 4032), [], (2, 0)),
        ("auto", shapes(4096, 4080, 4056), shapes(1024, 2048), (2, 1)),
        ("auto", shapes(4096), shapes(1024, 2048, 512), (1, 1)),
        # Open from the start.
        ("true", shapes(4096, 4080, 4056), shapes(1024, 2048), (1, 1)),
        # A batch of one is specialised and has its own graph.
        ("true", [*shapes(4096, batch=4), *shapes(4096, batch=3)], shapes(4096), (1, 1)),
        ("true", [*shapes(4096, batch=4), *shapes(4096, batch=1)], [], (2, 0)),
        ("auto", shapes(4096, batch=2), shapes(4096, 4096, batch=1), (1, 1)),
    ],
)
def test_off(dynamic: Dynamic, training: list[Shape], later: list[Shape], expected: tuple[int, int]) -> None:
    assert count_graphs("off", dynamic, [], training, later) == expected


def test_what_runs_first_without_gradient_counts_too() -> None:
    assert count_graphs("off", "auto", shapes(1024), shapes(4096, 4080), shapes(1024, 4096)) == (1, 2)


def test_modes_that_rule_over_dynamic() -> None:
    many = shapes(4032, 4200, 4096)
    for dynamic in ("auto", "true", "false"):
        assert count_graphs("exact_buckets", dynamic, [], many, []) == (3, 0)  # type: ignore[arg-type]
        assert count_graphs("dynamic", dynamic, [], many, many) == (1, 1)  # type: ignore[arg-type]
    # Only the token axes are open.
    assert count_graphs("dynamic", "auto", [], shapes(4096, batch=4), shapes(4096)) == (1, 1)
    text = [Shape(4096, 64, 1), Shape(4080, 512, 1)]
    assert count_graphs("dynamic", "auto", [], text, []) == (1, 0)


def test_limit_and_words() -> None:
    plan = GraphPlan(tuple(shapes(1, 2, 3)), (), tuple(shapes(3)), 3, 1, 2)
    assert (plan.per_class, plan.total, plan.recompile_limit) == (4, 8, 8)
    assert plan.words() == "3 shapes -> 4 graphs (3 training + 1 without gradient) x 2 block classes = 8"
    many = GraphPlan(tuple(shapes(*range(23))), (), (), 23, 0, 2)
    assert many.recompile_limit >= 23
    # blocks of several backends have their graphs under one code object
    assert replace(many, variants=2).recompile_limit >= 2 * many.per_class


PROMPTS = {"sampling": {"prompts": [{"prompt": "a"}, {"prompt": "b", "width": 512}]}}


def graph_counts(plan: object, mode: str) -> tuple[int, int]:
    graphs = plan.modes[mode].graphs  # type: ignore[attr-defined]
    return graphs.training_graphs, graphs.no_grad_graphs


def test_static_is_one_graph_for_training_and_one_without_gradient() -> None:
    plan = plan_of(scan_of(TEN_SIZES, {"v": TEN_SIZES[:3]}), **PROMPTS)
    assert plan.graphs.training == (Shape(4096, 512, 1),)
    assert plan.graphs.validation == plan.graphs.sampling == (Shape(4096, 512, 1),)
    assert (plan.planned_graphs, plan.graphs.classes) == (4, 2)
    # 4096, 4080, 4056, ... tokens of the buckets, and the samples' 4096 and 2048
    native = {fit.bucket.tokens for fit in plan.fits} | {4096, 2048}
    assert plan.graphs.words() == (
        f"{len(native)} shapes -> 2 graphs (1 training + 1 without gradient) x 2 block classes = 4"
    )


def test_training_pictures_that_are_measured_too_are_counted() -> None:
    """Always the same ones, whatever others there are; and none without validation pictures to compare with."""
    scan = scan_of(TEN_SIZES, {"v": TEN_SIZES[:1]})
    values = {"compile": {"shape_mode": "exact_buckets"}, "dataset": {"batch_size": 2}}
    few, more = (plan_of(scan, validation={"validate_training_images": count}, **values) for count in (2, 4))
    assert len(few.training_sample) == 2 and set(few.training_sample) < set(more.training_sample)
    usual = plan_of(scan, **values)
    own = {few.fits[number].bucket.tokens for number in few.training_sample}
    held_out = {shape.image_tokens for shape in usual.graphs.validation}
    assert usual.training_sample == () and len(held_out) == 1 and own - held_out
    assert {shape.image_tokens for shape in few.graphs.validation} == held_out | own
    alone = plan_of(scan_of(TEN_SIZES), validation={"validate_training_images": 2}, **values)
    assert alone.training_sample == () and alone.graphs.validation == ()
    assert len(plan_of(scan, validation={"validate_training_images": 99}, **values).training_sample) == len(TEN_SIZES)


def test_batch_above_one_adds_none_since_validation_goes_one_by_one() -> None:
    plan = plan_of(scan_of(TEN_SIZES, {"v": TEN_SIZES[:3]}), dataset={"batch_size": 2}, **PROMPTS)
    assert graph_counts(plan, "static") == (1, 1)
    assert plan.validation_batch == 1 and plan.graphs.validation == (Shape(4096, 512, 1),)
    assert "one at a time" in finding(plan, "sample_batch").text
    alone = plan_of(scan_of(TEN_SIZES, {"v": TEN_SIZES[:3]}), dataset={"batch_size": 2})
    assert alone.validation_batch == 2 and graph_counts(alone, "static") == (1, 1)


def test_other_modes_list_their_shapes() -> None:
    plan = plan_of(scan_of(TEN_SIZES, {"v": TEN_SIZES[:3]}), **PROMPTS)
    off = plan.modes["off"]
    tokens = {fit.bucket.tokens for fit in off.fits}
    assert {shape.image_tokens for shape in off.graphs.training} == tokens and len(tokens) == 4
    assert {shape.image_tokens for shape in off.graphs.sampling} == {4096, 2048}
    assert graph_counts(plan, "off") == (2, 1)
    fixed = plan_of(scan_of(TEN_SIZES), compile={"compile_dynamic": "false"}, **PROMPTS)
    assert graph_counts(fixed, "off") == (len(tokens), 2)
    assert fixed.modes["off"].graphs.recompile_limit >= len(tokens) + 2
    exact = plan.modes["exact_buckets"].graphs
    assert {shape.image_tokens for shape in exact.training} <= {4032, 4200}
    # Samples of 4096 and 2048 tokens share with neither.
    assert graph_counts(plan, "exact_buckets")[1] == len({s.image_tokens for s in exact.validation} | {4096, 2048})
    assert graph_counts(plan, "dynamic") == (1, 1)


@pytest.mark.parametrize("mode", ["static", "exact_buckets", "off"])
def test_samples_that_only_a_person_asks_for_are_planned_apart(mode: str) -> None:
    rows = {"dataset": {"batch_size": 2}, "compile": {"shape_mode": mode, "compile_dynamic": "false"}}
    silent = {"prompts": PROMPTS["sampling"]["prompts"], "sample_at_end": False}
    plan, drawing = (
        plan_of(scan_of(TEN_SIZES * 2), sampling=silent, **rows),
        plan_of(scan_of(TEN_SIZES * 2), **PROMPTS, **rows),
    )
    assert plan.graphs.sampling == () and plan.graphs.no_grad_graphs == 0 and drawing.graphs.asked == (0, 0)
    assert plan.graphs.asked == (2 * drawing.graphs.no_grad_graphs, drawing.graphs.no_grad_graphs)
    assert plan.graphs.training_graphs == drawing.graphs.training_graphs
    assert plan_of(scan_of(TEN_SIZES * 2), **rows).graphs.asked == (0, 0)


def test_sample_above_the_static_count_is_a_graph_of_its_own_and_said() -> None:
    prompts = [{"prompt": "a"}, {"prompt": "b", "width": 1536, "height": 1536}]
    plan = plan_of(scan_of(TEN_SIZES), sampling={"prompts": prompts})
    assert plan.static_token_count == 4096
    assert {shape.image_tokens for shape in plan.graphs.sampling} == {4096, 9216}
    assert plan.graphs.no_grad_graphs == 2
    notice = finding(plan, "sample_graph")
    assert "Sample 2" in notice.text and "9216" in notice.text and notice.setting == "sampling.prompts[1].width"


def test_sample_in_exact_buckets_is_offered_a_size_that_shares() -> None:
    plan = plan_of(scan_of(TEN_SIZES), compile={"shape_mode": "exact_buckets"}, sampling={"prompts": [{"prompt": "a"}]})
    assert "1024x1008" in finding(plan, "sample_graph").remedy or "1008x1024" in finding(plan, "sample_graph").remedy


def test_samples_that_are_never_drawn_cost_nothing() -> None:
    plan = plan_of(scan_of(TEN_SIZES), sampling={"prompts": [{"prompt": "a"}], "sample_at_end": False})
    assert plan.graphs.sampling == () and plan.graphs.no_grad_graphs == 0
    quiet = plan_of(scan_of(TEN_SIZES, {"v": TEN_SIZES}), validation={"validate_at_end": False})
    assert quiet.graphs.validation == ()


def test_kept_incomplete_batches_add_shapes() -> None:
    plan = plan_of(scan_of([(1024, 1024)] * 10), dataset={"batch_size": 4, "sample_ratio": 0.6})
    assert [shape.batch for shape in plan.graphs.training] == [4, 2]
    assert "batches of 2" in finding(plan, "partial_batches").text


def test_scope_and_single_blocks_change_the_count() -> None:
    whole = plan_of(scan_of(TEN_SIZES), compile={"compile_scope": "model"}, training={"gradient_checkpointing": False})
    assert whole.planned_graphs == 1
    rows = [{"blocks": "double", "compile": False}]
    assert plan_of(scan_of(TEN_SIZES), compile={"compile_blocks": rows}).planned_graphs == 1
    rows = [{"blocks": "double:0-1", "backend": "aot_eager"}]
    two = plan_of(scan_of(TEN_SIZES), compile={"compile_blocks": rows})
    assert two.planned_graphs == 3 and two.graphs.variants == 2


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([], (2, 1)),
        # of three blocks 0 and 2 train the same: 1 has a graph of its own whatever compiles it
        ([{"blocks": "double:1", "backend": "aot_eager"}], (2, 1)),
        ([{"blocks": "double:2", "backend": "aot_eager"}], (3, 1)),
        ([{"blocks": "double:0,2", "compile": False}, {"blocks": "single:9"}], (1, 1)),
        ([{"blocks": "double:0-1", "backend": "aot_eager"}, {"blocks": "double", "backend": "eager"}], (2, 1)),
        ([{"blocks": "single", "compile": False}, {"blocks": "single:1-2"}], (2, 1)),
        ([{"blocks": "single", "compile": False}], (2, 0)),
    ],
)
def test_blocks_that_train_other_layers_are_counted_by_backend(
    rows: list[dict[str, Any]], wanted: tuple[int, int]
) -> None:
    cfg = config(compile={"compile_blocks": rows or None})
    trained = {"double": ["all", "none", "all"], "single": ["all"] * 4}
    assert tuple(count for _, count in graph_variants(cfg, family("flux"), trained)) == wanted


def test_what_is_trained_in_each_block_is_read_from_the_headers(tiny_flux: Path) -> None:
    values: dict[str, Any] = {"targets_include": ["attn.to_q", "proj_mlp"], "network_dim": 4, "network_alpha": 4.0}
    values["layer_settings"] = [{"layers": "transformer_blocks.1.attn.to_q", "dim": 2}]
    cfg = config(model={"base_model": str(tiny_flux)}, network=values)
    facts, base = family("flux"), BaseModelFiles.of(cfg.model)
    trained_parts = trained_blocks(cfg, facts, read_parts(facts, base))
    assert {kind: len(blocks) for kind, blocks in trained_parts.items()} == {"double": 2, "single": 2}
    assert len({*trained_parts["double"]}) == 2 and len({*trained_parts["single"]}) == 1
    assert trained_parts["double"][1] == {("attn.to_q", 2, 2.0)} and trained_blocks(cfg, facts, None) == {}


def test_compile_off_plans_no_graphs() -> None:
    plan = plan_of(scan_of(TEN_SIZES), compile={"compile": False})
    assert plan.planned_graphs == 0 and "sample_graph" not in kinds(plan)
    assert "compile is off: no graphs" in plan.lines()


def words(caption: str) -> int:
    return len(caption.split())


def test_caption_buckets_make_a_shape_each() -> None:
    scan = scan_of([(1024, 1024)] * 6)
    captions = [" ".join(["w"] * count) for count in (10, 60, 70, 200, 400, 600)]
    items = tuple(
        type(item)(**{**item.to_dict(), "path": item.path, "caption_path": None, "caption": caption})
        for item, caption in zip(scan.train.items, captions, strict=True)
    )
    scan = type(scan)(type(scan.train)(items), {})
    trimmed = {"caption_buckets": [64, 128, 256]}
    plan = plan_of(scan, words, compile=trimmed, sampling={"prompts": [{"prompt": "a b"}, {"prompt": captions[3]}]})
    assert {shape.text_tokens for shape in plan.graphs.training} == {64, 128, 256, 512}
    assert {shape.text_tokens for shape in plan.graphs.sampling} == {64, 256}
    # In batches the longest caption decides.
    paired = plan_of(scan, words, compile=trimmed, dataset={"batch_size": 6})
    assert [shape.text_tokens for shape in paired.graphs.training] == [512]
    dropped = plan_of(scan, words, compile=trimmed, dataset={"batch_size": 6, "caption_dropout_rate": 1.0})
    assert [shape.text_tokens for shape in dropped.graphs.training] == [64]
    # Five of six images are in an epoch: a batch of four, and the rest of one.
    sampled = plan_of(scan, words, compile=trimmed, dataset={"batch_size": 4, "sample_ratio": 0.9})
    assert {shape.batch for shape in sampled.graphs.training} == {4, 1}
    # Without a tokenizer nothing is trimmed, and that is said.
    blind = plan_of(scan, None, compile=trimmed)
    assert blind.caption_buckets is None and {s.text_tokens for s in blind.graphs.training} == {512}
    assert finding(blind, "no_tokenizer").severity == "warning"


def test_blocks_that_join_text_and_image_share_graphs_of_equal_length() -> None:
    """FLUX's single blocks see 4096 + 512 as 4544 + 64: their graph for other lengths serves the larger sample too."""
    prompts = [{"prompt": "a"}, {"prompt": "a", "height": 1136}]
    items = [type(item)(**{**item.to_dict(), "path": item.path, "caption_path": None, "caption": "w " * 600})
             for item in scan_of([(1024, 1024)] * 2).train.items]  # fmt: skip
    scan = scan_of([])
    plan = plan_of(
        type(scan)(type(scan.train)(tuple(items)), {}), words, compile={"caption_buckets": [64]},
        sampling={"prompts": prompts},
    )  # fmt: skip
    assert plan.graphs.training == (Shape(4096, 512, 1),)
    assert plan.graphs.sampling == (Shape(4096, 64, 1), Shape(4544, 64, 1))
    assert (plan.graphs.per_class, plan.planned_graphs) == (3, 5)
    assert "x 2 block classes - 1 that equal lengths share = 5" in plan.graphs.words()


def test_shorter_prompt_text_is_padded_in_static_only() -> None:
    sampling = {"prompts": [{"prompt": "a", "text_length": 256}]}
    plan = plan_of(scan_of(TEN_SIZES), sampling=sampling)
    assert plan.modes["static"].graphs.sampling == (Shape(4096, 512, 1),)
    assert plan.modes["off"].graphs.sampling == (Shape(4096, 256, 1),)
