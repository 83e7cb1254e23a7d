"""What the lecture's experiments find is what the lecture says, for three seeds; and each is drawn."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import microtensor as mt

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
seeds = pytest.mark.parametrize("seed", [0, 1, 2])


@pytest.fixture
def lecture(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("lecture")


@pytest.fixture
def found(lecture, seed):
    def found(name):
        mt.manual_seed(seed)
        return getattr(lecture, name)().numbers

    return found


@seeds
def test_a_scores_variance_is_d_k_and_1_when_scaled(found):
    numbers = found("score_variance")
    # variance of a variance: 2/n · (1 + 3/d_k) of 20,000 scores; five standard errors of the worst are 7 %
    np.testing.assert_allclose(numbers["variance"], numbers["d_k"], rtol=0.07)
    np.testing.assert_allclose(numbers["variance / d_k, scaled"], 1, rtol=0.07)


@seeds
def test_unscaled_the_softmax_saturates_and_gradients_vanish_scaled_they_do_not(found):
    numbers = found("saturation")
    for what in ("entropy", "gradient"):
        plain, scaled = numbers[f"{what}, plain"], numbers[f"{what}, scaled"]
        assert plain == sorted(plain, reverse=True)
        assert plain[-1] < 0.2 * plain[0]
        assert max(scaled) < 1.25 * min(scaled)
    assert numbers["entropy, scaled"][-1] > 0.8 * math.log(16)


@seeds
def test_outputs_are_convex_combinations_of_the_values(found):
    numbers = found("convex_combinations")
    assert numbers["smallest weight"] >= 0
    np.testing.assert_allclose(numbers["row sums"], 1, rtol=1e-14)
    assert numbers["beyond the hull"] <= 1e-14


def test_the_picture_of_convex_combinations_shows_the_hull_around_them(lecture):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    mt.manual_seed(0)
    lecture.convex_combinations().draw(axes := figure.subplots())
    values, outputs = (line.get_xydata() for line in axes.lines)
    corners = np.concatenate([patch.get_xy() for patch in axes.patches])
    assert {*map(tuple, corners)} == {*map(tuple, values)}
    assert all(any(patch.get_path().contains_point(y) for patch in axes.patches) for y in outputs)


@seeds
def test_the_bias_of_keys_has_no_gradient(found):
    numbers = found("key_bias")
    assert numbers.keys() == {f"gradient of b_{letter}" for letter in "QKVO"}
    none = numbers.pop("gradient of b_K")
    assert none < 1e-13 * min(numbers.values())


@seeds
def test_shapes_stay_through_twelve_layers(found):
    numbers = found("shapes_kept")
    assert len(numbers["shapes"]) == 13
    assert len(set(numbers["shapes"])) == 1
    np.testing.assert_allclose(numbers["root mean square"][1:], 1, rtol=1e-4)  # LayerNorm comes last


@seeds
def test_nothing_ahead_has_a_gradient_and_all_behind_has(found):
    numbers = found("causal_attention")
    assert numbers["largest gradient ahead"] == 0
    assert numbers["smallest behind"] > 1e-3


@seeds
def test_order_matters_with_positions_only(found):
    numbers = found("equivariance")
    assert numbers["tokens that stayed"] < 6
    assert numbers["without positions"] < 1e-14
    assert numbers["with positions"] > 0.1


@pytest.mark.parametrize("k", [0, 1, 7, 50])
def test_an_offset_is_one_rotation_for_all_positions(lecture, k):
    numbers = lecture.relative_offset(k).numbers
    assert numbers["error at unseen positions"] < 1e-9
    assert numbers["distance to the rotation"] < 1e-9


def test_wavelengths_run_from_2_pi_towards_10000_times_2_pi(lecture):
    numbers = lecture.wavelengths().numbers
    assert numbers["shortest / 2π"] == pytest.approx(1, rel=1e-12)
    assert numbers["longest / 2π"] == pytest.approx(10000 ** (1 - 2 / 512), rel=1e-9)
    np.testing.assert_allclose(numbers["each to the next"], 10000 ** (2 / 512), rtol=1e-9)


def test_the_program_prints_all_numbers_and_writes_all_pictures(lecture, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["lecture.py", "--out", str(tmp_path / "lecture"), "--seed", "1"])
    lecture.main()
    names = {experiment.__name__ for experiment in lecture.EXPERIMENTS}
    assert {path.stem for path in (tmp_path / "lecture").glob("*.png")} == names
    shown = capsys.readouterr().out
    assert all(f"\n{name}: " in f"\n{shown}" for name in names)
    assert "largest gradient ahead: 0\n" in shown
