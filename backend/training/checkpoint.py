"""Writes and loads the state that a stopped run continues from as if it had not stopped.

``state/step-00000100/`` holds what is trained (a LoRA in float32, or a whole model's weights), optimizer, schedule and
loss scale, the running mean where there is one, random number states, the gradients of a half-done accumulation, and
the position. Which states are kept, and which is whole, is `backend.runs.state_folder`'s.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.files import atomic_path, write_atomic
from backend.dataset.items import count_of
from backend.models.common.tensor_file import Stored, write_tensors
from backend.optimizers import ema
from backend.optimizers.trained_weights import TrainedWeights
from backend.runs.state_folder import POSITION, keep_state
from backend.training.position import Position, position_of

log = logging.getLogger(__name__)

VERSION = 1
FILES = {"lora": "lora.safetensors", "full": "weights.safetensors"}
"""Kind of training -> file of a state that holds what is trained."""
_BEFORE = {"kind": "lora", "layers": "", "loraplus": "off", "merged": "", "experts": ""}
"""What states of before these were kept belong to."""
_WITH_FILE = "a new run with the newest file of checkpoints/: a LoRA as network_weights, a whole model as base_model."
_NEW_RUN = f"Start {_WITH_FILE}"


class Stateful(Protocol):
    """What has a state_dict: an optimizer, a schedule, a loss scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """What a state belongs to."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    """Module paths with a LoRA, or names of all that is trained in full."""
    optimizer: str
    data: str
    """Digest of the training pictures."""
    base: str = "none bf16"
    """What the base's weights are kept in and multiplied in."""
    layers: str = ""
    """Digest of the sizes and rates of layers that have their own; "" where none has."""
    batches: tuple[int, int, int] | None = None
    """Pictures of a batch, batches of a step (in all processes), batches of an epoch."""
    loraplus: str = "off"
    """on or off; on, the optimizer keeps A and B apart."""
    merged: str = ""
    """Identity of the LoRA files merged into the base; "" where none is."""
    experts: str = ""
    """Which experts of a model of two are trained, and the length of their turns; "" where none is named."""
    kind: str = "lora"
    """What is trained: lora, or full for the denoiser's own weights."""
    parts: Mapping[str, str] | None = None
    """What `data` is made of and what is done with it, each by the name that it is told by, and its digest."""
    processes: int = 1
    """How many train together."""


def save_state(
    folder: Path, position: Position, weights: TrainedWeights, parts: dict[str, Stateful], fingerprint: Fingerprint
) -> Path:
    """Write the state as the newest of `folder`, of which it keeps two; return its folder.

    parts: name -> optimizer, schedule, scaler. A half-done accumulation's gradients are taken from the weights.
    DiskFull or WriteFailed when it can't be written: the state before it is then untouched.
    """
    name = f"step-{position.step:08d}" + (f"+{position.micro}" if position.micro else "")
    return keep_state(folder, name, lambda where: _write(where, position, weights, parts, fingerprint))


def load_state(
    state: Path,
    weights: TrainedWeights,
    parts: dict[str, Stateful],
    fingerprint: Fingerprint,
    warn: Callable[[str], object] = log.warning,
) -> Position:
    """Set everything to what `state` holds, random number generators included; return the position.

    Refused when what is trained or the optimizer is another one. What else changed, such as the pictures, goes to
    `warn`; where batches are counted in another way now, the run continues with the next epoch.
    """
    position, saved = _read_json(state)
    _compare(saved, fingerprint, warn)
    position = _in_next_epoch(position, saved.get("batches"), fingerprint.batches, warn)
    try:
        weights.restore(safetensors.torch.load_file(state / FILES[fingerprint.kind]))
        kept = torch.load(state / "optimizer.pt", map_location="cpu", weights_only=True)
        for name, part in parts.items():
            if name != ema.PART or name in kept:
                part.load_state_dict(kept[name])
        change = ema.changed(kept.get(ema.PART), parts.get(ema.PART))
        if change is not None:
            warn(change)
        if position.micro:
            gradients = safetensors.torch.load_file(state / "gradients.safetensors")
            for name, parameter in _named(weights).items():
                # a weight that no batch reached has none
                if fingerprint.kind == "lora" or name in gradients:
                    parameter.grad = gradients[name].to(parameter.device)
        _set_rng(torch.load(state / "rng.pt", map_location="cpu", weights_only=True))
    except (OSError, KeyError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise Refused(f"The state {state} can't be used: {error}", _NEW_RUN) from error
    return position


def _write(
    where: Path, position: Position, weights: TrainedWeights, parts: dict[str, Stateful], fingerprint: Fingerprint
) -> None:
    _write_tensors(where / FILES[fingerprint.kind], weights.tensors())
    if position.micro:
        summed = {name: p.grad for name, p in _named(weights).items() if p.grad is not None}
        _write_tensors(where / "gradients.safetensors", summed)
    for name, data in (
        ("optimizer.pt", {key: part.state_dict() for key, part in parts.items()}),
        ("rng.pt", _rng()),
    ):
        with atomic_path(where / name) as path:
            torch.save(data, path)
    content = {"version": VERSION, "position": asdict(position), "fingerprint": asdict(fingerprint), "manifest": True}
    write_atomic(where / POSITION, json.dumps(content, indent=1))


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    # one after the other: all together may be more than the machine's memory
    write_tensors(path, {name: Stored.of(tensor) for name, tensor in tensors.items()})


def _named(weights: TrainedWeights) -> dict[str, torch.nn.Parameter]:
    return dict(zip(weights.tensors(), weights.parameters(), strict=True))


def _read_json(state: Path) -> tuple[Position, dict[str, Any]]:
    try:
        saved = json.loads((state / POSITION).read_text(encoding="utf-8"))
        if saved["version"] != VERSION:
            raise Refused(f"The state {state} is of version {saved['version']}", _NEW_RUN)
        return position_of(saved["position"]), saved["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"The state {state} can't be read: {error}", _NEW_RUN) from error


def _in_next_epoch(
    position: Position, before: list[int] | None, now: tuple[int, int, int] | None, warn: Callable[[str], object]
) -> Position:
    """The position where batches are counted as `now`: their numbers in the epoch mean others than those of `before`.

    States of before this was kept have no `before`: there only a number beyond the epoch shows it.
    """
    if now is None or (position.batch < now[2] if before is None else tuple(before) == now):
        return position
    warn(
        "Batch size, accumulation, the number of processes or that of batches in an epoch changed since the run "
        f"stopped: it continues with the next epoch after step {position.step}, and not as if it had not stopped."
    )
    epoch = position.epoch + bool(position.batch)
    return replace(position, micro=0, loss_sum=0.0, epoch=epoch, step_epoch=epoch, batch=0)


def _compare(saved: dict[str, Any], now: Fingerprint, warn: Callable[[str], object]) -> None:
    current = json.loads(json.dumps(asdict(now)))
    for key, setting in (
        ("kind", "training.kind"),
        ("rank", "network.network_dim"),
        ("alpha", "network.network_alpha"),
        ("targets", "network.targets_include"),
        ("layers", "network.layer_settings"),
        ("optimizer", "optimizer.optimizer"),
        ("loraplus", "network.loraplus_lr_ratio"),
        ("merged", "network.base_weights"),
        ("experts", "timesteps.train_experts"),
    ):
        if saved.get(key, _BEFORE.get(key)) != current[key]:
            both = "" if key in ("targets", "layers", "merged") else f" ({saved.get(key)}, now {current[key]})"
            text = f"The state to resume from was made with other values of {setting}{both}"
            raise Refused(text, f"Set {setting} back, or start {_WITH_FILE}", setting)
    changed = _changed_data(saved, current)
    if changed:
        warn(f"{changed} changed since the run stopped: it continues, but not as if it had not stopped.")
    processes = saved.get("processes", 1)
    if processes != now.processes:
        warn(
            f"The run was trained by {count_of(processes, 'process')} when it stopped, and by {now.processes} now: "
            "where a step has as many images, it continues with the same batches, but not with the same last bits."
        )
    # states of before there was a choice have none
    if saved.get("base", current["base"]) != current["base"]:
        then, here = (kept.replace(" ", ", multiplied in ") for kept in (saved["base"], current["base"]))
        warn(
            f"The base model was kept as {then} when the run stopped, and is kept as {here} now: it continues, but not "
            "as if it had not stopped."
        )


def _changed_data(saved: dict[str, Any], current: dict[str, Any]) -> str:
    """What is trained on otherwise than before, as the beginning of a sentence; "" where nothing is."""
    before, now = saved.get("parts"), current["parts"]
    if not isinstance(before, dict) or now is None:  # states of before have one digest of all
        return "" if saved.get("data") == current["data"] else "The training images, captions or masks"
    names = [name for name, digest in now.items() if before.get(name, "") != digest]
    if not names:
        return ""
    *most, last = names
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"The training {listed}" if names[0] == "images" else f"The {listed} of the training images"


def _rng() -> dict[str, Any]:
    """States of every generator that a step may draw from, in types that load without running code."""
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    version, words, normal = random.getstate()
    return {
        "python": [version, torch.tensor(words, dtype=torch.int64), normal],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), place, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_rng(saved: dict[str, Any]) -> None:
    version, words, normal = saved["python"]
    random.setstate((version, tuple(words.tolist()), normal))
    kind, keys, place, has_gauss, gauss = saved["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, gauss))
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] and len(saved["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(saved["cuda"])
