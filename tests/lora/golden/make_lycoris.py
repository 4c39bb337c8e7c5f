"""Writes lycoris.json: what LyCORIS itself writes for the tiny FLUX, and what that adds to the weights.

With KohakuBlueleaf/LyCORIS on the path (commit f49d30d): `python -m tests.lora.golden.make_lycoris`. Values are not
kept: `filled` makes them from a tensor's name and shape.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch

from tests.tiny.lycoris import ALPHA, GOLDEN, RANK, filled

_LAYERS = r"lycoris_(single_)?transformer_blocks_0_(norm1_linear|attn_to_q|ff_net_0_proj|proj_mlp)"
_WAYS: dict[str, dict[str, Any]] = {
    "lokr": {"algo": "lokr", "factor": -1},
    "lokr, factor 2": {"algo": "lokr", "factor": 2},
    "lokr, both in two": {"algo": "lokr", "factor": -1, "decompose_both": True},
    "lokr, whole": {"algo": "lokr", "factor": -1, "linear_dim": 64},
    "loha": {"algo": "loha"},
}


def _made(way: dict[str, Any]) -> dict[str, Any]:
    from lycoris import LycorisNetwork, create_lycoris

    from tests.tiny.flux import make_tiny_denoiser

    LycorisNetwork.apply_preset({"target_module": ["FluxTransformerBlock", "FluxSingleTransformerBlock"]})
    network = create_lycoris(make_tiny_denoiser(), 1.0, **{"linear_dim": RANK, "linear_alpha": ALPHA, **way})
    network.apply_to()
    state = {key: value for key, value in network.state_dict().items() if re.match(_LAYERS, key)}
    changes = {}
    with torch.no_grad():
        for layer in network.loras:
            for name, value in layer.named_parameters():
                value.copy_(filled(f"{layer.lora_name}.{name}", list(value.shape)))
            if re.match(_LAYERS, layer.lora_name):
                changes[layer.lora_name] = layer.get_weight(layer.shape)
    shapes = {key: list(value.shape) for key, value in state.items()}
    alphas = {key: float(value) for key, value in state.items() if key.endswith(".alpha")}
    sums = {name: [float(change.sum()), float(change.square().sum())] for name, change in changes.items()}
    return {"shapes": shapes, "alphas": alphas, "sums": sums}


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(_made(way))}" for name, way in _WAYS.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"wrote {GOLDEN}\n")
