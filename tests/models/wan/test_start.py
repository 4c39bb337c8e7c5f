"""Wan's models that start from a picture: forward, eyes, files, and whole runs, against diffusers' own pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from diffusers.loaders import single_file_utils
from PIL import Image
from torch import nn
from transformers import CLIPVisionModel

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.families.wan.i2v_facts import I2V as FACTS
from backend.lora.comfyui_keys import linear_layers, names_of, not_loadable, split_key
from backend.lora.inject import find_targets, inject
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from backend.memory import checkpointing
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import open_part
from backend.models.common.weight_loading import load_part
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import comfy_maps, originals
from tests.tiny.anima import _tiny
from tests.tiny.block_graphs import BUCKETS, Subject, planned_graphs_are_observed
from tests.tiny.shapes import assert_equal_runs, relative
from tests.tiny.wan import I2V, make_tiny_denoiser, published, vision
from tests.tiny.wan_forward import make_start_batch, model_with_lora, ours, theirs

CPU = LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family("wan_i2v")
SIZES, LENGTHS = [(2, 8, 8), (3, 4, 8), (1, 6, 10)], [9, 40, 3]
GARBAGE = 1e4


def lora_model(targets: list[str] | None = None, layers: int = 2) -> nn.Module:
    return model_with_lora(targets or list(FACTS.default_targets), layers, **I2V)


EVERY_LAYER = [r".*(attn\d\.(to|add)_.*|net\..*|linear_\d|time_proj|proj_out)"]


@pytest.mark.parametrize("kept", [None, (16, 64)], ids=["512 keys", "trimmed"])
@pytest.mark.parametrize("mode", ["off", "static"])
def test_wan_i2v_equals_diffusers_own_call_in_output_and_gradients(kept: tuple[int, ...] | None, mode: str) -> None:
    batch = make_start_batch(SIZES, LENGTHS)
    wanted = theirs(lora_model(EVERY_LAYER), batch)
    shapes = ShapeRuntime(mode, 40, kept, 512)
    shapes.pad_fill = GARBAGE
    for kind in ("off", "block"):
        model = lora_model(EVERY_LAYER)
        checkpointing.apply(model, kind)
        output = ours(model, batch, shapes)
        assert all(relative(got, want) < 1e-5 for got, want in zip(output[0], wanted[0], strict=True))
        assert_equal_runs(output, wanted, 5e-4)


def test_the_picture_is_seen_both_ways() -> None:
    """The counter-proof: other latents to start from, or other tokens, give another prediction."""
    batch = make_start_batch(SIZES[:1], LENGTHS[:1])
    before = ours(lora_model(), batch, ShapeRuntime())[0][0]
    for name in ("start", "image_embeds"):
        other = make_start_batch(SIZES[:1], LENGTHS[:1])
        other.text[0][name] = -other.text[0][name]
        assert relative(ours(lora_model(), other, ShapeRuntime())[0][0], before) > 1e-3


LISTS = [3, 16, 9, 12, 15, 30, 33, 60]
SUBJECT = Subject(
    lora_model, [r".*attn\d\.to_k"], CODE.block_lists, CODE.predict, make_start_batch, ours, LISTS, room=512
)


def test_wan_i2v_graphs_of_open_sizes_equal_the_plan() -> None:
    """Static ones, which compute what eager blocks compute: a run has them (test_clip_runs.py)."""
    planned_graphs_are_observed(SUBJECT, "dynamic", "auto", BUCKETS, "mask")


def test_what_is_told_of_the_first_frame_is_what_the_pipeline_tells(tiny_wan_i2v: Path) -> None:
    pipeline = WanImageToVideoPipeline.from_pretrained(tiny_wan_i2v, local_files_only=True)
    stack = CODE.load_vae(tiny_wan_i2v, CPU)
    levels = torch.randint(0, 256, (3, 9, 64, 96), generator=torch.Generator().manual_seed(1))
    clip = levels / 127.5 - 1
    row = stack.encode_row(clip)
    assert row["latent"].shape == (4, 3, 8, 12)
    torch.testing.assert_close(row["latent"], stack.encode(clip[None])[0])
    with torch.no_grad():
        _, wanted = pipeline.prepare_latents(clip[None, :, 0], 1, 4, 64, 96, 9, torch.float32, torch.device("cpu"))
        seen = pipeline.encode_image(Image.fromarray(levels[:, 0].permute(1, 2, 0).numpy().astype(np.uint8)))
    torch.testing.assert_close(row["start"], wanted[0])
    torch.testing.assert_close(row["image_embeds"], seen[0], atol=1e-5, rtol=1e-5)
    # a picture is a clip of one frame, and starts from itself
    alone = stack.encode_row(clip[:, 0])
    assert alone["latent"].shape == (4, 1, 8, 12) and alone["start"].shape == (8, 1, 8, 12)


def wide(**changes: object) -> nn.Module:
    config = {"in_channels": 36, "out_channels": 16, "image_dim": 24, "added_kv_proj_dim": 128}
    return make_tiny_denoiser(2, attention_head_dim=128, num_attention_heads=1, **(config | changes))


@pytest.mark.parametrize("root", ["", "model.diffusion_model."])
def test_wan_i2v_by_its_makers_names(tmp_path: Path, root: str) -> None:
    net = wide()
    stored = published(net.state_dict(), root)
    path = originals.write(tmp_path / "wan2.1_i2v_480p_14B_bf16.safetensors", stored)
    source = open_part(BaseModelFiles.at(path), FACTS.denoiser)
    tensors = {key: lazy.read() for key, lazy in source.tensors().items()}
    assert tensors.keys() == net.state_dict().keys()
    assert all(torch.equal(tensors[name], value) for name, value in net.state_dict().items())
    plain = {f"model.diffusion_model.{name.removeprefix(root)}": value for name, value in stored.items()}
    assert single_file_utils.convert_wan_transformer_to_diffusers(plain).keys() == tensors.keys()
    config = source.config()
    assert (config["in_channels"], config["image_dim"], config["added_kv_proj_dim"]) == (36, 24, 128)


def test_the_eyes_in_one_file(tmp_path: Path) -> None:
    model = _tiny(lambda: vision(1280 // 16), 2).eval()
    state = {f"vision_model.{name}": value for name, value in model.state_dict().items()}
    state |= {
        "vision_model.embeddings.position_ids": torch.arange(5)[None],
        "visual_projection.weight": torch.zeros(4, 80),
    }
    path = originals.write(tmp_path / "clip_vision_h.safetensors", state)
    part = FACTS.part("image_encoder")
    source = open_part(BaseModelFiles(tmp_path, {"image_encoder": path}), part)
    eyes = load_part(CLIPVisionModel, source, part, CPU)
    assert eyes.config.image_size == 28 and eyes.config.num_hidden_layers == 2
    weights = eyes.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_the_shipped_config_is_the_published_models_size() -> None:
    """Wan 2.1 I2V 14B has 16.4 billion weights, CLIP's eyes 632 million."""
    with torch.device("meta"):
        net = CODE.model.from_config(BaseModelFiles(None).config(FACTS.denoiser))
        config = BaseModelFiles(None).config(FACTS.part("image_encoder"))
        eyes = CLIPVisionModel(CLIPVisionModel.config_class.from_dict(config))
    counts = [sum(p.numel() for p in model.parameters()) for model in (net, eyes)]
    assert counts == [16_394_878_784, 630_766_080]


def test_models_that_do_not_belong_are_named(tiny_wan: Path, tiny_wan_i2v: Path, tmp_path: Path) -> None:
    assert FACTS.check_base_model(tiny_wan_i2v) == []
    families = {"WanPipeline": "wan", "WanImageToVideoPipeline": "wan_i2v"}
    problem = family("wan").check_base_model(tiny_wan_i2v, families=families)[0]
    assert "WanImageToVideoPipeline" in problem.text and "wan_i2v" in problem.remedy
    plain = originals.write(
        tmp_path / "t2v.safetensors",
        published(wide(in_channels=16, image_dim=None, added_kv_proj_dim=None).state_dict()),
    )
    assert "is a Wan transformer" in FACTS.check_base_model(BaseModelFiles(plain))[0].text
    narrow = wide(in_channels=32)
    path = originals.write(tmp_path / "other.safetensors", published(narrow.state_dict()))
    text = " ".join(p.text for p in FACTS.check_base_model(BaseModelFiles(path)))
    assert "noise, mask and picture is 36" in text


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
def test_wan_i2v_loras_come_back_and_comfyui_and_diffusers_take_every_key(tmp_path: Path, form: str) -> None:
    model = make_tiny_denoiser(3, **I2V)
    targets = find_targets(model, list(FACTS.default_targets))
    assert len(targets) == 3 * 12 and not not_loadable(targets, FACTS.lora_layers)
    lora = inject(model, targets, rank=3, alpha=5.0, dropout=0.0, seed=1)
    bare = make_tiny_denoiser(3, **I2V)
    names = names_of(linear_layers(bare), FACTS)
    tensors = file_tensors(lora, "fp32", names, form)
    write_lora(tmp_path / "x.safetensors", tensors, {})
    assert read_lora(tmp_path / "x.safetensors", names).pairs.keys() == set(lora.layers)
    if form == "kohya":
        stems = {split_key(key)[0] for key in tensors}
        assert stems <= comfy_maps.published(published(bare.state_dict()))
    taken = WanImageToVideoPipeline.lora_state_dict(dict(tensors))
    assert {key.rpartition(".lora_")[0].removeprefix("transformer.") for key in taken} == set(lora.layers)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
