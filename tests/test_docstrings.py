"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import reorder_lightning

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(reorder_lightning.__path__, "reorder_lightning.")
    if not module.name.endswith("__main__")
)


@pytest.mark.filterwarnings("ignore:The blocks of VisionTransformer:UserWarning")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name.endswith("_triton_scan"):
        pytest.importorskip("triton")  # comes with torch on Linux only
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_examples():
    found = doctest.DocTestFinder().find(importlib.import_module("reorder_lightning.orders"))
    assert any(test.examples for test in found)
