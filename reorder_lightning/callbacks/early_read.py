"""Reading numbers from a GPU without making it wait."""

from contextlib import AbstractContextManager, nullcontext

import torch


class EarlyRead:
    """Reads what a forward pass has computed while the backward pass still runs.

    A program queues work on a GPU and runs ahead of it; reading a number waits for all work queued
    so far, and then the GPU waits for the program to queue more. So the place in the queue is
    marked before the backward pass, and the reading happens on a stream of its own, which waits for
    that place only: backward pass and optimiser step remain to keep the GPU busy. On a CPU, or
    without a mark, reading is just reading.
    """

    def __init__(self) -> None:
        self._mark: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None

    def forget(self) -> None:
        """Take back the mark of the batch before."""
        self._mark = None

    def mark(self, device: torch.device) -> None:
        """All that will be read has been queued by now."""
        if device.type == "cuda":
            self._mark = torch.cuda.Event()
            self._mark.record(torch.cuda.current_stream(device))

    def reading(self, device: torch.device) -> AbstractContextManager[object]:
        """What is queued and read in this context waits for no more than what was marked."""
        if self._mark is None:
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_event(self._mark)
        return torch.cuda.stream(self._stream)
