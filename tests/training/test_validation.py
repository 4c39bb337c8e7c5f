"""Fixed-noise validation: the same number whatever the order, the batch and the dice."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend.config.load import parse
from backend.memory.seeds import generator
from backend.objectives import flow
from backend.objectives.flow_matching import FlowMatching
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.training.between_steps import BetweenSteps, ValidationSet, due
from backend.training.position import Position
from backend.training.requests import Requests
from backend.training.validation import Example, ValidationLoss, validate
from tests.tiny.event_lines import event_lines

CPU = torch.device("cpu")
SIGMAS = (0.05, 0.1, 0.2, 0.35)


def examples() -> list[Example]:
    sizes = ((4, 6, 8), (4, 8, 4), (4, 2, 2))
    source = torch.Generator().manual_seed(3)
    return [
        Example(key=f"k{i}", latent=torch.randn(size, generator=source), text={"t": torch.tensor(i)})
        for i, size in enumerate(sizes)
    ]


def measure(examples: list[Example], batch_size: int = 1, repeats: int = 2, seed: int = 42, seen: list | None = None):
    def predict(noisy: list[Tensor], sigma: Tensor, text: list[dict[str, Tensor]]) -> list[Tensor]:
        assert not torch.is_grad_enabled() and len(noisy) == len(sigma) == len(text) == batch_size
        assert len({x.shape for x in noisy}) == 1 and sigma.dtype == torch.float32
        if seen is not None:
            seen.append(sigma.tolist())
        return [x * (1 - level) for x, level in zip(noisy, sigma, strict=True)]

    return validate(
        examples, predict, objective=FlowMatching(), sigmas=SIGMAS, repeats=repeats, seed=seed, batch_size=batch_size,
        device=CPU,
    )  # fmt: skip


def test_every_batch_size_and_order_measure_the_same() -> None:
    first = measure(examples())
    assert len(first.sigma_losses) == 4 and first.loss == pytest.approx(sum(first.sigma_losses) / 4)
    for size in (2, 3, 4, 5):
        assert measure(examples(), size).sigma_losses == pytest.approx(first.sigma_losses, rel=1e-6)
    torch.manual_seed(0)
    assert measure(examples()[::-1]).sigma_losses == pytest.approx(first.sigma_losses, rel=1e-6)
    assert measure(examples(), seed=43).loss != first.loss
    # each repeat has noise of its own
    assert measure(examples(), repeats=1).loss != pytest.approx(first.loss, rel=1e-4)


def test_the_loss_is_the_formula() -> None:
    example = examples()[0]
    losses = measure([example], repeats=1)
    noise = flow.noise(example.latent.shape, generator(42, "validation", example.key, 0))
    for sigma, loss in zip(SIGMAS, losses.sigma_losses, strict=True):
        noisy = (1 - sigma) * example.latent + sigma * noise
        wanted = ((noisy * (1 - sigma) - (noise - example.latent)) ** 2).mean()
        assert loss == pytest.approx(wanted.item(), rel=1e-5)


def test_batches_are_filled_up_to_the_shape_of_training() -> None:
    seen: list[list[float]] = []
    measure(examples()[:1], batch_size=3, repeats=1, seen=seen)
    assert seen == [pytest.approx([0.05, 0.1, 0.2]), pytest.approx([0.35] * 3)]
    with pytest.raises(ValueError, match="at least one"):
        measure([])


def test_a_stop_does_not_wait_for_the_end_of_a_set(tmp_path: Path) -> None:
    config = parse({"validation": {"validate_at_start": True}, "saving": {"output_dir": str(tmp_path)}}).config
    assert config is not None
    run = Run.create(config)
    measured: list[str] = []

    def measure_until_stopped(examples: Iterable[Example]) -> ValidationLoss:
        for example in examples:
            measured.append(example.key)
            Control(run).request("stop")
        return ValidationLoss((1.0,))

    between_steps = BetweenSteps(
        saving=config.saving,
        validation=config.validation,
        sampling=config.sampling,
        position=Position,
        total_steps=10,
        step_log=None,
        saver=None,
        requests=Requests(Control(run)),
        events=EventWriter(run),
        validation_sets={"held out": ValidationSet(count=3, read=examples)},
        measure=measure_until_stopped,
        draw_samples=None,
    )
    between_steps.at_start()
    lines = event_lines(run)
    assert measured == ["k0"] and [event["kind"] for event in lines if event["kind"] == "validation"] == []
    assert lines[0]["phase"] == "validate" and lines[0]["total"] == 3


def test_what_is_due_by_steps_and_epochs() -> None:
    assert due(10, (), 5, None) and not due(11, (), 5, None) and not due(10, (), None, None)
    assert due(7, (4,), None, 2) and due(7, (3, 4), None, 4) and not due(7, (3,), None, 2)
