"""The ranks of a staged model as the engine uses them: token ids that only rank 0's device knows.

Every collective is dispatched at once, in the order of the plan: two in one lazy graph could be
paired with the wrong ones of another rank, which gives wrong numbers without an error.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from dataclasses import dataclass
from math import ceil
from typing import Final

import mlx.core as mx

from omlx.engine.stage.order import Order

INIT_S: Final = 5
"""Least seconds in which processes that know each other's addresses must connect."""


@dataclass(frozen=True, slots=True)
class Group:
    """`rank` of `size` processes. `tensor`: each has a part of every layer, not some layers."""

    rank: int
    size: int
    tensor: bool = False

    def share(self, ids: mx.array) -> mx.array:
        """Send ids [n] from rank 0 to the ranks that embed them; return them on every such rank.

        Other ranks give zeros [n] and get zeros where they embed nothing. In a pipeline the last
        rank embeds, a neighbour of rank 0 in every ring.
        """
        ids, first = ids.astype(mx.uint32), self.size - 1
        if self.tensor:
            ids = mx.distributed.all_sum(ids if self.rank == 0 else mx.zeros_like(ids))
        elif self.rank == 0:
            ids = mx.distributed.send(ids, first)
        elif self.rank == first:
            ids = mx.distributed.recv_like(ids, 0)
        mx.async_eval(ids)
        return ids


def join(order: Order) -> Group:
    """Connect this process to its group, by mlx's distributed engine.

    Blocks until all ranks have joined, in part without letting other threads run: call it once all
    are known to be there. Raises RuntimeError; the process ends by SIGALRM if the others do not
    join in time.
    """
    variable, content = "MLX_HOSTFILE", [[address] for address in order.ring]
    if order.backend == "jaccl":
        variable, content = "MLX_IBV_DEVICES", [*order.rdma]
        os.environ["MLX_JACCL_COORDINATOR"] = order.ring[0]
    with tempfile.TemporaryFile("w+") as file:  # has no name: a killed process leaves nothing
        file.write(json.dumps(content))
        file.flush()
        file.seek(0)
        os.environ |= {"MLX_RANK": str(order.rank), variable: f"/dev/fd/{file.fileno()}"}
        # No thread of Python's could end this process meanwhile.
        signal.alarm(max(INIT_S, ceil(order.timeout_s)))
        try:
            world = mx.distributed.init(strict=True, backend=order.backend)
        finally:
            signal.alarm(0)
            del os.environ["MLX_RANK"], os.environ[variable]
    return Group(world.rank(), world.size(), order.tensor)
