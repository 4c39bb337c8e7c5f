"""What the schema offers is what the trainer knows: a choice that nobody wired, or nobody can choose, fails here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from backend.config.schema import by_path, settings
from backend.dataset.images import BACKING
from backend.families.table import FAMILIES


def choices(path: str) -> tuple[str, ...]:
    return by_path()[path].choices or by_path()[path].suggestions


def test_transparency() -> None:
    assert choices("dataset.transparency") == tuple(BACKING)


def test_optimizers_and_schedulers() -> None:
    from backend.optimizers.build import OPTIMIZERS
    from backend.optimizers.schedules import SCHEDULES

    assert set(choices("optimizer.optimizer")) == set(OPTIMIZERS)
    assert set(choices("optimizer.lr_scheduler")) == set(SCHEDULES)


def test_kinds_of_checkpointing() -> None:
    from backend.memory.checkpointing import KINDS

    assert choices("memory.checkpointing_kind") == KINDS


def test_attention_routes() -> None:
    from backend.shapes.attention_routes import ROUTES

    assert choices("compile.attention") == ("auto", *ROUTES)


def test_every_timestep_draw_and_weighting() -> None:
    import torch

    from backend.memory.seeds import generator
    from backend.objectives.flow import TimestepDraw, draw_sigma, weight

    for kind in choices("timesteps.timestep_sampling"):
        sigma = draw_sigma(TimestepDraw(kind=kind), 64, generator(1))
        assert 0 <= float(sigma) <= 1
    for scheme in choices("timesteps.weighting_scheme"):
        assert torch.isfinite(weight(scheme, torch.tensor(0.5)))
    with pytest.raises(ValueError, match="unknown"):
        weight("other", torch.tensor(0.5))
    draw = TimestepDraw()
    for name in TimestepDraw.__dataclass_fields__:
        if name not in ("kind", "line", "below"):
            assert getattr(draw, name) == by_path()[f"timesteps.{name}"].default


def test_formats_of_a_quantised_base() -> None:
    from backend.plan.memory.weight_bytes import FORMATS

    assert choices("memory.base_quantization") == ("none", *FORMATS)
    assert set(choices("memory.text_encoder_quantization")) <= {"none", *FORMATS}


def test_every_setting_is_read_somewhere() -> None:
    """A setting of the form that no code asks for would do nothing, in silence. Settings that name a part of the model
    are asked for by the part's own name."""
    names: set[str] = set()
    for path in (Path(__file__).parents[2] / "backend").rglob("*.py"):
        names |= {node.attr for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)}
    parts = {part.name for row in FAMILIES.values() for part in row.parts}
    assert [setting.path for setting in settings() if setting.name not in names | parts] == []
