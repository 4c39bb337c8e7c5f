"""FLUX.1 Kontext's forward: control pictures behind the picture's own tokens, as ``FluxKontextPipeline`` has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxKontextPipeline
from PIL import Image
from torch import Tensor

from backend.config.load import parse
from backend.config.schema import SamplePrompt
from backend.dataset.controls import sample_items
from backend.dataset.items import Item
from backend.dataset.references import References
from backend.dataset.scan import scan, scan_dataset
from backend.dataset.scan_state import FolderSpec
from backend.families.spec import Controls
from backend.families.table import family
from backend.latents.cache import pixels_of
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives.flow_matching import EulerSteps
from backend.preview.__main__ import main as preview
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.sampling import PromptText, draw_latent, to_picture
from tests.tiny import comfy_maps
from tests.tiny.flux import kontext_base
from tests.tiny.shapes import SIZES, TEXT, denoiser_with_lora, make_batch, relative
from tests.tiny.single_files import flux_files
from tests.tiny.training import config, events, lora_of, rows, straight_run_that_a_resumed_one_repeats, train_here

predict = load_family("flux").predict

CONTROLS = [(8, 8), (6, 10), (8, 12), (4, 4)]


def controls(sizes: list[tuple[int, int]]) -> list[list[Tensor]]:
    draw = torch.Generator().manual_seed(9)
    return [[torch.randn(4, height, width, generator=draw)] for height, width in sizes]


def with_control(text: list[dict[str, Tensor]], control: list[list[Tensor]]) -> list[dict[str, Tensor]]:
    return [{**row, "control": picture} for row, (picture,) in zip(text, control, strict=True)]


def as_the_pipeline_calls(model: torch.nn.Module, batch, control: list[list[Tensor]]) -> list[Tensor]:
    """One row at a time, with ids and order of ``FluxKontextPipeline.__call__`` and ``prepare_latents``."""
    outs = []
    for latent, sigma, text, (picture,) in zip(batch.noisy, batch.sigma, batch.text, control, strict=True):
        packed, ids = [], []
        for number, part in enumerate((latent, picture)):
            channels, height, width = part.shape
            packed.append(FluxKontextPipeline._pack_latents(part[None], 1, channels, height, width))
            own = FluxKontextPipeline._prepare_latent_image_ids(1, height // 2, width // 2, "cpu", torch.float32)
            own[..., 0] = number
            ids.append(own)
        out = model(
            hidden_states=torch.cat(packed, dim=1),
            encoder_hidden_states=text["prompt_embeds"][None],
            pooled_projections=text["pooled"][None],
            timestep=sigma[None],
            img_ids=torch.cat(ids, dim=0),
            txt_ids=torch.zeros(text["prompt_embeds"].shape[0], 3),
            guidance=torch.tensor([2.5]),
            return_dict=False,
        )[0]
        out = out[:, : packed[0].shape[1]]
        outs.append(FluxKontextPipeline._unpack_latents(out, latent.shape[1] * 8, latent.shape[2] * 8, 8)[0])
    return outs


@pytest.mark.parametrize("shapes", ["native", "static"])
def test_equals_the_pipelines_call_in_output_and_gradients(shapes: str) -> None:
    batch, control = make_batch(SIZES), controls(CONTROLS)
    runtime = ShapeRuntime() if shapes == "native" else ShapeRuntime("static", 64, text_length=TEXT)
    runtime.pad_fill = 1e6 if shapes == "static" else 0.0
    ours, theirs = denoiser_with_lora(), denoiser_with_lora()
    mine = predict(ours, batch.noisy, batch.sigma, with_control(batch.text, control), 2.5, runtime)
    wanted = as_the_pipeline_calls(theirs, batch, control)
    for got, want, latent in zip(mine, wanted, batch.noisy, strict=True):
        assert got.shape == latent.shape and relative(got, want) < 1e-5
    sum(x.square().sum() for x in mine).backward()
    sum(x.square().sum() for x in wanted).backward()
    grads = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if parameter.requires_grad:
            assert relative(parameter.grad, grads[name].grad) < 1e-5, name


def test_the_control_picture_is_seen() -> None:
    batch, model = make_batch([SIZES[0]]), denoiser_with_lora()
    with torch.no_grad():
        outputs = [
            predict(model, batch.noisy, batch.sigma, text, 2.5, ShapeRuntime())[0]
            for text in (
                batch.text,
                with_control(batch.text, controls([(8, 8)])),
                with_control(batch.text, controls([(8, 12)])),
            )
        ]
    assert relative(outputs[0], outputs[1]) > 1e-3 and relative(outputs[1], outputs[2]) > 1e-3


def pairs(images: Path, where: Path) -> Path:
    """A control picture for each of `images`: the same in grey, upside down, as JPEG under the same name."""
    where.mkdir()
    for path in images.glob("*.png"):
        Image.open(path).convert("L").transpose(Image.Transpose.ROTATE_180).save(where / f"{path.stem}.jpg")
    return where


def drawn_by(pipeline: FluxKontextPipeline, control: Path, **arguments: Any) -> np.ndarray:
    """The pipeline's picture of 64 px for a control picture of the same area or less, as numbers."""
    pipeline.set_progress_bar_config(disable=True)
    usual = {"guidance_scale": 3.5, "num_inference_steps": 2, "max_sequence_length": 16}
    pictures = pipeline(
        Image.open(control).convert("RGB"),
        "a red ring",
        width=64,
        height=64,
        generator=torch.Generator("cpu").manual_seed(3),
        max_area=64 * 64,
        _auto_resize=False,
        **{**usual, **arguments},
    ).images
    return np.asarray(pictures[0]).astype(int)


@pytest.mark.parametrize("mode", ["static", "off"])
def test_kontext_trains_on_pairs_validates_samples_and_saves(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, mode: str
) -> None:
    control = pairs(image_folder, tmp_path / "before")
    sample = {"prompt": "a red ring", "width": 64, "height": 64, "steps": 2, "seed": 3, "guidance_scale": 3.5}
    cfg = config(
        kontext_base(tiny_flux, tmp_path / "base"), image_folder, tmp_path,
        model={"family": "flux_kontext"} | {"base_model": str(tmp_path / "base"), "text_length": 16},
        dataset={"folders": [{"path": str(image_folder), "control_path": str(control)}], "validation_split": 0.25},
        training={"max_train_steps": 3},
        sampling={"prompts": [sample | {"control_image": str(control / f"picture_{n}.jpg")} for n in (0, 1)]},
        optimizer={"learning_rate": 0.03},
        validation={"validate_at_start": True},
        saving={"save_layout": "diffusers"},
        compile={"compile": mode == "static", "compile_backend": "eager", "shape_mode": mode},
        # few where each is traced
        network={"targets_include": ["attn.to_q", "proj_out"]} if mode == "static" else {},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 3 and all(row["loss"] > 0 for row in rows(run))
    assert events(run, "validation") and len(events(run, "sample")) == 2
    drawn = [np.asarray(Image.open(sample.path)).astype(int) for sample in run.samples()]
    assert (drawn[0] != drawn[1]).any(), "the control picture had no effect on the sample"
    plan, last = events(run, "plan")[0], rows(run)[-1]
    if mode == "static":
        assert (last["graphs"], last["recompiles"], last["breaks"]) == (plan["graphs"]["planned"], 0, 0)
        assert plan["graphs"]["planned"] == 4
    if mode == "static":
        # 64 px: 16 tokens of the picture and 16 of its control
        assert plan["static_token_count"] >= 32
        return
    # a preview draws them again, and so does diffusers, from base and file
    assert preview(["--run", str(run.path), "--shape_mode", "off", "--out", str(tmp_path / "out")]) == 0
    for number, ours in enumerate(drawn, 1):
        assert (np.asarray(Image.open(tmp_path / "out" / f"01-{number:02d}.png")) == ours).all()
    pipeline = FluxKontextPipeline.from_pretrained(tmp_path / "base")
    without = [drawn_by(pipeline, control / f"picture_{n}.jpg") for n in (0, 1)]
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    for number, (before, ours) in enumerate(zip(without, drawn, strict=True)):
        theirs = drawn_by(pipeline, control / f"picture_{number}.jpg")
        assert np.abs(ours - theirs).max() <= 1 and np.abs(before - theirs).max() > 3


def test_pairs_are_matched_by_name_and_what_is_missing_is_named(image_folder: Path, tmp_path: Path) -> None:
    control = pairs(image_folder, tmp_path / "before")
    (control / "picture_3.jpg").unlink()
    (control / "picture_1.jpg").rename(control / "PICTURE_1.JPG")
    result = scan([FolderSpec(image_folder, 1, "dataset.folders[0].path", control)])
    by_name = {item.path.stem: item for item in result.items}
    assert "picture_3" not in by_name and by_name["picture_1"].controls[0].path.name == "PICTURE_1.JPG"
    (notice,) = [finding for finding in result.findings if finding.kind == "no_control"]
    assert notice.severity == "error" and "picture_3.png" in notice.text
    assert notice.setting == "dataset.folders[0].control_path"
    assert Item.from_dict(by_name["picture_1"].to_dict()) == by_name["picture_1"]


def test_validation_folders_have_their_control_pictures(image_folder: Path, tmp_path: Path) -> None:
    control = pairs(image_folder, tmp_path / "before")
    row = {"path": str(image_folder), "name": "all", "control_path": str(control)}
    dataset = {"folders": [{"path": str(image_folder), "control_path": str(control)}], "cache_dir": str(tmp_path / "c")}
    values = {"model": {"family": "flux_kontext"}, "dataset": dataset, "validation": {"validation_folders": [row]}}
    items = scan_dataset(parse(values).config).validation["all"].items
    assert len(items) == 8 and all(item.controls[0].path.parent == control for item in items)


def test_a_control_folder_inside_the_folder_is_not_trained(image_folder: Path) -> None:
    control = pairs(image_folder, image_folder / "before")
    result = scan([FolderSpec(image_folder, 1, "dataset.folders[0].path", control)])
    assert len(result.items) == 8 and all(item.controls[0].path.parent == control for item in result.items)


def test_each_family_refuses_what_is_the_others(tiny_flux: Path, tmp_path: Path) -> None:
    base = kontext_base(tiny_flux, tmp_path / "base")
    assert family("flux_kontext").check_base_model(base) == []
    assert "FluxKontextPipeline" in family("flux").check_base_model(base)[0].text
    loaded = parse({"dataset": {"folders": [{"path": "a", "control_path": "b"}]}})
    assert any("takes no control images" in problem.text for problem in loaded.problems)


def test_a_sample_is_the_pipelines_picture(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    base = kontext_base(tiny_flux, tmp_path / "base")
    path = image_folder / "picture_0.png"
    pipeline = FluxKontextPipeline.from_pretrained(base)
    theirs = drawn_by(pipeline, path, guidance_scale=2.0, num_inference_steps=3, max_sequence_length=32)
    code, loading = load_family("flux_kontext"), LoadOptions(torch.float32, torch.device("cpu"))
    prompt = SamplePrompt(
        prompt="a red ring", width=64, height=64, seed=3, steps=3, guidance_scale=2.0, control_image=str(path)
    )
    geometry, vae = family("flux_kontext").geometry(base), code.load_vae(base, loading)
    cut = References(Controls(), geometry).cuts(sample_items(prompt, 0), (64, 64))[0]
    (text,) = code.load_text(base, loading).encode([prompt.prompt], 32)
    text["control"] = vae.encode(pixels_of(*cut, "white")[None])[0]
    latent = draw_latent(
        prompt,
        PromptText(text, None),
        lambda x, sigma, conditioning, guidance: code.predict(
            pipeline.transformer, x, sigma, conditioning, guidance, ShapeRuntime()
        ),
        lambda steps, tokens: EulerSteps(code.sampling_sigmas(steps, tokens, base)),
        geometry,
        torch.device("cpu"),
    )
    ours = to_picture(vae.decode(latent[None])[0])
    assert np.abs(np.asarray(ours).astype(int) - theirs).max() <= 1


def test_from_four_files_a_resumed_run_is_the_straight_one_and_swap_changes_nothing(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    files = flux_files(tiny_flux, tmp_path / "files")
    control = pairs(image_folder, tmp_path / "before")

    settings = partial(
        config, Path(files["base_model"]), image_folder, tmp_path,
        network={"targets_include": ["attn.to_q", "proj_out"]}, compile={"compile": False, "shape_mode": "static"},
        model={"family": "flux_kontext"} | files | {"text_length": 16},
        dataset={"folders": [{"path": str(image_folder), "control_path": str(control)}]},
        optimizer={"lr_scheduler": "constant", "lr_warmup": 0.0},
    )  # fmt: skip
    straight = straight_run_that_a_resumed_one_repeats(settings, steps=2)
    stems = {key.partition(".")[0] for key in lora_of(straight)}
    assert stems <= comfy_maps.flux(2, 3) and len(stems) == 2 + 3 + 3 + 1
