"""eˣ for x ≤ 0 as loops want it: it vectorises, where a call of the C library takes 15 times as long.

Kernels of other files contain its code: threads.py adds this file to what their caches depend on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from microtensor.kernels.threads import typeof


def exp(x: Any) -> Any:
    """eˣ for x ≤ 0 (rows are shifted by their maximum), at most 1.1 ulp off; NaN for NaN; 0 at −inf and where
    eˣ is below the smallest normal number.

    Adding MAGIC = 1.5 · 2^BITS rounds x / ln 2 to an integer n and leaves n in the last bits, from where a
    shift moves it into the exponent of 2ⁿ. With r = x − n ln 2 (ln 2 in two parts, n · HIGH being exact):
    eˣ = 2ⁿ (1 + r + r² p(r)), |r| ≤ ln 2 / 2.
    Source: Cody & Waite 1980, ch. 6. In float32 p is that of Cephes' expf, in float64 the Taylor series.
    """
    return _compiled_exp(typeof(x))(x)  # where numba is switched off, the same text as plain Python


@overload(exp, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _compiled_exp(x: Any) -> Any:
    F: Any
    I: Any
    FIRST: float
    P: tuple[float, ...]
    if x == types.float32:
        F, I, BITS, BIAS, MAGIC, LOW = np.float32, np.int32, 23, 127, 12582912.0, -87.33654
        HIGH, REST = 0.693359375, -2.12194440e-4
        FIRST = 1.9875691500e-4
        P = 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
    else:
        F, I, BITS, BIAS, MAGIC, LOW = np.float64, np.int64, 52, 1023, 6755399441055744.0, -708.3964
        HIGH, REST = 0.693147180369123816490, 1.90821492927058770002e-10
        FIRST, P = 1 / math.factorial(13), tuple(1 / math.factorial(k) for k in range(12, 1, -1))

    def exp_(x: Any) -> Any:
        shifted = x * F(1.4426950408889634) + F(MAGIC)
        n = shifted - F(MAGIC)
        r = x - n * F(HIGH) - n * F(REST)
        p = F(FIRST)
        for c in P:  # a tuple: the compiler unrolls this
            p = p * r + F(c)
        y = p * (r * r) + r + F(1)
        two_to_n = I((F(shifted).view(I) + BIAS) << BITS).view(F)
        return F(0) if x < F(LOW) else y * two_to_n

    return exp_
