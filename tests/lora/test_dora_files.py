"""DoRA files: of both layouts as other programs read them, and those of others here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers import FluxPipeline
from lycoris.modules.locon import LoConModule
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.config.layer_patterns import Size
from backend.families.flux.facts import FACTS
from backend.families.table import family
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of, split_key
from backend.lora.inject import Lora, find_targets, inject
from backend.lora.load import check_continue, continue_from, read_lora
from backend.lora.row_lengths import frozen_lengths
from backend.lora.save import file_tensors, write_lora
from tests.tiny import comfy_maps, originals
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora import inputs, names, trained
from tests.tiny.lora_values import moved
from tests.tiny.sdxl import make_tiny_unet

NAMES = names()
EVERYTHING = tuple(NAMES.layers)
SOME = ("single_transformer_blocks.0.attn.to_k", "transformer_blocks.1.attn.add_v_proj", "norm_out.linear", "ff.net.2")


def flux(
    targets: tuple[str, ...] = FACTS.default_targets, rank: int = 3, alpha: float = 5.0, **more: object
) -> tuple[nn.Module, Lora]:
    """A tiny FLUX with a DoRA that training has moved."""
    model = make_tiny_denoiser()
    layers = find_targets(model, targets)
    lora = inject(model, layers, rank=rank, alpha=alpha, dropout=0.0, seed=1, kind="dora", **more)
    moved(lora)
    return model, replace(lora, frozen_lengths=frozen_lengths(model, lora.layers, NAMES))


def changed(lora: Lora) -> dict[str, Tensor]:
    """The changed weight of each layer, by the formula."""
    tensors = {}
    for path, layer in lora.layers.items():
        a, b = (part.detach().flatten(1) for part in lora.pair(path))
        weight = layer.get_base_layer().weight
        whole = weight.flatten(1) + lora.scale_of(path) * b @ a
        whole = lora.magnitude(path).weight.detach() * whole / whole.norm(dim=1, keepdim=True)
        tensors[path] = whole.reshape(weight.shape)
    return tensors


def elsewhere(weight: Tensor, tensors: dict[str, Tensor], stem: str, before: bool = False) -> Tensor:
    """What LyCORIS and A1111 make of a weight; before: ComfyUI and Forge (comfy/weight_adapter/base.py).

    These divide by the rows' lengths before the change (weight_decompose with wd_on_output_axis).
    """
    up, down, scale = (tensors[f"{stem}.{name}"] for name in ("lora_up.weight", "lora_down.weight", "dora_scale"))
    alpha = tensors[f"{stem}.alpha"] / down.shape[0]
    whole = weight + alpha * (up.flatten(1) @ down.flatten(1)).reshape(weight.shape)
    assert scale.shape[0] == weight.shape[0] and scale.dim() == weight.dim()
    norm = (weight if before else whole).flatten(1).norm(dim=1, keepdim=True)
    return whole * (scale / norm.reshape(whole.shape[0], *[1] * (whole.dim() - 1)))


@pytest.mark.parametrize("targets", [EVERYTHING, SOME], ids=["all", "some"])
def test_kohya_files_change_the_published_weights_as_training_changed_ours(targets: tuple[str, ...]) -> None:
    """Also where not every part of a fused layer is trained: its other rows stay as they are."""
    _, lora = flux(targets)
    ours = make_tiny_denoiser().state_dict()
    before = originals.bfl(ours)
    after = originals.bfl({**ours, **{f"{path}.weight": weight for path, weight in changed(lora).items()}})
    tensors = file_tensors(lora, "fp32", NAMES, "kohya")
    assert {split_key(key)[0] for key in tensors} <= comfy_maps.flux(2, 2)
    seen = moved_weights = 0
    for name, weight in before.items():
        stem = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        if name.endswith(".weight") and f"{stem}.dora_scale" in tensors:
            torch.testing.assert_close(elsewhere(weight, tensors, stem), after[name], rtol=1e-5, atol=1e-5)
            seen += 1
            moved_weights += not torch.allclose(weight, after[name], atol=1e-3)
    assert 4 * seen == len(tensors) and moved_weights == seen


@pytest.mark.parametrize(("alpha", "least", "most"), [(0.05, 0.0, 0.01), (5.0, 0.06, 10.0)])
def test_comfyui_draws_a_large_change_otherwise(alpha: float, least: float, most: float) -> None:
    """What the help and the plan say of a DoRA in ComfyUI: it has the direction, and the more off the more changed."""
    model, lora = flux(SOME, alpha=alpha)
    path = SOME[0]
    frozen, wanted = lora.layers[path].get_base_layer().weight.detach(), changed(lora)[path]
    a, b = (part.detach() for part in lora.pair(path))
    tensors = {"x.lora_down.weight": a, "x.lora_up.weight": b, "x.alpha": torch.tensor(alpha)}
    tensors["x.dora_scale"] = lora.magnitude(path).weight.detach()
    there = elsewhere(frozen, tensors, "x", before=True)
    torch.testing.assert_close(nn.functional.normalize(there), nn.functional.normalize(wanted))
    off = ((there - wanted).norm() / wanted.norm()).item()
    assert least <= off <= most


@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_diffusers_loads_it_at_the_strength_it_was_trained_at(tmp_path: Path, tiny_flux: Path, alpha: float) -> None:
    model, lora = flux(alpha=alpha)
    write_lora(tmp_path / "x.safetensors", file_tensors(lora, "fp32", NAMES, "diffusers"), {})
    pipeline = FluxPipeline.from_pretrained(tiny_flux, transformer=make_tiny_denoiser())
    with torch.no_grad():
        base = pipeline.transformer(**inputs()).sample
        pipeline.load_lora_weights(tmp_path / "x.safetensors")
        theirs, ours = pipeline.transformer(**inputs()).sample, model(**inputs()).sample
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
    assert (ours - base).abs().max() > 0.05


def unet() -> tuple[nn.Module, Lora, LayerNames]:
    """A tiny UNet with a DoRA in linear layers and convolutions of both sizes."""
    model, facts = make_tiny_unet("sd15"), family("sd15")
    known = names_of(linear_layers(model), facts)
    targets = find_targets(model, [*facts.default_targets, *facts.conv_targets])
    lora = inject(model, targets, rank=3, alpha=6.0, dropout=0.0, seed=1, kind="dora")
    moved(lora)
    return model, lora, known


def test_diffusers_loads_convolutions_too(tmp_path: Path) -> None:
    model, lora, known = unet()
    file = tmp_path / "x.safetensors"
    safetensors.torch.save_file(
        {k.removeprefix("unet."): v for k, v in file_tensors(lora, "fp32", known, "diffusers").items()}, file
    )
    theirs = make_tiny_unet("sd15")
    x = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    words = torch.randn(1, 7, theirs.config.cross_attention_dim, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        base = theirs(x, 500, words).sample
        theirs.load_lora_adapter(file, prefix=None)
        torch.testing.assert_close(theirs(x, 500, words).sample, model(x, 500, words).sample, rtol=1e-3, atol=1e-3)
        assert (model(x, 500, words).sample - base).abs().max() > 0.05


def test_lycoris_own_module_makes_the_same_weights_of_a_kohya_file() -> None:
    _, lora, known = unet()
    tensors, wanted = file_tensors(lora, "fp32", known, "kohya"), changed(lora)
    kinds = set()
    for path, layer in lora.layers.items():
        frozen, stem = layer.get_base_layer(), known.out_name(path, "kohya")
        parts = [tensors[f"{stem}.{name}"] for name in ("lora_up.weight", "lora_down.weight")]
        with torch.no_grad():
            module = LoConModule.make_module_from_state_dict(
                stem, frozen, *parts, None, tensors[f"{stem}.alpha"], tensors[f"{stem}.dora_scale"]
            )
            torch.testing.assert_close(module.get_merged_weight()[0], wanted[path], rtol=1e-4, atol=1e-5)
        kinds.add(tuple(frozen.weight.shape[2:]))
    assert kinds == {(), (1, 1), (3, 3)}


def test_lengths_are_float32_in_a_16_bit_file() -> None:
    """Rounded, they would move every weight of the base by up to 0.2 %."""
    _, lora = flux()
    for form, ending in (("kohya", "dora_scale"), ("diffusers", "lora_magnitude_vector.weight")):
        tensors = file_tensors(lora, "bf16", NAMES, form)
        exact = {key for key, value in tensors.items() if value.dtype == torch.float32}
        assert exact == {key for key in tensors if key.endswith((ending, ".alpha"))} and len(exact) < len(tensors)
        assert len([key for key in exact if key.endswith(ending)]) == len(tensors) / (4 if form == "kohya" else 3)


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ours_is_gone_on_from_at_another_rank_and_alpha(tmp_path: Path, form: str, dtype: torch.dtype) -> None:
    old_model, old = flux()
    file = tmp_path / "x.safetensors"
    write_lora(file, file_tensors(old, "fp32", NAMES, form), {})
    model, lora = flux(rank=4, alpha=2.0, weight_dtype=dtype)
    check_continue(file, NAMES, dict.fromkeys(lora.layers, Size(4, 2.0)), "dora")
    notes = continue_from(lora, read_lora(file, NAMES))
    assert all("padded to 4" in each for each in notes)
    for path, weight in changed(old).items():
        torch.testing.assert_close(changed(lora)[path], weight, rtol=1e-4, atol=1e-5)
    near = 1e-4 if dtype == torch.float32 else 0.1
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs()).sample, old_model(**inputs()).sample, rtol=near, atol=near)


@pytest.mark.parametrize(
    "spelled",
    [
        "base_model.model.{path}.lora_magnitude_vector",
        "{path}.lora_magnitude_vector.default.weight",
        "transformer.{path}.lora_magnitude_vector.weight",
        "lycoris_{flat}.dora_scale",
    ],
)
def test_lengths_in_every_spelling(tmp_path: Path, spelled: str) -> None:
    _, old = flux()
    tensors = {}
    for path in old.layers:
        stem = spelled.format(path=path, flat=path.replace(".", "_"))
        stem = stem.partition(".lora_magnitude")[0].partition(".dora_scale")[0]
        for half, part in zip("AB", old.pair(path), strict=True):
            tensors[f"{stem}.lora_{half}.weight"] = part.detach()
        lengths = old.magnitude(path).weight.detach().flatten()
        tensors[spelled.format(path=path, flat=path.replace(".", "_"))] = lengths
        tensors[f"{stem}.alpha"] = torch.tensor(5.0)
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    file = read_lora(tmp_path / "x.safetensors", NAMES)
    assert file.kind == "dora" and file.lengths.keys() == file.pairs.keys() == old.layers.keys()
    for path, lengths in file.lengths.items():
        assert torch.equal(lengths, old.magnitude(path).weight)


def test_a_plain_lora_is_gone_on_from_as_it_draws(tmp_path: Path) -> None:
    old_model, old = trained(rank=3, alpha=5)
    file = tmp_path / "x.safetensors"
    write_lora(file, file_tensors(old, "fp32", NAMES), {})
    model, lora = flux(rank=3)
    check_continue(file, NAMES, dict.fromkeys(lora.layers, Size(3, 5.0)), "dora")
    (note,) = continue_from(lora, read_lora(file, NAMES))
    assert "no DoRA yet" in note
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs()).sample, old_model(**inputs()).sample, rtol=1e-5, atol=1e-5)


def test_rows_without_lengths_keep_theirs(tmp_path: Path) -> None:
    """LyCORIS leaves layers plain where it is told to."""
    _, old = flux(("attn.to_q",))
    tensors = file_tensors(old, "fp32", NAMES, "diffusers")
    path = "transformer_blocks.1.attn.to_q"
    del tensors[f"transformer.{path}.lora_magnitude_vector.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    _, lora = flux(("attn.to_q",))
    continue_from(lora, read_lora(tmp_path / "x.safetensors", NAMES))
    a, b = (part.detach() for part in old.pair(path))
    plain = old.layers[path].get_base_layer().weight + old.scale_of(path) * b @ a
    torch.testing.assert_close(changed(lora)[path], plain, rtol=1e-4, atol=1e-5)


def test_what_can_not_be_gone_on_from_is_said(tmp_path: Path) -> None:
    _, old = flux()
    file = tmp_path / "x.safetensors"
    write_lora(file, file_tensors(old, "fp32", NAMES), {})
    new_sizes = dict.fromkeys(old.layers, Size(3, 5.0))
    with pytest.raises(Refused, match="is a DoRA, and this run trains a LoRA") as refused:
        check_continue(file, NAMES, new_sizes)
    assert "network_type to dora" in str(refused.value)
    stem = "lora_unet_img_in"
    pair = {f"{stem}.lora_down.weight": torch.ones(2, 16), f"{stem}.lora_up.weight": torch.ones(32, 2)}
    for more, words in (
        ({f"{stem}.dora_scale": torch.ones(1, 16)}, r"one length for each input of x_embedder, \[1, 16\]"),
        ({f"{stem}.dora_scale": torch.ones(5, 1)}, r"5 lengths of x_embedder, and not one for each of its 32 outputs"),
        ({"lora_unet_txt_in.dora_scale": torch.ones(32, 1)}, "lora_unet_txt_in lacks A, B"),
    ):
        safetensors.torch.save_file(pair | more, file)
        with pytest.raises(Refused, match=words):
            read_lora(file, NAMES)
    factors = {f"{stem}.lokr_w1": torch.ones(4, 4), f"{stem}.lokr_w2": torch.ones(8, 4)}
    safetensors.torch.save_file(factors | {f"{stem}.dora_scale": torch.ones(32, 1)}, file)
    with pytest.raises(Refused, match="holds a DoRA .* and a LoKr"):
        read_lora(file, NAMES)
