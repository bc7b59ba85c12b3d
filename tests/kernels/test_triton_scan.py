import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="torch brings Triton on Linux only"
)


def test_kernels_in_the_interpreter():
    path = Path(__file__).with_name("interpreted_triton_scan.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_nvidia(capability, tmp_path, monkeypatch):
    """Down to machine code, which needs no GPU, and without spilling registers to memory."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from reorder_lightning.kernels import _triton_scan as module

    sizes = ("batch", "length", "groups", "state", "channels")
    constants = {"SOFTPLUS": True, "T": module.STEPS, "N": 16, "H": module._TILE // 256}
    for kernel in (module._forward_kernel, module._backward_kernel):
        signature = {
            name: "constexpr" if name in constants else "i32" if name in sizes else "*fp32"
            for name in kernel.arg_names
        }
        source = ASTSource(kernel, signature, constexprs=constants)
        compiled = compile(source, target=GPUTarget("cuda", capability, 32))
        assert compiled.asm["cubin"]
        assert ".local" not in compiled.asm["ptx"]
