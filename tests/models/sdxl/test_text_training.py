"""Text encoders trained beside the UNet: gradients, files, samples, resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from backend.config.load import parse
from backend.families.table import FAMILIES, family
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.inject import find_targets, inject
from backend.lora.load import read_lora
from backend.lora.save import LayerWeights, in_format
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.runs.folder import Run
from backend.training.text_encoders import recompute
from tests.conftest import draw_pictures
from tests.tiny.sdxl_runs import PROMPT, pipeline_of, settings
from tests.tiny.training import events, lora_of, resumed_from, rows, same, state_of, train_here

CPU = torch.device("cpu")
TEXT = {
    "network_dim": 4,
    "network_alpha": 2.0,
    "targets_include": ["attn2.to_k", "attn2.to_v"],
    "train_text_encoder": True,
}
RATIOS = {"loraplus_lr_ratio": 4.0, "loraplus_text_encoder_lr_ratio": 2.0}


@pytest.fixture(scope="session")
def pictures(once) -> Path:
    return once("few_unet_pictures", lambda folder: draw_pictures(folder, ((128, 128),) * 5))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def dataset(name: str, base: Path, pictures: Path, where: Path, **changes: Any) -> dict[str, Any]:
    return settings(name, base, pictures, where).dataset.model_dump(exclude_none=True) | changes


def of_text(run: Run, name: str = "tiny.safetensors") -> dict[str, torch.Tensor]:
    return {key: value for key, value in lora_of(run, name).items() if key.startswith("lora_te")}


@pytest.mark.slow
def test_a_run_trains_both_encoders_and_its_file_gives_diffusers_the_same_text_and_picture(
    tiny_sdxl: Path, pictures: Path, tmp_path: Path
) -> None:
    cfg = settings(
        "sdxl", tiny_sdxl, pictures, tmp_path,
        network=TEXT,
        optimizer={"learning_rate": 0.03, "text_encoder_lr": 0.02, "lr_scheduler": "constant", "lr_warmup": 0.0},
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "exact_buckets"},
        training={"max_train_steps": 4, "gradient_checkpointing": True},
        dataset=dataset("sdxl", tiny_sdxl, pictures, tmp_path, caption_dropout_rate=0.3),
        sampling={"prompts": [PROMPT, {**PROMPT, "lora_scale": 0.0}], "sample_at_start": True},
        validation={"validate_at_start": True},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0)
    assert len({event["loss"] for event in events(run, "validation")}) == 2
    assert not list((tmp_path / "cache").rglob("text/*/*"))
    assert not [event for event in events(run, "warning") if "ComfyUI" in event["text"]]

    trained = of_text(run)
    layers = {key.partition(".")[0] for key in trained}
    # six layers in each of three blocks, the last of the first encoder being read by nobody
    assert len([name for name in layers if name.startswith("lora_te1_")]) == 6 * 2
    assert len([name for name in layers if name.startswith("lora_te2_")]) == 6 * 3
    assert "lora_te1_text_model_encoder_layers_0_self_attn_q_proj" in layers
    assert all(trained[f"{name}.lora_up.weight"].abs().max() > 1e-3 for name in layers)
    assert {float(trained[f"{name}.alpha"]) for name in layers} == {2.0}
    rates = [(each["initial_lr"], len(each["params"])) for each in state_of(run)["optimizer"]["param_groups"]]
    assert rates[0][0] == 0.03 and rates[1:] == [(0.02, 2 * len(layers))]

    with safetensors.safe_open(run.checkpoints_dir / "tiny.safetensors", framework="pt") as file:
        assert file.metadata()["ss_text_encoder_lr"] == "0.02"
    samples = {(s.step, s.prompt_index): np.asarray(Image.open(s.path)).astype(int) for s in run.samples()}
    assert (samples[4, 1] == samples[0, 0]).all()
    pipeline = pipeline_of("sdxl", tiny_sdxl)
    without = pipeline.encode_prompt("a red circle", device=CPU)[0]
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    assert (pipeline.encode_prompt("a red circle", device=CPU)[0] - without).abs().max() > 1e-2
    drawn = pipeline(
        "a red circle", negative_prompt="", width=128, height=128, num_inference_steps=3, guidance_scale=4.0,
        generator=torch.Generator("cpu").manual_seed(5),
    )  # fmt: skip
    assert np.abs(samples[4, 0] - np.asarray(drawn.images[0]).astype(int)).max() <= 1
    # in diffusers' own names it says the same
    loaded, facts = load_family("sdxl"), family("sdxl")
    encoders, _ = loaded.load_text(tiny_sdxl, LoadOptions(torch.float32, CPU)).trained()
    names = names_of(linear_layers(loaded.empty_denoiser(tiny_sdxl)), facts).joined(linear_layers(encoders))
    back = read_lora(run.checkpoints_dir / "tiny.safetensors", names)
    parts = {path: LayerWeights(*pair, back.scales[path]) for path, pair in back.pairs.items()}
    safetensors.torch.save_file(in_format(parts, names, "diffusers"), tmp_path / "other.safetensors")
    other = pipeline_of("sdxl", tiny_sdxl)
    other.load_lora_weights(tmp_path / "other.safetensors")
    for at in (0, 2):
        embeddings = [each.encode_prompt("a red circle", device=CPU)[at] for each in (pipeline, other)]
        torch.testing.assert_close(*embeddings, atol=1e-5, rtol=1e-5)


def test_a_resumed_run_is_the_straight_one(tiny_sdxl: Path, pictures: Path, tmp_path: Path) -> None:
    cfg = settings(
        "sdxl", tiny_sdxl, pictures, tmp_path,
        network={**TEXT, **RATIOS, "network_dropout": 0.2, "rank_dropout": 0.2, "module_dropout": 0.1},
        optimizer={
            "learning_rate": 0.01, "text_encoder_lr": 0.005, "lr_scheduler": "constant", "lr_warmup": 0.0,
        },
        training={"max_train_steps": 2, "gradient_accumulation_steps": 2, "ema": True},
        # with text encoders that are trained each time is a new version
        captions={"shuffle_caption": True, "caption_tag_dropout_rate": 0.3}, augmentation={"flip_aug": True},
        saving={"save_every_n_steps": 1}, validation={"validate_at_end": False},
    )  # fmt: skip
    straight, code = train_here(cfg)
    assert code == 0, events(straight, "error")
    half = resumed_from(straight, 1, cfg)
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)][1:]
    assert same(state_of(half)["lora"], state_of(straight)["lora"])
    assert same(state_of(half)["optimizer"], state_of(straight)["optimizer"])
    assert same(state_of(half)["ema"], state_of(straight)["ema"])
    assert any(name.startswith("te2.text_model.") for name in state_of(half)["lora"])
    # the encoders' part of the file is of the mean too
    mean = {name: value for name, value in state_of(straight)["ema"]["mean"].items() if name.startswith("te")}
    written = [value for name, value in of_text(straight).items() if not name.endswith("alpha")]
    assert sorted(value.numpy().tobytes() for value in mean.values()) == sorted(
        value.numpy().tobytes() for value in written
    )
    # A and B of the UNet, then those of the encoders
    groups = state_of(half)["optimizer"]["param_groups"]
    assert [group["initial_lr"] for group in groups] == pytest.approx([0.01, 0.04, 0.005, 0.01])


def test_sd15_names_its_one_encoder_as_its_other_programs_do_and_goes_on_from_the_file(
    tiny_sd15: Path, pictures: Path, tmp_path: Path
) -> None:
    few = {**TEXT, "targets_include": ["attn2.to_k"]}
    data = dataset("sd15", tiny_sd15, pictures, tmp_path, max_token_length=150)
    one = {
        "training": {"max_train_steps": 1, "gradient_checkpointing": True},
        "memory": {"checkpointing_kind": "offload"},
        "dataset": data,
    }
    first, code = train_here(settings("sd15", tiny_sd15, pictures, tmp_path, network=few, **one))
    assert code == 0, events(first, "error")
    assert events(first, "plan")[0]["text_length"] == 152
    file = first.checkpoints_dir / "tiny.safetensors"
    assert len(of_text(first)) == 3 * 6 * 3 and all(key.startswith("lora_te_text_model_") for key in of_text(first))
    still = {"optimizer": {"learning_rate": 0.0, "lr_scheduler": "constant", "lr_warmup": 0.0, "weight_decay": 0.0}}
    more = {"network": {**few, "network_weights": str(file)}}
    second, code = train_here(settings("sd15", tiny_sd15, pictures, tmp_path, **one, **still, **more))
    assert code == 0, events(second, "error")
    assert same(lora_of(second), lora_of(first))


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_checkpointing_changes_no_gradient(request: pytest.FixtureRequest, name: str) -> None:
    def gradients(again: bool) -> dict[str, torch.Tensor]:
        base = request.getfixturevalue(f"tiny_{name}")
        stack = load_family(name).load_text(base, LoadOptions(torch.float32, CPU))
        module, idle = stack.trained()
        targets = find_targets(module, family(name).text_targets, idle)
        lora = inject(module, targets, rank=2, alpha=2.0, dropout=0.0, seed=1)
        for path in targets:
            torch.nn.init.normal_(lora.pair(path)[1], std=0.1, generator=torch.Generator().manual_seed(2))
        module.train()
        if again:
            recompute(module)
        states = stack.states(["a red circle", "blue"], 77)
        torch.stack([value.square().sum() for row in states for value in row.values()]).sum().backward()
        assert all(half.grad is not None and half.grad.any() for path in targets for half in lora.pair(path))
        return {path: lora.pair(path)[0].grad for path in targets}

    plain, recomputed = gradients(False), gradients(True)
    for path, gradient in plain.items():
        torch.testing.assert_close(recomputed[path], gradient)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_that_can_not_train_theirs_say_so(name: str) -> None:
    loaded = parse({"model": {"family": name}, "network": {"train_text_encoder": True}})
    message = [problem.text for problem in loaded.problems if problem.path == "network.train_text_encoder"]
    assert bool(message) != bool(FAMILIES[name].text_targets)


def test_a_rate_of_encoders_that_are_not_trained_has_no_effect() -> None:
    loaded = parse({"model": {"family": "sdxl"}, "optimizer": {"text_encoder_lr": 1e-5}})
    problems = [problem for problem in loaded.problems if problem.path == "optimizer.text_encoder_lr"]
    assert [problem.severity for problem in problems] == ["warning"]
