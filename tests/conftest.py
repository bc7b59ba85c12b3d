"""Settings shared by all tests."""

import os

# Tiny tensors gain nothing from threads, which on a busy machine wait for each other. Set before
# torch is imported, so that the processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
