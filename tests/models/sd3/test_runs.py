"""Whole runs of SD3.5 from single files; tests/families/test_runs.py has the others."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import torch
from torch import nn

from backend.families.sd3.facts import FACTS
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from tests.tiny import originals
from tests.tiny.anima import _tiny
from tests.tiny.sd3 import denoiser
from tests.tiny.sd3_forward import trained
from tests.tiny.single_files import words
from tests.tiny.training import events, family_config, lora_of, rows, train_here

PROMPT = {"prompt": "a red circle", "negative_prompt": "a dog", "width": 64, "height": 64, "steps": 3, "seed": 5}
PROMPT |= {"true_cfg_scale": 4.0}
TOKENIZERS = ("tokenizer", "tokenizer_2", "tokenizer_3")
# of every kind; few, since each is traced
TARGETS = [r".*\.attn2?\.to_v", "attn.add_q_proj", "ff.net.2", "ff_context.net.0.proj"]

settings = partial(family_config, "sd3")


def checkpoint(where: Path, tokenizers: Path) -> tuple[dict[str, str], nn.Module]:
    """[model] as Stability AI's ``sd3_medium_incl_clips_t5xxlfp8`` has all in one, and its transformer."""
    for name in TOKENIZERS:
        shutil.copytree(tokenizers / name, where / name)
    net = _tiny(lambda: denoiser(latent=16, joint_attention_dim=256, pooled_projection_dim=192), 0)
    first = originals.clip(words(where / "tokenizer"), "CLIPTextModelWithProjection", 64)
    second = originals.clip(words(where / "tokenizer_2"), "CLIPTextModelWithProjection", 128, "gelu")
    encoders = {
        "clip_l": {n: v for n, v in originals.hf_clip(first.state_dict()).items() if n != "text_projection.weight"},
        "clip_g": originals.hf_clip(second.state_dict()),
        "t5xxl": originals.t5_file(originals.t5(words(where / "tokenizer_3"), 256).state_dict()),
    }
    path = originals.write(
        where / "sd3.5_medium_incl_clips_t5xxl.safetensors",
        originals.behind("model.diffusion_model.", originals.mmdit(net.state_dict())),
        originals.behind("first_stage_model.", originals.ldm_vae(originals.autoencoder().state_dict())),
        *(originals.behind(f"text_encoders.{name}.transformer.", state) for name, state in encoders.items()),
    )
    return {"base_model": str(path), **{name: str(where / name) for name in TOKENIZERS}}, net


def test_from_a_checkpoint_with_its_text_encoders_goes_on_from_loras_of_both_layouts(
    tiny_sd3: Path, image_folder: Path, tmp_path: Path
) -> None:
    """From diffusers' layout and saved in kohya's, from there and saved in diffusers', learning nothing on the way."""
    model, net = checkpoint(tmp_path / "files", tiny_sd3)
    names = names_of(linear_layers(net), FACTS)
    _, lora = trained(list(FACTS.default_targets), rank=4)
    lora_path = tmp_path / "given.safetensors"
    # of a denoiser with the same blocks
    write_lora(lora_path, file_tensors(lora, "fp32", names, "diffusers"), {})
    wanted = read_lora(lora_path, names)
    for layout in ("kohya", "diffusers"):
        cfg = settings(
            tiny_sd3, image_folder, tmp_path, model=model | {"text_length": 24}, training={"max_train_steps": 1},
            optimizer={"learning_rate": 1e-12}, saving={"save_layout": layout}, sampling={"prompts": [PROMPT]},
            network={"network_weights": str(lora_path)},
        )  # fmt: skip
        run, done = train_here(cfg)
        assert done == 0, events(run, "error")
        assert len(rows(run)) == 1 and events(run, "sample")
        lora_path = run.checkpoints_dir / "tiny.safetensors"
        file = read_lora(lora_path, names)
        assert file.pairs.keys() == wanted.pairs.keys()
        for path, (a, b) in wanted.pairs.items():
            here = file.scales[path] * (file.pairs[path][1] @ file.pairs[path][0])
            torch.testing.assert_close(here, wanted.scales[path] * (b @ a))
        if layout == "kohya":
            # fused as in the checkpoint: down, up and alpha of qkv, out and both of the feed-forward, by stream
            assert len(lora_of(run)) == 3 * (5 * 4 + 5 * 1 + 4 * 3 + 2 * 2)
