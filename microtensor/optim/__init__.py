"""Optimisers and learning rate schedules: PyTorch's `torch.optim`. Each states its equations and sources."""

from microtensor.annotations import hold
from microtensor.missing import explain_missing
from microtensor.optim import lr_scheduler
from microtensor.optim.adam import Adam, AdamW
from microtensor.optim.optimizer import Optimizer, keep_groups
from microtensor.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]

explain_missing(__name__, lr_scheduler.__name__)
hold(__name__)
hold(lr_scheduler.__name__)
keep_groups(lr_scheduler.LRScheduler)
