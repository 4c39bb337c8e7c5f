"""Wan's single files and LoRA files: names of its makers, of ComfyUI and musubi-tuner, apart from ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
from diffusers.loaders import single_file_utils
from torch import Tensor, nn
from transformers import UMT5Config, UMT5EncoderModel

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import LAYOUTS
from backend.families.wan.facts import FACTS
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
from tests.tiny.wan import autoencoder, denoiser, make_tiny_denoiser, published, umt5, umt5_native

CPU = LoadOptions(torch.float32, torch.device("cpu"))
EVERY_LAYER = [r".*(attn\d\.to_.*|net\..*|linear_\d|time_proj|proj_out)"]


def wide(layers: int = 2, **changes: object) -> nn.Module:
    """One head of Wan's own 128 channels, as a single file's config needs it."""
    return make_tiny_denoiser(layers, attention_head_dim=128, num_attention_heads=1, **changes)


def read(path: Path, name: str) -> dict[str, Tensor]:
    return {key: lazy.read() for key, lazy in open_part(BaseModelFiles.at(path), FACTS.part(name)).tensors().items()}


def same(actual: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert actual.keys() == wanted.keys()
    assert all(torch.equal(actual[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("root", LAYOUTS["wan_dit"].prefixes)
def test_a_transformer_by_its_makers_names(tmp_path: Path, root: str) -> None:
    net = wide()
    stored = published(net.state_dict(), root)
    path = originals.write(tmp_path / "wan2.1_t2v_1.3B_bf16.safetensors", stored)
    same(read(path, "transformer"), net.state_dict())
    # diffusers' own converter reads the same from it
    plain = {f"model.diffusion_model.{name.removeprefix(root)}": value for name, value in stored.items()}
    same(single_file_utils.convert_wan_transformer_to_diffusers(plain), dict(net.state_dict()))
    config = open_part(BaseModelFiles.at(path), FACTS.part("transformer")).config()
    wanted = {key: list(v) if isinstance(v, tuple) else v for key, v in net.config.items()}
    assert all(config[key] == wanted[key] for key in config if key in wanted)
    model = load_part(WanTransformer3DModel, open_part(BaseModelFiles.at(path), FACTS.denoiser), FACTS.denoiser, CPU)
    same(dict(model.state_dict()), net.state_dict())


@pytest.mark.parametrize("form", ["plain", "scale_weight", "weight_scale"])
def test_a_transformer_in_8_bits(tmp_path: Path, form: str) -> None:
    """wan2.1_t2v_14B_fp8_e4m3fn and _fp8_scaled: matrices in float8, with a factor each or none."""
    net = wide()
    stored = published(net.state_dict())
    if form == "plain":
        stored = {n: v.to(torch.float8_e4m3fn) if v.ndim == 2 else v for n, v in stored.items()}
    else:
        stored = originals.in_fp8(stored, form)
    path = originals.write(tmp_path / "wan2.1_t2v_14B_fp8.safetensors", stored)
    assert not [p for p in FACTS.check_base_model(path) if p.path == "model.base_model"]
    model = load_part(WanTransformer3DModel, open_part(BaseModelFiles.at(path), FACTS.denoiser), FACTS.denoiser, CPU)
    weights = model.state_dict()
    for name, value in net.state_dict().items():
        got = weights[name]
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, value, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("form", ["comfyui", "comfyui fp8", "makers"])
def test_umt5_in_one_file(tmp_path: Path, form: str) -> None:
    model = _tiny(lambda: umt5(50), 2).eval()
    state = originals.t5_file(model.state_dict())
    stored = {"comfyui": state, "comfyui fp8": originals.in_fp8(state), "makers": umt5_native(model.state_dict())}[form]
    if form != "makers":
        stored["spiece_model"] = torch.zeros(9, dtype=torch.uint8)
    path = originals.write(tmp_path / "umt5_xxl.safetensors", stored)
    part = FACTS.part("text_encoder")
    encoder = load_part(UMT5EncoderModel, open_part(BaseModelFiles(tmp_path, {"text_encoder": path}), part), part, CPU)
    ids = torch.tensor([[3, 4, 5]])
    wanted = model(ids).last_hidden_state
    torch.testing.assert_close(
        encoder(ids).last_hidden_state, wanted, **({"rtol": 0.1, "atol": 0.2} if "fp8" in form else {})
    )


def test_the_vae_by_its_makers_names(tmp_path: Path) -> None:
    model = _tiny(lambda: autoencoder(16), 3)
    path = originals.write(tmp_path / "wan_2.1_vae.safetensors", originals.wan(model.state_dict()))
    part = FACTS.part("vae")
    vae = load_part(AutoencoderKLWan, open_part(BaseModelFiles(tmp_path, {"vae": path}), part), part, CPU)
    same(dict(vae.state_dict()), dict(model.state_dict()))


def test_the_shipped_configs_are_the_published_models_sizes() -> None:
    """Wan 2.1 14B has 14.3 billion weights, umT5-XXL's encoder 5.68 billion, the VAE 127 million."""
    made = {}
    with torch.device("meta"):
        for name, cls in (("transformer", WanTransformer3DModel), ("vae", AutoencoderKLWan)):
            made[name] = cls.from_config(BaseModelFiles(None).config(FACTS.part(name)))
        config = BaseModelFiles(None).config(FACTS.part("text_encoder"))
        made["text"] = UMT5EncoderModel(UMT5Config.from_dict(config))
    sizes = {
        name: (len(model.state_dict()), sum(p.numel() for p in model.parameters())) for name, model in made.items()
    }
    assert sizes == {
        "transformer": (1095, 14_288_491_584), "vae": (194, 126_892_531), "text": (243, 5_680_910_336),
    }  # fmt: skip


def test_relatives_and_mixed_up_files_are_named(tmp_path: Path, tiny_wan: Path) -> None:
    def message_of(path: Path, **files: Path) -> str:
        return " ".join(p.sentence() for p in FACTS.check_base_model(BaseModelFiles(path, files)))

    picture = published(wide(image_dim=20, added_kv_proj_dim=128, in_channels=12).state_dict())
    assert "image-to-video" in message_of(originals.write(tmp_path / "i2v.safetensors", picture))
    # of Wan 2.2, whose names are the same
    newer = published(wide(in_channels=36, out_channels=16).state_dict())
    assert "36 channels" in message_of(originals.write(tmp_path / "i2v22.safetensors", newer))
    net = originals.write(tmp_path / "net.safetensors", published(wide(latent=16).state_dict()))
    vae = originals.write(tmp_path / "vae.safetensors", originals.wan(_tiny(lambda: autoencoder(16), 3).state_dict()))
    assert "umT5" in message_of(net, vae=vae) and "VAE of Wan" in message_of(vae)
    flux = originals.write(tmp_path / "flux.safetensors", originals.bfl(originals.flux_transformer().state_dict()))
    assert "FLUX" in message_of(flux)
    t5 = originals.write(tmp_path / "t5.safetensors", originals.t5_file(originals.t5(40).state_dict()))
    assert "is a T5" in message_of(tiny_wan, text_encoder=t5)


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
    for path in lora.layers:
        a, b = lora.pair(path)
        delta = lora.scale_of(path) * (b @ a).detach()
        torch.testing.assert_close(back.scales[path] * (back.pairs[path][1] @ back.pairs[path][0]), delta)
    if form == "kohya":
        # ComfyUI's map for this family has native names alone
        stems = {split_key(key)[0] for key in tensors}
        assert stems <= comfy_maps.published(published(bare.state_dict())) and len(tensors) == 3 * len(lora.layers)
    if form == "diffusers" or targets is not EVERY_LAYER:
        theirs = WanPipeline.lora_state_dict(dict(tensors))
        for path in lora.layers:
            a, b = (theirs[f"transformer.{path}.lora_{half}.weight"] for half in "AB")
            torch.testing.assert_close(b @ a, lora.scale_of(path) * (lora.pair(path)[1] @ lora.pair(path)[0]).detach())


@pytest.mark.parametrize("root", ["diffusion_model.", ""])
def test_native_names_of_other_trainers_are_read_as_diffusers_reads_them(tmp_path: Path, root: str) -> None:
    """``diffusion_model.blocks.0.self_attn.q.lora_A.weight``, by ours and by diffusers' own mixin."""
    _, lora = trained(EVERY_LAYER, alpha=3.0)
    bare = make_tiny_denoiser()
    weights = bare.state_dict()
    spelled = {}
    for path in lora.layers:
        (name,) = published({f"{path}.weight": weights[f"{path}.weight"]}, root)
        for half, value in zip("AB", lora.pair(path), strict=True):
            spelled[f"{name.removesuffix('.weight')}.lora_{half}.weight"] = value.detach().clone()
    write_lora(tmp_path / "x.safetensors", spelled, {})
    back = read_lora(tmp_path / "x.safetensors", names_of(linear_layers(bare), FACTS))
    theirs = WanPipeline.lora_state_dict({f"diffusion_model.{n.removeprefix(root)}": v for n, v in spelled.items()})
    for path in lora.layers:
        for half, matrix in zip("AB", back.pairs[path], strict=True):
            assert torch.equal(matrix, theirs[f"transformer.{path}.lora_{half}.weight"])


def test_the_tiny_model_has_the_real_ones_names() -> None:
    config = BaseModelFiles(None).config(FACTS.denoiser)
    with torch.device("meta"):
        real = WanTransformer3DModel.from_config({**config, "num_layers": 3}).state_dict()
    assert real.keys() == denoiser(3).state_dict().keys()
