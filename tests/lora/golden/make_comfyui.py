"""Writes comfyui.json: what ComfyUI's own key maps call the layers of a model, and where each lies in its files.

``python tests/lora/golden/make_comfyui.py CLONE`` with a clone of Comfy-Org/ComfyUI (commit a125cd8). The map of a
family is made by the function that comfy/lora.py asks, alone, so that nothing else of the program has to be there.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("comfyui.json")
# Models with as many layers a level as published ones, in ComfyUI's words (comfy/model_detection.py).
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "flux": ("flux_to_diffusers", {"depth": 2, "depth_single_blocks": 2, "hidden_size": 32}),
    "sdxl": (
        "unet_to_diffusers",
        {
            "num_res_blocks": [2, 2, 2],
            "channel_mult": [1, 2, 4],
            "transformer_depth": [0, 0, 2, 2, 2, 2],
            "transformer_depth_output": [0, 0, 0, 2, 2, 2, 2, 2, 2],
            "transformer_depth_middle": 2,
        },
    ),
    "sd15": (
        "unet_to_diffusers",
        {
            "num_res_blocks": [2, 2, 2, 2],
            "channel_mult": [1, 2, 4, 4],
            "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
            "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
            "transformer_depth_middle": 1,
        },
    ),
}
# All transformer blocks of a place are called alike.
_LEFT_OUT = r".*norm\w*\.weight|.*\.bias|.*\.attentions\.\d+\.transformer_blocks\.[1-9].*"


def functions(source: Path) -> dict[str, Any]:
    """The key maps of comfy/utils.py, and the constants that they read."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name.endswith(("_to_diffusers", "swap_scale_shift")))
        or (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]).isupper()
            and isinstance(node.value, ast.Set | ast.Dict)
        )
    ]
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), str(source), "exec"), namespace)
    return namespace


def layers(mapped: dict[str, Any]) -> dict[str, list[Any]]:
    """diffusers' module path -> ComfyUI's, and first row and number of rows where it is a part of it; no norms."""
    layer_names = {}
    for name, goal in mapped.items():
        if name.endswith(".weight") and not re.fullmatch(_LEFT_OUT, name):
            stem, rows = (goal, None) if isinstance(goal, str) else goal[:2]
            layer_names[name.removesuffix(".weight")] = [stem.removesuffix(".weight"), *(rows[1:] if rows else ())]
    return dict(sorted(layer_names.items()))


if __name__ == "__main__":
    maps = functions(Path(sys.argv[1]) / "comfy" / "utils.py")
    lines = [
        f"{json.dumps(name)}: {json.dumps(layers(maps[made](config)))}" for name, (made, config) in _MODELS.items()
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"wrote {GOLDEN}\n")
