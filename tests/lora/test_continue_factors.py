"""Going on from LoKr and LoHa files: ours, and LyCORIS' own by a list of what it writes (golden/make_lycoris.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.config.layer_patterns import Size
from backend.families.flux.facts import FACTS
from backend.lora.inject import Lora, find_targets, inject
from backend.lora.load import check_continue, continue_from, read_lora
from backend.lora.save import file_tensors, write_lora
from tests.tiny import originals
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora import inputs, names, trained
from tests.tiny.lora_values import change
from tests.tiny.lycoris import ALPHA, GOLDEN, RANK, filled

LYCORIS = json.loads(GOLDEN.read_text(encoding="utf-8"))
NAMES = names()
TARGETS = (*FACTS.default_targets, "norm1.linear")
Network = tuple[torch.nn.Module, Lora]


def network(kind: str, rank: int = RANK, alpha: float = ALPHA, factor: int | None = None) -> Network:
    model = make_tiny_denoiser()
    targets = find_targets(model, TARGETS)
    return model, inject(model, targets, rank=rank, alpha=alpha, dropout=0.0, seed=5, kind=kind, factor=factor)


def check(file: Path, kind: str, rank: int, factor: int | None = None) -> None:
    check_continue(file, NAMES, dict.fromkeys(network(kind)[1].layers, Size(rank, 1.0)), kind, factor)


def lycoris_file(way: str, where: Path) -> Path:
    """What LyCORIS writes for a few layers of the tiny FLUX."""
    options = LYCORIS[way]
    tensors = {key: filled(key, shape) for key, shape in options["shapes"].items()}
    tensors |= {key: torch.tensor(alpha) for key, alpha in options["alphas"].items()}
    safetensors.torch.save_file(tensors, where)
    return where


def changes(lora: Lora) -> dict[str, Tensor]:
    """What is added to each layer's weight, read from the file that is written."""
    tensors = file_tensors(lora, "fp32", NAMES)
    return {path: change(tensors, NAMES.factored_name(path)) for path in lora.layers}


@pytest.mark.parametrize("way", LYCORIS)
def test_lycoris_own_files_are_gone_on_from(tmp_path: Path, way: str) -> None:
    """Alpha is another here: the strength is the file's whatever it is."""
    kind = way.partition(",")[0]
    rank, factor = 64 if "whole" in way else RANK, 2 if "factor 2" in way else None
    file = lycoris_file(way, tmp_path / "x.safetensors")
    _, lora = network(kind, rank, alpha=7.0, factor=factor)
    check(file, kind, rank, factor)
    (note,) = continue_from(lora, read_lora(file, NAMES))
    assert "start fresh" in note
    differences = changes(lora)
    assert len(LYCORIS[way]["sums"]) == 5
    for name, (total, squares) in LYCORIS[way]["sums"].items():
        path = next(path for path in differences if path.replace(".", "_") == name.removeprefix("lycoris_"))
        assert float(differences[path].sum()) == pytest.approx(total, rel=1e-4, abs=1e-3)
        assert float(differences[path].square().sum()) == pytest.approx(squares, rel=1e-4)


@pytest.mark.parametrize(("kind", "factor"), [("lokr", 4), ("loha", None)])
def test_ours_is_gone_on_from_with_masters_at_another_alpha(tmp_path: Path, kind: str, factor: int | None) -> None:
    model, old = network(kind, 2, 5.0, factor)
    with torch.no_grad():
        for value in old.parameters():
            value.normal_(std=0.3, generator=torch.Generator().manual_seed(value.numel()))
        wanted = model(**inputs()).sample
    write_lora(tmp_path / "x.safetensors", file_tensors(old, "fp32", NAMES), {})
    model, lora = network(kind, 2, 1.0, factor)
    lora = lora.in_format(torch.bfloat16)
    check(tmp_path / "x.safetensors", kind, 2, factor)
    assert continue_from(lora, read_lora(tmp_path / "x.safetensors", NAMES)) == []
    for path, after in changes(lora).items():
        torch.testing.assert_close(after, changes(old)[path], rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs()).sample, wanted, rtol=0.05, atol=0.1)


def test_a_loha_of_a_fused_layer_is_split_exactly(tmp_path: Path) -> None:
    """By the published names, as sd-scripts' users have it: query, key and value are rows of one layer."""
    before = originals.bfl(make_tiny_denoiser().state_dict())
    stem, weight = "double_blocks.0.img_attn.qkv", before["double_blocks.0.img_attn.qkv.weight"]
    flat, (rows, columns) = f"lora_unet_{stem.replace('.', '_')}", weight.shape
    sizes = {"hada_w1_a": (rows, 2), "hada_w1_b": (2, columns), "hada_w2_a": (rows, 2), "hada_w2_b": (2, columns)}
    tensors = {f"{flat}.{name}": filled(name + "x", list(size)) for name, size in sizes.items()}
    tensors[f"{flat}.alpha"] = torch.tensor(1.0)
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    _, lora = network("loha")
    check(tmp_path / "x.safetensors", "loha", 2)
    continue_from(lora, read_lora(tmp_path / "x.safetensors", NAMES))
    differences, whole = changes(lora), change(tensors, flat)
    for number, name in enumerate(("to_q", "to_k", "to_v")):
        part = differences[f"transformer_blocks.0.attn.{name}"]
        torch.testing.assert_close(part, whole.chunk(3)[number], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("way", "kind", "rank", "factor", "words"),
    [
        ("lokr", "lokr", 4, None, "rank 2 at .* and here it has 4.*network_dim to 2"),
        ("loha", "loha", 8, None, "rank 2 at .* here it has 8.*network_dim to 2"),
        ("lokr", "lokr", 2, 2, "small factor of .* is . x 4 .* here it is 2 x 2. Leave lokr_factor empty"),
        ("lokr, factor 2", "lokr", 2, None, "is 2 x 2 .* here it is . x 4. Set lokr_factor to 2"),
        ("lokr, whole", "lokr", 2, None, "large factor of .* is whole .* has rank 2 here. Set network_dim to 8"),
        (
            "lokr",
            "lora",
            2,
            None,
            "x.safetensors is a LoKr, and this run trains a LoRA. Set network.network_type to lokr",
        ),
        ("loha", "lokr", 2, None, "is a LoHa, and this run trains a LoKr"),
    ],
)
def test_what_can_not_be_gone_on_from_is_said_before_anything_loads(
    tmp_path: Path, way: str, kind: str, rank: int, factor: int | None, words: str
) -> None:
    file = lycoris_file(way, tmp_path / "x.safetensors")
    with pytest.raises(Refused) as refused:
        check(file, kind, rank, factor)
    assert re.search(words, " ".join(str(refused.value).split())), refused.value


def test_a_lora_for_a_run_that_trains_factors_and_a_fused_lokr_are_refused(tmp_path: Path) -> None:
    _, lora = trained()
    write_lora(tmp_path / "x.safetensors", file_tensors(lora, "fp32", NAMES), {})
    with pytest.raises(Refused, match="is a LoRA, and this run trains a LoHa"):
        check(tmp_path / "x.safetensors", "loha", 4)
    stem = "lora_unet_double_blocks_0_img_attn_qkv"
    tensors = {f"{stem}.lokr_w1": torch.ones(8, 4), f"{stem}.lokr_w2": torch.ones(12, 8)}
    safetensors.torch.save_file(tensors, tmp_path / "y.safetensors")
    with pytest.raises(Refused, match="one product for double_blocks.0.img_attn.qkv"):
        check(tmp_path / "y.safetensors", "lokr", 2)
