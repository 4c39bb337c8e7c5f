"""LoRA files of every layout: ours in other programs, and those of other programs here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers.loaders.lora_conversion_utils import _convert_kohya_flux_lora_to_diffusers
from torch import Tensor

from backend.base.errors import Refused
from backend.config.layer_patterns import Size
from backend.families.files.base_model import BaseModelFiles
from backend.families.flux.facts import FACTS
from backend.lora.comfyui_keys import LayerNames, split_key
from backend.lora.file_contents import inspect_lora
from backend.lora.inject import Lora
from backend.lora.load import check_continue, continue_from, read_lora
from backend.lora.save import LayerWeights, file_tensors, in_format, write_lora
from backend.models.common.tensor_sources import open_part
from tests.tiny import comfy_maps, originals
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora import names, trained
from tests.tiny.published_files import golden

NAMES = names()
EVERYTHING = tuple(NAMES.layers)
Deltas = dict[str, Tensor]


def deltas(lora: Lora) -> Deltas:
    entries = {}
    for path in lora.layers:
        a, b = lora.pair(path)
        entries[path] = lora.scale_of(path) * (b @ a).detach()
    return entries


def read_deltas(path: Path, known: LayerNames = NAMES) -> Deltas:
    file = read_lora(path, known)
    return {layer: file.scales[layer] * (b @ a) for layer, (a, b) in file.pairs.items()}


def same(result: Deltas, wanted: Deltas) -> None:
    assert result.keys() == wanted.keys()
    for layer, delta in wanted.items():
        torch.testing.assert_close(result[layer], delta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
@pytest.mark.parametrize("targets", [EVERYTHING, ("attn.to_v", "proj_mlp", "norm_out.linear")], ids=["all", "some"])
def test_ours_comes_back_and_comfyui_takes_every_key(tmp_path: Path, form: str, targets: tuple[str, ...]) -> None:
    _, lora = trained(rank=3, alpha=5, targets=targets)
    tensors = file_tensors(lora, "fp32", NAMES, form)
    write_lora(tmp_path / "x.safetensors", tensors, {})
    same({k: v for k, v in read_deltas(tmp_path / "x.safetensors").items() if v.abs().max() > 0}, deltas(lora))
    stems = {split_key(key)[0] for key in tensors}
    assert stems <= comfy_maps.flux(2, 2) and len(stems) >= len(targets) / 3
    endings = {
        "kohya": {"lora_down.weight", "lora_up.weight", "alpha"},
        "diffusers": {"lora_A.weight", "lora_B.weight"},
    }
    assert {key.removeprefix(split_key(key)[0] + ".") for key in tensors} == endings[form]


def test_kohya_names_and_sizes_are_those_of_the_published_checkpoint() -> None:
    """FLUX.1-dev's own list of tensors: a LoRA key for each weight, with as many rows and columns as it has."""
    published = {name: shape for name, (_, shape) in golden("flux1-dev").items()}
    layers = {}
    for path, native in NAMES.natives.items():
        rows, columns = published[f"{native.stem}.weight"]
        unit = rows // sum(native.shares)
        layers[path] = LayerWeights(torch.ones(1, columns), torch.ones(unit * native.shares[native.number], 1), 1.0)
    tensors = in_format(layers, NAMES, "kohya")
    stems = {split_key(key)[0] for key in tensors}
    assert stems <= comfy_maps.published(published) and len(stems) == 2 * 10 + 2 * 3 + 10
    for name, shape in published.items():
        stem = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        if name.endswith(".weight") and stem in stems:
            assert tensors[f"{stem}.lora_up.weight"].shape[0] == shape[0]
            assert tensors[f"{stem}.lora_down.weight"].shape[1] == shape[1]


@pytest.mark.parametrize("uneven", [False, True])
def test_kohya_files_change_the_published_weights_as_training_changed_ours(uneven: bool) -> None:
    """W + alpha / rank B A in the published names is the published form of our W + alpha / rank B A.

    Also where the parts of a fused layer have ranks and alphas of their own.
    """
    model, lora = trained(rank=3, alpha=5, targets=EVERYTHING, uneven=uneven)
    ours = make_tiny_denoiser().state_dict()
    changed = {**ours, **{f"{path}.weight": ours[f"{path}.weight"] + delta for path, delta in deltas(lora).items()}}
    before, after = originals.bfl(ours), originals.bfl(changed)
    tensors = file_tensors(lora, "fp32", NAMES, "kohya")
    seen = 0
    for name, weight in before.items():
        stem = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        if not name.endswith(".weight") or f"{stem}.alpha" not in tensors:
            continue
        a, b = tensors[f"{stem}.lora_down.weight"], tensors[f"{stem}.lora_up.weight"]
        delta = tensors[f"{stem}.alpha"] / a.shape[0] * (b @ a)
        torch.testing.assert_close(weight + delta, after[name], rtol=1e-5, atol=1e-5)
        seen += 1
    assert 3 * seen == len(tensors)


def test_diffusers_reads_our_kohya_file_exactly() -> None:
    """Its converter knows FLUX's real width only, so there are no models here: layers of that width, in and out."""
    source = torch.Generator().manual_seed(0)
    sizes = {"attn.to_q": (3072, 3072), "attn.to_k": (3072, 3072), "attn.to_v": (3072, 3072), "proj_mlp": (3072, 12288)}
    layers = {}
    for block in (0, 1):
        for end, (inner, outer) in sizes.items():
            rank = 2 + (block and end == "proj_mlp")
            a, b = torch.randn(rank, inner, generator=source), torch.randn(outer, rank, generator=source)
            layers[f"single_transformer_blocks.{block}.{end}"] = LayerWeights(a, b, 0.625)
    for end in ("attn.to_q", "attn.to_v", "attn.add_k_proj", "ff.net.0.proj"):
        layers[f"transformer_blocks.0.{end}"] = LayerWeights(
            torch.randn(3, 3072, generator=source),
            torch.randn(12288 if "ff" in end else 3072, 3, generator=source),
            2.0,
        )
    result = _convert_kohya_flux_lora_to_diffusers(dict(in_format(layers, NAMES, "kohya")))
    for path, one in layers.items():
        a, b = (result.pop(f"transformer.{path}.lora_{half}.weight") for half in "AB")
        # on more inputs than the two products have ranks: they are equal where these are
        x = torch.randn(a.shape[1], 8, generator=source) / 3072**0.5
        torch.testing.assert_close(b @ (a @ x), one.scale * (one.b @ (one.a @ x)), rtol=1e-4, atol=1e-4)
    for key in [key for key in result if ".lora_B." in key]:
        assert not result[key].any()


def bfl_file(path: Path, rank: int, spelled: Callable[[str], str]) -> Deltas:
    """A LoRA trained on the published layers of the tiny FLUX, written under names by `spelled`; its deltas here."""
    source = torch.Generator().manual_seed(4)
    before = originals.bfl(make_tiny_denoiser().state_dict())
    tensors, after = {}, dict(before)
    for name in ("double_blocks.0.img_attn.qkv", "double_blocks.1.txt_mlp.2", "single_blocks.1.linear1", "img_in",
                 "final_layer.adaLN_modulation.1"):  # fmt: skip
        weight = before[f"{name}.weight"]
        a, b = (
            torch.randn(rank, weight.shape[1], generator=source),
            torch.randn(weight.shape[0], rank, generator=source),
        )
        tensors |= {spelled(f"{name}|A"): a, spelled(f"{name}|B"): b, spelled(f"{name}|alpha"): torch.tensor(3.0)}
        after[f"{name}.weight"] = weight + 3.0 / rank * (b @ a)
    safetensors.torch.save_file(tensors, path)
    one, two = originals.write(path.with_name("one.st"), before), originals.write(path.with_name("two.st"), after)
    part = FACTS.part("transformer")
    old, new = (open_part(BaseModelFiles.at(file), part).tensors() for file in (one, two))
    changed = {name: new[name].read() - lazy.read() for name, lazy in old.items()}
    return {name.removesuffix(".weight"): delta for name, delta in changed.items() if delta.abs().max() > 0}


KOHYA = {"A": "lora_down.weight", "B": "lora_up.weight", "alpha": "alpha"}
PEFT = {"A": "lora_A.weight", "B": "lora_B.weight", "alpha": "alpha"}


def flat(name: str) -> str:
    stem, half = name.split("|")
    return f"lora_unet_{stem.replace('.', '_')}.{KOHYA[half]}"


@pytest.mark.parametrize(
    "spelled",
    [
        flat,
        lambda name: flat(name).replace("lora_unet_", "lora_unet__orig_mod_"),
        lambda name: "diffusion_model.{}.{}".format(name.split("|")[0], PEFT[name.split("|")[1]]),
        lambda name: "diffusion_model._orig_mod.{}.{}".format(name.split("|")[0], KOHYA[name.split("|")[1]]),
    ],
    ids=["kohya", "kohya compiled", "ComfyUI", "compiled"],
)
def test_fused_layers_of_published_names_are_split_exactly(tmp_path: Path, spelled: Callable[[str], str]) -> None:
    wanted = bfl_file(tmp_path / "bfl.safetensors", 2, spelled)
    assert len(wanted) == 3 + 1 + 4 + 1 + 1
    same(read_deltas(tmp_path / "bfl.safetensors"), wanted)
    _, lora = trained(rank=4, alpha=4, targets=EVERYTHING)
    notes = continue_from(lora, read_lora(tmp_path / "bfl.safetensors", NAMES))
    assert "rank 2" in notes[0] and "padded to 4" in notes[0]
    now = deltas(lora)
    same({path: now[path] for path in wanted}, wanted)


def test_a_file_of_ours_goes_on_at_its_own_rank_though_it_stacks_three(tmp_path: Path) -> None:
    _, old = trained(rank=4, alpha=8)
    write_lora(tmp_path / "x.safetensors", file_tensors(old, "fp32", NAMES), {})
    _, lora = trained(rank=4, alpha=4)
    file = tmp_path / "x.safetensors"
    check_continue(file, NAMES, dict.fromkeys(lora.layers, Size(4, 4.0)))
    assert continue_from(lora, read_lora(file, NAMES)) == []
    same(deltas(lora), deltas(old))
    with pytest.raises(Refused, match="network_dim to 4"):
        continue_from(trained(rank=2)[1], read_lora(file, NAMES))


@pytest.mark.parametrize(
    "spelled",
    [
        "base_model.model.{path}.lora_{half}.weight",
        "{path}.lora_{half}.default.weight",
        "lora_transformer_{flat}.lora_{side}.weight",
        "transformer.{path}.lora.{side}.weight",
        "diffusion_model.{path}.lora_{side}.weight",
    ],
)
def test_diffusers_names_in_every_spelling(tmp_path: Path, spelled: str) -> None:
    _, old = trained(rank=4, alpha=4)
    tensors = {}
    for path in old.layers:
        for half, side, value in zip("AB", ("down", "up"), old.pair(path), strict=True):
            tensors[spelled.format(path=path, flat=path.replace(".", "_"), half=half, side=side)] = value.detach()
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    same(read_deltas(tmp_path / "x.safetensors"), deltas(old))


def test_alpha_of_diffusers_metadata_and_of_pefts_config(tmp_path: Path) -> None:
    _, old = trained(rank=4, alpha=10, targets=("attn.to_q", "attn.to_k"))
    tensors = {}
    for path in old.layers:
        a, b = old.pair(path)
        tensors |= {f"transformer.{path}.lora_A.weight": a.detach(), f"transformer.{path}.lora_B.weight": b.detach()}
    words = {"transformer.r": 4, "transformer.lora_alpha": 10}
    metadata = {"lora_adapter_metadata": json.dumps(words)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata)
    same(read_deltas(tmp_path / "x.safetensors"), deltas(old))
    safetensors.torch.save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 1, "alpha_pattern": {"to_k": 20}}))
    file = read_lora(tmp_path / "adapter_model.safetensors", NAMES)
    assert {path.rpartition(".")[2]: scale for path, scale in file.scales.items()} == {"to_q": 0.25, "to_k": 5.0}


def pair(stem: str, inner: int = 32, outer: int = 32) -> dict[str, Tensor]:
    return {f"{stem}.lora_down.weight": torch.ones(2, inner), f"{stem}.lora_up.weight": torch.ones(outer, 2)}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (pair("lora_unet_down_blocks_1_attentions_0_proj_in"), "SDXL or Stable Diffusion"),
        (pair("diffusion_model.blocks.0.self_attn.q"), "a LoRA of Wan"),
        (pair("transformer.transformer_blocks.0.img_mlp.net.0.proj"), "a LoRA of Qwen-Image"),
        (pair("lora_unet_joint_blocks_0_x_block_attn_qkv"), "Stable Diffusion 3"),
        (pair("lora_unet_double_blocks_7_img_attn_proj") | pair("lora_unet_img_in", 16), "no layer lora_unet_double"),
        (pair("lora_unet_img_in", 16, 3072), "3072"),
        (pair("lora_te1_text_model_encoder_layers_0_mlp_fc1"), "text encoders"),
        ({"lora_unet_img_in.hada_w1_a": torch.ones(2, 2), "lora_unet_img_in.alpha": torch.ones(())}, "lacks hada_w1_b"),
        ({"lora_unet_img_in.lokr_w1": torch.ones(2, 2)}, "lacks lokr_w2_a, lokr_w2_b"),
        ({f"lora_unet_img_in.lokr_w{n}": torch.ones(2, 2) for n in (1, 2)}, "x_embedder is 4 x 4"),
        ({f"lora_unet_img_in.lokr_{n}": torch.ones(2, 2) for n in ("w1", "w2_a", "w2_b", "t2")}, "in three parts"),
        (pair("lora_unet_img_in", 16) | {"lora_unet_txt_in.lokr_w1": torch.ones(2, 2)}, "a LoRA (lora_unet_img_in"),
        ({"decoder.conv_in.weight": torch.ones(2), "encoder.conv_in.weight": torch.ones(2)}, "VAE, not a LoRA"),
        ({"lora_unet_img_in.lora_down.weight": torch.ones(2, 16)}, "lacks B"),
        ({"what": torch.ones(1)}, "not a LoRA"),
        ({}, "empty"),
    ],
)
def test_files_of_another_model_or_kind_are_named(tmp_path: Path, tensors: dict[str, Tensor], words: str) -> None:
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(Refused, match=re.escape(words)):
        inspect_lora(tmp_path / "x.safetensors", NAMES)


def test_parts_that_are_not_trained_here_are_left_out_and_said(tmp_path: Path) -> None:
    tensors = pair("lora_unet_img_in", 16) | pair("lora_te1_text_model_encoder_layers_0_mlp_fc1")
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    _, lora = trained(targets=("x_embedder",))
    (notes, _) = continue_from(lora, read_lora(tmp_path / "x.safetensors", NAMES))
    assert "text encoders (1 layers)" in notes


def test_hashes_are_those_that_other_tools_compute(tmp_path: Path) -> None:
    """sd-scripts: over the file with its ss_ metadata alone; the body's hash leaves metadata out of account."""
    tensors = {"lora_unet_x.lora_up.weight": torch.randn(600, 1000)}
    write_lora(tmp_path / "x.safetensors", tensors, {"ss_steps": "5", "modelspec.title": "a title"})
    with safetensors.safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        metadata = file.metadata()
    plain = safetensors.torch.save(tensors, metadata={"ss_steps": "5"})
    assert metadata["sshs_legacy_hash"] == hashlib.sha256(plain[1048576:1114112]).hexdigest()[:8]
    data = (tmp_path / "x.safetensors").read_bytes()
    body = data[8 + int.from_bytes(data[:8], "little") :]
    assert metadata["sshs_model_hash"] == hashlib.sha256(body).hexdigest()
