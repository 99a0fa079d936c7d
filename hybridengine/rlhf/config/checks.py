"""checks: combinations of values that cannot work together, each with its mend.

Every rule takes a config whose values are within their own bounds and yields a sentence a fault. Of
what only a file, a model or a machine can tell nothing is said here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from hybridengine.rlhf.config.keys import entries, nearest_name
from hybridengine.rlhf.config.schema import Config

LOGGERS = ("console", "jsonl", "tensorboard", "wandb")

# They compare the responses to one prompt with each other.
_GROUP_ADVANTAGES = ("grpo", "rloo", "reinforce++-baseline")

_ONE_BOUND_LOSSES = ("clip", "dual-clip")


def combination_faults(config: Config) -> list[str]:
    """A sentence about every impossible combination."""
    return [fault for rule in _RULES for fault in rule(config)]


def pair_faults(config: Config) -> list[str]:
    """What `train-reward` needs besides: pairs from files."""
    faults = []
    if config.data.gym.name is not None:
        faults.append(
            f"data.gym.name is {config.data.gym.name!r}, but a reward model learns from pairs. Use "
            "data.train_files with a better and a worse answer a row."
        )
    if config.model.path is None:
        faults.append(
            "model.path is null, but a reward model starts from a checkpoint. Set model.path."
        )
    return faults


def _run(config: Config) -> Iterator[str]:
    name = config.run.name
    if name is not None and (name in ("", ".", "..") or PurePath(name).name != name):
        yield f"run.name is {name!r}, not the name of a folder. Use run.dir for the path to it."
    if config.run.resume and name is None:
        yield "run.resume is true, but run.name is null. Set run.name to the run to continue."


def _model(config: Config) -> Iterator[str]:
    if config.model.path is None and not config.model.config:
        yield (
            "there is no model: model.path is null and model.config is empty. Set model.path to "
            "the directory of a HF checkpoint, or use preset=demo."
        )
    if config.model.path is not None and config.model.config:
        yield (
            f"there are two models: model.path is {config.model.path!r} and model.config is set. "
            "Set model.config={} or model.path=null."
        )


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if not data.train_files and data.gym.name is None:
        yield (
            "there is no data: data.train_files is empty and data.gym.name is null. Set one of "
            "them."
        )
    if data.train_files and data.gym.name is not None:
        yield (
            f"there are two sources of data: data.train_files and data.gym.name="
            f"{data.gym.name}. Set data.train_files=[] or data.gym.name=null."
        )


def _offline(config: Config) -> Iterator[str]:
    if config.data.mode != "offline":
        return
    why = "but data.mode is offline, where responses come from files"
    if config.data.gym.name is not None:
        yield (
            f"data.gym.name is {config.data.gym.name!r}, {why}. Use data.mode=online or "
            "data.train_files."
        )
    if config.algorithm.group_filter == "dapo":
        yield (
            f"algorithm.group_filter is dapo, which samples more, {why}. Use "
            "algorithm.group_filter=none."
        )
    if config.algorithm.advantage == "remax":
        yield (
            f"algorithm.advantage is remax, whose baseline is a greedy response, {why}. Use "
            "data.mode=online or another advantage."
        )


def _lengths(config: Config) -> Iterator[str]:
    data, room = config.data, config.rollout.max_model_len
    total = data.max_prompt_length + data.max_response_length
    if total > room:
        yield (
            f"data.max_prompt_length {data.max_prompt_length} and data.max_response_length "
            f"{data.max_response_length} add up to {total}, more than rollout.max_model_len "
            f"{room}. Set rollout.max_model_len={total}, or shorten one of them."
        )
    if config.algorithm.overlong_buffer > data.max_response_length:
        yield (
            f"algorithm.overlong_buffer is {config.algorithm.overlong_buffer}, more than "
            f"data.max_response_length {data.max_response_length}. Use a smaller buffer."
        )


def _batches(config: Config) -> Iterator[str]:
    mini, whole = config.actor.ppo_mini_batch_size, config.data.train_batch_size
    if mini > whole:
        yield (
            f"actor.ppo_mini_batch_size is {mini}, more than data.train_batch_size {whole}. Set "
            f"actor.ppo_mini_batch_size={whole} or less."
        )


def _strategies(config: Config) -> Iterator[str]:
    for role in ("actor", "critic", "reward_model"):
        if getattr(config, role).strategy == "megatron":
            yield (
                f"{role}.strategy is megatron, and megatron roles are not there yet. Use "
                f"{role}.strategy=fsdp2."
            )


def _names(config: Config) -> Iterator[str]:
    """Names of formulas. A default is one of them, so that torch is imported for others only."""
    chosen = {
        "algorithm.advantage": config.algorithm.advantage,
        "algorithm.policy_loss": config.algorithm.policy_loss,
        "algorithm.loss_aggregation": config.algorithm.loss_aggregation,
        "algorithm.group_filter": config.algorithm.group_filter,
    }
    others = {key: name for key, name in chosen.items() if name != entries()[key].default}
    if not others:
        return
    from hybridengine.rlhf import algorithms

    known = {
        "algorithm.advantage": algorithms.advantage.names(),
        "algorithm.policy_loss": algorithms.policy_loss.names(),
        "algorithm.loss_aggregation": algorithms.aggregation.names(),
        "algorithm.group_filter": algorithms.group_filter.names(),
    }
    for key, name in others.items():
        if name not in known[key]:
            mend = nearest_name(name, known[key])
            yield f"{key} is {name!r}, not one of {', '.join(known[key])}. {mend}"


def _groups(config: Config) -> Iterator[str]:
    if config.rollout.n > 1 or config.data.mode == "offline":
        return
    algorithm = config.algorithm
    wants = []
    if algorithm.advantage in _GROUP_ADVANTAGES:
        wants.append(f"algorithm.advantage={algorithm.advantage}")
    if algorithm.group_filter == "dapo":
        wants.append("algorithm.group_filter=dapo")
    for want in wants:
        yield (
            f"{want} compares the responses to one prompt, but rollout.n is 1. Set rollout.n to 2 "
            "or more."
        )


def _clip_bounds(config: Config) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.policy_loss not in _ONE_BOUND_LOSSES:
        return
    for key in ("clip_ratio_low", "clip_ratio_high"):
        if getattr(algorithm, key) is not None:
            yield (
                f"algorithm.{key} is set, but algorithm.policy_loss={algorithm.policy_loss} has "
                "one bound, algorithm.clip_ratio. Use algorithm.policy_loss=clip-higher."
            )


def _kl(config: Config) -> Iterator[str]:
    algorithm, kl = config.algorithm, config.algorithm.kl
    if kl.controller == "adaptive" and algorithm.kl_coef == 0:
        yield (
            "algorithm.kl.controller is adaptive, but algorithm.kl_coef is 0 and stays so. Start "
            "from a number above 0, e.g. 0.01."
        )
    if kl.controller == "adaptive" and kl.where == "none":
        yield (
            "algorithm.kl.controller is adaptive, but algorithm.kl.where is none. Use reward or "
            "loss."
        )
    if kl.unbiased_gradient and kl.where != "loss":
        yield (
            f"algorithm.kl.unbiased_gradient is true, but algorithm.kl.where is {kl.where}. Set "
            "algorithm.kl.where=loss."
        )


def _rewards(config: Config) -> Iterator[str]:
    reward = config.reward
    if reward.weights and len(reward.weights) != len(reward.functions):
        yield (
            f"reward.weights has {len(reward.weights)} entries for {len(reward.functions)} of "
            "reward.functions. Give one for each, or none."
        )
    if not reward.functions and reward.function is None and config.reward_model.path is None:
        yield (
            "there is no reward: reward.functions is empty, reward.function and reward_model.path "
            "are null. Set one of them."
        )


def _loggers(config: Config) -> Iterator[str]:
    for name in config.trainer.loggers:
        if name not in LOGGERS:
            mend = nearest_name(name, LOGGERS)
            yield f"trainer.loggers has {name!r}, not one of {', '.join(LOGGERS)}. {mend}"


def _betas(config: Config) -> Iterator[str]:
    for role in ("actor", "critic"):
        betas = getattr(config, role).optimizer.betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            yield (
                f"{role}.optimizer.betas is {betas}, not two numbers from 0 to below 1. Use e.g. "
                "[0.9, 0.999]."
            )


def _tensor_parallel(config: Config) -> Iterator[str]:
    trainer = config.trainer
    alone = trainer.placement == "standalone"
    ranks = "rollout_ranks" if alone else "ranks"
    pools = [("rollout", config.rollout.tp_size, ranks)]
    if config.reward_model.path is not None:
        apart = trainer.placement in ("split", "standalone")
        ranks = "aux_ranks" if apart else "ranks"
        pools.append(("reward_model", config.reward_model.tp_size, ranks))
    for role, tp_size, ranks in pools:
        size = getattr(trainer, ranks)
        if size % tp_size:
            yield (
                f"{role}.tp_size {tp_size} does not divide trainer.{ranks} {size}. Use a divisor "
                f"of {size}, or another trainer.{ranks}."
            )


def _lora(config: Config) -> Iterator[str]:
    lora = config.actor.lora
    if lora.target_modules and not lora.enable:
        yield (
            "actor.lora.target_modules is set, but actor.lora.enable is false. Set "
            "actor.lora.enable=true."
        )
    if "" in lora.target_modules:
        yield "actor.lora.target_modules has an empty name. Use names of layers, e.g. q_proj."


def _support(config: Config) -> Iterator[str]:
    """The trainer's log-probs are over all tokens; cut sampling is another distribution."""
    rollout = config.rollout
    cuts = []
    if rollout.top_p < 1:
        cuts.append(f"rollout.top_p={rollout.top_p:g}")
    if rollout.top_k > 0:
        cuts.append(f"rollout.top_k={rollout.top_k}")
    if cuts and config.data.mode == "online" and config.algorithm.rollout_correction == "none":
        yield (
            f"{' and '.join(cuts)} samples among part of the tokens, the trainer's log-probs are "
            "over all: their ratio is not 1. Set algorithm.rollout_correction=token, or "
            "rollout.top_p=1 and rollout.top_k=0."
        )


_RULES = (
    *(_run, _model, _data, _offline, _lengths, _batches, _strategies, _names, _groups),
    *(_clip_bounds, _kl, _rewards, _loggers, _betas, _tensor_parallel, _lora, _support),
)
