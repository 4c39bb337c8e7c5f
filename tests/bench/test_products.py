"""The bench of 8-bit products: LoRA gradients of each way beside those on the base in bf16."""

from __future__ import annotations

import torch

from backend.bench.products import gradient_rows, product_rows
from backend.bench.variants import PRODUCTS, Spec
from backend.memory.product_ways import WAYS


def test_gradients_of_each_way_are_compared_with_those_of_the_real_base() -> None:
    spec = Spec("static:sdpa", size="tiny", checkpointing=False)
    (row,) = gradient_rows(spec, ["int8:small"], torch.device("cpu"))
    assert row["failed"] == "" and 0.995 < float(row["least"]) < 1.0


def test_products_are_timed_and_compared() -> None:
    bf16, fp8 = product_rows(32, [(64, 128)], ["bf16", "fp8:fast"], torch.device("cpu"))
    assert bf16["times_bf16"] == "1.000" and float(bf16["output_error"]) == 0 and bf16["failed"] == ""
    assert fp8["failed"] == "" and 0 < float(fp8["output_error"]) < 0.06 and 0 < float(fp8["gradient_error"]) < 0.06


def test_the_options_of_the_bench_are_the_ways_that_there_are() -> None:
    assert set(PRODUCTS) == {name for names in WAYS.values() for name in names}
