"""Loading torch and what builds on it: nothing is searched for garbage, and bitsandbytes comes when it is used."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_what_libraries_hold_is_searched_neither_while_they_load_nor_later() -> None:
    code = """
import gc
from backend.base.library_imports import library_imports
searches = []
gc.callbacks.append(lambda phase, info: searches.append(phase))
with library_imports():
    import torch
assert not searches and gc.get_freeze_count() > 50_000, (len(searches), gc.get_freeze_count())
class Ring:
    pass
ring = Ring()
ring.own = ring
del ring
assert gc.isenabled() and gc.collect() > 0
held = gc.get_freeze_count()
with library_imports():
    later = [[] for _ in range(1000)]
assert gc.get_freeze_count() == held
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_bitsandbytes_and_the_compiler_load_when_they_are_used() -> None:
    code = """
import sys
from backend.base.library_imports import library_imports
with library_imports():
    import torch
    import backend.training.ending
    import backend.preview.carry_out
    import backend.models.flux.denoiser
    import backend.captioning.captioner
assert not {"bitsandbytes", "torch._inductor.compile_fx"} & set(sys.modules)
from backend.lora.inject import ADAPTER, LoraConfig, inject_adapter_in_model
model = torch.nn.Sequential(torch.nn.Linear(8, 8))
inject_adapter_in_model(LoraConfig(r=2, target_modules=["0"]), model, ADAPTER)
assert "bitsandbytes" not in sys.modules
# what captioning models load with
from transformers.utils import is_bitsandbytes_available
assert is_bitsandbytes_available()
from backend.memory.quantized_formats import quantize
weight, scale = quantize(torch.randn(64, 64, dtype=torch.bfloat16), "nf4")[:2]
assert weight.numel() == 64 * 32 and sys.modules["bitsandbytes"].__version__
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
