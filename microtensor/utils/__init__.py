"""PyTorch's `torch.utils`, in the part that programs import: `utils.data`."""

from microtensor.utils import data

__all__ = ["data"]
