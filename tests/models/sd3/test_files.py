"""SD3's single files and LoRA files: names of its makers and of ComfyUI, written down apart from ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
from diffusers.loaders import single_file_utils
from torch import Tensor, nn

from backend.families.files.base_model import BaseModelFiles
from backend.families.sd3.facts import FACTS
from backend.families.table import LAYOUTS, family
from backend.lora.comfyui_keys import linear_layers, names_of, not_loadable, split_key
from backend.lora.inject import Lora
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from backend.models.common.tensor_sources import open_part
from backend.models.family_classes import load_family
from backend.plan.memory.parts import place_of
from tests.tiny import comfy_maps, originals
from tests.tiny.anima import _tiny
from tests.tiny.published_files import DIFFERS, golden
from tests.tiny.sd3 import denoiser, make_tiny_denoiser
from tests.tiny.sd3_forward import EVERY_LAYER, trained

block_lists = load_family("sd3").block_lists

# Heads as wide as the real ones: without norms of queries and keys the file's shapes don't tell.
KINDS = {"3-medium": {"attention_head_dim": 64, "caption_projection_dim": 128}, "3.5-medium": {}, "3.5-large": {}}


def build(kind: str) -> nn.Module:
    return _tiny(lambda: denoiser(kind, **KINDS[kind]), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_read_as_diffusers_reads_it(tmp_path: Path, kind: str) -> None:
    model = build(kind)
    stored = originals.mmdit(model.state_dict())
    for prefix in LAYOUTS["sd3_mmdit"].prefixes:
        path = originals.write(tmp_path / f"{prefix}sd3.safetensors", originals.behind(prefix, stored))
        source = open_part(BaseModelFiles.at(path), FACTS.part("transformer"))
        tensors = {name: lazy.read() for name, lazy in source.tensors().items()}
        assert tensors.keys() == model.state_dict().keys()
        assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    theirs = single_file_utils.convert_sd3_transformer_checkpoint_to_diffusers(dict(stored))
    assert tensors.keys() == theirs.keys() and all(torch.equal(tensors[name], value) for name, value in theirs.items())
    config = source.config()
    wanted = {key: list(v) if isinstance(v, tuple) else v for key, v in model.config.items() if key in config}
    # the size that positions are made for is not told, and they lie in the file
    assert {key: config[key] for key in wanted if key != "sample_size"} == {
        key: value for key, value in wanted.items() if key != "sample_size"
    }


def test_blocks_are_of_the_class_that_the_file_says(tmp_path: Path) -> None:
    """What plan and estimate take from names is what is compiled."""
    for kind in KINDS:
        model = build(kind)
        path = originals.write(tmp_path / f"{kind}.safetensors", originals.mmdit(model.state_dict()))
        facts = FACTS.narrowed(path)
        lists = block_lists(model)
        assert list(lists) == [each.name for each in facts.block_classes]
        paths = {id(module): name for name, module in model.named_modules()}
        for name, blocks in lists.items():
            for block in blocks:
                place = place_of(f"{paths[id(block)]}.attn.to_q.weight", facts)
                assert place is not None and (place[0], place[1], place[3]) == (
                    name,
                    "transformer_blocks",
                    "attn.to_q.weight",
                )
    # the published models: their builds from their makers' own code
    for name, classes in (("sd3_medium", 2), ("sd3.5_medium", 3), ("sd3.5_large", 2)):
        config = {**BaseModelFiles(None).config(FACTS.part("transformer")), **DIFFERS.get(name, {})}
        with torch.device("meta"):
            model = SD3Transformer2DModel.from_config(config)
        assert len(block_lists(model)) == classes
        assert sum(len(blocks) for blocks in block_lists(model).values()) == (38 if "large" in name else 24)
        held = {stem.split(".")[3] for stem in golden(name) if ".joint_blocks." in stem}
        assert len(held) == len(model.transformer_blocks)


def test_mixed_up_files_are_named(tmp_path: Path, tiny_sd3: Path) -> None:
    row = family("sd3")
    net = originals.behind("model.diffusion_model.", originals.mmdit(make_tiny_denoiser().state_dict()))
    vae = originals.behind("first_stage_model.", originals.ldm_vae(originals.autoencoder().state_dict()))
    path = originals.write(tmp_path / "sd3.safetensors", net, vae)
    message = " ".join(problem.sentence() for problem in row.check_base_model(path))
    assert "CLIP text encoder is missing" in message and "clip_g.safetensors" in message and "tokenizer" in message
    assert "an SD3 checkpoint without its text encoders" in family("sdxl").check_base_model(path)[0].text
    lora = originals.write(
        tmp_path / "lora.safetensors", {"lora_unet_joint_blocks_0_x.lora_down.weight": torch.ones(1)}
    )
    assert "a LoRA" in row.check_base_model(lora)[0].text
    swapped = BaseModelFiles(tiny_sd3, {"text_encoder_2": originals.write(tmp_path / "vae.safetensors", vae)})
    assert [p.path for p in row.check_base_model(swapped)] == ["model.text_encoder_2"]
    assert "a VAE" in row.check_base_model(swapped)[0].text
    base = Path(shutil.copytree(tiny_sd3, tmp_path / "base"))
    shutil.rmtree(base / "tokenizer_3")
    assert [(p.path, p.severity) for p in row.check_base_model(base)] == [("model.tokenizer_3", "error")]
    shutil.rmtree(base / "text_encoder_3")
    (warned,) = row.check_base_model(base)
    assert warned.severity == "warning" and "without T5" in warned.text


def merged(state: dict[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """The weights with the LoRA in them."""
    deltas = {p: lora.scale_of(p) * (lora.pair(p)[1] @ lora.pair(p)[0]).detach() for p in lora.layers}
    return state | {f"{path}.weight": state[f"{path}.weight"] + delta for path, delta in deltas.items()}


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
    for path in lora.layers:
        a, b = lora.pair(path)
        delta = lora.scale_of(path) * (b @ a).detach()
        torch.testing.assert_close(back.scales[path] * (back.pairs[path][1] @ back.pairs[path][0]), delta)
    stems = {split_key(key)[0] for key in tensors}
    before = originals.mmdit(bare.state_dict())
    if form == "diffusers":
        assert stems <= comfy_maps.sd3(5, dual=2)
        theirs = StableDiffusion3Pipeline.lora_state_dict(dict(tensors))
        assert theirs.keys() == {f"transformer.{path}.lora_{half}.weight" for path in lora.layers for half in "AB"}
        return
    # under the names of its makers, where queries, keys and values are one matrix
    assert stems <= comfy_maps.published(before)
    for name, weight in originals.mmdit(merged(bare.state_dict(), lora)).items():
        stem = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        if f"{stem}.alpha" in tensors:
            a, b = tensors[f"{stem}.lora_down.weight"], tensors[f"{stem}.lora_up.weight"]
            torch.testing.assert_close(before[name] + tensors[f"{stem}.alpha"] / len(a) * (b @ a), weight)
        else:
            assert torch.equal(before[name], weight)
