"""The LoRA in the model: targets, start values, dropout, strength."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from backend.base.errors import Refused
from backend.families.flux.facts import FACTS
from backend.lora.dropout import TrainingDropout
from backend.lora.inject import find_targets, inject
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora import inputs, trained


def test_default_targets_match_and_leave_the_final_projection_alone() -> None:
    targets = find_targets(make_tiny_denoiser(), FACTS.default_targets)
    assert "single_transformer_blocks.0.proj_out" in targets and "proj_out" not in targets
    assert "transformer_blocks.1.attn.to_out.0" in targets
    assert len(targets) == 2 * 12 + 2 * 5


def test_patterns_are_ends_whole_paths_or_regular_expressions() -> None:
    model = make_tiny_denoiser()
    assert find_targets(model, ["x_embedder"]) == ["x_embedder"]
    assert find_targets(model, ["transformer_blocks.0.attn.to_q"]) == ["transformer_blocks.0.attn.to_q"]
    assert find_targets(model, [r"transformer_blocks\.\d+\.attn\.to_[qk]"]) == [
        f"transformer_blocks.{block}.attn.{name}" for block in (0, 1) for name in ("to_q", "to_k")
    ]
    assert find_targets(model, ["attn.to_q"], exclude=[r"single_.*"]) == [
        f"transformer_blocks.{i}.attn.to_q" for i in (0, 1)
    ]


@pytest.mark.parametrize(
    ("include", "exclude", "words"),
    [
        (["attn.to_qq"], None, "attn.to_q"),
        (["attn.norm_q"], None, "RMSNorm"),
        (["attn"], None, "attn.to_"),
        (["to_(q"], None, "regular expression"),
        (["attn.to_q"], [".*"], "exclude"),
    ],
)
def test_targets_that_match_nothing_are_errors_that_name_what_is_near(
    include: list[str], exclude: list[str] | None, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        find_targets(make_tiny_denoiser(), include, exclude)
    assert words in str(refused.value)


def test_an_exclude_without_effect_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        find_targets(make_tiny_denoiser(), ["attn.to_q"], exclude=["proj_mlp"])
    assert "proj_mlp" in caplog.text


def test_start_values_depend_on_seed_and_path_alone() -> None:
    def start(dtype: torch.dtype, targets: list[str], seed: int = 3) -> torch.Tensor:
        model = make_tiny_denoiser().to(dtype)
        lora = inject(model, targets, rank=4, alpha=2, dropout=0, seed=seed)
        a, b = lora.pair("x_embedder")
        assert a.dtype == b.dtype == torch.float32 and not b.any()
        assert {n for n, p in model.named_parameters() if p.requires_grad} == {
            f"{path}.lora_{half}.default.weight" for path in targets for half in "AB"
        }
        return a.detach()

    first = start(torch.float32, ["x_embedder"])
    assert torch.equal(first, start(torch.bfloat16, ["proj_out", "x_embedder"]))
    assert not torch.equal(first, start(torch.float32, ["x_embedder"], seed=4))
    assert first.abs().max() <= 1 / 4 and first.std() == pytest.approx(0.25 / 3**0.5, rel=0.2)


def test_dropout_acts_only_where_gradients_are_made() -> None:
    dropout = TrainingDropout(0.2).train()
    x = torch.ones(1000)
    assert 100 < (dropout(x) == 0).sum() < 300 and dropout(x).max() == pytest.approx(1 / 0.8)
    with torch.no_grad():
        assert torch.equal(dropout(x), x)
    model = make_tiny_denoiser().train()
    inject(model, find_targets(model, ["attn.to_q"]), rank=4, alpha=4, dropout=0.3, seed=0)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout) and m.p] == []
    assert sum(isinstance(m, TrainingDropout) for m in model.modules()) == 4


def test_strength_0_is_the_base_exactly_and_comes_back_exactly() -> None:
    base = make_tiny_denoiser()
    model, lora = trained(rank=4, alpha=3)
    before = {name: value.clone() for name, value in lora.tensors().items()}
    with torch.no_grad():
        plain, full = base(**inputs()).sample, model(**inputs()).sample
        with lora.scaled(0.0):
            off = model(**inputs()).sample
        with lora.scaled(0.3):
            half = model(**inputs()).sample
    assert torch.equal(off, plain)
    assert not torch.allclose(full, plain, atol=1e-3) and not torch.allclose(half, full, atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in lora.tensors().items())
    with pytest.raises(RuntimeError, match="in the middle"), lora.scaled(0.5):
        raise RuntimeError("in the middle")
    assert all(torch.equal(value, before[name]) for name, value in lora.tensors().items())


def test_half_precision_base_takes_a_float32_lora_with_and_without_the_cast() -> None:
    outputs = []
    for cast in (True, False):
        model = make_tiny_denoiser().to(torch.bfloat16)
        lora = inject(model, find_targets(model, ["attn.to_q"]), rank=4, alpha=4, dropout=0, seed=0, cast=cast)
        for path in lora.layers:
            lora.pair(path)[1].data.normal_(generator=torch.Generator().manual_seed(1))
        half = {
            key: value.to(torch.bfloat16) if value.is_floating_point() else value for key, value in inputs().items()
        }
        with torch.autocast("cpu", torch.bfloat16, enabled=not cast):
            out = model(**half).sample
        out.float().square().mean().backward()
        assert lora.pair("transformer_blocks.0.attn.to_q")[0].grad.dtype == torch.float32
        outputs.append(out.float())
    assert torch.allclose(outputs[0], outputs[1], atol=0.05)
