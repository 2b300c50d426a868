"""A fleet that cannot be is refused before Ray is started."""

from math import inf, nan

import pytest

from control_plane.options import FleetOptions


@pytest.mark.parametrize(("field", "values"), [("replicas", (0, -1)), ("num_cpus", (-1.0, inf, nan)), ("num_gpus", (-1.0, -inf, nan))])
def test_a_fleet_that_cannot_be_is_refused_by_the_option_s_name(field: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{field}: should be"):
            FleetOptions(**{field: value})
    assert FleetOptions(replicas=1, num_gpus=0.5).num_gpus == 0.5
