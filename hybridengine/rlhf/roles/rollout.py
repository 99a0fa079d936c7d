"""rollout: the policy that generates."""

from __future__ import annotations

import time
from typing import Any

import torch

from hybridengine import Spec, empty
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.environments import Player
from hybridengine.rlhf.environments.choosing import Environments
from hybridengine.rlhf.generation import Engine, SamplingParams, hollow
from hybridengine.rlhf.roles.ends import engines, shards, spec_of
from hybridengine.rlhf.roles.episode_rows import as_batch, tasks_of
from hybridengine.rlhf.roles.progress import follow
from hybridengine.rlhf.roles.tokenizer import end_token_ids, open_tokenizer
from hybridengine.rlhf.roles.trained import TrainedRole
from hybridengine.rlhf.roles.transfer import Meeting, Transfer, Weights
from hybridengine.rlhf.training.memory import bytes_below, memory_share
from hybridengine.rlhf.training.models import empty_model
from hybridengine.rlhf.workers import RankContext, Role, dispatch


class RolloutRole(Role):
    """One engine for every place of `rollout.tp_size` ranks. Its weights come from the actor; until
    the first sync() it has none."""

    @classmethod
    def place_size(cls, config: Config) -> int:
        return config.rollout.tp_size

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        self.tokenizer = open_tokenizer(config)
        rollout = config.rollout
        self._environments = Environments(config.environments)
        model, self._spec = self._build_model()
        follow(model, context)
        self._engine = Engine(
            model.to(context.device),
            eos_token_ids=end_token_ids(config, self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            tokenizer=self.tokenizer,
            max_model_len=rollout.max_model_len,
            max_num_seqs=rollout.max_num_seqs,
            device=context.device,
            cache_bytes=self._cache_bytes,
            **rollout.engine_options,
        )
        self._transfer: Transfer | None = None
        self.weights: dict[str, torch.Tensor] = {}

    @dispatch()
    def connect(self, meeting: Meeting | None) -> None:
        """Meets the actor: in the same processes (None), or where `meeting` says."""
        actor: Any = self.context.roles.get("actor")
        if meeting is None:
            comm, source = self.context.comm, actor.source()
            actor_ranks = self.context.world
        else:
            actor_ranks = meeting.actor_ranks
            comm, source = meeting.join(actor_ranks + self.context.rank), None
        layout = engines(self.config, self._spec, self.context.world, comm.world)
        self.weights = empty(layout, comm.rank)
        self._transfer = Transfer(
            comm,
            src=Weights(shards(self._spec, actor_ranks), source),
            dst=Weights(layout, self.weights),
        )

    @dispatch()
    def sync(self, version: int) -> dict[str, float]:
        """Takes the actor's weights as they are now, and calls them `version`. Above
        `rollout.reshard_threshold` of the memory, the roles of this process that train first move
        their optimizers to host memory."""
        actor: Any = self.context.roles.get("actor")
        began = time.perf_counter()
        used = memory_share(self.context.device)
        offloaded = used > self.config.rollout.reshard_threshold
        if offloaded:
            for role in self.context.roles.values():
                if isinstance(role, TrainedRole):
                    role.offload()
        if self._transfer is None:  # it slept
            self.connect(None)
        assert self._transfer is not None
        if actor is not None:
            actor.source()
        facts = self._transfer.run()
        self._engine.load_weights(self.weights, version)
        return {
            **facts,
            "seconds": time.perf_counter() - began,
            "memory_share": used,
            "offloaded": float(offloaded),
        }

    @dispatch(collect="none")
    def sleep(self) -> None:
        """Gives back the memory of weights, keys and values, until the next sync(); for ranks that
        train too."""
        self._engine.sleep()
        self._transfer, self.weights = None, {}

    @dispatch("by_place", returns="reference")
    def generate(
        self, prompts: Batch, options: dict[str, Any] | None = None, texts: bool = False
    ) -> tuple[Batch, dict[str, Any]]:
        """Responses to `prompts`, or whole episodes where environments answer: ids, and by row
        sample_id, group, with the objects of samples.

        `options` replace those of SamplingParams that the config gives. With `texts` the text of
        responses and observations comes back to the controller too.
        """
        began = time.perf_counter()
        params = self._params(options or {})
        player = Player(self._engine, self.tokenizer, params, self.config.rollout.max_model_len)
        episodes = player.play(tasks_of(prompts, self._environments))
        if memory_share(self.context.device) > self.config.rollout.reshard_threshold:
            self._engine.free()
        batch = as_batch(prompts, episodes, turns=bool(self._environments))
        shown = [each.ids[each.prompt_length :] for each in episodes] if texts else []
        summary = {
            "seconds": time.perf_counter() - began,
            "lengths": batch.lengths.tolist(),
            "responses": batch.row_sums(batch["mask"]).tolist(),
            "truncated": batch["truncated"].tolist(),
            "groups": batch["group"].tolist(),
            "texts": self.tokenizer.batch_decode(shown, skip_special_tokens=True),
        }
        return batch, summary

    def _cache_bytes(self) -> int:
        """What `rollout.gpu_memory_utilization` leaves for keys and values. Ranks without a device
        of their own share what the host has."""
        device = self.context.device
        left = bytes_below(device, self.config.rollout.gpu_memory_utilization)
        return left // self.context.world if device.type == "cpu" else left

    def _build_model(self) -> tuple[Any, Spec]:
        """The module whose weights will be the actor's, whole or this rank's share of it, and the
        tensors of the whole."""
        rollout = self.config.rollout
        module = empty_model(self.config.model, "policy", dtype=getattr(torch, rollout.dtype))
        spec = spec_of(module, self.config.actor)
        if self.context.place_size == 1:
            return hollow(module), spec
        from hybridengine.rlhf.generation.tensor_parallel import shard_model

        comm = self.context.place_comm
        return shard_model(module.config, comm.rank, comm.world, comm), spec

    def _params(self, options: dict[str, Any]) -> SamplingParams:
        rollout = self.config.rollout
        chosen: dict[str, Any] = {
            "max_tokens": self.config.data.max_response_length,
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
            "stop": tuple(rollout.stop),
            "stop_token_ids": tuple(rollout.stop_token_ids),
            "min_tokens": rollout.min_tokens,
            "ignore_eos": rollout.ignore_eos,
            "seed": self.config.seed,
        }
        return SamplingParams(**{**chosen, **options})
