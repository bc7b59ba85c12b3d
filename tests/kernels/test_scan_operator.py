import pytest
import torch

from reorder_lightning.kernels._scan_operator import scan_by_operator
from reorder_lightning.kernels.selective_scan import selective_scan
from tests.kernels.test_selective_scan import make_inputs

pytest.importorskip("torch._higher_order_ops.scan")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("optional", [True, False])
def test_equals_the_kernel(groups, optional):
    torch.compiler.reset()
    inputs = make_inputs(2, groups, 3, 4, 7, optional=optional)
    inputs.pop("z", None)
    expected = selective_scan(**inputs, delta_softplus=True, return_last_state=True)
    optional_inputs = inputs.pop("D", None), inputs.pop("delta_bias", None)
    found = scan_by_operator(*inputs.values(), *optional_inputs, True)
    torch.testing.assert_close(found, expected)
