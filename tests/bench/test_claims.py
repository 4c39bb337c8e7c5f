"""Figures that pages tell are those of the records: each sentence here is written with what the tables hold."""

from __future__ import annotations

import re

import pytest

from backend.bench.clip_table import sizes_of
from backend.bench.groups import Group, groups
from backend.bench.record import ROOT, read_rows
from backend.bench.rehearsal import report as rehearsals
from backend.config.load import load
from backend.config.schema import Config

RECORDS = ROOT / "docs" / "benchmarks"


def row_of(record: str, variant: str, checkpointing: bool = False, **settings: str) -> Group:
    """The one group of a record with these settings, and none but default ones beside them."""
    rows = [
        group
        for group in groups(read_rows(RECORDS / record))
        if (group.variant, group.checkpointing) == (variant, checkpointing)
        and all(group.rows[0][name] == value for name, value in settings.items())
    ]
    assert len(rows) == 1, (record, variant, settings, [group.name() for group in rows])
    return rows[0]


def ms(record: str, variant: str, checkpointing: bool = False, digits: int = 0, **settings: str) -> str:
    seconds = row_of(record, variant, checkpointing, **settings).median("s_per_step")
    assert seconds is not None
    return f"{seconds * 1000:.{digits}f}"


def gb(record: str, variant: str, checkpointing: bool = False, digits: int = 1, **settings: str) -> str:
    peak = row_of(record, variant, checkpointing, **settings).median("peak_gb")
    assert peak is not None
    return f"{peak:.{digits}f}"


def graphs(record: str, variant: str, checkpointing: bool = False, **settings: str) -> str:
    made = row_of(record, variant, checkpointing, **settings).median("graphs")
    assert made is not None
    return f"{made:.0f}"


def width_of_flux() -> dict[str, str]:
    """Steps of 4 + 8 blocks."""
    figures = {}
    for name, variant in (("eager", "eager"), ("sdpa", "static:sdpa"), ("fa4", "static:fa4")):
        figures[name] = ms("flux-compile", variant)
        figures[f"{name}_checkpointed"] = ms("flux-compile", variant, True, checkpointing_kind="auto")
    for each in ("off", "on"):
        figures[f"linear_{each}"] = ms("flux-linear", "static:sdpa", True, disable_linear=each)
        figures[f"linear_{each}_graphs"] = graphs("flux-linear", "static:sdpa", True, disable_linear=each)
    for budget in ("0", "0.1"):
        figures[f"budget_{budget[-1]}_gb"] = gb("flux-budget", "static:fa4", memory_budget=budget)
    figures["fa4_gb"] = gb("flux-compile", "static:fa4")
    for record in ("flux-launch", "flux-launch-cpp"):
        figures[record.replace("-", "_")] = ms(record, "static:fa4", digits=1)
    return figures


def whole_models() -> dict[str, str]:
    """FLUX at its full depth, and SDXL."""
    figures = {}
    for name, record, settings in (
        ("whole", "flux-whole-memory", {"swap": "0"}),
        ("whole_auto", "flux-whole-auto", {"swap": "0"}),
        ("least", "flux-whole-memory", {"swap": "48", "base_quantization": "fp8"}),
    ):
        figures[name] = ms(record, "static:sdpa", True, **settings)
        figures[f"{name}_gb"] = gb(record, "static:sdpa", True, digits=1 if name == "least" else 0, **settings)
    for name, variant, recorded in (
        ("eager", "eager", "0"),
        ("compiled", "dynamic", "0"),
        ("recorded", "dynamic", "1"),
    ):
        figures[f"sdxl_{name}"] = ms("sdxl-graphs", variant, cuda_graphs=recorded)
        figures[f"sdxl_{name}_gb"] = gb("sdxl-graphs", variant, digits=0, cuda_graphs=recorded)
    return figures


def clips() -> dict[str, str]:
    """Models of clips at their width, at 832x480 px and 81 frames."""
    figures = {}
    for record, model in (("wan-attention", "wan"), ("hunyuan", "hunyuan")):
        for name, kind in (("eager", ""), ("static:sdpa", "attention"), ("static:fa4", "attention")):
            row = row_of(record, name, True, checkpointing_kind=kind)
            milliseconds = sizes_of(row, "bucket_ms")["832x480x81"]
            figures[f"{model}_{name.partition(':')[2] or name}"] = f"{milliseconds:,.0f}"
    return figures


def products() -> dict[str, str]:
    """8-bit products and bf16, with recorded passes, and steps of all weights."""
    figures = {}
    for name, compute, kept in (("bf16", "bf16", "small"), ("fp8", "fp8", "fast")):
        for where, checkpointing in (("", False), ("_checkpointed", True)):
            settings = {"base_compute": compute, "base_products": kept}
            figures[f"recorded_{name}{where}"] = ms("flux-products", "static:fa4", checkpointing, **settings)
        kept_ms = ms("flux-fastest", "static:fa4", True, lora_dtype="fp32", base_compute=compute, base_products=kept)
        figures[f"kept_{name}"] = kept_ms
    figures["warm"] = f"{row_of('flux-warm', 'static:fa4', True).median('compile_s'):.1f}"
    for name, variant in (("full_eager", "eager"), ("full_compiled", "static:fa4")):
        figures[name] = ms("flux-full", variant, True)
    return figures


CLAIMS = {
    "README.md": (
        "| eager | {eager_checkpointed} | {eager} |",
        "| Monotile, torch's own attention | {sdpa_checkpointed} | {sdpa} |",
        "| **{fa4_checkpointed}** | **{fa4}** |",
        "peaked at {least_gb} GB on an H100 at {least} ms a step; without them it takes {whole_gb} GB and {whole} ms "
        "({whole_auto} with checkpointing as it is by default",
        "from {sdxl_eager} ms (eager) and {sdxl_compiled} (compiled) to {sdxl_recorded} ms on an H200, for "
        "{sdxl_recorded_gb} GB instead of {sdxl_compiled_gb}",
        "takes {recorded_bf16_checkpointed} and {recorded_bf16} ms on an H200, with fp8 products "
        "{recorded_fp8_checkpointed} and {recorded_fp8}; where checkpointing keeps attention's results {kept_bf16}, "
        "fp8 {kept_fp8}.",
        "24 to 32 s to compile, later {warm} (H200).",
        "All weights there (Adafactor, checkpointing): {full_compiled}, eager {full_eager}.",
        "(4 blocks) takes {wan_eager} ms eager, {wan_sdpa} with torch's own attention and {wan_fa4} with "
        "FlashAttention 4",
        "HunyuanVideo's (2 + 4 blocks) {hunyuan_eager}, {hunyuan_sdpa} and {hunyuan_fa4}.",
    ),
    "docs/settings.md": (
        "a step took {linear_off} ms with off ({linear_off_graphs} graphs) and {linear_on} ms with on "
        "({linear_on_graphs} graphs",
        "0.1 lowered {fa4_gb} GB to {budget_1_gb} GB for a fifth more time, and 0 to {budget_0_gb} GB",
    ),
    "docs/tried.md": (
        "{flux_launch_cpp} ms a step against {flux_launch}",
        "{linear_on} ms a step against {linear_off}, in {linear_on_graphs} graphs instead of {linear_off_graphs}",
    ),
}
"""Page -> words that it must hold, with what the records say in place of each name."""


@pytest.mark.parametrize("page", CLAIMS)
def test_pages_tell_the_figures_of_the_records(page: str) -> None:
    figures = width_of_flux() | whole_models() | clips() | products()
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    missing = [words for each in CLAIMS[page] if (words := each.format(**figures)) not in text]
    assert not missing


def presets() -> dict[str, str]:
    """Preset -> what the table tells of its speed."""
    text = (ROOT / "presets" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    return {name: row for name, row in rows if row != "not yet measured"}


def test_presets_tell_the_speed_of_what_they_ship() -> None:
    """Or name the setting that was another one when it was measured."""
    measured = {"flux-8gb": "flux-whole-memory", "flux-48gb": "flux-whole-auto"}
    rates = presets()
    assert rates.keys() == {"demo", *measured}
    for name, record in measured.items():
        cfg = load(ROOT / "presets" / f"{name}.toml").partial
        assert isinstance(cfg, Config)
        memory = {"swap": str(cfg.memory.blocks_to_swap), "base_quantization": cfg.memory.base_quantization}
        row = row_of(record, "static:sdpa", cfg.training.gradient_checkpointing, **memory)
        assert rates[name].startswith(f"{row.median('s_per_step'):.2f} on an H100, random weights")
        assert row.rows[0]["rank"] == str(cfg.network.network_dim)
        kind = row.rows[0]["checkpointing_kind"] or "block"
        assert (kind == cfg.memory.checkpointing_kind) or f'`checkpointing_kind = "{kind}"`' in rates[name]


def test_every_estimate_of_a_rehearsal_is_within_what_the_pages_say() -> None:
    """Troubleshooting says that estimates are within about 15 %."""
    rows = rehearsals.read_rows(rehearsals.DOCS / "rehearsals")
    assert rows and all(85 <= row["estimate_percent"] <= 115 for row in rows)
    assert "within about 15 %" in (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
