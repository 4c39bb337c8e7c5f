"""The compiler's warm-up does what the first compile would do."""

from __future__ import annotations

import sys

import torch
import torch._inductor.cpu_vec_isa as vector_instructions
from torch._dynamo import funcname_cache

from backend.compile import warm_up
from backend.compile.warm_up import CompilerWarmUp


def test_the_first_compile_finds_its_work_done() -> None:
    vector_instructions.valid_vec_isa_list.cache_clear()
    funcname_cache.clearcache()
    compiler = CompilerWarmUp("cpu").start()
    compiler.wait()
    assert compiler.seconds is not None and "torch._inductor.compile_fx" in sys.modules
    assert vector_instructions.valid_vec_isa_list.cache_info().currsize == 1
    assert "silu" in funcname_cache.cache[torch.nn.functional.__file__].values()


def test_what_this_torch_lacks_is_left_out(monkeypatch) -> None:
    done = []
    monkeypatch.setattr(warm_up, "_modules", lambda: done.append("modules"))
    monkeypatch.setattr(warm_up, "_torch_key", lambda: warm_up.importlib.import_module("torch.nothing_of_this_name"))
    monkeypatch.setattr(warm_up, "_cpu", lambda: done.append("cpu"))
    compiler = CompilerWarmUp("cpu").start()
    compiler.wait()
    assert done == ["modules", "cpu"] and compiler.seconds is not None
