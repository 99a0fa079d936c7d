"""Ranks as Ray actors: a cluster, pools of ranks, roles in them, and groups that call the roles.

    with Cluster.start(config.cluster) as cluster:
        pool = Pool.create(cluster, "train", 2)
        actor = pool.start_role("actor", ActorRole, config)
        losses = actor.update(shards)  # a list, by place

Knows nothing of what roles compute. Importing this package does not import Ray; `Cluster`, `Pool`
and what starts them do.
"""

from typing import TYPE_CHECKING

from hybridengine.lazy import lazy_names
from hybridengine.rlhf.workers.reference import Pick, Reference
from hybridengine.rlhf.workers.role import RankContext, Role, dispatch

if TYPE_CHECKING:
    from hybridengine.rlhf.workers.cluster import Cluster
    from hybridengine.rlhf.workers.failure import WorkerError
    from hybridengine.rlhf.workers.group import Pending, WorkerGroup
    from hybridengine.rlhf.workers.pool import Pool, create_pools
    from hybridengine.rlhf.workers.reservation import PlacementError, PoolSpec

__all__ = [
    "Cluster",
    "Pending",
    "Pick",
    "PlacementError",
    "Pool",
    "PoolSpec",
    "RankContext",
    "Reference",
    "Role",
    "WorkerError",
    "WorkerGroup",
    "create_pools",
    "dispatch",
]

__getattr__ = lazy_names(
    __name__,
    {  # what needs Ray
        "Cluster": "cluster",
        "Pending": "group",
        "PlacementError": "reservation",
        "Pool": "pool",
        "PoolSpec": "reservation",
        "WorkerError": "failure",
        "WorkerGroup": "group",
        "create_pools": "pool",
    },
)
