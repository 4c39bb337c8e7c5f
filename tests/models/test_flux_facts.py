"""The base model check reads headers only, and names every part that is missing, broken, cut short or mixed up."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend.families.files.headers import read_header
from backend.families.files.kinds import kind_of
from backend.families.spec import Geometry
from backend.families.table import FAMILIES, family, family_of_denoiser


@pytest.fixture
def base(tiny_flux: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_flux, tmp_path / "base"))


def texts(base: Path, variant: str | None = None) -> str:
    problems = family("flux").check_base_model(base, variant)
    assert all(p.path == "model.base_model" and p.remedy for p in problems)
    return "\n".join(p.text for p in problems)


def test_whole_model_has_no_problem(base: Path) -> None:
    assert texts(base) == ""


@pytest.mark.parametrize(
    "part", ["transformer", "vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "scheduler"]
)
def test_each_missing_part_is_named(base: Path, part: str) -> None:
    shutil.rmtree(base / part)
    assert f"no folder {part}/" in texts(base)


@pytest.mark.parametrize(
    "file",
    [
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
        "text_encoder_2/config.json",
        "tokenizer_2/tokenizer.json",
        "scheduler/scheduler_config.json",
    ],
)
def test_each_missing_file_is_named(base: Path, file: str) -> None:
    (base / file).unlink()
    assert Path(file).name in texts(base)


def test_all_problems_come_at_once(base: Path) -> None:
    shutil.rmtree(base / "vae")
    (base / "transformer/config.json").write_text("{broken", encoding="utf-8")
    (base / "text_encoder/model.safetensors").unlink()
    messages = texts(base)
    assert (
        "no folder vae/" in messages
        and "broken JSON (line 1" in messages
        and "text_encoder/model.safetensors" in messages
    )


def test_cut_short_file_is_named(base: Path) -> None:
    weights = base / "transformer/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "transformer/diffusion_pytorch_model.safetensors is cut short: 1000 bytes are missing" in texts(base)


def test_git_lfs_pointer_is_named(base: Path) -> None:
    (base / "vae/diffusion_pytorch_model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "Git LFS pointer" in texts(base)


def test_mixed_up_weights_are_named(base: Path) -> None:
    shutil.copy(
        base / "vae/diffusion_pytorch_model.safetensors", base / "transformer/diffusion_pytorch_model.safetensors"
    )
    assert "transformer/ contains a VAE, not the FLUX transformer" in texts(base)


def test_wrong_class_is_named(base: Path) -> None:
    path = base / "text_encoder_2/config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]})
    )
    assert "text_encoder_2/ contains Qwen2_5_VLForConditionalGeneration" in texts(base)


def test_parts_of_two_models_are_named(base: Path) -> None:
    path = base / "text_encoder_2/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"d_model": 48}))
    assert "T5's width is 48" in texts(base)


def test_other_pipeline_is_named(base: Path) -> None:
    path = base / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_class_name": "QwenImagePipeline"}))
    assert "model_index.json names QwenImagePipeline" in texts(base)


def test_missing_shard_is_named(base: Path) -> None:
    folder = base / "transformer"
    names = sorted(read_header(folder / "diffusion_pytorch_model.safetensors").names)
    (folder / "diffusion_pytorch_model.safetensors").rename(
        folder / "diffusion_pytorch_model-00001-of-00002.safetensors"
    )
    weight_map = dict.fromkeys(names[:-1], "diffusion_pytorch_model-00001-of-00002.safetensors")
    weight_map[names[-1]] = "diffusion_pytorch_model-00002-of-00002.safetensors"
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert texts(base) == "transformer/diffusion_pytorch_model-00002-of-00002.safetensors is missing"


def test_variant_files_are_found_and_counted(base: Path) -> None:
    plain = family("flux").sizes(base)
    for part, stem in {"transformer": "diffusion_pytorch_model", "text_encoder": "model"}.items():
        (base / part / f"{stem}.safetensors").rename(base / part / f"{stem}.fp16.safetensors")
    assert "has no weights" in texts(base)
    assert texts(base, "fp16") == ""
    assert family("flux").sizes(base, "fp16") == plain


def test_single_file_is_told_what_it_is(base: Path) -> None:
    messages = texts(base / "vae/diffusion_pytorch_model.safetensors")
    assert messages == "diffusion_pytorch_model.safetensors is a VAE, not the FLUX transformer"


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    assert "not a model in diffusers layout" in texts(tmp_path)
    assert "does not exist" in texts(tmp_path / "nowhere")


def test_kinds_of_files() -> None:
    assert kind_of(["transformer.single_transformer_blocks.0.proj_mlp.lora_A.weight"]) == "a LoRA"
    assert kind_of(["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"]).startswith(
        "a FLUX transformer"
    )
    assert kind_of(["something.else"]) is None


def test_geometry_is_read_from_the_model(base: Path) -> None:
    geometry = family("flux").geometry(base)
    assert geometry == Geometry(downscale=8, patch=2, latent_channels=4)
    assert geometry.image_tokens(1024, 768) == 3072 and geometry.latent_size(1024, 768) == (96, 128)
    with pytest.raises(ValueError, match="not a multiple of 16"):
        geometry.image_tokens(1000, 768)
    with pytest.raises(ValueError, match="block_out_channels"):
        family("flux").geometry(base / "nowhere")


def test_real_pipeline_loads_the_fixture(tiny_flux: Path) -> None:
    from diffusers import FluxPipeline

    pipe = FluxPipeline.from_pretrained(tiny_flux, local_files_only=True)
    assert pipe.transformer.config.guidance_embeds and pipe.scheduler.config.use_dynamic_shifting
    short, long = (
        len(pipe.tokenizer_2(t).input_ids) for t in ("a red cat", "a photo of a large green house with a dog")
    )
    assert short < long < 100
    for facts in FAMILIES["flux"].block_classes:
        blocks = getattr(pipe.transformer, facts.attribute)
        assert {type(block).__name__ for block in blocks} == {facts.class_name}


def test_table() -> None:
    assert family_of_denoiser("FluxTransformer2DModel") is FAMILIES["flux"]
    with pytest.raises(ValueError, match="known families: flux"):
        family("flix")
    with pytest.raises(ValueError):
        family_of_denoiser("UNet3DConditionModel")


def test_facts_are_torch_free() -> None:
    code = (
        "import sys, backend.families.table as t; t.family('flux'); "
        "bad = {'torch','diffusers','transformers'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
