"""Single files in their makers' layouts, as people have them: checked, loaded, trained, sampled, saved, reloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from diffusers import FluxTransformer2DModel

from backend.config.schema import Config
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.runs.folder import Run
from tests.tiny import originals
from tests.tiny.single_files import flux_files, tiny_unet, words
from tests.tiny.training import config, events, lora_of, same, train_here

CPU = torch.device("cpu")


def checkpoint(kind: str, tokenizers: Path, where: Path) -> tuple[dict[str, str], Any]:
    """[model] settings that give a whole tiny checkpoint of SDXL or SD 1.5 with its tokenizers, and its UNet."""
    unet, count = tiny_unet(kind), words(tokenizers / "tokenizer")
    parts = [
        originals.behind("model.diffusion_model.", originals.ldm_unet(unet.state_dict())),
        originals.behind("first_stage_model.", originals.ldm_vae(originals.autoencoder(4, quant=True).state_dict())),
    ]
    text = originals.hf_clip(originals.clip(count).state_dict())
    if kind == "sd15":
        parts += [originals.behind("cond_stage_model.transformer.", text), {"betas": torch.zeros(1000)}]
    else:
        big = originals.open_clip(originals.clip(count, "CLIPTextModelWithProjection", 128, "gelu").state_dict())
        parts += [
            originals.behind("conditioner.embedders.0.transformer.", text),
            originals.behind("conditioner.embedders.1.model.", big),
        ]
    path = originals.write(where / f"{kind}.safetensors", *parts)
    names = ("tokenizer",) if kind == "sd15" else ("tokenizer", "tokenizer_2")
    return {"family": kind, "base_model": str(path), **{name: str(tokenizers / name) for name in names}}, unet


@pytest.fixture(scope="module")
def sdxl(tiny_sdxl: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Any]:
    """A whole checkpoint of SDXL, which no test changes."""
    return checkpoint("sdxl", tiny_sdxl, tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(scope="module")
def sd15(tiny_sd15: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Any]:
    """The same of SD 1.5."""
    return checkpoint("sd15", tiny_sd15, tmp_path_factory.mktemp("sd15"))


@pytest.fixture(scope="module")
def flux(tiny_flux: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """FLUX in four files, which no test changes."""
    return flux_files(tiny_flux, tmp_path_factory.mktemp("flux") / "files")


def run_of(model: dict[str, str], images: Path, where: Path, **more: Any) -> Run:
    """A short run with a sample at its end, done."""
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2}
    cfg: Config = config(
        Path(model["base_model"]), images, where,
        model=model | more,
        training={"max_train_steps": 2},
        sampling={"prompts": [prompt], "sample_at_end": True},
        saving={"save_layout": "diffusers"},
        compile={"compile": False, "shape_mode": "off"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert [event["step"] for event in events(run, "sample")] == [2]
    return run


def test_flux_from_four_files_trains_samples_saves_and_reloads(
    flux: dict[str, str], image_folder: Path, tmp_path: Path
) -> None:
    run = run_of(flux, image_folder, tmp_path, text_length=16)
    tensors = lora_of(run)
    assert any(value.abs().max() > 0 for name, value in tensors.items() if "lora_B" in name)
    theirs = FluxTransformer2DModel.from_config(originals.flux_transformer(latent=4).config)
    theirs.load_lora_adapter(tensors, prefix="transformer")
    assert len(theirs.peft_config) == 1
    assert "flux-1-dev" in _metadata(run)["modelspec.architecture"]


@pytest.mark.parametrize("kind", ["sdxl", "sd15"])
def test_a_whole_checkpoint_is_read_part_by_part(kind: str, request: pytest.FixtureRequest) -> None:
    model, unet = request.getfixturevalue(kind)
    base = BaseModelFiles(
        Path(model["base_model"]), {name: Path(path) for name, path in model.items() if "tokenizer" in name}
    )
    row = family(kind)
    assert row.check_base_model(base) == []
    loaded = load_family(row.name).load_denoiser(base, LoadOptions(torch.float32, CPU))
    assert same(loaded.state_dict(), unet.state_dict())
    for key in ("block_out_channels", "cross_attention_dim", "attention_head_dim", "use_linear_projection"):
        assert list_of(loaded.config[key]) == list_of(unet.config[key]), key
    assert row.sizes(base).keys() >= {"unet", "vae", "text_encoder"} and min(row.sizes(base).values()) > 0


def list_of(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_sdxl_from_one_file_trains_samples_and_saves(
    sdxl: tuple[dict[str, str], Any], image_folder: Path, tmp_path: Path
) -> None:
    run = run_of(sdxl[0], image_folder, tmp_path)
    assert lora_of(run)


def _metadata(run: Run) -> dict[str, str]:
    with safetensors.safe_open(run.checkpoints_dir / "tiny.safetensors", "pt") as opened:
        return opened.metadata()


def messages_of(model: dict[str, str], kind: str = "flux") -> dict[str, str]:
    """Setting -> text of its problem."""
    files = {name: Path(path) for name, path in model.items() if name not in ("base_model", "family")}
    return {p.path: p.text for p in family(kind).check_base_model(BaseModelFiles(Path(model["base_model"]), files))}


def test_each_wrong_file_is_named_in_its_field(flux: dict[str, str], tmp_path: Path) -> None:
    assert messages_of(flux) == {}
    lora = originals.write(tmp_path / "style.safetensors", {"lora_unet_x.lora_down.weight": torch.zeros(2, 2)})
    qwen = originals.write(
        tmp_path / "qwen.safetensors",
        {"model.embed_tokens.weight": torch.zeros(2, 2), "model.layers.0.self_attn.q_proj.weight": torch.zeros(2, 2)},
    )
    wrong = {"vae": str(lora), "text_encoder_2": str(qwen), "text_encoder": flux["vae"]}
    assert messages_of(flux | wrong) == {
        "model.vae": "style.safetensors is a LoRA, not the VAE",
        "model.text_encoder_2": "qwen.safetensors is a language model, such as Qwen's or Llama, not the T5 text "
        "encoder",
        "model.text_encoder": "ae.safetensors is a VAE in latent diffusion's layout, not the CLIP text encoder",
    }
    assert messages_of(flux | {"base_model": flux["vae"]}) == {
        "model.base_model": "ae.safetensors is a VAE in latent diffusion's layout, not the FLUX transformer"
    }


def test_what_a_single_file_lacks_is_asked_for_by_its_setting(flux: dict[str, str]) -> None:
    problems = family("flux").check_base_model(BaseModelFiles(Path(flux["base_model"])))
    assert {p.path for p in problems} == {
        f"model.{name}" for name in ("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    }
    messages = {p.path: p.remedy for p in problems}
    assert "black-forest-labs/FLUX.1-dev" in messages["model.tokenizer"] and "ae.safetensors" in messages["model.vae"]


def test_a_file_for_another_family_is_named(flux: dict[str, str], sdxl: tuple[dict[str, str], Any]) -> None:
    assert messages_of({"base_model": sdxl[0]["base_model"]}) == {
        "model.base_model": "sdxl.safetensors is a whole SDXL checkpoint, not the FLUX transformer"
    }
    assert messages_of(sdxl[0] | {"base_model": flux["base_model"]}, "sdxl") == {
        "model.base_model": "flux1-dev.safetensors is a FLUX transformer in Black Forest Labs' own layout, not the UNet"
    }


def test_a_pickle_is_refused_and_a_cut_file_is_named(tiny_flux: Path, tmp_path: Path) -> None:
    model = flux_files(tiny_flux, tmp_path / "files")
    pickle = tmp_path / "model.ckpt"
    pickle.write_bytes(b"PK")
    assert "pickle" in messages_of(model | {"base_model": str(pickle)})["model.base_model"]
    cut = Path(model["text_encoder_2"])
    cut.write_bytes(cut.read_bytes()[:-10])
    assert "cut short: 10 bytes" in messages_of(model)["model.text_encoder_2"]


def test_parts_of_other_widths_are_named(flux: dict[str, str], tmp_path: Path) -> None:
    other = originals.write(tmp_path / "t5.safetensors", originals.t5_file(originals.t5(120, width=48).state_dict()))
    assert "T5's width is 48" in messages_of(flux | {"text_encoder_2": str(other)})["model.base_model"]


def test_schnell_is_told_by_its_missing_guidance(flux: dict[str, str], tmp_path: Path) -> None:
    code = load_family("flux")

    schnell = originals.write(
        tmp_path / "schnell.safetensors",
        originals.bfl(originals.flux_transformer(guidance=False, latent=4).state_dict()),
    )
    files = {name: Path(path) for name, path in flux.items() if name != "base_model"}
    for path, architecture, sigmas in (
        (schnell, "flux-1-schnell/lora", [1.0, 0.75, 0.5, 0.25, 0.0]),
        (Path(flux["base_model"]), "flux-1-dev/lora", None),
    ):
        base = BaseModelFiles(path, files)
        assert code.facts.lora_architecture(base) == architecture
        assert (code.sampling_sigmas(4, 4096, base) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])) is (
            sigmas is not None
        )
