"""A whole run of Anima from single files; tests/families/test_runs.py has the others."""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path

import safetensors

from tests.tiny import originals
from tests.tiny.anima import _denoiser, _tiny, autoencoder, conditioner, qwen
from tests.tiny.anima_pipeline import published
from tests.tiny.training import events, family_config, lora_of, rows, train_here

PROMPT = {"prompt": "a red circle", "negative_prompt": "", "width": 64, "height": 96, "steps": 3, "seed": 5}
PROMPT |= {"true_cfg_scale": 4.0}

settings = partial(family_config, "anima")


def anima_files(tiny_anima: Path, where: Path) -> dict[str, str]:
    """The settings of [model] that give a tiny Anima as ComfyUI's users have it: three files, two tokenizer folders."""
    from tests.tiny.originals import wan
    from tests.tiny.single_files import words

    for name in ("tokenizer", "t5_tokenizer"):
        shutil.copytree(tiny_anima / name, where / name)
    net = _tiny(lambda: _denoiser(latent=16), 0)
    adapter = _tiny(lambda: conditioner(words(where / "t5_tokenizer")), 1)
    text = _tiny(lambda: qwen(words(where / "tokenizer")), 2)
    vae = wan(_tiny(lambda: autoencoder(16), 3).state_dict())
    single = published(net.state_dict(), adapter.state_dict(), "net.")
    files = {
        "base_model": originals.write(where / "anima-base-v1.0.safetensors", single),
        "text_encoder": originals.write(
            where / "qwen_3_06b_base.safetensors", originals.behind("model.", text.state_dict())
        ),
        "vae": originals.write(where / "qwen_image_vae.safetensors", vae),
        "tokenizer": where / "tokenizer",
        "tokenizer_2": where / "t5_tokenizer",
    }
    return {name: str(path) for name, path in files.items()}


def test_from_three_files_trains_samples_and_saves(tiny_anima: Path, image_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    cfg = settings(
        tiny_anima, image_folder, tmp_path, model=anima_files(tiny_anima, tmp_path / "files"),
        sampling={"prompts": [PROMPT]}, training={"max_train_steps": 2},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 2 and events(run, "sample")
    assert len(lora_of(run)) == 3 * 3 * 10
    with safetensors.safe_open(run.checkpoints_dir / "tiny.safetensors", framework="pt") as file:
        metadata = file.metadata()
    base = Path(str(cfg.model.base_model)).read_bytes()
    assert metadata["ss_new_sd_model_hash"] == hashlib.sha256(base).hexdigest() and metadata["ss_sd_model_hash"]
