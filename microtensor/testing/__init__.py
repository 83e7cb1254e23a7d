"""Proofs for gradients: numerical derivatives, and the contract that every op keeps."""

from microtensor.annotations import hold
from microtensor.testing.close import assert_close
from microtensor.testing.contract import check_op
from microtensor.testing.numeric import gradcheck, gradgradcheck
from microtensor.testing.positions import check_causal, check_padding

__all__ = ["assert_close", "check_causal", "check_op", "check_padding", "gradcheck", "gradgradcheck"]

hold(__name__)
