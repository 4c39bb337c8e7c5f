"""Whole runs of HunyuanVideo, drawn by diffusers' pipeline; tests/families/test_runs.py has the others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import HunyuanVideoPipeline
from PIL import Image
from torch import Tensor, nn

from backend.families.hunyuan_video.facts import FACTS
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.inject import Lora, find_targets, inject
from backend.lora.load import continue_from, read_lora
from backend.lora.save import file_tensors, write_lora
from backend.models.common.guidance import guided
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import hunyuan_files
from tests.tiny.clips import write_clip
from tests.tiny.hunyuan_forward import trained
from tests.tiny.training import events, family_config, lora_of, rows, train_here

CODE, CPU = load_family("hunyuan_video"), LoadOptions(torch.float32, torch.device("cpu"))
# of every kind; few, since each is traced
TARGETS = [r".*blocks\.\d+\.attn\.to_v", "attn.add_q_proj", "ff_context.net.0.proj", r"single.*\.proj_out"]

settings = partial(family_config, "hunyuan_video")


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips of two sizes and rates, and two pictures, with captions of several lengths."""
    folder = tmp_path_factory.mktemp("clips")
    write_clip(folder / "a.mp4", 20)
    write_clip(folder / "b.mp4", 40, 32)
    write_clip(folder / "c.mp4", 12, size=(48, 64))
    for name, size in (("d", (64, 48)), ("e", (48, 64))):
        Image.effect_noise(size, 80).convert("RGB").save(folder / f"{name}.png")
    for number, path in enumerate(sorted(folder.iterdir())):
        path.with_suffix(".txt").write_text("a grey cat " * (1 + 2 * number))
    return folder


def drawn(base: Path, lora_file: Path | None, frames: int, steps: int = 3, negative: str = "a dog") -> Tensor:
    """A clip's pixels (3, F, H, W) by our own forward, noise levels and VAE, from the noise of diffusers' pipelines."""
    model: nn.Module = CODE.load_denoiser(base, CPU).eval()
    if lora_file is not None:
        names = names_of(linear_layers(model), FACTS)
        file = read_lora(lora_file, names)
        lora: Lora = inject(model, find_targets(model, list(file.pairs)), rank=4, alpha=2.0, dropout=0.0, seed=0)
        continue_from(lora, file)
    geometry, source = FACTS.geometry(base), torch.Generator("cpu").manual_seed(5)
    shape = geometry.latent_shape(64, 96, frames)
    x = torch.randn(1, *shape, generator=source)[0]
    prompt, away = CODE.load_text(base, CPU).encode(["a red circle", negative], 64)
    levels = CODE.sampling_sigmas(steps, geometry.image_tokens(64, 96, frames), base)
    # whatever pads it: as in training
    shapes = ShapeRuntime("static", geometry.image_tokens(64, 96, frames) + 7, None, 64)
    with torch.no_grad():
        for now, then in zip(levels, levels[1:], strict=False):
            level = torch.tensor([now])
            toward, other = (CODE.predict(model, [x], level, [text], 4.5, shapes)[0] for text in (prompt, away))
            x = x + (then - now) * guided(toward, other, 3.0)
    return CODE.load_vae(base, CPU).decode(x[None])[0]


def theirs(pipeline: HunyuanVideoPipeline, frames: int, steps: int = 3) -> Tensor:
    """The same by diffusers' pipeline."""
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        "a red circle", negative_prompt="a dog", true_cfg_scale=3.0, guidance_scale=4.5, width=64, height=96,
        num_frames=frames, num_inference_steps=steps, max_sequence_length=64,
        generator=torch.Generator("cpu").manual_seed(5), output_type="pt",
    )  # fmt: skip
    return made.frames[0].transpose(0, 1) * 2 - 1


@pytest.mark.slow
def test_a_run_makes_the_planned_graphs_and_its_lora_draws_diffusers_clip(
    tiny_hunyuan_video: Path, clip_folder: Path, tmp_path: Path
) -> None:
    """On clips and pictures, mixed."""
    prompt = {"prompt": "a red circle", "width": 64, "height": 96, "frames": 9, "steps": 2, "guidance_scale": 4.5}
    cfg = settings(
        tiny_hunyuan_video, clip_folder, tmp_path,
        dataset={"resolution": 48, "min_bucket_size": 16},
        video={"target_frames": [9]},
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static", "compile_dynamic": "false"},
        validation={"validate_at_start": True}, saving={"save_layout": "diffusers"}, sampling={"prompts": [prompt]},
        network={"targets_include": TARGETS}, training={"max_train_steps": None, "max_train_epochs": 1},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    # those of the sample come after the last step
    made = [event for event in events(run, "compile") if event.get("graph")]
    assert (len(made), last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert {row.get("frames", 1) for row in events(run, "plan")[0]["buckets"]} == {1, 9}
    assert [event["step"] for event in events(run, "validation")] == [0, last["step"]]
    assert [Path(event["file"]).suffix for event in events(run, "sample")] == [".mp4"]
    assert not [event for event in events(run, "warning") if "ComfyUI" in event["text"]]
    file = run.checkpoints_dir / "tiny.safetensors"
    without, ours = drawn(tiny_hunyuan_video, None, 9), drawn(tiny_hunyuan_video, file, 9)
    assert ours.shape == (3, 9, 96, 64) and (ours - without).abs().max() > 0.05
    pipeline = HunyuanVideoPipeline.from_pretrained(tiny_hunyuan_video)
    assert (theirs(pipeline, 9) - without.clamp(-1, 1)).abs().max() < 1e-3
    assert (theirs(pipeline, 1) - drawn(tiny_hunyuan_video, None, 1).clamp(-1, 1)).abs().max() < 1e-3
    pipeline.load_lora_weights(file)
    assert (theirs(pipeline, 9) - ours.clamp(-1, 1)).abs().max() < 1e-3


@pytest.mark.parametrize("names_are", ["ComfyUI's", "Tencent's"])
def test_from_single_files_goes_on_from_loras_of_both_layouts(
    tiny_hunyuan_video: Path, image_folder: Path, tmp_path: Path, names_are: str
) -> None:
    """From diffusers' layout and saved in kohya's, from there and saved in diffusers', learning nothing on the way."""
    model = hunyuan_files.files(tiny_hunyuan_video, tmp_path / "files", comfy_names=names_are == "ComfyUI's")
    net, lora = trained(rank=4)
    names = names_of(linear_layers(net), FACTS)
    lora_path = tmp_path / "given.safetensors"
    # of a denoiser with the same blocks
    write_lora(lora_path, file_tensors(lora, "fp32", names, "diffusers"), {})
    wanted = read_lora(lora_path, names)
    for layout in ("kohya", "diffusers"):
        cfg = settings(
            tiny_hunyuan_video, image_folder, tmp_path, model=model, training={"max_train_steps": 1},
            optimizer={"learning_rate": 1e-12}, saving={"save_layout": layout},
            network={"network_weights": str(lora_path)}, memory={"base_quantization": "fp8"},
        )  # fmt: skip
        run, done = train_here(cfg)
        assert done == 0, events(run, "error")
        assert len(rows(run)) == 1
        lora_path = run.checkpoints_dir / "tiny.safetensors"
        file = read_lora(lora_path, names)
        assert file.pairs.keys() == wanted.pairs.keys()
        for path, (a, b) in wanted.pairs.items():
            here = file.scales[path] * (file.pairs[path][1] @ file.pairs[path][0])
            torch.testing.assert_close(here, wanted.scales[path] * (b @ a))
        if layout == "kohya":
            # fused as in the checkpoint: down, up and alpha of qkv, out and both of the feed-forward, by stream
            assert len(lora_of(run)) == 3 * (2 * 2 * 4 + 2 * 2)
