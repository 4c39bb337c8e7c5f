"""A trained denoiser in its project's own file, in a whole checkpoint and in diffusers' folder: what others read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.layouts.inverse import inverted
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_file import Stored, write_tensors
from backend.models.common.whole_model_files import WholeModel, text_tensors
from backend.models.family_classes import load_family
from tests.tiny import originals
from tests.tiny.single_files import tiny_unet

State = dict[str, Tensor]


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def written(
    base: BaseModelFiles,
    name: str,
    model: nn.Module,
    path: Path,
    dtype: torch.dtype = torch.float32,
    texts: Mapping[str, nn.Module] | None = None,
) -> Path:
    """The file of `model`, as trained on `base`, with text encoders that were trained too."""
    whole = WholeModel.like(base, family(name), shapes_of(model), [*(texts or {})])
    state = model.state_dict() | text_tensors(texts or {})
    write_tensors(path, whole.stored(state, dtype), {"format": "pt"})
    return path


def saved(model: nn.Module, folder: Path) -> BaseModelFiles:
    model.save_pretrained(folder / ("unet" if isinstance(model, UNet2DConditionModel) else "transformer"))  # type: ignore[operator]
    return BaseModelFiles.at(folder)


def moved(model: nn.Module) -> nn.Module:
    """The same after some training."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    return model


def clips(name: str) -> dict[str, nn.Module]:
    """The text encoders of a family, by part."""
    texts = {"text_encoder": originals.clip(99)}
    if name == "sdxl":
        texts["text_encoder_2"] = originals.clip(99, "CLIPTextModelWithProjection", 128, "gelu")
    return texts


def in_checkpoint(name: str, texts: Mapping[str, nn.Module]) -> State:
    """Text encoders by the names that whole checkpoints of a family have for them."""
    prefix = {"sdxl": "conditioner.embedders.0.transformer.", "sd15": "cond_stage_model.transformer."}[name]
    state = originals.behind(prefix, originals.hf_clip(texts["text_encoder"].state_dict()))
    if name == "sdxl":
        larger = originals.open_clip(texts["text_encoder_2"].state_dict())
        state |= originals.behind("conditioner.embedders.1.model.", larger)
    return state


def equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(value.equal(b[name]) for name, value in a.items())


def test_flux_is_written_as_its_makers_publish_it(tmp_path: Path) -> None:
    """From a folder, in names whose way back by diffusers test_layouts.py shows; it loads as the same model."""
    model = originals.flux_transformer(latent=4)
    base = saved(model, tmp_path)
    path = written(base, "flux", moved(model), tmp_path / "x.safetensors")
    assert equal(safetensors.torch.load_file(path), originals.bfl(model.state_dict()))
    ours = load_family("flux").load_denoiser(path, LoadOptions(torch.float32, torch.device("cpu")))
    assert equal(ours.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("name", "original"), [("sd3", originals.mmdit), ("qwen_image", None), ("wan", None), ("hunyuan_video", None)]
)
def test_other_transformers_are_written_in_their_projects_names(
    name: str, original: Callable[[State], State] | None, request: pytest.FixtureRequest
) -> None:
    """All tensors come back, turned as they were, by the rules that read published files."""
    base = BaseModelFiles.at(request.getfixturevalue(f"tiny_{name}"))
    facts = family(name)
    shapes = {each: shape for each, (_, shape) in base.tensors(facts.denoiser).items()}
    layout = facts.denoiser.layouts[0]
    natives = inverted(layout, shapes)
    assert sorted(part for native in natives.values() for part in native.parts) == sorted(shapes)
    if original is not None:
        (file,) = base.weight_files(facts.denoiser)
        state = safetensors.torch.load_file(file)
        stored = WholeModel(natives, {}).stored(state, torch.float32)
        theirs = {layout.prefixes[0] + each: value for each, value in original(state).items()}
        assert equal({each: one.read() for each, one in stored.items()}, theirs)


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_a_checkpoint_keeps_its_vae_and_text_encoders_and_its_names(name: str, tmp_path: Path) -> None:
    """Trained from a checkpoint whose UNet is in 8 bits: all else stays bit by bit, and no scale is left."""
    unet = tiny_unet(name)
    beside = originals.behind(
        "first_stage_model.", originals.ldm_vae(originals.autoencoder(4, quant=True).state_dict())
    )
    texts = clips(name)
    vae = dict(beside)
    beside |= in_checkpoint(name, texts)
    own = originals.behind("model.diffusion_model.", originals.in_fp8(originals.ldm_unet(unet.state_dict())))
    file = originals.write(tmp_path / "base.safetensors", own, beside)
    path = written(BaseModelFiles.at(file), name, moved(unet), tmp_path / "x.safetensors", torch.bfloat16)
    unet.bfloat16()
    theirs = originals.behind("model.diffusion_model.", originals.ldm_unet(unet.state_dict()))
    assert equal(safetensors.torch.load_file(path), {**theirs, **beside})
    again = UNet2DConditionModel.from_single_file(
        str(path), config=str(saved(unet, tmp_path / "c").path), subfolder="unet", local_files_only=True
    )
    assert equal(again.state_dict(), unet.float().state_dict())
    # text encoders that were trained too
    moved_texts = {part: moved(model) for part, model in texts.items()}
    path = written(
        BaseModelFiles.at(file), name, unet.bfloat16(), tmp_path / "y.safetensors", torch.float32, moved_texts
    )
    now = {each: value.float() for each, value in theirs.items()} | vae | in_checkpoint(name, moved_texts)
    assert equal(safetensors.torch.load_file(path), now)


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_a_folder_of_stable_diffusion_becomes_a_whole_checkpoint(name: str, tmp_path: Path) -> None:
    """VAE and text encoders in the names that checkpoints have for them, as another program wrote them."""
    unet, vae, texts = tiny_unet(name), originals.autoencoder(4, quant=True), clips(name)
    base = saved(unet, tmp_path)
    for folder, model in (("vae", vae), *texts.items()):
        model.save_pretrained(tmp_path / folder)  # type: ignore[operator]
    path = written(base, name, moved(unet), tmp_path / "x.safetensors")
    theirs = originals.behind("model.diffusion_model.", originals.ldm_unet(unet.state_dict()))
    theirs |= originals.behind("first_stage_model.", originals.ldm_vae(vae.state_dict()))
    plain = dict(theirs)
    theirs |= in_checkpoint(name, texts)
    tensors = safetensors.torch.load_file(path)
    # a number that nothing reads
    assert equal(tensors, {each: value for each, value in theirs.items() if not each.endswith("logit_scale")})
    again = AutoencoderKL.from_single_file(
        str(path), config=str(tmp_path), subfolder="vae", local_files_only=True, torch_dtype=torch.float32
    )
    assert equal(again.state_dict(), vae.state_dict())
    trained = {part: moved(model) for part, model in texts.items()}
    path = written(base, name, unet, tmp_path / "y.safetensors", texts=trained)
    now = plain | in_checkpoint(name, trained)
    assert equal(
        safetensors.torch.load_file(path),
        {each: value for each, value in now.items() if not each.endswith("logit_scale")},
    )


def test_a_model_without_names_of_its_own_is_refused_with_the_other_layout(tiny_anima: Path) -> None:
    """Anima's own file holds a part besides, by which it is known."""
    shapes = {
        each: shape for each, (_, shape) in BaseModelFiles.at(tiny_anima).tensors(family("anima").denoiser).items()
    }
    with pytest.raises(Refused, match="can't be written as a single file") as refused:
        WholeModel.like(BaseModelFiles.at(tiny_anima), family("anima"), shapes)
    assert refused.value.problems[0].path == "saving.model_layout"


def test_a_file_is_written_tensor_by_tensor_and_whole_or_not_at_all(tmp_path: Path) -> None:
    tensors = {
        "b": torch.arange(3, dtype=torch.bfloat16),
        "a": torch.randn(2, 3).T,
        "number": torch.tensor(4.6),
        "none": torch.zeros(0, 2),
        "whole": torch.arange(5),
    }
    path = tmp_path / "x.safetensors"
    write_tensors(path, {name: Stored.of(value) for name, value in tensors.items()}, {"title": "é"})
    assert equal(safetensors.torch.load_file(path), tensors)
    with safetensors.safe_open(path, "pt") as opened:
        assert opened.metadata() == {"title": "é"}
    data = path.read_bytes()
    start = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + start])
    assert all(header[name]["data_offsets"][0] % value.element_size() == 0 for name, value in tensors.items())

    def broken() -> Tensor:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_tensors(path, {"a": Stored((1,), torch.float32, broken)})
    with pytest.raises(ValueError, match=r"a is \[2\]"):
        write_tensors(path, {"a": Stored((1,), torch.float32, lambda: torch.zeros(2))})
    assert path.read_bytes() == data and [each.name for each in tmp_path.iterdir()] == ["x.safetensors"]
