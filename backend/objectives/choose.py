"""Chooses the objective of a run: what its family is trained with, by its settings."""

from __future__ import annotations

from backend.base.errors import Refused
from backend.config.experts import boundary_of, timestep_range
from backend.config.schema import Config
from backend.families.files.base_model import BaseModelFiles
from backend.families.shift import ShiftLine
from backend.families.spec import FamilyFacts, Side
from backend.models.family import Family
from backend.objectives.base import Distance, Objective
from backend.objectives.flow import TimestepDraw
from backend.objectives.flow_matching import FlowMatching
from backend.objectives.strata import Strata


def objective_of(
    cfg: Config, facts: FamilyFacts, code: Family, base: BaseModelFiles, side: Side | None = None
) -> Objective:
    """The objective that `facts.objective` names. Refused when the model's own schedule can't be trained so.

    side: the expert whose noise levels are drawn, of a family of two; None for those of the settings.
    """
    loss = cfg.loss
    distance = Distance(loss_type=loss.loss_type, huber_c=loss.huber_c, huber_schedule=loss.huber_schedule)
    if facts.objective == "flow":
        return _flow(cfg, distance, facts, code, base, side)
    # Only here: diffusers' schedulers are not needed for flow matching.
    from backend.objectives.diffusion import Diffusion, Options, Schedule

    try:
        schedule = Schedule.of(facts.scheduler_config(base), loss.prediction_type, loss.zero_terminal_snr)
    except ValueError as error:
        raise Refused.from_error(error, "loss.prediction_type") from error
    if loss.scale_v_pred_loss_like_noise_pred and schedule.prediction != "v_prediction":
        raise Refused(
            "scale_v_pred_loss_like_noise_pred needs v-prediction, and this model predicts the noise",
            "Take it out, or set prediction_type if the model's scheduler_config.json is wrong.",
            "loss.scale_v_pred_loss_like_noise_pred",
        )
    options = Options(**{name: getattr(loss, name) for name in Options.__dataclass_fields__})
    times = cfg.timesteps
    return Diffusion(
        schedule=schedule,
        options=options,
        distance=distance,
        min_timestep=times.min_timestep,
        max_timestep=times.max_timestep,
        strata=_strata(cfg),
    )


def _strata(cfg: Config) -> Strata | None:
    step = Strata(rows=cfg.dataset.batch_size, batches=cfg.training.batches_per_step)
    return step if cfg.timesteps.stratified else None


def _flow(
    cfg: Config, distance: Distance, facts: FamilyFacts, code: Family, base: BaseModelFiles, side: Side | None
) -> FlowMatching:
    times = cfg.timesteps
    least, highest = timestep_range(cfg, side)
    draw = TimestepDraw(
        kind=times.timestep_sampling,
        sigmoid_scale=times.sigmoid_scale,
        discrete_flow_shift=times.discrete_flow_shift,
        logit_mean=times.logit_mean,
        logit_std=times.logit_std,
        mode_scale=times.mode_scale,
        min_timestep=least,
        max_timestep=highest,
        below=boundary_of(cfg) if side == "low" else None,
        line=ShiftLine.of(facts.scheduler_config(base)),
    )
    return FlowMatching(
        draw=draw,
        weighting=times.weighting_scheme,
        distance=distance,
        sigmas=lambda steps, tokens: code.sampling_sigmas(steps, tokens, base),
        strata=_strata(cfg),
    )
