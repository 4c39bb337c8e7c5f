"""Clips and control images of the preview: those of a run's own samples, swapped LoRAs, and what can't be drawn."""

from __future__ import annotations

import io
import json
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from backend.base.errors import Refused
from backend.config.schema import SamplePrompt
from backend.plan.memory.preview import PreviewWork, preview_plan
from backend.preview.__main__ import DONE, WRONG_INPUT, main
from backend.preview.loras import LoraChoice
from backend.preview.pipeline import Pipeline
from backend.runs.preview.request import PreviewRequest, Row
from backend.runs.samples import sheet_of
from tests.tiny.flux import kontext_base
from tests.tiny.previews import PROMPT, settings, write_lora
from tests.tiny.silent_watch import Silent

FIXTURES = {"qwen_image_edit_plus": "tiny_qwen_edit_plus", "flux_kontext": "tiny_flux"}
FAMILIES = ["wan", "wan_i2v", "wan22_5b", "hunyuan_video", "framepack", "flux_kontext", "qwen_image_edit_plus"]
# those whose graphs are counted, with the layers that get a LoRA: few, since each is traced
COMPILED = {"wan_i2v": [r".*attn\d\.to_v", "attn2.add_v_proj"], "hunyuan_video": [r".*blocks\.\d+\.attn\.to_v"]}
NEED = {"wan_i2v", "framepack", "qwen_image_edit_plus"}
CLIP = PROMPT.model_copy(update={"width": 64, "height": 32, "frames": 5, "steps": 2})


def frames_in(path: Path) -> tuple[list[np.ndarray], dict[str, str]]:
    with av.open(str(path)) as container:
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return shown, dict(container.metadata)


def picture(path: Path, seed: int = 1) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_loras_swap_without_a_recompile_and_control_images_count(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base: Path = request.getfixturevalue(FIXTURES.get(name, f"tiny_{name}"))
    if name == "flux_kontext":
        base = kontext_base(base, tmp_path / "base")
    path = write_lora(tmp_path / "x.safetensors", base, name, rank=2, alpha=1, targets=COMPILED.get(name))
    # where nothing is compiled, the arithmetic is that of the families that are
    compiled = {"compile": name in COMPILED, "compile_backend": "eager", "compile_cache_dir": str(tmp_path / "cache")}
    small = {"dataset": {"control_resolution": 64}} if name == "qwen_image_edit_plus" else {}
    cfg = settings(base, name, compile=compiled, **small)
    # FramePack's clips have sections of 36 frames
    clip = CLIP.model_copy(update={"frames": 37, "steps": 1}) if name == "framepack" else CLIP
    prompt, other = clip, clip
    if name in NEED or "kontext" in name:
        images = [str(picture(tmp_path / f"{seed}.png", seed)) for seed in (1, 2)]
        prompt, other = (clip.model_copy(update={"control_image": image}) for image in images)
    sets = [(LoraChoice(path=path),), (LoraChoice(path=path, strength=0.5),), ()]
    pipeline = Pipeline.open(cfg, sets, [prompt], Silent())
    drawn = [pipeline.draw(prompt, choices, Silent()).numpy() for choices in sets]
    graphs = pipeline.stats().graphs
    again = pipeline.draw(other, sets[0], Silent()).numpy()
    if name in COMPILED:
        # nor is one made for another length and size, or for a picture
        for size in ({"frames": 9, "width": 32}, {"frames": 1, "height": 64}):
            pipeline.draw(other.model_copy(update=size), sets[1], Silent())
    stats = pipeline.stats()
    assert (stats.graphs, stats.recompiles, stats.breaks) == (graphs, 0, 0) and (graphs > 0) is (name in COMPILED)
    video = pipeline.base.video
    assert drawn[0].shape == ((3, clip.frames, 32, 64) if video else (3, 32, 64))
    assert len({each.tobytes() for each in drawn}) == 3
    assert (again.tobytes() == drawn[0].tobytes()) is (other is prompt), "the control image has no effect"
    wrong = CLIP if name in NEED else CLIP.model_copy(update={f"control_image{n}": "x" for n in ("", "_2")})
    with pytest.raises(Refused, match="starts from a control image" if name in NEED else "control images, and 2"):
        pipeline.draw(wrong, (), Silent())
    pipeline.close()


def test_both_experts_share_the_graphs_swapped_or_not(tiny_wan22: Path, tmp_path: Path) -> None:
    """A pair of files is one LoRA, named by either; a DoRA leaves the weights before these go to the host."""
    for number, side in enumerate(("high", "low")):
        few = [r".*attn\d\.to_v", "ffn.net.2"]
        write_lora(tmp_path / f"x_{side}_noise.safetensors", tiny_wan22, "wan22", rank=2, seed=number, targets=few)
        write_lora(tmp_path / f"d_{side}_noise.safetensors", tiny_wan22, "wan22", rank=2, kind="dora", seed=number)
    pair, low, dora = (
        (LoraChoice(path=tmp_path / f"{name}_noise.safetensors"),) for name in ("x_high", "x_low", "d_low")
    )
    both = {"train_experts": "both", "timestep_boundary": 0.9}
    compiled = {"compile": True, "compile_backend": "eager", "compile_cache_dir": str(tmp_path / "cache")}
    drawn = []
    for changes, sets in (
        ({"compile": compiled, "memory": {"blocks_to_swap": 2}}, [pair, low, ()]),
        ({}, [pair, dora, ()]),
    ):
        pipeline = Pipeline.open(settings(tiny_wan22, "wan22", timesteps=both, **changes), sets, [CLIP], Silent())
        drawn.append([pipeline.draw(CLIP, choices, Silent()) for choices in [*sets, pair]])
        stats = pipeline.stats()
        assert (stats.recompiles, stats.breaks) == (0, 0)
        pipeline.close()
    (swapped, of_low, nothing, again), (plain, merged, bare, after) = drawn
    torch.testing.assert_close(swapped, plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(nothing, bare, rtol=1e-4, atol=1e-4)
    assert torch.equal(swapped, of_low) and torch.equal(swapped, again) and torch.equal(plain, after)
    assert not torch.allclose(merged, plain, atol=1e-3) and not torch.allclose(bare, plain, atol=1e-3)


def sample(*arguments: object) -> tuple[int, str]:
    """What the command returns and shows, of an eager preview."""
    output = io.StringIO()
    code = main([*map(str, arguments), "--compile", "false"], Console(file=output, width=400))
    return code, output.getvalue()


def test_a_matrix_of_clips_is_a_page_that_plays_them(tiny_wan: Path, tmp_path: Path) -> None:
    lora, out = write_lora(tmp_path / "x.safetensors", tiny_wan, "wan"), tmp_path / "out"
    line = ["--base", tiny_wan, "--family", "wan", "--lora", lora, "--prompt", "a ball", "--steps", 2]
    line += ["--width", 48, "--height", 32, "--frames", 7, "--out", out]
    code, output = sample(*line, "--matrix", "strengths", "--strengths", "0,2")
    assert code == DONE, output
    clips = {f"0{row}-01{ending}" for row in (1, 2) for ending in (".mp4", ".sheet.png")}
    assert {path.name for path in out.iterdir()} == {*clips, "grid.png", "index.html"}
    # 7 frames are no length of the model
    shown, metadata = frames_in(out / "02-01.mp4")
    made = json.loads(metadata["comment"])
    assert len(shown) == 5 and made["loras"] == [{"file": "x.safetensors", "strength": 2.0}] and made["fps"] == 16.0
    assert "Frames: 5, FPS: 16" in metadata["description"] and str(tmp_path) not in metadata["comment"]
    with Image.open(out / "grid.png") as grid, Image.open(sheet_of(out / "02-01.mp4")) as sheet:
        assert sheet.text["parameters"] == metadata["description"]
        left, top = 170, 14 + 24 + sheet.height + 12
        cell = grid.convert("RGB").crop((left, top, left + sheet.width, top + sheet.height))
        assert cell.tobytes() == sheet.tobytes()
    assert '"02-01.mp4"' in (out / "index.html").read_text(encoding="utf-8")
    # the control image that a run's prompt names, or the command, has to suit the family
    image = picture(tmp_path / "start.png")
    cases = {
        ("--control", image): "takes no control images",
        ("--family", "wan_i2v"): "starts from a control image",
        ("--family", "wan_i2v", "--control", image, "--control", image): "at most 1 control images",
        ("--control", image, "--control", image, "--control", image, "--control", image): "4 control images",
    }
    for more, words in cases.items():
        code, output = sample(*line, *more)
        assert code == WRONG_INPUT and words in output, (more, output)


def test_the_estimate_counts_frames_and_control_images(
    tiny_wan_i2v: Path, tiny_flux: Path, tiny_qwen_edit_plus: Path, tmp_path: Path
) -> None:
    image = str(picture(tmp_path / "start.png"))
    started = CLIP.model_copy(update={"control_image": image, "frames": 9})

    def work(base: Path, name: str, prompt: SamplePrompt) -> PreviewWork:
        request = PreviewRequest(config=settings(base, name), rows=(Row(name="x"),), prompts=(prompt,))
        planned = preview_plan(request, vram_gb=1)
        assert planned is not None
        stages = [stage.name for stage in planned[0].stages]
        assert stages == [*(["encode_pictures"] if prompt.controls else []), "encode_text", "sample", "decode_samples"]
        return PreviewWork.of(request)

    clip = work(tiny_wan_i2v, "wan_i2v", started)
    assert (clip.image, clip.pixels, clip.whole, clip.encoded) == (4 * 2 * 3, 64 * 32 * 4, 64 * 32 * 9, 64 * 32 * 4)
    kontext = kontext_base(tiny_flux, tmp_path / "base")
    edit, plain = (work(kontext, "flux_kontext", each) for each in (started, CLIP))
    assert edit.image == 2 * plain.image and (edit.encoded, plain.encoded) == (64 * 32, 0)
    one = work(tiny_qwen_edit_plus, "qwen_image_edit_plus", started)
    two = work(tiny_qwen_edit_plus, "qwen_image_edit_plus", started.model_copy(update={"control_image_2": image}))
    assert two.text > one.text > 512 and two.image > one.image
