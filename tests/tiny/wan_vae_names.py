"""Names of the VAE of Wan 2.2 5B as its makers have them."""

from __future__ import annotations

import re

from torch import Tensor


def in_makers_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The VAE as Wan-Video/Wan2.2 names it; shares nothing with the layout's rules."""
    inner = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6"}
    tensors = {}
    for name, value in state.items():
        new = name.replace("post_quant_conv", "conv2").replace("quant_conv", "conv1")
        new = new.replace("coder.conv_in", "coder.conv1").replace("coder.norm_out", "coder.head.0")
        new = new.replace("coder.conv_out", "coder.head.2").replace("mid_block.attentions.0", "middle.1")
        new = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"middle.{2 * int(m[1])}", new)
        new = re.sub(r"down_blocks\.(\d)\.resnets\.(\d)", r"downsamples.\1.downsamples.\2", new)
        new = re.sub(r"down_blocks\.(\d)\.downsampler", r"downsamples.\1.downsamples.2", new)
        new = re.sub(r"up_blocks\.(\d)\.resnets\.(\d)", r"upsamples.\1.upsamples.\2", new)
        new = re.sub(r"up_blocks\.(\d)\.upsampler", r"upsamples.\1.upsamples.3", new)
        new = new.replace("conv_shortcut", "shortcut")
        if re.search(r"samples\.\d+\.\w+samples\.\d+\.|middle\.[02]\.", new):
            new = re.sub(r"\.(norm1|conv1|norm2|conv2)\.", lambda m: f".{inner[m[1]]}.", new)
        tensors[new] = value
    return tensors
