"""Runs the training loop."""

from __future__ import annotations

from typing import Literal

from backend.training.trainer import Trainer

Ending = Literal["done", "stopped"]


def train(trainer: Trainer) -> Ending:
    """Train from where `trainer` stands to its last step, or until a stop is requested.

    A batch makes gradients; `gradient_accumulation_steps` batches make a step, of each of the processes that train
    together: all run this loop. A step's numbers are read back while the next one runs. NotFinite when loss or
    gradients are lost, StopRequested when there is nothing to save yet.
    """
    accelerator = trainer.accelerator
    trainer.between_steps.at_start()
    trainer.begin()
    while not trainer.is_done:
        if trainer.stops:
            return trainer.stop()
        batch = trainer.next_batch()
        with accelerator.accumulate():
            loss = trainer.loss(batch)
            trainer.backward(loss)
            if accelerator.sync_gradients:
                trainer.clip_gradients()
            trainer.update()
        trainer.count_batch(loss)
        # With it goes the pass that made it, which must not reach into the recording of the next (compile.cuda_graphs).
        del loss
        if accelerator.sync_gradients:
            trainer.count_step()
            trainer.between_steps.after_step(trainer.count_epochs())
            trainer.agree()
            trainer.restart_clock()
    trainer.step_log.settle()
    trainer.saver.save_final()
    trainer.between_steps.at_end()
    return "done"
