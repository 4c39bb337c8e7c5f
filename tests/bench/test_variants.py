"""A variant may have options of its own, so that one command times them side by side."""

from __future__ import annotations

import pytest

from backend.bench import __main__ as bench
from backend.bench.variants import requested


def test_options_after_a_plus_are_the_variants_own() -> None:
    flags = ["--size=tiny", "--variants=eager+rank=4,static:sdpa+cuda_graphs+lora_dtype=bf16+profile+warm_up=off"]
    eager, static = bench.specs_of(bench._parser().parse_args([*flags, "--checkpointing=on"]))
    assert (eager.variant, eager.rank, eager.cuda_graphs, eager.profile) == ("eager", 4, False, False)
    assert (static.variant, static.rank, static.lora_dtype) == ("static:sdpa", 32, "bf16")
    assert static.cuda_graphs and static.profile and not static.warm_up
    assert requested("eager+layers=2-4+memory_budget=0.5")[1] == {"layers": (2, 4), "memory_budget": 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eager+speed", "changes 'speed', which is no option; known: profile, layers"),
        ("eager+rank=wide", "rank is 'wide'; it must be a number"),
        ("eager+cuda_graphs=maybe", "cuda_graphs is 'maybe'; it must be on or off"),
        ("eager+lora_dtype=fp8", "lora_dtype is 'fp8'; it must be one of fp32, bf16"),
        ("fast", "unknown variant 'fast'"),
    ],
)
def test_options_that_mean_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        requested(text)
