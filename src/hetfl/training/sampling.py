"""Which clients take part in a round."""

from __future__ import annotations

from hetfl.draws import Draws


def participants(clients: int, share: float, draws: Draws) -> list[int]:
    """Draw max(1, int(share * clients)) clients without replacement, a function of (seed, round) alone.

    The draw does not depend on the method, so all methods of one seed see the same participants.
    """
    count = max(1, int(share * clients + 1e-9))
    if count >= clients:
        return list(range(clients))
    return sorted(draws.numpy_generator("participation").permutation(clients)[:count].tolist())
