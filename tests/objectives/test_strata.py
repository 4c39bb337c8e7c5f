"""Levels that take turns: even by themselves, one in each part together, the same whenever they are asked for."""

from __future__ import annotations

import pytest
import torch

from backend.memory.seeds import generator
from backend.objectives import flow
from backend.objectives.diffusion import Diffusion, Schedule
from backend.objectives.flow_matching import FlowMatching
from backend.objectives.strata import Strata

KINDS = ("uniform", "sigmoid", "logit_normal", "mode", "shift", "flux_shift")
SDXL = {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def shares(strata: Strata, batches: int, seed: int = 7) -> torch.Tensor:
    return torch.cat([strata.shares(strata.rows, seed, number) for number in range(batches)])


@pytest.mark.parametrize(
    ("rows", "batches", "turns"), [(1, 1, 8), (2, 1, 8), (3, 1, 12), (1, 4, 8), (5, 2, 10), (9, 1, 9)]
)
def test_every_step_and_every_turn_has_one_share_in_each_part(rows: int, batches: int, turns: int) -> None:
    strata = Strata(rows=rows, batches=batches)
    assert strata.turns == turns
    drawn = shares(strata, 4 * batches * turns)
    assert drawn.dtype == torch.float64 and drawn.min() >= 0 and drawn.max() < 1
    size = rows * batches
    while size <= turns:
        blocks = (drawn.view(-1, size) * size).long().sort(1).values
        assert torch.equal(blocks, torch.arange(size).expand_as(blocks)), size
        size *= 2
    orders = (drawn.view(-1, turns) * turns).long()
    assert len(orders.unique(dim=0)) == len(orders) > 3, "the parts come in another order each time"


def test_each_row_by_itself_is_even() -> None:
    """Over many seeds, of every row of a turn: tenths have a tenth each."""
    strata = Strata(rows=2, batches=1)
    drawn = torch.stack([shares(strata, 4, seed) for seed in range(3000)])
    for row in drawn.T:
        assert torch.histc(row, 10, 0, 1).div(3000).sub(0.1).abs().max() < 0.025
    # and two rows of a step never lie in one half
    assert ((drawn[:, 0] < 0.5) != (drawn[:, 1] < 0.5)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_levels_have_the_distribution_of_draws_and_a_calmer_mean(kind: str) -> None:
    draw = flow.TimestepDraw(kind=kind, logit_mean=0.4, sigmoid_scale=1.2, min_timestep=100.0, max_timestep=900.0)
    spread, alone = FlowMatching(draw=draw, strata=Strata(rows=4, batches=1)), FlowMatching(draw=draw)
    levels, wanted = (
        torch.stack([each.levels([1024] * 4, 3, number) for number in range(500)]) for each in (spread, alone)
    )
    assert levels.dtype == torch.float32 and levels.min() >= 0.1 and levels.max() <= 0.9
    points = torch.linspace(0.05, 0.95, 19)
    assert torch.allclose(levels.quantile(points), wanted.quantile(points), atol=0.03)
    assert levels.mean(1).std() < 0.5 * wanted.mean(1).std(), "a step's levels lie apart"
    # the level is the one at its share, along the distribution of the plain draws
    share = Strata(rows=4, batches=1).shares(4, 3, 7)
    assert torch.equal(
        spread.levels([1024] * 4, 3, 7), torch.stack([flow.draw_sigma(draw, 1024, generator(0), s) for s in share])
    )


def test_whole_timesteps_take_turns_too() -> None:
    schedule = Schedule.of(SDXL)
    objective = Diffusion(schedule=schedule, min_timestep=200, max_timestep=600, strata=Strata(rows=8, batches=1))
    timesteps = torch.stack([objective.levels([1] * 8, 3, number) for number in range(400)])
    assert torch.equal(timesteps, timesteps.floor()) and timesteps.min() == 200 and timesteps.max() == 599
    parts = ((timesteps - 200) // 50).sort(1).values
    assert torch.equal(parts, torch.arange(8.0).expand_as(parts))
    assert torch.histc(timesteps, 400, 200, 600).mul(1.0).std() < 4


def test_a_resumed_run_has_the_same_and_a_short_batch_its_first_rows() -> None:
    strata = Strata(rows=3, batches=2)
    torch.manual_seed(5)
    again = strata.shares(3, 7, 11)
    assert torch.equal(again, shares(strata, 12)[33:36])
    assert torch.equal(strata.shares(2, 7, 11), again[:2])
    assert not torch.equal(again, strata.shares(3, 8, 11))


def test_without_strata_levels_are_as_they_always_were() -> None:
    """What was drawn before there were strata: a run of then goes on as it would have."""
    before = {
        "uniform": [0.7253897786140442, 0.40572673082351685, 0.7907018661499023],
        "sigmoid": [0.6567001938819885, 0.502914547920227, 0.3541375696659088],
        "mode": [0.40335166454315186, 0.527637779712677, 0.34481310844421387],
        "shift": [0.8516038656234741, 0.7521795630455017, 0.6219213604927063],
        "flux_shift": [0.7592593431472778, 0.7616338729858398, 0.5072742104530334],
    }
    for kind, levels in before.items():
        drawn_levels = FlowMatching(draw=flow.TimestepDraw(kind=kind)).levels([256, 4096, 1024], 7, 3)
        assert drawn_levels.tolist() == pytest.approx(levels, abs=1e-6)
    assert Diffusion(schedule=Schedule.of(SDXL)).levels([1] * 3, 7, 3).tolist() == [853, 77, 896]
