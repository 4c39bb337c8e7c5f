"""What each family's blocks keep for the backward pass, compared with what autograd keeps at full size on meta."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backend.families.hunyuan_video.framepack_facts import IMAGE_TOKENS
from backend.families.sd3.facts import CLIP_TOKENS, block_classes
from backend.families.spec import FamilyFacts
from backend.families.table import FAMILIES, family
from backend.lora.inject import find_targets, inject
from backend.models.family_classes import load_family
from backend.plan.memory.activations import Format, Way, Work, training_bytes
from backend.plan.memory.parts import denoiser_of, trained_layers
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.kept import CudaAutocast, Flash, KeptTensors, empty_denoiser

# Layers of a caption's row by family: its size, and the dtype where that is not bf16.
TEXT: dict[str, dict[str, tuple[int, ...]]] = {
    "anima": {"prompt_embeds": (512, 1024)},
    "qwen_image": {"prompt_embeds": (512, 3584)},
    "sd3": {"prompt_embeds": (CLIP_TOKENS + 256, 4096), "pooled": (2048,)},
    "wan": {"prompt_embeds": (512, 4096)},
    "wan_i2v": {"prompt_embeds": (512, 4096), "image_embeds": (257, 1280)},
    "hunyuan_video": {"prompt_embeds": (256, 4096), "pooled": (768,)},
    "framepack": {"prompt_embeds": (256, 4096), "pooled": (768,), "image_embeds": (IMAGE_TOKENS, 1152)},
}
TEXT |= {"qwen_image_edit_plus": TEXT["qwen_image"], "wan22_5b": TEXT["wan"], "wan22_5b_i2v": TEXT["wan"]}


@dataclass(frozen=True)
class Case:
    """A model with few blocks at full width, a batch, and what is trained; `sizes`: of its latents, in tokens."""

    family: str
    changes: Mapping[str, Any]
    sizes: tuple[int, ...] = (64, 64)
    batch: int = 1
    targets: tuple[str, ...] = ()
    channels: int = 16
    within: float = 0.05
    more: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What the text holds with its own size: latents, float32."""


MEDIUM = {"num_layers": 4, "dual_attention_layers": (0, 1)}
LARGE = {"num_layers": 3, "dual_attention_layers": (), "num_attention_heads": 38, "caption_projection_dim": 64 * 38}
FIRST = {"num_layers": 3, "dual_attention_layers": (), "qk_norm": None}
TWO = {"num_layers": 2}
CASES = [
    Case("anima", TWO),
    Case("anima", TWO, (32, 32), 2),
    Case("anima", TWO, targets=("attn1.to_q", "attn2.to_out.0")),
    Case("qwen_image", TWO),
    Case("qwen_image", TWO, (32, 32), 2),
    Case("qwen_image", TWO, targets=("attn.to_q", "txt_mlp.net.2")),
    Case("qwen_image_edit_plus", TWO | {"zero_cond_t": True}),
    Case("sd3", MEDIUM),
    Case("sd3", LARGE, (32, 32), 2),
    Case("sd3", FIRST),
    Case("sd3", MEDIUM, targets=("attn.to_q", "ff_context.net.2")),
    Case("wan", TWO, (1, 64, 64)),
    Case("wan", TWO, (5, 32, 32), 2),
    Case("wan", TWO, (3, 64, 64), targets=("attn1.to_q", "attn2.to_out.0")),
    Case("wan22_5b", TWO, (5, 32, 32), channels=48),
    Case("wan22_5b_i2v", TWO, (5, 32, 32), channels=48, more={"start": (48, 1, 64, 64)}),
    Case("wan_i2v", TWO, (3, 64, 64), more={"start": (20, 3, 128, 128)}),
    Case("hunyuan_video", {"num_layers": 2, "num_single_layers": 1}, (5, 30, 52)),
    Case("hunyuan_video", {"num_layers": 1, "num_single_layers": 3}, (1, 32, 32), 2),
    Case(
        "hunyuan_video",
        {"num_layers": 2, "num_single_layers": 2},
        (3, 30, 52),
        targets=(r"transformer_blocks\.\d+\.attn\.(to_q|to_k|to_v)",),
    ),
    # a section, which stands behind the frames before it
    Case(
        "framepack",
        {"num_layers": 1, "num_single_layers": 2},
        (10, 32, 40),
        within=0.07,
        more={"behind": (16, 20, 64, 80)},
    ),
]


def model_of(case: Case) -> tuple[nn.Module, FamilyFacts]:
    """The denoiser on meta, and its facts with the blocks that it has."""
    facts = family(case.family)
    if facts.name != "sd3":
        return empty_denoiser(facts, **case.changes), facts
    changes = {"num_attention_heads": 24, "caption_projection_dim": 64 * 24, "qk_norm": "rms_norm", **case.changes}
    classes = block_classes(case.changes["num_layers"], case.changes["dual_attention_layers"])
    return empty_denoiser(facts, pos_embed_max_size=192, **changes), replace(facts, block_classes=classes)


def text_of(case: Case) -> dict[str, Tensor]:
    """The text of a row, on meta."""
    rows = {name: torch.empty(size, device="meta", dtype=torch.bfloat16) for name, size in TEXT[case.family].items()}
    rows |= {name: torch.empty(size, device="meta") for name, size in case.more.items()}
    return rows | ({"between": torch.empty((), device="meta", dtype=torch.long)} if "behind" in rows else {})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{'x'.join(map(str, case.sizes))}")
def test_what_is_kept_is_what_autograd_keeps(case: Case) -> None:
    model, facts = model_of(case)
    targets = case.targets or facts.default_targets
    denoiser = denoiser_of({name: tuple(each.shape) for name, each in model.state_dict().items()}, facts)
    inject(model, find_targets(model, targets), rank=16, alpha=16, dropout=0.0, seed=0, cast=False)
    *frames, rows, columns = case.sizes
    latents = [torch.empty(case.channels, *frames, 2 * rows, 2 * columns, device="meta") for _ in range(case.batch)]
    text = text_of(case)
    shapes = ShapeRuntime(
        "off", None, None, 512 if facts.name == "anima" or facts.name.startswith("wan") else None, Flash()
    )
    with CudaAutocast(), KeptTensors(model) as kept:
        level = torch.empty(case.batch, device="meta")
        load_family(facts.name).predict(model, latents, level, [text] * case.batch, 1.0, shapes)
    paths: dict[str, set[str]] = {}
    for name in trained_layers(denoiser, targets, ()):
        kind, path = denoiser.places[name]
        paths.setdefault(kind, set()).add(path)
    pictures = IMAGE_TOKENS if facts.name == "framepack" else 0
    tokens = (
        facts.default_geometry.image_tokens(16 * columns, 16 * rows, 37) if pictures else latents[0][0].numel() // 4
    )
    work = Work(case.batch, tokens, text["prompt_embeds"].shape[0] + pictures)
    planned = training_bytes(denoiser, facts.memory, work, 16, paths, Way(False, "off"), Format()).kept
    assert planned == pytest.approx(kept.bytes, rel=case.within)


def test_no_family_of_transformers_is_left_out() -> None:
    # FLUX and the UNets: tests/plan/test_activations.py and test_unet_activations.py
    memories = [family(name).memory for name in {case.family for case in CASES} | {"flux", "sdxl", "sd15"}]
    assert [name for name, facts in FAMILIES.items() if facts.memory not in memories] == []
