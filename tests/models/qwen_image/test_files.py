"""Qwen-Image's single files and LoRA files: ComfyUI's names and diffusers' reader, apart from ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from torch import nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from backend.families.files.base_model import BaseModelFiles
from backend.families.qwen_image.facts import FACTS
from backend.lora.comfyui_keys import linear_layers, names_of, not_loadable, split_key
from backend.lora.inject import Lora
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import open_part
from backend.models.common.weight_loading import load_part
from tests.tiny import comfy_maps, originals
from tests.tiny.anima import _tiny
from tests.tiny.forward import add_lora
from tests.tiny.qwen_forward import EVERY_LAYER
from tests.tiny.qwen_image import make_tiny_denoiser, text_encoder
from tests.tiny.qwen_runs import published_names

CPU = LoadOptions(torch.float32, torch.device("cpu"))


def test_the_text_encoder_of_one_file_is_the_folders(tmp_path: Path) -> None:
    """Config by the file's shapes, names of its publication; a head as wide as the real one."""
    model = _tiny(lambda: text_encoder(60, width=128, heads=1), 2)
    stored = published_names(model.state_dict())
    assert "visual.patch_embed.proj.weight" in stored and "model.layers.0.self_attn.q_proj.weight" in stored
    path = originals.write(tmp_path / "qwen_2.5_vl_7b.safetensors", stored)
    part = FACTS.part("text_encoder")
    source = open_part(BaseModelFiles(tmp_path, {"text_encoder": path}), part)
    encoder = load_part(Qwen2_5_VLForConditionalGeneration, source, part, CPU)
    wanted = model.state_dict()
    assert encoder.state_dict().keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in encoder.state_dict().items())
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(encoder.model(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_the_shipped_configs_are_the_published_models_sizes() -> None:
    """Qwen-Image: 1933 tensors, 20.4 billion weights. Qwen2.5-VL-7B: 729 tensors, 8.29 billion."""
    made = {}
    with torch.device("meta"):
        config = BaseModelFiles(None).config(FACTS.part("transformer"))
        made["transformer"] = QwenImageTransformer2DModel.from_config(config).state_dict()
        config = BaseModelFiles(None).config(FACTS.part("text_encoder"))
        made["text"] = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig.from_dict(config)).state_dict()
    sizes = {name: (len(state), sum(v.numel() for v in state.values())) for name, state in made.items()}
    assert sizes == {"transformer": (1933, 20_430_401_088), "text": (729, 8_292_166_656)}


def trained(targets: list[str], rank: int = 3, alpha: float = 5.0) -> tuple[nn.Module, Lora]:
    model = make_tiny_denoiser()
    return model, add_lora(model, targets, rank, alpha, 0.3)


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
@pytest.mark.parametrize("targets", [list(FACTS.default_targets), EVERY_LAYER], ids=["default", "every layer"])
def test_loras_come_back_and_comfyui_and_diffusers_take_every_key(
    tmp_path: Path, form: str, targets: list[str]
) -> None:
    _, lora = trained(targets)
    bare = make_tiny_denoiser()
    names = names_of(linear_layers(bare), FACTS)
    assert not not_loadable(lora.layers, FACTS.lora_layers)
    tensors = file_tensors(lora, "fp32", names, form)
    write_lora(tmp_path / "x.safetensors", tensors, {})
    back = read_lora(tmp_path / "x.safetensors", names)
    assert back.pairs.keys() == set(lora.layers)
    own = comfy_maps.published(bare.state_dict())
    # ComfyUI: its Qwen-Image has diffusers' names behind "transformer." too
    own |= {"transformer." + stem.removeprefix("diffusion_model.") for stem in own}
    assert {split_key(key)[0] for key in tensors} <= own
    # what diffusers reads, alpha included
    theirs = QwenImagePipeline.lora_state_dict(dict(tensors))
    assert len(theirs) == 2 * len(lora.layers)
    for path in lora.layers:
        a, b = lora.pair(path)
        delta = lora.scale_of(path) * (b @ a).detach()
        torch.testing.assert_close(back.scales[path] * (back.pairs[path][1] @ back.pairs[path][0]), delta)
        down, up = (theirs[f"transformer.{path}.lora_{half}.weight"] for half in "AB")
        torch.testing.assert_close(up @ down, delta, rtol=1e-5, atol=1e-6)
