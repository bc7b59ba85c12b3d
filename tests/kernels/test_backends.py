"""Which implementation of the scan runs where, without the packages and devices in question."""

import logging
import sys
import warnings

import pytest
import torch

from reorder_lightning.kernels import _backends, _blocked_scan
from reorder_lightning.kernels.selective_scan import selective_scan


@pytest.fixture(autouse=True)
def _fresh_caches():
    caches = (_backends.mamba_ssm_scan, _backends.announce, _backends._triton_scan)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def install(tmp_path, monkeypatch, text):
    """A package ``mamba_ssm`` whose interface module consists of the text."""
    package = tmp_path / "mamba_ssm" / "ops"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "selective_scan_interface.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [n for n in sys.modules if n.split(".")[0] == "mamba_ssm"]:
        monkeypatch.delitem(sys.modules, name)


def test_case_28_without_mamba_ssm_the_portable_scan_runs_and_one_line_says_so(caplog):
    """https://github.com/state-spaces/mamba/issues/237"""
    u, A, B = torch.rand(1, 2, 3), -torch.ones(2, 1), torch.rand(1, 1, 3)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            selective_scan(u, u, A, B, B)
    assert caplog.messages == ["Selective scan on cpu: PyTorch."]


def test_a_whole_mamba_ssm_is_taken(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "def selective_scan_fn(): return 'fused'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _backends.mamba_ssm_scan()() == "fused"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import selective_scan_cuda", "No module named 'selective_scan_cuda'"),
        ("raise ImportError('undefined symbol: _ZN3c10')", "undefined symbol: _ZN3c10"),
        ("other = 1", "selective_scan_fn"),
    ],
)
def test_a_broken_mamba_ssm_is_named_once(tmp_path, monkeypatch, text, said):
    install(tmp_path, monkeypatch, text)
    with pytest.warns(UserWarning, match=said) as caught:
        found = [_backends.mamba_ssm_scan() for _ in range(2)]
    assert found == [None, None]
    assert len(caught) == 1


def test_the_device_and_dtype_choose_the_module():
    assert _backends.scan_module(torch.empty(1)) is _blocked_scan
    with torch.device("meta"):
        assert _backends.scan_module(torch.empty(1)) is _blocked_scan
