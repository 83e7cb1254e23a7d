"""Training: the loop with progress bar, log and checkpoints, and files that hold tensors but never code."""

from microtensor.train.allocator import peak_memory, tune_allocator
from microtensor.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from microtensor.train.serialize import load, save
from microtensor.train.trainer import Trainer

__all__ = [
    "Checkpoint",
    "Trainer",
    "load",
    "load_checkpoint",
    "peak_memory",
    "save",
    "save_checkpoint",
    "tune_allocator",
]
