"""Anima's single files and LoRA files: names of its makers and of ComfyUI, written down apart from ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AnimaModularPipeline, CosmosTransformer3DModel
from diffusers.loaders import single_file_utils
from torch import Tensor, nn

from backend.families.anima.facts import FACTS
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import LAYOUTS, family
from backend.lora.comfyui_keys import linear_layers, names_of, not_loadable, split_key
from backend.lora.inject import Lora
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from backend.models.common.tensor_sources import open_part
from tests.tiny import comfy_maps, originals
from tests.tiny.anima import _tiny, conditioner, make_tiny_denoiser, qwen
from tests.tiny.anima_pipeline import published
from tests.tiny.forward import add_lora

EVERY_LAYER = [r".*(attn\d\.to_.*|net\..*|linear_\d|proj|proj_out)"]


def read(path: Path, name: str) -> dict[str, Tensor]:
    return {key: lazy.read() for key, lazy in open_part(BaseModelFiles.at(path), FACTS.part(name)).tensors().items()}


def same(actual: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert actual.keys() == wanted.keys()
    assert all(torch.equal(actual[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("root", LAYOUTS["anima_dit"].prefixes)
def test_one_file_holds_transformer_and_conditioner(tmp_path: Path, root: str) -> None:
    net, adapter = make_tiny_denoiser(3), _tiny(lambda: conditioner(40), 1)
    stored = published(net.state_dict(), adapter.state_dict(), root)
    extras = {f"{root}pos_embedder.seq": torch.zeros(4), f"{root}accum_iteration": torch.zeros(1)}
    path = originals.write(tmp_path / "anima.safetensors", {name: v.clone() for name, v in (stored | extras).items()})
    same(read(path, "transformer"), net.state_dict())
    same(read(path, "text_conditioner"), adapter.state_dict())
    # diffusers' own converter of Cosmos Predict2 reads the same from it
    plain = {f"net.{name.removeprefix(root)}": value for name, value in stored.items() if "llm_adapter" not in name}
    same(single_file_utils.convert_cosmos_transformer_checkpoint_to_diffusers(plain), dict(net.state_dict()))
    for name, model in (("transformer", net), ("text_conditioner", adapter)):
        config = open_part(BaseModelFiles.at(path), FACTS.part(name)).config()
        wanted = {key: list(v) if isinstance(v, tuple) else v for key, v in model.config.items()}
        assert {key: config[key] for key in config if key in wanted} == {
            key: wanted[key] for key in config if key in wanted
        }


@pytest.mark.parametrize("prefix", LAYOUTS["qwen3"].prefixes)
def test_qwen3_as_comfyui_has_it(tmp_path: Path, prefix: str) -> None:
    model = _tiny(lambda: qwen(50), 2)
    path = originals.write(tmp_path / "qwen.safetensors", originals.behind(prefix, model.state_dict()))
    base = BaseModelFiles(tmp_path, {"text_encoder": path})
    source = open_part(base, FACTS.part("text_encoder"))
    same({key: lazy.read() for key, lazy in source.tensors().items()}, dict(model.state_dict()))
    config = source.config()
    assert all(
        config[key] == getattr(model.config, key)
        for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
        + ("num_attention_heads", "num_key_value_heads")
    )


def test_the_shipped_configs_are_the_published_models_sizes() -> None:
    """567 tensors of the transformer and 118 of the conditioner, 2.0 billion weights, as in the published file."""
    counts = []
    for name, cls in (
        ("transformer", CosmosTransformer3DModel),
        ("text_conditioner", type(_tiny(lambda: conditioner(9), 0))),
    ):
        config = BaseModelFiles(None).config(FACTS.part(name))
        with torch.device("meta"):
            counts.append(len(cls.from_config(config).state_dict()))
    assert counts == [567, 118]


def test_another_cosmos_model_and_mixed_up_files_are_named(tmp_path: Path) -> None:
    net = make_tiny_denoiser()
    path = originals.write(tmp_path / "cosmos.safetensors", published(net.state_dict(), {}, "net."))
    problem = family("anima").check_base_model(path)[0].text
    assert "Cosmos" in problem and "not the Anima transformer" in problem


def trained(targets: list[str], rank: int = 3, alpha: float = 5.0) -> tuple[nn.Module, Lora]:
    model = make_tiny_denoiser()
    return model, add_lora(model, targets, rank, alpha, 0.3)


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
@pytest.mark.parametrize("targets", [list(FACTS.default_targets), EVERY_LAYER], ids=["default", "every layer"])
def test_loras_come_back_and_comfyui_takes_every_key(tmp_path: Path, form: str, targets: list[str]) -> None:
    _, lora = trained(targets)
    bare = make_tiny_denoiser()
    names = names_of(linear_layers(bare), FACTS)
    assert not not_loadable(lora.layers, FACTS.lora_layers)
    tensors = file_tensors(lora, "fp32", names, form)
    write_lora(tmp_path / "x.safetensors", tensors, {})
    back = read_lora(tmp_path / "x.safetensors", names)
    assert back.pairs.keys() == set(lora.layers)
    before = published(bare.state_dict(), {}, "")
    after = dict(bare.state_dict())
    for path in lora.layers:
        a, b = lora.pair(path)
        delta = lora.scale_of(path) * (b @ a).detach()
        torch.testing.assert_close(back.scales[path] * (back.pairs[path][1] @ back.pairs[path][0]), delta)
        after[f"{path}.weight"] = after[f"{path}.weight"] + delta
    if form == "kohya":
        # ComfyUI's map for this family has native names alone
        stems = {split_key(key)[0] for key in tensors}
        assert stems <= comfy_maps.published(before) and len(tensors) == 3 * len(lora.layers)
        for name, weight in published(after, {}, "").items():
            stem = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
            if f"{stem}.alpha" in tensors:
                a, b = tensors[f"{stem}.lora_down.weight"], tensors[f"{stem}.lora_up.weight"]
                torch.testing.assert_close(before[name] + tensors[f"{stem}.alpha"] / len(a) * (b @ a), weight)


def test_native_names_of_other_trainers_are_read_as_diffusers_reads_them(tmp_path: Path) -> None:
    """``diffusion_model.blocks.0.self_attn.q_proj.lora_A.weight``, by ours and by diffusers' own mixin."""
    _, lora = trained(EVERY_LAYER, alpha=3.0)
    bare = make_tiny_denoiser()
    weights = bare.state_dict()
    spelled = {}
    for path in lora.layers:
        (name,) = published({f"{path}.weight": weights[f"{path}.weight"]}, {}, "diffusion_model.")
        for half, value in zip("AB", lora.pair(path), strict=True):
            spelled[f"{name.removesuffix('.weight')}.lora_{half}.weight"] = value.detach().clone()
    write_lora(tmp_path / "x.safetensors", spelled, {})
    back = read_lora(tmp_path / "x.safetensors", names_of(linear_layers(bare), FACTS))
    theirs = AnimaModularPipeline.lora_state_dict(dict(spelled))
    for path in lora.layers:
        for half, matrix in zip("AB", back.pairs[path], strict=True):
            assert torch.equal(matrix, theirs[f"transformer.{path}.lora_{half}.weight"])
