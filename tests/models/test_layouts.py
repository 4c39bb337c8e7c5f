"""Single files in their makers' layouts: read by our rules, they equal the model, and diffusers' own converters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders import single_file_utils as theirs
from torch import Tensor, nn

from backend.families.files import measures
from backend.families.files.base_model import SHIPPED, BaseModelFiles
from backend.families.files.layouts.rules import UnknownNames
from backend.families.files.parts import Part
from backend.families.table import LAYOUTS, family
from backend.models.common.tensor_sources import open_part
from tests.tiny import originals
from tests.tiny.published_files import DIFFERS, golden

# the families' own parts; CLIP as all that read it together have it
FLUX, VAE, T5 = (family("flux").part(name) for name in ("transformer", "vae", "text_encoder_2"))
CLIP = family("sd15").part("text_encoder")
CLIP_G = family("sdxl").part("text_encoder_2")


def read(path: Path, part: Part) -> dict[str, Tensor]:
    """What our source reads, name -> tensor, with the shape and dtype that it promised."""
    lazies = open_part(BaseModelFiles.at(path), part).tensors()
    tensors = {name: lazy.read() for name, lazy in lazies.items()}
    assert all(
        tuple(tensors[n].shape) == tuple(lazy.shape) and tensors[n].dtype == lazy.dtype for n, lazy in lazies.items()
    )
    return tensors


def assert_same(actual: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(actual[name], value), name


@pytest.mark.parametrize("guidance", [True, False], ids=["dev", "schnell"])
@pytest.mark.parametrize("prefix", LAYOUTS["flux_bfl"].prefixes)
def test_flux(tmp_path: Path, guidance: bool, prefix: str) -> None:
    model = originals.flux_transformer(guidance)
    original = originals.bfl(model.state_dict())
    path = originals.write(tmp_path / "flux.safetensors", originals.behind(prefix, original))
    assert_same(read(path, FLUX), model.state_dict())
    config = open_part(BaseModelFiles.at(path), FLUX).config()
    assert {key: config[key] for key in model.config if key in config} == {
        key: list(value) if isinstance(value, tuple) else value for key, value in model.config.items() if key in config
    }


@pytest.mark.parametrize("quant", [True, False], ids=["with quant_conv", "without"])
@pytest.mark.parametrize("prefix", LAYOUTS["ldm_vae"].prefixes)
def test_autoencoder(tmp_path: Path, quant: bool, prefix: str) -> None:
    model = originals.autoencoder(quant=quant)
    original = originals.ldm_vae(model.state_dict())
    assert_same(theirs.convert_ldm_vae_checkpoint(dict(original), dict(model.config)), model.state_dict())
    path = originals.write(tmp_path / "ae.safetensors", originals.behind(prefix, original))
    assert_same(read(path, VAE), model.state_dict())
    config = open_part(BaseModelFiles.at(path), VAE).config()
    for key in ("block_out_channels", "latent_channels", "layers_per_block", "use_quant_conv", "use_post_quant_conv"):
        assert config[key] == (list(model.config[key]) if key == "block_out_channels" else model.config[key])


@pytest.mark.parametrize("prefix", LAYOUTS["hf_clip"].prefixes)
def test_clip(tmp_path: Path, prefix: str) -> None:
    wanted = originals.hf_clip(originals.clip(99).state_dict())
    extras = {"text_model.embeddings.position_ids": torch.arange(77)[None], "logit_scale": torch.tensor(4.6)}
    path = originals.write(tmp_path / "clip_l.safetensors", originals.behind(prefix, wanted | extras))
    assert_same(read(path, CLIP), wanted)
    config = open_part(BaseModelFiles.at(path), CLIP).config()
    assert (config["vocab_size"], config["hidden_size"], config["num_hidden_layers"]) == (99, 64, 2)
    assert (config["num_attention_heads"], config["intermediate_size"], config["eos_token_id"]) == (1, 128, 98)


def test_clip_of_merges_that_left_the_inner_prefix_out(tmp_path: Path) -> None:
    wanted = originals.hf_clip(originals.clip(99).state_dict())
    bare = {name.removeprefix("text_model."): value for name, value in wanted.items()}
    path = originals.write(tmp_path / "merge.safetensors", originals.behind("cond_stage_model.transformer.", bare))
    assert_same(read(path, CLIP), wanted)


@pytest.mark.parametrize("prefix", LAYOUTS["open_clip"].prefixes)
def test_open_clip(tmp_path: Path, prefix: str) -> None:
    model = originals.clip(99, "CLIPTextModelWithProjection", 128, "gelu")
    original = originals.open_clip(model.state_dict())
    converted = theirs.convert_open_clip_checkpoint(model, dict(originals.behind("p.", original)), prefix="p.")
    assert_same(converted, model.state_dict())
    extras = {"logit_scale": torch.tensor(4.6)}
    extras |= {"transformer.text_model.embeddings.position_ids": torch.arange(77)[None]}
    path = originals.write(tmp_path / "clip_g.safetensors", originals.behind(prefix, original | extras))
    assert_same(read(path, CLIP_G), model.state_dict())
    assert open_part(BaseModelFiles.at(path), CLIP_G).config()["projection_dim"] == 128


@pytest.mark.parametrize("prefix", LAYOUTS["t5"].prefixes)
def test_t5(tmp_path: Path, prefix: str) -> None:
    wanted = originals.t5_file(originals.t5(120).state_dict())
    extras = {"encoder.embed_tokens.weight": wanted["shared.weight"], "spiece_model": torch.zeros(9, dtype=torch.uint8)}
    path = originals.write(tmp_path / "t5xxl.safetensors", originals.behind(prefix, wanted | extras))
    assert_same(read(path, T5), wanted)
    config = open_part(BaseModelFiles.at(path), T5).config()
    assert [config[key] for key in ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers")] == [
        120,
        32,
        64,
        48,
        2,
        2,
    ]


@pytest.mark.parametrize("ending", ["scale_weight", "weight_scale"])
@pytest.mark.parametrize(
    ("make", "write", "part"),
    [(originals.flux_transformer, originals.bfl, FLUX), (lambda: originals.t5(120), originals.t5_file, T5)],
    ids=["flux", "t5"],
)
def test_scaled_fp8_comes_back(
    tmp_path: Path, make: Callable[[], nn.Module], write: Callable[..., dict[str, Tensor]], part: Part, ending: str
) -> None:
    model = make()
    stored = originals.in_fp8(write(model.state_dict()), ending)
    extras = {name.replace(f".{ending}", ".scale_input"): torch.ones(()) for name in stored if name.endswith(ending)}
    tensors = read(originals.write(tmp_path / "scaled.safetensors", stored | extras), part)
    for name, value in originals.t5_file(model.state_dict()).items():
        # e4m3 has three bits of mantissa: a relative error of 1/16 at most, and the smallest step near zero
        assert torch.allclose(tensors[name], value, rtol=1 / 16, atol=float(value.abs().max()) / 448 / 64), name


def test_unscaled_fp8_keeps_its_numbers(tmp_path: Path) -> None:
    stored = {n: v.to(torch.float8_e4m3fn) for n, v in originals.bfl(originals.flux_transformer().state_dict()).items()}
    tensors = read(originals.write(tmp_path / "fp8.safetensors", stored), FLUX)
    assert {value.dtype for value in tensors.values()} == {torch.float8_e4m3fn}
    again = originals.bfl({name: value.float() for name, value in tensors.items()})
    assert_same(again, {name: value.float() for name, value in stored.items()})


def test_rows_are_scaled_by_their_own_factors_after_a_cut(tmp_path: Path) -> None:
    model = originals.flux_transformer()
    stored = originals.bfl(model.state_dict())
    name = "single_blocks.0.linear1"
    factors = torch.linspace(0.5, 2, stored[f"{name}.weight"].shape[0])
    scaled = stored | {f"{name}.weight": stored[f"{name}.weight"] / factors[:, None], f"{name}.weight_scale": factors}
    tensors = read(originals.write(tmp_path / "rows.safetensors", scaled), FLUX)
    for leaf in ("attn.to_q", "attn.to_v", "proj_mlp"):
        key = f"single_transformer_blocks.0.{leaf}.weight"
        assert torch.allclose(tensors[key], model.state_dict()[key], atol=1e-6)


def test_names_that_a_layout_does_not_have_are_told() -> None:
    names = dict.fromkeys((*LAYOUTS["flux_bfl"].markers, "surprise.weight"), ("BF16", (14, 2)))
    names = {n: ("BF16", (21, 2)) if "linear1" in n or "qkv" in n else s for n, s in names.items()}
    with pytest.raises(UnknownNames, match=r"surprise\.weight"):
        LAYOUTS["flux_bfl"].pieces(names)


def test_only_the_asked_bytes_are_read(tmp_path: Path) -> None:
    stored = originals.bfl(originals.flux_transformer().state_dict())
    path = originals.write(tmp_path / "flux.safetensors", stored)
    lazy = open_part(BaseModelFiles.at(path), FLUX).tensors()["single_transformer_blocks.1.attn.to_k.weight"]
    whole = stored["single_blocks.1.linear1.weight"]
    assert lazy.stored.end - lazy.stored.start == 128 * 128 * 4
    assert torch.equal(lazy.read(), whole[128:256])


def model_shapes(cls_name: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the real model of that config, without weights."""
    import diffusers
    import transformers

    with torch.device("meta"):
        if hasattr(diffusers, cls_name):
            model = getattr(diffusers, cls_name).from_config(config)
        else:
            cls = getattr(transformers, cls_name)
            model = cls(cls.config_class.from_dict(config))
    state = model.state_dict()
    if cls_name == "T5EncoderModel":
        state.pop("encoder.embed_tokens.weight")
    if cls_name.startswith("CLIP"):
        state = originals.hf_clip(state)
    return {name: tuple(value.shape) for name, value in state.items()}


# What published models of a class differ in from the one whose config we ship.

PUBLISHED = [
    ("flux1-dev", "flux", "transformer"),
    ("flux1-schnell", "flux", "transformer"),
    ("ae", "flux", "vae"),
    ("clip_l", "flux", "text_encoder"),
    ("t5xxl", "flux", "text_encoder_2"),
    *(("sd_xl_base_1.0", "sdxl", name) for name in ("unet", "vae", "text_encoder", "text_encoder_2")),
    *(("v1-5-pruned-emaonly", "sd15", name) for name in ("unet", "vae", "text_encoder")),
    *((name, "sd3", "transformer") for name in ("sd3_medium", "sd3.5_medium", "sd3.5_large")),
    ("sd3_medium", "sd3", "vae"),
    ("clip_g", "sd3", "text_encoder_2"),
    ("t5xxl", "sd3", "text_encoder_3"),
    *(("anima-base-v1.0", "anima", name) for name in ("transformer", "text_conditioner")),
    ("qwen_3_06b_base", "anima", "text_encoder"),
    ("qwen_image", "qwen_image", "transformer"),
    ("hunyuan_video_t2v_720p", "hunyuan_video", "transformer"),
    ("llava_llama3", "hunyuan_video", "text_encoder"),
    ("framepack_i2v_hy", "framepack", "transformer"),
    ("clip_l", "hunyuan_video", "text_encoder_2"),
]


@pytest.mark.parametrize(("name", "kind", "part_name"), PUBLISHED)
def test_published_files_fit_the_model_of_our_config(name: str, kind: str, part_name: str) -> None:
    header, part = golden(name), family(kind).part(part_name)
    layout = next(each for each in part.layouts if each.prefix_in(header) is not None)
    shapes = {n: p.shape for n, p in layout.pieces(header, layout.prefix_in(header) or "").items()}
    shipped = json.loads((SHIPPED / part.shipped).read_text(encoding="utf-8"))
    measured = measures.measured(part.measure, shapes, shipped)
    # what we ship is the published config: measuring the published file changes nothing
    changed = {key: measured[key] for key in measured if measured[key] != shipped.get(key)}
    assert changed == (DIFFERS.get(name, {}) if part_name == "transformer" else {})
    assert shapes == model_shapes(part.class_names[0], shipped | measured)


def test_the_unets_of_published_checkpoints_have_a_place_for_every_name() -> None:
    for name, levels in (("sd_xl_base_1.0", 3), ("v1-5-pruned-emaonly", 4)):
        header = golden(name)
        pieces = LAYOUTS["ldm_unet"].pieces(header, "model.diffusion_model.")
        config = {"block_out_channels": [320, 640, 1280, 1280][:levels], "layers_per_block": 2}
        inner = {n: torch.zeros(1) for n in header}
        converted = theirs.convert_ldm_unet_checkpoint(
            inner, config | {"class_embed_type": None, "addition_embed_type": "text_time" if levels == 3 else None}
        )
        assert pieces.keys() == converted.keys()


def test_rows_of_flux_at_its_own_width_go_where_diffusers_puts_them() -> None:
    """diffusers' converter takes FLUX's real widths only: every row is there, of one number each."""
    header = {name: ("F32", (shape[0], *[1] * (len(shape) - 1))) for name, (_, shape) in golden("flux1-dev").items()}
    draw = torch.Generator().manual_seed(0)
    stored = {name: torch.rand(shape, generator=draw) for name, (_, shape) in header.items()}
    wanted = theirs.convert_flux_transformer_checkpoint_to_diffusers(dict(stored))
    pieces = LAYOUTS["flux_bfl"].pieces(header)
    assert pieces.keys() == wanted.keys()
    for name, piece in pieces.items():
        rows = stored[piece.source][piece.start : piece.end]
        if piece.turn == "swap_halves":
            rows = rows.roll(len(rows) // 2, 0)
        assert torch.equal(rows, wanted[name]), name
