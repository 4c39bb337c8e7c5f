"""The demo of video training: its clips and its tiny Wan, and a whole compiled run of its preset, made short."""

from __future__ import annotations

import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import av
import pytest
from rich.console import Console

from backend.config.schema import with_values
from backend.config.toml_io import dump
from backend.dataset.scan import scan_dataset
from backend.demo import __main__ as demo
from backend.families.wan.facts import FACTS
from backend.runs.folder import list_runs
from backend.runs.metrics import MetricsReader
from tests.tiny.event_lines import event_lines
from tests.tiny.scripts import run_script

DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo"
VIDEO = DEMO / "video"


def test_the_clips_are_short_small_and_captioned_and_the_preset_uses_nearly_all_of_them() -> None:
    clips = sorted((VIDEO / "clips").glob("*.mp4"))
    assert 6 <= len(clips) <= 8
    assert sum(clip.stat().st_size for clip in clips) < 300_000
    assert all(clip.with_suffix(".txt").read_text(encoding="utf-8").strip() for clip in clips)
    scan = scan_dataset(demo.settings(demo.VIDEO)).train
    assert {Path(clip.path) for clip in scan.clips} == set(clips)
    assert {item.frames for item in scan.items} == {1, 9, 17}
    assert not [finding for finding in scan.findings if finding.severity == "error"]
    assert sum(clip.used for clip in scan.clips) > 0.9 * sum(clip.seconds for clip in scan.clips)
    assert any(clip.retimed for clip in scan.clips) and any(clip.too_long for clip in scan.clips)


def test_the_base_is_a_whole_wan_pipeline() -> None:
    assert FACTS.check_base_model(VIDEO / "base") == []
    assert FACTS.geometry(VIDEO / "base").latent_shape(96, 64, 17) == (16, 5, 8, 12)
    assert sum(path.stat().st_size for path in (VIDEO / "base").rglob("*")) < 2_000_000


def test_the_script_draws_the_same_clips_and_makes_a_pipeline_that_loads(tmp_path: Path) -> None:
    """The clips by the command itself, for which it needs no torch."""
    script, out = DEMO / "make_video_demo.py", ["--out", str(tmp_path), "--stage"]
    made = subprocess.run([sys.executable, str(script), *out, "clips"], capture_output=True, text=True, timeout=280)
    assert made.returncode == 0, made.stderr
    run_script(script, *out, "base")
    assert FACTS.check_base_model(tmp_path / "base") == []
    for clip in sorted((VIDEO / "clips").glob("*.mp4")):
        again = tmp_path / "clips" / clip.name
        # another FFmpeg may code them otherwise
        with av.open(str(clip)) as ours, av.open(str(again)) as theirs:
            assert ours.streams.video[0].frames == theirs.streams.video[0].frames
        assert again.with_suffix(".txt").read_text("utf-8") == clip.with_suffix(".txt").read_text("utf-8")


@pytest.mark.slow
def test_a_run_of_the_preset_on_clips_is_compiled_with_the_planned_graph(tmp_path: Path) -> None:
    """In a process of its own and by inductor, which needs a second for each of its kernels here.

    Without samples, whose graph has half as many again: test_clip_runs.py of Wan counts it, and test_samples.py there
    reads the clips that a run writes.
    """
    few = tmp_path / "clips"
    few.mkdir()
    for name in ("car-left", "car-right"):
        for file in (VIDEO / "clips").glob(f"{name}.*"):
            shutil.copy(file, few)
    cfg = demo.settings(demo.VIDEO, steps=4)
    values = {
        "dataset.folders": [{"path": str(few)}],
        "dataset.cache_dir": str(tmp_path / "cache"),
        "compile.compile_cache_dir": str(tmp_path / "c"),
        "video.target_frames": [9],
        # as many graphs as with all layers, compiled in less time
        "network.targets_include": ["attn1.to_q", "attn2.to_q"],
        "sampling.prompts": [],
    }
    dump(with_values(cfg, values), tmp_path / "short.toml")
    output = StringIO()
    console = Console(file=output, width=100, highlight=False)
    code = demo.main(["--video", "--preset", str(tmp_path / "short.toml"), "--runs", str(tmp_path / "runs")], console)
    assert code == 0, output.getvalue()
    (run,) = list_runs(tmp_path / "runs")
    row = MetricsReader(run).last()
    assert row is not None and row["step"] == 4
    # clips of one length, with gradients
    compiling = event_lines(run, "compile")
    (planned,) = {event["planned"] for event in compiling if event.get("planned")}
    assert [event["gradients"] for event in compiling if "graph" in event] == [True]
    assert (planned, row["recompiles"], row["breaks"]) == (1, 0, 0)
    assert f"Graphs: {planned} planned, {planned} compiled; 0 recompiles, 0 graph breaks" in output.getvalue()
    (lora,) = run.checkpoints_dir.glob("*.safetensors")
    assert f"LoRA: {lora}" in output.getvalue()
