"""registry: environments by name."""

from __future__ import annotations

from hybridengine.rlhf.environments.protocol import Environment
from hybridengine.rlhf.registry import Registry

environment: Registry[Environment] = Registry("environment")
