"""Every layer that may be a target of any family, saved in every layout and kind, and read back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import diffusers
import pytest
import torch
from diffusers.utils import convert_unet_state_dict_to_peft
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.config.layer_patterns import FACTORED
from backend.config.load import parse
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import FAMILIES, family
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of
from backend.lora.inject import Lora, find_targets, inject, is_large
from backend.lora.load import read_lora
from backend.lora.row_lengths import frozen_lengths
from backend.lora.save import LayerWeights, check_savable, file_tensors, in_format, write_lora
from backend.models.common.base_weights import difference
from backend.plan.lora_findings import lacking_for_diffusers, lora_findings
from tests.tiny import anima, flux, framepack, hunyuan_video, qwen_image, sd3, sdxl, wan

DENOISERS: dict[str, Callable[[], nn.Module]] = {
    "flux": flux.make_tiny_denoiser,
    "sdxl": sdxl.make_tiny_unet,
    "sd15": lambda: sdxl.make_tiny_unet("sd15"),
    "anima": anima.make_tiny_denoiser,
    "qwen_image": qwen_image.make_tiny_denoiser,
    "sd3": sd3.make_tiny_denoiser,
    "wan": wan.make_tiny_denoiser,
    "hunyuan_video": hunyuan_video.make_tiny_denoiser,
    "framepack": framepack.make_tiny_denoiser,
}


def everything(name: str, kind: str) -> tuple[nn.Module, Lora, LayerNames]:
    """A tiny denoiser with a network of `kind` in all its layers, which training has moved."""
    model = DENOISERS[name]()
    names = names_of(linear_layers(model), family(name))
    targets = find_targets(model, [r".*\b.*"])
    assert set(targets) == names.layers.keys()
    if kind in FACTORED:
        # refused where they are injected
        targets = [path for path in targets if not is_large(model.get_submodule(path))]
    lora = inject(model, targets, rank=2, alpha=3.0, dropout=0.0, seed=1, kind=kind)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for part in lora.parameters():
            part.add_(torch.randn(part.shape, generator=draw) * 0.1)
    return (
        model,
        replace(lora, frozen_lengths=frozen_lengths(model, lora.layers, names) if kind == "dora" else {}),
        names,
    )


def change(lora: Lora, path: str) -> Tensor:
    """The change of a layer before alpha / rank, by the module's own parts."""
    parts = {name.removesuffix(".weight"): part.detach().flatten(1) for name, part in lora.parts(path).items()}
    if "lora_A" in parts:
        return parts["lora_B"] @ parts["lora_A"]
    if "hada_w1_a" in parts:
        return (parts["hada_w1_a"] @ parts["hada_w1_b"]) * (parts["hada_w2_a"] @ parts["hada_w2_b"])
    large = parts["lokr_w2"] if "lokr_w2" in parts else parts["lokr_w2_a"] @ parts["lokr_w2_b"]
    return torch.kron(parts["lokr_w1"], large)


def test_denoisers_of_all_families_are_here() -> None:
    classes = {family(name).denoiser_class for name in DENOISERS}
    assert classes == {row.denoiser_class for row in FAMILIES.values()}


@pytest.mark.parametrize(
    ("kind", "forms"),
    [("lora", ("kohya", "diffusers")), ("dora", ("kohya", "diffusers")), ("lokr", ("kohya",)), ("loha", ("kohya",))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_layer_is_saved_in_every_layout_and_comes_back(kind: str, forms: tuple[str, ...], tmp_path: Path) -> None:
    wrong = []
    for name in DENOISERS:
        _, lora, names = everything(name, kind)
        scales = {path: layer.scale if kind in FACTORED else lora.scale_of(path) for path, layer in lora.layers.items()}
        wanted = {path: scale * change(lora, path) for path, scale in scales.items()}
        for form in forms:
            check_savable(lora, names, form)
            path = tmp_path / f"{name}.safetensors"
            write_lora(path, file_tensors(lora, "fp32", names, form), {})
            back = read_lora(path, names)
            assert back.scales.keys() == lora.layers.keys()
            for layer in lora.layers:
                actual = back.scales[layer] * difference(back, layer, torch.empty(names.layers[layer][::-1]))
                same = torch.allclose(actual, wanted[layer], rtol=1e-4, atol=1e-5)
                if kind == "dora":
                    same &= torch.equal(back.lengths[layer], lora.magnitude(layer).weight.detach())
                wrong += [] if same else [f"{name}, {form}: {layer}"]
    assert not wrong


def test_what_no_file_can_hold_is_refused_before_the_first_step() -> None:
    """Two layers of one name in the file, as nothing but a mistake in a family's layout could bring about."""
    _, lora, names = everything("sd15", "lora")
    flat = {path: replace(native, stem="same") for path, native in names.natives.items()}
    with pytest.raises(Refused, match=r"conv_in can't be written in the layout kohya") as refused:
        check_savable(lora, replace(names, natives=flat, kohya_native=True), "kohya")
    assert refused.value.problems[0].path == "saving.save_layout" and "save_layout to diffusers" in refused.value.remedy
    check_savable(lora, names, "diffusers")


def published(name: str) -> nn.Module:
    """The family's denoiser of the published width and one or two blocks, without numbers."""
    facts = family(name)
    config = BaseModelFiles(None).config(facts.denoiser)
    short = {key: 2 for key in ("num_layers", "num_single_layers") if key in config}
    with torch.device("meta"):
        return getattr(diffusers, facts.denoiser_class).from_config({**config, **short})


def halves(module: nn.Module) -> LayerWeights:
    """A LoRA of rank 1 that fits a layer."""
    if isinstance(module, nn.Conv2d):
        kernel = torch.ones(1, module.in_channels, *module.kernel_size)
        return LayerWeights(kernel, torch.ones(module.out_channels, 1, 1, 1), 1.0)
    return LayerWeights(torch.ones(1, module.in_features), torch.ones(module.out_features, 1), 1.0)


@pytest.mark.parametrize("name", DENOISERS)
def test_the_plan_names_the_layers_that_diffusers_takes_from_no_kohya_file(name: str) -> None:
    """By diffusers' own converter, of all layers; what has another prefix its loader skips without a word."""
    facts, model = family(name), published(name)
    names = names_of(linear_layers(model), facts)
    layers = list(names.layers)
    tensors = in_format({path: halves(model.get_submodule(path)) for path in layers}, names, "kohya")
    options = {"unet_config": model.config} if names.prefix == "unet" else {}
    read = getattr(diffusers, facts.pipeline_class).lora_state_dict
    if facts.denoiser_class == "WanTransformer3DModel":
        with pytest.raises(IndexError):
            # a file with any other layer is refused
            read(dict(tensors))
        tensors = {key: value for key, value in tensors.items() if "_blocks_" in key}
    if name == "hunyuan_video":
        with pytest.raises(RuntimeError):
            # it takes the name of a fused layer for another layout's, in which no file has an alpha
            read(dict(tensors))
        tensors = {}
    read_keys = read(dict(tensors), **options)
    read_keys = read_keys[0] if isinstance(read_keys, tuple) else read_keys
    read_keys = convert_unet_state_dict_to_peft(read_keys) if names.prefix == "unet" else read_keys
    own = [key.removeprefix(f"{names.prefix}.") for key in read_keys if key.startswith(names.prefix)]
    taken = {key.rpartition(".lora_")[0] for key in own}
    assert taken <= set(layers)
    patterns = (".*",) if facts.diffusers_layers is None else facts.diffusers_layers
    assert taken == {path for path in layers if any(re.fullmatch(pattern, path) for pattern in patterns)}
    # a family that diffusers reads no kohya file of is named where the layout is chosen
    wanted = sorted(set(layers) - taken) if taken else []
    notices = list(lora_findings(settings(name), facts, layers))
    assert [finding.kind for finding in notices] == ["diffusers_leaves_out"] * bool(wanted)
    assert all(f"{len(wanted)} layers" in finding.text and "save_layout" in finding.remedy for finding in notices)
    assert not list(lora_findings(settings(name, saving={"save_layout": "diffusers"}), facts, layers))
    assert not list(lora_findings(settings(name), facts, taken))
    # and what it refuses without a layer that it looks for
    for lacking in sorted(taken)[:1] + sorted(taken)[-1:]:
        rest = taken - {lacking}
        try:
            read(in_format({path: halves(model.get_submodule(path)) for path in rest}, names, "kohya"), **options)
        except KeyError:
            (notice,) = lora_findings(settings(name), facts, rest)
            assert notice.kind == "diffusers_refuses" and f"1 layer ({lacking})" in notice.text
        else:
            assert not list(lora_findings(settings(name), facts, rest)), lacking


def test_diffusers_needs_what_is_read_of_the_picture_only_where_a_layer_of_it_is_trained() -> None:
    facts = family("wan_i2v")
    layers = {f"blocks.{n}.{path}" for n in (0, 1) for path in facts.default_targets}
    assert not lacking_for_diffusers(facts, layers)
    assert not lacking_for_diffusers(facts, {path for path in layers if ".add_" not in path})
    assert lacking_for_diffusers(facts, layers - {"blocks.1.attn2.add_v_proj"}) == ["blocks.1.attn2.add_v_proj"]
    assert len(lacking_for_diffusers(facts, {"blocks.2.ffn.net.2"})) == 29


def settings(name: str, **changes: dict[str, object]):
    mode = "static" if "static" not in family(name).lacks_modes else "exact_buckets"
    loaded = parse({"model": {"family": name}, "compile": {"shape_mode": mode}, **changes})
    assert loaded.config is not None
    return loaded.config


def test_a_dora_is_told_to_draw_otherwise_in_comfyui() -> None:
    dora = {"network": {"network_type": "dora"}}
    (notice,) = lora_findings(settings("sdxl", **dora), family("sdxl"), ())
    assert "ComfyUI" in notice.text and notice.setting == "network.network_type"
    assert not list(lora_findings(settings("sdxl", **dora, saving={"save_layout": "diffusers"}), family("sdxl"), ()))
