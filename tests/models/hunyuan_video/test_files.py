"""HunyuanVideo's single files and LoRA files: names of its makers and of ComfyUI, written down apart from ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from diffusers import HunyuanVideoPipeline
from diffusers.loaders import lora_conversion_utils, single_file_utils
from torch import Tensor

from backend.families.files.base_model import BaseModelFiles
from backend.families.files.parts import Part
from backend.families.hunyuan_video.facts import FACTS
from backend.families.table import LAYOUTS, family
from backend.lora.comfyui_keys import linear_layers, names_of, not_loadable, split_key
from backend.lora.inject import Lora
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from backend.models.common.tensor_sources import open_part
from tests.tiny import hunyuan_files, hunyuan_video, originals
from tests.tiny.anima import _tiny
from tests.tiny.hunyuan_files import comfy, comfy_keys, tencent
from tests.tiny.hunyuan_forward import EVERY_LAYER, trained
from tests.tiny.hunyuan_video import make_tiny_denoiser
from tests.tiny.published_files import golden

ROW = family("hunyuan_video")
NET, VAE, LLAMA = (FACTS.part(name) for name in ("transformer", "vae", "text_encoder"))


def read(path: Path, part: Part) -> dict[str, Tensor]:
    return {name: lazy.read() for name, lazy in open_part(BaseModelFiles.at(path), part).tensors().items()}


def assert_same(actual: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert actual.keys() == wanted.keys()
    assert all(torch.equal(value, actual[name]) for name, value in wanted.items())


@pytest.mark.parametrize("layout", ["hunyuan_tencent", "hunyuan_comfy"])
def test_a_transformer_is_read_as_diffusers_reads_it(tmp_path: Path, layout: str) -> None:
    model = make_tiny_denoiser(double=3)
    original = tencent(model.state_dict())
    stored = comfy(original) if layout == "hunyuan_comfy" else original
    for prefix in LAYOUTS[layout].prefixes:
        path = originals.write(tmp_path / f"{prefix}hunyuan.safetensors", originals.behind(prefix, stored))
        assert_same(read(path, NET), model.state_dict())
    config = open_part(BaseModelFiles.at(path), NET).config()
    wanted = {key: list(v) if isinstance(v, tuple) else v for key, v in model.config.items() if key in config}
    assert {key: config[key] for key in wanted} == wanted
    assert open_part(BaseModelFiles.at(path), NET).config()["guidance_embeds"]


def test_rows_at_the_real_width_go_where_diffusers_puts_them() -> None:
    """diffusers' converter knows the real width only: every row is there, of one number each."""
    shapes = golden("hunyuan_video_t2v_720p")
    header = {name: ("F32", (shape[0], *[1] * (len(shape) - 1))) for name, (_, shape) in shapes.items()}
    draw = torch.Generator().manual_seed(0)
    stored = {name: torch.rand(shape, generator=draw) for name, (_, shape) in header.items()}
    wanted = single_file_utils.convert_hunyuan_video_transformer_to_diffusers(dict(stored))
    renamed = {n: ("F32", tuple(v.shape)) for n, v in comfy(stored).items()}
    for layout, held in (("hunyuan_tencent", header), ("hunyuan_comfy", renamed)):
        assert LAYOUTS[layout].prefix_in(held) == ""
        numbers = stored if layout == "hunyuan_tencent" else comfy(stored)
        pieces = LAYOUTS[layout].pieces(held)
        assert pieces.keys() == wanted.keys()
        for name, piece in pieces.items():
            rows = numbers[piece.source][piece.start : piece.end]
            rows = rows.roll(len(rows) // 2, 0) if piece.turn == "swap_halves" else rows
            assert torch.equal(rows, wanted[name]), name


def test_fp8_files_come_back(tmp_path: Path) -> None:
    model = make_tiny_denoiser()
    stored = comfy(tencent(model.state_dict()))
    path = originals.write(tmp_path / "scaled.safetensors", originals.in_fp8(stored, "weight_scale"))
    tensors = read(path, NET)
    for name, value in model.state_dict().items():
        assert torch.allclose(tensors[name], value, rtol=1 / 16, atol=float(value.abs().max()) / 448 / 64), name
    plain = {name: value.to(torch.float8_e4m3fn) for name, value in stored.items()}
    tensors = read(originals.write(tmp_path / "fp8.safetensors", plain), NET)
    assert {value.dtype for value in tensors.values()} == {
        torch.float8_e4m3fn
    } and tensors.keys() == model.state_dict().keys()


def test_the_vae_and_the_language_model_are_read_in_all_their_layouts(tmp_path: Path) -> None:
    vae = _tiny(hunyuan_video.autoencoder, 0)
    for at, stored in enumerate((vae.state_dict(), hunyuan_files.ldm_vae(vae.state_dict()))):
        path = originals.write(tmp_path / f"vae{at}.safetensors", stored)
        assert_same(read(path, VAE), vae.state_dict())
    assert stored["encoder.mid.attn_1.q.weight"].ndim == 5 and "decoder.up.0.block.0.conv1.conv.weight" in stored
    config = open_part(BaseModelFiles.at(path), VAE).config()
    assert (config["latent_channels"], config["block_out_channels"], config["layers_per_block"]) == (4, [8] * 4, 1)
    published = {name: shape for name, (_, shape) in golden("hunyuan_video_vae").items()}
    with torch.device("meta"):
        whole = type(vae).from_config(json.loads((Path("backend/families") / VAE.shipped).read_text()))
    assert {name: tuple(v.shape) for name, v in whole.state_dict().items()} == published
    llama = _tiny(lambda: hunyuan_video.llama(99, 128, 128), 0)
    stored = hunyuan_files.llama_file(llama.state_dict())
    eyes = {"vision_tower.x.weight": torch.ones(1), "multi_modal_projector.linear_1.weight": torch.ones(1)}
    for whole in (stored, llama.state_dict(), originals.behind("language_model.", stored) | eyes):
        path = originals.write(tmp_path / "llama.safetensors", whole)
        assert_same(read(path, LLAMA), llama.state_dict())
        config = open_part(BaseModelFiles.at(path), LLAMA).config()
        sizes = [config[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads")]
        assert sizes == [99, 128, 4, 1]


def test_files_that_do_not_belong_are_named(tmp_path: Path, tiny_hunyuan_video: Path) -> None:
    net = tencent(make_tiny_denoiser().state_dict())
    path = originals.write(tmp_path / "hunyuan.safetensors", net)
    message = " ".join(problem.sentence() for problem in ROW.check_base_model(path))
    assert "llava_llama3_fp16.safetensors" in message and "hunyuan_video_vae_bf16" in message and "tokenizer" in message
    assert "a HunyuanVideo transformer" in family("flux").check_base_model(path)[0].text
    for channels, title in ((33, "HunyuanVideo for images to video"), (32, "SkyReels")):
        for names in (tencent, comfy):
            state = make_tiny_denoiser(in_channels=channels).state_dict()
            stored = tencent(state) if names is tencent else comfy(tencent(state))
            (first, *_) = ROW.check_base_model(originals.write(tmp_path / "i2v.safetensors", stored))
            assert title in first.text, first
    newer = net | {"byt5_in.fc1.weight": net["img_in.proj.bias"], "vision_in.proj.0.weight": net["img_in.proj.bias"]}
    newer = {name: value for name, value in newer.items() if not name.startswith(("single_blocks.", "vector_in."))}
    path = originals.write(tmp_path / "hunyuanvideo1.5_720p_t2v_fp16.safetensors", newer)
    assert "a HunyuanVideo 1.5 transformer, which is not supported" in ROW.check_base_model(path)[0].text
    flux = originals.write(tmp_path / "flux.safetensors", originals.bfl(originals.flux_transformer().state_dict()))
    assert "a FLUX transformer" in ROW.check_base_model(flux)[0].text
    image_vae = originals.write(tmp_path / "ae.safetensors", originals.ldm_vae(originals.autoencoder().state_dict()))
    clip = originals.write(tmp_path / "c.safetensors", originals.hf_clip(originals.clip(99).state_dict()))
    swapped = BaseModelFiles(tiny_hunyuan_video, {"vae": image_vae, "text_encoder": clip})
    texts = {problem.path: problem.text for problem in ROW.check_base_model(swapped)}
    assert "a VAE in latent diffusion's layout" in texts["model.vae"]
    assert "a CLIP text encoder" in texts["model.text_encoder"]
    base = Path(shutil.copytree(tiny_hunyuan_video, tmp_path / "base"))
    config = base / "transformer" / "config.json"
    kept = json.loads(config.read_text())
    config.write_text(json.dumps(kept | {"text_embed_dim": 8, "pooled_projection_dim": 9, "patch_size": 4}))
    message = " ".join(problem.sentence() for problem in ROW.check_base_model(base))
    assert "text width is 8" in message and "pooled width is 9" in message and "the transformer's is 4" in message
    config.write_text(json.dumps(kept | {"image_condition_type": "token_replace"}))
    assert "images to video" in ROW.check_base_model(base)[0].text


def merged(state: dict[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """The weights with the LoRA in them."""
    deltas = {p: lora.scale_of(p) * (lora.pair(p)[1] @ lora.pair(p)[0]).detach() for p in lora.layers}
    return state | {f"{path}.weight": state[f"{path}.weight"] + delta for path, delta in deltas.items()}


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
@pytest.mark.parametrize("targets", [list(FACTS.default_targets), EVERY_LAYER], ids=["default", "every layer"])
def test_loras_come_back_and_comfyui_and_diffusers_take_every_key(
    tmp_path: Path, form: str, targets: list[str]
) -> None:
    _, lora = trained(targets, rank=3, alpha=5.0)
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
    if form == "diffusers":
        theirs = HunyuanVideoPipeline.lora_state_dict(dict(tensors))
        assert theirs.keys() == {f"transformer.{path}.lora_{half}.weight" for path in lora.layers for half in "AB"}
        return
    # in ComfyUI's names, where queries, keys and values are one matrix
    assert {split_key(key)[0] for key in tensors} <= comfy_keys(bare.state_dict())
    before = comfy(tencent(bare.state_dict()))
    for name, weight in comfy(tencent(merged(bare.state_dict(), lora))).items():
        stem = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        if f"{stem}.alpha" in tensors:
            a, b = tensors[f"{stem}.lora_down.weight"], tensors[f"{stem}.lora_up.weight"]
            torch.testing.assert_close(before[name] + tensors[f"{stem}.alpha"] / len(a) * (b @ a), weight)
        else:
            assert torch.equal(before[name], weight), name


@pytest.mark.parametrize("program", ["musubi-tuner", "diffusion-pipe", "diffusion-pipe of old"])
def test_loras_of_other_programs_come_back(tmp_path: Path, program: str) -> None:
    """One pair for the fused queries, keys and values, under Tencent's names in each program's spelling."""
    model = make_tiny_denoiser()
    draw = torch.Generator().manual_seed(0)
    stored, rank, alpha = tencent(model.state_dict()), 4, 2.0
    layers = [
        n.removesuffix(".weight")
        for n, v in stored.items()
        if n.endswith(".weight") and "blocks.1." in n and v.ndim == 2
    ]
    layers = [n for n in layers if n.startswith(("double_", "single_")) and "mod" not in n]
    assert len(layers) == 10
    held, scale = {}, alpha / rank if program == "musubi-tuner" else 1.0
    for name in layers:
        a, b = (
            torch.randn(shape, generator=draw)
            for shape in ((rank, stored[f"{name}.weight"].shape[1]), (stored[f"{name}.weight"].shape[0], rank))
        )
        stem = {
            "musubi-tuner": "lora_unet_" + name.replace(".", "_"),
            "diffusion-pipe": f"transformer.{name}",
            "diffusion-pipe of old": f"diffusion_model.{name}",
        }[program]
        halves = ("lora_down", "lora_up") if program == "musubi-tuner" else ("lora_A", "lora_B")
        held |= {f"{stem}.{halves[0]}.weight": a, f"{stem}.{halves[1]}.weight": b}
        if program == "musubi-tuner":
            held[f"{stem}.alpha"] = torch.tensor(alpha)
        stored[f"{name}.weight"] = stored[f"{name}.weight"] + scale * (b @ a)
    back = read_lora(originals.write(tmp_path / "lora.safetensors", held), names_of(linear_layers(model), FACTS))
    path = originals.write(tmp_path / "merged.safetensors", stored)
    weights = model.state_dict()
    for name, weight in read(path, NET).items():
        plain = weights[name]
        layer = name.removesuffix(".weight")
        if layer in back.pairs and name.endswith("weight"):
            plain = plain + back.scales[layer] * (back.pairs[layer][1] @ back.pairs[layer][0])
        torch.testing.assert_close(plain, weight)


def test_diffusers_takes_tencents_names_too() -> None:
    """What diffusion-pipe writes goes through diffusers' converter to the layers that we find for it."""
    pair = {"lora_A": torch.ones(4, 64), "lora_B": torch.ones(192, 4)}
    held = {f"transformer.double_blocks.0.img_attn_qkv.{half}.weight": value for half, value in pair.items()}
    theirs = lora_conversion_utils._convert_hunyuan_video_lora_to_diffusers(dict(held))
    stem = names_of(linear_layers(make_tiny_denoiser()), FACTS).stems["transformer.double_blocks.0.img_attn_qkv"]
    assert {f"transformer.{path}.{half}.weight" for path, _ in stem for half in pair} == theirs.keys()
