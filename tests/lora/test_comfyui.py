"""Names of layers, held against ComfyUI's own key maps (golden/make_comfyui.py)."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from backend.families.table import family
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of, not_loadable
from tests.tiny import comfy_maps
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.sdxl_runs import comfy_map
from tests.tiny.single_files import tiny_unet

GOLDEN = Path(__file__).parent / "golden" / "comfyui.json"
MAPS: dict[str, dict[str, list]] = json.loads(GOLDEN.read_text(encoding="utf-8"))


@cache
def model(name: str):
    return make_tiny_denoiser() if name == "flux" else tiny_unet(name)


def names(name: str) -> LayerNames:
    return names_of(linear_layers(model(name)), family(name))


@pytest.mark.parametrize("name", MAPS)
def test_layers_lie_where_comfyui_has_them(name: str) -> None:
    """Each layer's place in the makers' own layout: its name there, and which of its rows."""
    known = names(name)
    for path, (stem, *rows) in MAPS[name].items():
        if path not in known.layers:
            continue
        native = known.natives[path]
        assert stem in (native.stem, *native.also), path
        start, end, _ = native.rows(known.layers[path][1])
        assert [start, end - start] == (rows or [0, known.layers[path][1]]), path


@pytest.mark.parametrize("name", MAPS)
def test_what_we_call_loadable_is_in_comfyuis_map_and_the_reverse(name: str) -> None:
    known = names(name)
    loadable = set(known.layers) - set(not_loadable(known.layers, family(name).lora_layers))
    loadable = {path for path in loadable if not re.search(r"\.attentions\.\d+\.transformer_blocks\.[1-9]", path)}
    assert loadable == set(known.layers) & set(MAPS[name]) and len(loadable) > 40


@pytest.mark.parametrize("name", MAPS)
def test_the_map_that_other_tests_use_is_comfyuis_own(name: str) -> None:
    """comfy/lora.py: ``lora_unet_`` before native names, and diffusers' of a UNet; for FLUX behind two other words."""
    made, stored = (comfy_maps.flux(2, 2) if name == "flux" else comfy_map(model(name))), MAPS[name]
    layers = {path for path in names(name).layers if path in stored}
    if name == "flux":
        flat = {f"lycoris_{path.replace('.', '_')}" for path in layers}
        assert {f"transformer.{path}" for path in layers} | flat == {stem for stem in made if stem[:2] in ("tr", "ly")}
        assert comfy_maps.published(f"{goal[0]}.weight" for goal in map(stored.get, layers)) <= made
    else:
        wanted = {f"lora_unet_{path.replace('.', '_')}" for path in layers}
        assert wanted <= made and {stem for stem in made - wanted if "_transformer_blocks_1_" not in stem} <= {
            f"lora_unet_{path.replace('.', '_')}" for path in set(stored) - layers
        }
