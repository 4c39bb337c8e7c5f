"""Sets a torch config value for all threads.

From torch 2.12 on, a value set on a config module is a context variable: autograd's threads, in which checkpointed
blocks are computed again and may compile, still see the default. So the default is set as well.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def set_for_all_threads(module: ModuleType, name: str, value: Any) -> None:
    """Set `module.name` (such as torch._dynamo.config, "recompile_limit") in this thread and in all others.

    AttributeError when the module has no such setting.
    """
    getattr(module, name)
    setattr(module, name, value)
    entry = getattr(module, "_config", {}).get(name)
    if entry is not None and hasattr(entry, "default"):
        entry.default = value
