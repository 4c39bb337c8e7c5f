"""SDXL's LoRA files under the names that sd-scripts writes, which all programs read, each by its own rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers import UNet2DConditionModel

from backend.config.layer_patterns import Size
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of, split_key
from backend.lora.inject import Lora, find_targets, inject
from backend.lora.load import check_continue, continue_from, read_lora
from backend.lora.save import file_tensors, write_lora
from tests.tiny import name_rules
from tests.tiny.published_files import golden
from tests.tiny.sdxl import make_tiny_unet

FACTS = family("sdxl")
PUBLISHED = {name: shape for name, (_, shape) in golden("sd_xl_base_1.0").items()}


@pytest.fixture(scope="module")
def unet() -> torch.nn.Module:
    """The UNet of the published size, without numbers."""
    with torch.device("meta"):
        return UNet2DConditionModel.from_config(BaseModelFiles(None).config(FACTS.part("unet")))


def names(model: torch.nn.Module) -> LayerNames:
    return names_of(linear_layers(model), FACTS)


@pytest.mark.parametrize("large", [False, True])
def test_the_names_are_those_that_sd_scripts_makes(unet: torch.nn.Module, large: bool) -> None:
    """Of its usual targets, and with conv_dim of its convolutions: all of its names and no other."""
    targets = find_targets(unet, [*FACTS.default_targets, *(FACTS.conv_targets if large else ())])
    known = names(unet)
    own = {known.out_name(path, "kohya") for path in targets}
    theirs = name_rules.sd_scripts(PUBLISHED, large)
    assert own == theirs.keys() and len(own) == (788 if large else 722)


def test_comfyui_a1111_and_sd_scripts_find_the_layer_that_was_trained(unet: torch.nn.Module) -> None:
    """Every layer that may be a target, by the shape of the weight that each one's rule leads to too."""
    known, published = names(unet), name_rules.modules(PUBLISHED)
    comfyui, scripts = name_rules.comfyui(PUBLISHED), name_rules.sd_scripts(PUBLISHED, True)
    old = LayerNames(known.layers, known.prefix, known.natives, kohya_native=False)
    lost = {"a1111": [], "sd_scripts": []}
    a1111 = name_rules.a1111(
        PUBLISHED, [each.out_name(path, "kohya") for each in (known, old) for path in known.layers]
    )
    for path, (inner, outer) in known.layers.items():
        name, before = known.out_name(path, "kohya"), old.out_name(path, "kohya")
        place = known.natives[path].stem
        rows, *columns = published[place]
        assert (rows, torch.Size(columns).numel()) == (outer, inner)
        assert comfyui[name] == place == a1111[name]
        assert scripts.get(name, place) == place
        # what the names of earlier files came to
        lost["a1111"] += [path] if a1111[before] != place else []
        lost["sd_scripts"] += [] if before in scripts else [path]
    assert lost["a1111"] == ["add_embedding.linear_1", "add_embedding.linear_2", "up_blocks.0.upsamplers.0.conv"]
    assert len(lost["sd_scripts"]) == len(known.layers) == 794


def tiny() -> tuple[Lora, LayerNames]:
    model = make_tiny_unet()
    # every third of all parts of the UNet; the names of all are seen above
    targets = find_targets(model, [*FACTS.default_targets, *FACTS.conv_targets])[::3]
    lora = inject(model, targets, rank=2, alpha=3.0, dropout=0.0, seed=1)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for part in lora.parameters():
            part.add_(torch.randn(part.shape, generator=draw) * 0.1)
    return lora, names(make_tiny_unet())


def test_files_of_earlier_versions_still_load_and_continue(tmp_path: Path) -> None:
    """Under diffusers' names, as they were written before; both mean the same."""
    lora, known = tiny()
    before = LayerNames(known.layers, known.prefix, known.natives, kohya_native=False)
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    write_lora(old, file_tensors(lora, "fp32", before), {})
    write_lora(new, file_tensors(lora, "fp32", known), {})
    stems = [{split_key(key)[0] for key in safetensors.torch.load_file(path)} for path in (old, new)]
    assert all("_input_blocks_" in stem or "_output_blocks_" in stem or "_middle_block_" in stem for stem in stems[1])
    assert not stems[0] & stems[1] and any("_down_blocks_" in stem for stem in stems[0])
    fresh, _ = tiny()
    for path in (old, new):
        check_continue(path, known, dict.fromkeys(fresh.layers, Size(2, 3.0)))
        with torch.no_grad():
            for part in fresh.parameters():
                part.zero_()
        assert continue_from(fresh, read_lora(path, known)) == []
        assert all(torch.equal(value, fresh.tensors()[key]) for key, value in lora.tensors().items())
