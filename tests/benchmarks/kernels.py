"""All benchmarks of kernels and families in one run: ``python -m tests.benchmarks.kernels``.

Options are handed to each, so only ``--threads`` makes sense. Exits with 1 if a target is missed.
"""

import sys

from tests.benchmarks import attention, families, scaling, scan


def main(argv: list[str] | None = None) -> int:
    """Runs them one after the other."""
    status = 0
    for module in (scan, attention, families, scaling):
        assert module.__doc__
        print(f"\n{module.__doc__.splitlines()[0]}", flush=True)
        status |= module.main(argv)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
