"""The Plackett-Luce distribution over orders.

Sources: R. L. Plackett, "The analysis of permutations" (1975); R. D. Luce, "Individual choice
behavior" (1959). Sampling by sorting logits plus Gumbel noise: J. I. Yellott (1977). As the policy
over patch orders: Kutscher et al., "REOrdering Patches Improves Vision Models" (NeurIPS 2025,
arXiv 2505.23751, section 4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

__all__ = ["PlackettLuce", "gumbel"]


class _Permutation(constraints.Constraint):
    """Integer vectors that hold each of 0 .. N-1 once."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        places = torch.arange(value.shape[-1], device=value.device)
        return (value.sort(dim=-1).values == places).all(dim=-1)


class PlackettLuce(Distribution):
    r"""Distribution over orders of N items in which a larger logit tends to come earlier.

    An order is drawn item by item, each time from a softmax over the items that are left:

    .. math::
        \log p(o) = \sum_{i=0}^{N-1} \Big( z_{o_i} - \log \sum_{j \ge i} \exp z_{o_j} \Big)

    Drawing from it at temperature :math:`\tau` is drawing from ``PlackettLuce(logits / tau)``.

    Args:
        logits: floating point tensor ``(..., N)``, one finite number per item, in any scale: only
            differences matter. Batch shape ``(...)``, event shape ``(N,)``.
        validate_args: as in every ``torch.distributions.Distribution``.

    Raises:
        ValueError: if ``logits`` has no dimension, is not floating point, or isn't finite.

    Example:
        >>> policy = PlackettLuce(torch.tensor([1.0, 0.0, -1.0]))
        >>> policy.mode
        tensor([0, 1, 2])
        >>> policy.log_prob(torch.tensor([0, 1, 2]))
        tensor(-0.7209)
        >>> policy.score(torch.tensor([0, 1, 2]))
        tensor([ 0.3348,  0.0242, -0.3590])
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012 (torch's own convention)
    support = _Permutation()

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        if logits.dim() < 1 or not logits.is_floating_point():
            raise ValueError(
                "Expected argument `logits` to be a floating point tensor of shape (..., N) but "
                f"got shape {tuple(logits.shape)} and dtype {logits.dtype}"
            )
        self.logits = logits
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=validate_args)

    @classmethod
    def from_order(cls, order: Tensor, spread: float = 1.0) -> PlackettLuce:
        """The policy whose mode is ``order``: logits fall evenly from 0 to ``-spread`` along it.

        Args:
            order: int64 ``(..., N)``; ``order[i]`` is the item at place ``i``.
            spread: difference between the first and the last item's logit, > 0.

        Raises:
            ValueError: if ``order`` is no permutation, or ``spread`` isn't positive.

        Example:
            >>> PlackettLuce.from_order(torch.tensor([2, 0, 1])).logits
            tensor([-0.5000, -1.0000,  0.0000])
        """
        if not spread > 0:
            raise ValueError(f"Expected argument `spread` to be > 0 but got {spread}")
        if order.dim() < 1 or order.is_floating_point() or not cls.support.check(order).all():
            raise ValueError(
                "Expected argument `order` to hold each of 0 .. N-1 once, as integers of shape "
                f"(..., N), but got {order!r}"
            )
        order = order.long()
        ramp = torch.linspace(0.0, -spread, order.shape[-1], device=order.device)
        return cls(
            torch.empty(order.shape, device=order.device).scatter_(
                -1, order, ramp.expand(order.shape).contiguous()
            )
        )

    @property
    def mode(self) -> Tensor:
        """The most probable order, int64 ``(..., N)``; ties go to the smaller index everywhere."""
        return self.logits.argsort(dim=-1, descending=True, stable=True)

    def sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 (the signature of the base class)
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw orders by sorting logits plus Gumbel noise.

        Args:
            sample_shape: shape of independent draws in front of the batch shape.
            generator: source of randomness on the logits' device; None is the global one.

        Returns:
            int64 ``(*sample_shape, ..., N)``.
        """
        with torch.no_grad():
            # Half precision has too few values to break ties by noise.
            logits = self.logits if self.logits.dtype == torch.float64 else self.logits.float()
            uniform = torch.rand(
                self._extended_shape(sample_shape),
                generator=generator,
                dtype=logits.dtype,
                device=logits.device,
            )
            return (logits + gumbel(uniform)).argsort(dim=-1, descending=True, stable=True)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of orders: int64 ``(..., N)`` to ``(...)``, in the logits' dtype."""
        if self._validate_args:
            self._validate_sample(value)
        chosen = self._in_order(value)
        return (chosen - _log_remaining(chosen)).sum(dim=-1)

    def score(self, value: Tensor) -> Tensor:
        r"""Gradient of ``log_prob(value)`` with respect to the logits, in closed form.

        Item :math:`o_r`, the one at place r, gets
        :math:`1 - \sum_{i \le r} \exp(z_{o_r}) / \sum_{j \ge i} \exp z_{o_j}`:
        one minus the number of times it was expected to be chosen until it was.

        Args:
            value: int64 ``(..., N)``, broadcast against the batch shape.

        Returns:
            ``(..., N)`` in item order, as the logits are. Finite for any finite logits; each row
            sums to 0.
        """
        if self._validate_args:
            self._validate_sample(value)
        chosen = self._in_order(value)
        # Each summand is at most 1, so the sum is taken of logarithms and nothing can overflow.
        expected = (chosen + (-_log_remaining(chosen)).logcumsumexp(dim=-1)).exp()
        return torch.empty_like(chosen).scatter_(-1, value.expand_as(chosen), 1 - expected)

    def _in_order(self, value: Tensor) -> Tensor:
        """Logits in the places that ``value`` gives them."""
        extra = (1,) * (value.dim() - self.logits.dim())
        return self.logits.reshape(extra + self.logits.shape).take_along_dim(value, dim=-1)


def gumbel(uniform: Tensor) -> Tensor:
    """Gumbel noise from uniform numbers in [0, 1]; finite at both ends."""
    info = torch.finfo(uniform.dtype)
    uniform = uniform.clamp(info.tiny, 1 - info.eps / 2)
    return -(-uniform.log()).log()


def _log_remaining(chosen: Tensor) -> Tensor:
    """Log of the summed weight of the items that are left at each place, ``(..., N)``."""
    return chosen.flip(-1).logcumsumexp(dim=-1).flip(-1)
