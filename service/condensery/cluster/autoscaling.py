"""How many replicas a group should have, by the tokens in its replicas' hands.

Ray Serve calls the policy in its controller, which unpickles this module as a whole: it imports
nothing of ours.
"""

import math
from typing import Any

TOKENS = "tokens_in_hand"  # as ``Replica.record_autoscaling_stats`` names them


class TokensPolicy:
    """One replica for each ``tokens`` that were taken and not yet answered.

    Serve averages them over ``look_back_period_s``, and applies its own bounds and delays to what
    is returned.

    Args:
        tokens: In hand, for each replica.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there should be, and the state that Serve keeps for us: none.

        Args:
            context: Serve's ``AutoscalingContext``.
        """
        by_replica = (context.aggregated_metrics or {}).get(TOKENS, {})
        if not by_replica:  # nothing is known yet, of replicas that are just starting
            return context.target_num_replicas, {}
        return max(1, math.ceil(sum(by_replica.values()) / self._tokens)), {}
