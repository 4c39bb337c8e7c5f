"""FramePack's single files and LoRA files, and what its blocks keep for the backward pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from diffusers import HunyuanVideoFramepackPipeline

from backend.families.files.base_model import BaseModelFiles
from backend.families.hunyuan_video.framepack_facts import FRAMEPACK_FACTS as FACTS
from backend.families.table import family
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import open_part
from backend.models.common.weight_loading import load_part
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import framepack, hunyuan_video, originals
from tests.tiny.anima import _tiny
from tests.tiny.forward import add_lora
from tests.tiny.framepack import make_batch, make_tiny_denoiser, model_with_lora
from tests.tiny.hunyuan_forward import GUIDANCE
from tests.tiny.hunyuan_forward import trained as trained_hunyuan

CODE, CPU = load_family("framepack"), LoadOptions(torch.float32, torch.device("cpu"))


def test_transformer_and_eyes_are_read_from_single_files(tmp_path: Path) -> None:
    net = make_tiny_denoiser()
    for prefix in FACTS.denoiser.layouts[0].prefixes:
        path = originals.write(tmp_path / f"{prefix}f.safetensors", originals.behind(prefix, net.state_dict()))
        source = open_part(BaseModelFiles.at(path), FACTS.denoiser)
        tensors = {name: lazy.read() for name, lazy in source.tensors().items()}
        assert tensors.keys() == net.state_dict().keys()
        assert all(torch.equal(value, tensors[name]) for name, value in net.state_dict().items())
    config = source.config()
    assert (config["image_proj_dim"], config["has_clean_x_embedder"], config["in_channels"]) == (16, True, 4)
    eyes, part = _tiny(framepack.eyes, 0), FACTS.part("image_encoder")
    stored = originals.behind(
        "vision_model.", {n.removeprefix("vision_model."): v for n, v in eyes.state_dict().items()}
    )
    path = originals.write(tmp_path / "sigclip_vision_patch14_384.safetensors", stored)
    source = open_part(BaseModelFiles(path, {"image_encoder": path}), part)
    assert (source.config()["image_size"], source.config()["patch_size"]) == (54, 2)
    read = load_part(type(eyes), source, part, CPU)
    weights = read.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in eyes.state_dict().items())


def test_files_that_do_not_belong_are_named(tmp_path: Path, tiny_framepack: Path, tiny_hunyuan_video: Path) -> None:
    row = family("framepack")
    refusal = row.check_base_model(tiny_hunyuan_video)[0]
    assert "HunyuanVideoPipeline" in refusal.text and "FramePack" in refusal.remedy
    plain = originals.write(tmp_path / "h.safetensors", hunyuan_video.make_tiny_denoiser().state_dict())
    assert "a HunyuanVideo transformer" in row.check_base_model(plain)[0].text
    own = originals.write(tmp_path / "f.safetensors", make_tiny_denoiser().state_dict())
    places = ("text_encoder", "text_encoder_2", "vae", "tokenizer", "tokenizer_2")
    whole = BaseModelFiles(own, {name: tiny_hunyuan_video / name for name in places})
    assert "the transformer is FramePack's" in family("hunyuan_video").check_base_model(whole)[0].text
    texts = " ".join(problem.sentence() for problem in row.check_base_model(own))
    assert "sigclip_vision_patch14_384.safetensors" in texts and "llava_llama3" in texts
    base = Path(shutil.copytree(tiny_framepack, tmp_path / "base"))
    config = base / "transformer" / "config.json"
    kept = json.loads(config.read_text())
    config.write_text(json.dumps(kept | {"image_proj_dim": 8}))
    assert "image width is 8" in row.check_base_model(base)[0].text
    config.write_text(json.dumps(kept | {"has_image_proj": False}))
    assert "no inputs for a picture" in row.check_base_model(base)[0].text


def test_loras_come_back_diffusers_takes_them_and_those_of_hunyuan_video_fit(
    tmp_path: Path, tiny_framepack: Path
) -> None:
    model = CODE.load_denoiser(tiny_framepack, CPU)
    names = names_of(linear_layers(model), FACTS)
    lora = add_lora(model, FACTS.default_targets, rank=2, alpha=3.0, scale=0.3)
    for form in ("kohya", "diffusers"):
        tensors = file_tensors(lora, "fp32", names, form)
        # musubi-tuner's names, which are diffusers' modules
        assert form == "diffusers" or "lora_unet_transformer_blocks_0_attn_to_q.lora_down.weight" in tensors
        write_lora(tmp_path / f"{form}.safetensors", tensors, {})
        back = read_lora(tmp_path / f"{form}.safetensors", names)
        assert back.pairs.keys() == set(lora.layers)
    batch = make_batch([(8, 8)], [9])
    with torch.no_grad():
        wanted = CODE.predict(model, batch.noisy, batch.sigma, batch.text, GUIDANCE, ShapeRuntime())[0]
        pipeline = HunyuanVideoFramepackPipeline.from_pretrained(tiny_framepack)
        pipeline.load_lora_weights(tmp_path / "diffusers.safetensors")
        pipeline.fuse_lora()
        pipeline.unload_lora_weights()
        output = CODE.predict(pipeline.transformer, batch.noisy, batch.sigma, batch.text, GUIDANCE, ShapeRuntime())[0]
    torch.testing.assert_close(output, wanted, atol=1e-4, rtol=1e-4)
    plain, other = trained_hunyuan()
    stored = file_tensors(other, "fp32", names_of(linear_layers(plain), family("hunyuan_video")), "diffusers")
    write_lora(tmp_path / "hunyuan.safetensors", stored, {})
    assert read_lora(tmp_path / "hunyuan.safetensors", names).pairs.keys() == set(other.layers)


def test_every_layer_of_the_eyes_projection_can_be_trained() -> None:
    model = model_with_lora([r"image_projection\.(up|down)"])
    batch = make_batch([(8, 8)], [9])
    sum(
        x.square().mean() for x in CODE.predict(model, batch.noisy, batch.sigma, batch.text, 1.0, ShapeRuntime())
    ).backward()
    assert all(
        p.grad is not None and p.grad.any() for n, p in model.named_parameters() if p.requires_grad and "lora_A" in n
    )
