"""A remedy has a condition: nowhere is something advised that the settings have already."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from backend.compile.compile_report import CompileReport
from backend.compile.forward_shape import ForwardShape
from backend.compile.recompile_reasons import InForce, Signature, explain
from backend.config.family_defaults import shape_mode_of
from backend.config.rules.check import RULES
from backend.config.schema import Config, by_name, by_path, get, with_values
from backend.families.table import FAMILIES
from backend.plan.make_plan import make_plan
from backend.runs.diagnose_rules import RULES as FAILURES
from backend.runs.exit_codes import EXIT_CODES
from backend.runs.remedy_filter import FOLLOWED, unfollowed
from tests.tiny.plan_items import scan_of
from tests.tiny.rule_rows import BROKEN

_SET = re.compile(r"(?:^|[\s,;(])(?:[Ss]et|[Cc]hoose|use) ([\w.]+) to ([\w.-]+)")
_WORDED = re.compile(r"\b([Tt]ake|[Ll]eave|[Tt]urn) ([\w.]+) (out|empty|on|off)\b")


def value_of(cfg: Config, name: str) -> tuple[bool, Any]:
    """Whether `name` (flat or with its section) is a setting, and its value; a family's own shape mode resolved."""
    declared = by_path().get(name) or by_name().get(name.rsplit(".", 1)[-1])
    if declared is None:
        return False, None
    value = get(cfg, declared.path)
    return True, shape_mode_of(cfg) if declared.name == "shape_mode" else value


def followed(cfg: Config, remedy: str) -> list[str]:
    """The parts of a remedy that say what is so already."""
    advice = []
    for name, wanted in _SET.findall(remedy):
        known, value = value_of(cfg, name)
        if known and str(value).lower() == wanted.rstrip(".").lower():
            advice.append(f"{name} is {value}: {remedy}")
    for verb, name, how in _WORDED.findall(remedy):
        known, value = value_of(cfg, name)
        so = {"on": value is True, "off": value is False, "empty": value is None, "out": value in (None, [], {})}[how]
        if known and so:
            advice.append(f"{verb} {name} {how}, which is {value}: {remedy}")
    return advice


def test_no_rule_advises_what_is_set() -> None:
    advice = []
    for values, *_ in BROKEN:
        cfg = with_values(Config(), values)
        for rule in RULES:
            advice += [line for problem in rule.problems(cfg) for line in followed(cfg, problem.remedy)]
    assert advice == []


SIZES = [(1024, 1024)] * 3 + [(4000, 500), (300, 200), (1100, 1000), (64, 2000)]
DATA = {"batch_size": 4, "bucket_step": 16}


def plans() -> Iterable[tuple[Config, Any]]:
    """Plans of each family's kind, in each shape mode, with settings that bring findings about."""
    for family in ("flux", "sdxl", "anima"):
        row = FAMILIES[family]
        for mode in ("auto", "static", "exact_buckets", "dynamic", "off"):
            for more in ({}, {"batch_size": 1, "bucket_step": 128}, {"no_upscale": True, "sample_ratio": 0.9}):
                compile = {"shape_mode": mode, "compile_cache_size_limit": 1, "disable_linear": "on"}
                prompts = [{"prompt": "x", "width": 2048, "height": 2048}, {"prompt": "x", "width": 500, "height": 300}]
                cfg = Config.model_validate(
                    {
                        "model": {"family": family},
                        "dataset": DATA | more,
                        "compile": compile,
                        "sampling": {"prompts": prompts},
                    }
                )
                yield cfg, make_plan(cfg, scan_of(SIZES), row.default_geometry, row)


def test_no_finding_of_a_plan_advises_what_is_set_or_can_not_be() -> None:
    advice, kinds = [], set()
    for cfg, plan in plans():
        for finding in plan.findings:
            kinds.add(finding.kind)
            advice += followed(cfg, finding.remedy)
            lacking = FAMILIES[cfg.model.family].lacks_modes
            advice += [finding.remedy for mode in lacking if f"shape_mode to {mode}" in finding.remedy]
            step = re.search(r"[Ll]ower bucket_step", finding.remedy)
            if step and cfg.dataset.bucket_step <= plan.geometry.pixels_per_token:
                advice.append(finding.remedy)
    assert advice == [] and {"never_trained", "beyond_limits", "cropped", "low_limit", "linear_out"} <= kinds


def test_no_reason_of_a_graph_advises_what_is_in_force() -> None:
    known = [Signature(ForwardShape(2, 16, 64), gradients=True)]
    new = Signature(ForwardShape(3, 32, 128, masked=True), gradients=True)
    cause = explain(known, new, None, InForce(static=True, trims=False, one_row=True))
    assert cause is not None and cause.setting is not None
    assert "shape_mode" not in cause.setting and "caption_buckets" not in cause.setting
    assert "batch_size" not in cause.setting and "static_token_count = 32" in cause.setting
    free = explain(known, new, None)
    assert free is not None and free.setting is not None
    assert all(word in free.setting for word in ("shape_mode = static", "caption_buckets", "batch_size"))
    guard = "0/0: tensor 'x' size mismatch at index 1. expected 3, actual 4"
    same = explain(known, known[0], guard, InForce(static=True))
    assert same is not None and same.setting is None


@pytest.mark.parametrize("limit_is_set", [False, True])
@pytest.mark.parametrize("may_pad", [False, True])
def test_no_report_of_a_reached_limit_advises_what_is_set(limit_is_set: bool, may_pad: bool) -> None:
    report = CompileReport(limit=8, limited=["double"], limit_is_set=limit_is_set, may_pad=may_pad)
    assert ("Leave compile_cache_size_limit empty" in report.remedy) == limit_is_set
    assert ("shape_mode to static" in report.remedy) == may_pad and report.remedy.endswith(".")


ALREADY = {
    "training.gradient_checkpointing": True,
    "dataset.batch_size": 1,
    "compile.shape_mode": "static",
    "dataset.loader_workers": 0,
    "training.mixed_precision": "bf16",
    "compile.compile_backend": "inductor",
}


def test_no_failure_advises_what_is_set() -> None:
    """Every phrase that has a condition stands in a remedy, and goes where its condition holds."""
    remedies = [rule.remedy for rule in FAILURES] + [str(words) for words in EXIT_CODES.values()]
    unused = [phrase for phrase, *_ in FOLLOWED if not any(phrase[1:] in remedy for remedy in remedies)]
    assert unused == []
    cfg = with_values(Config(), ALREADY)
    left = [unfollowed(remedy, {path: get(cfg, path) for path in by_path()}) for remedy in remedies]
    advice = [line for remedy in left for line in followed(cfg, remedy)]
    words = ("gradient_checkpointing on", "lower batch_size", "loader_workers to 0", "use bf16")
    assert advice == [] and [r for r in left if any(word in r for word in words)] == []
    assert [unfollowed(remedy, None) for remedy in remedies] == remedies
