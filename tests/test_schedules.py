import pytest

from reorder_lightning.schedules import SCHEDULES, temperature_share


def test_values():
    at = [0.0, 0.25, 0.5, 1.0]
    expected = {
        "constant": [1, 1, 1, 1],
        "triangular": [0, 0.5, 1, 0],
        "linear": [1, 0.75, 0.5, 0],
        "cosine": [1, 0.853553, 0.5, 0],
    }
    assert set(expected) == set(SCHEDULES)
    for schedule, values in expected.items():
        got = [temperature_share(schedule, done) for done in at]
        assert got == pytest.approx(values, abs=1e-6)


def test_unknown_schedule():
    with pytest.raises(ValueError, match="'step'"):
        temperature_share("step", 0.5)
