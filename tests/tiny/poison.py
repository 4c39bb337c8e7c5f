"""An optimizer that ruins a weight at its third step, as a learning rate that is far too high does."""

from __future__ import annotations

import torch


class Poison(torch.optim.AdamW):
    """AdamW whose third step leaves infinity behind."""

    def step(self, closure=None):
        super().step(closure)
        first = self.param_groups[0]["params"][0]
        if self.state[first]["step"] == 3:
            with torch.no_grad():
                first.fill_(torch.inf)
