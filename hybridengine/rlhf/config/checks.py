"""checks: combinations of values that cannot work together, each with its mend.

The rules about `algorithm` are in algorithm_checks.py.

Every rule takes a config whose values are within their own bounds and yields a sentence a fault. Of
what only a file, a model or a machine can tell nothing is said here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from hybridengine._core import UsageError
from hybridengine.rlhf.config.algorithm_checks import ALGORITHM_RULES
from hybridengine.rlhf.config.keys import entries
from hybridengine.rlhf.config.pools import key_of_ranks, pools_of
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.plugins import is_reference, load_plugin


def combination_faults(config: Config) -> list[str]:
    """A sentence about every impossible combination."""
    return [fault for rule in _RULES for fault in rule(config)]


def pair_faults(config: Config) -> list[str]:
    """The same for `train-reward`, which has no rollouts and no policy."""
    return [fault for rule in _PAIR_RULES for fault in rule(config)]


def _run(config: Config) -> Iterator[str]:
    name = config.run.name
    if name is not None and (name in ("", ".", "..") or PurePath(name).name != name):
        yield f"run.name is {name!r}, not the name of a folder. Use run.dir for the path to it."
    if config.run.resume and name is None:
        yield "run.resume is true, but run.name is null. Set run.name to the run to continue."


def _model(config: Config) -> Iterator[str]:
    yield from _one_model(config, ", or use preset=demo")


def _pair_model(config: Config) -> Iterator[str]:
    """The demo has no pairs."""
    yield from _one_model(config, "")


def _one_model(config: Config, also: str) -> Iterator[str]:
    if config.model.path is None and not config.model.config:
        yield (
            "there is no model: model.path is null and model.config is empty. Set model.path to "
            f"the directory of a HF checkpoint{also}."
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


def _pairs(config: Config) -> Iterator[str]:
    if config.data.gym.name is not None:
        yield (
            f"data.gym.name is {config.data.gym.name!r}, but a reward model learns from pairs. Use "
            "data.train_files with a better and a worse answer a row."
        )
    elif not config.data.train_files:
        yield "there are no pairs: data.train_files is empty. Set it."


def _pair_records(config: Config) -> Iterator[str]:
    for key in ("pools", "environments", "eval_sets"):
        if getattr(config, key):
            yield (
                f"{key} is set, but fitting a reward model has one pool, of trainer.ranks, and "
                f"generates nothing. Leave {key} out."
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
    if config.warmup.steps > 0:
        yield (
            f"warmup.steps is {config.warmup.steps}, but data.mode is offline, which has no "
            "warm-up. Set warmup.steps=0."
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


def _evaluations(config: Config) -> Iterator[str]:
    sets = {f"eval_sets.{name}": each for name, each in config.eval_sets.items()}
    for key, each in {"evaluation": config.evaluation, **sets}.items():
        if each.n > 1 and each.temperature == 0:
            yield (
                f"{key}.n is {each.n}, but with {key}.temperature 0 all responses to a prompt are "
                f"the same. Set {key}.temperature above 0, or {key}.n=1."
            )
    for name, each in config.eval_sets.items():
        if not each.files:
            yield f"eval_sets.{name}.files is empty. Name its files, or leave the set out."
        if not name or "/" in name or name == "reward":
            yield (
                f"eval_sets has the name {name!r}, of which no metric can be made. Use one without "
                "a slash, and not reward."
            )
    for key, given in (("data.eval_files", config.data.eval_files), ("eval_sets", sets)):
        if given and config.data.mode == "offline":
            yield (
                f"{key} is set, but with data.mode=offline nothing generates. Leave {key} out, or "
                "use data.mode=online."
            )


def _lengths(config: Config) -> Iterator[str]:
    data, room = config.data, config.rollout.max_model_len
    total = data.max_prompt_length + data.max_response_length
    if total > room and data.mode == "online":
        yield (
            f"data.max_prompt_length {data.max_prompt_length} and data.max_response_length "
            f"{data.max_response_length} add up to {total}, more than rollout.max_model_len "
            f"{room}. Set rollout.max_model_len={total}, or shorten one of them."
        )
    if config.rollout.min_tokens > data.max_response_length:
        yield (
            f"rollout.min_tokens is {config.rollout.min_tokens}, more than "
            f"data.max_response_length {data.max_response_length}. Use fewer."
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


def _rewards(config: Config) -> Iterator[str]:
    """Of options, and of what a file defines, the rewards know: hybridengine.rlhf.rewards.check."""
    reward = config.reward
    yield from _named_once("reward.functions", reward.functions)
    if reward.weights and len(reward.weights) != len(reward.functions):
        yield (
            f"reward.weights has {len(reward.weights)} numbers for the {len(reward.functions)} "
            "rewards of reward.functions. Give one for each, or none."
        )
    if not reward.functions and reward.function is None and config.reward_model.path is None:
        yield (
            "there is no reward: reward.functions is empty, reward.function and reward_model.path "
            "are null. Set one of them."
        )


def _loggers(config: Config) -> Iterator[str]:
    yield from _named_once("trainer.loggers", config.trainer.loggers)


def _named_once(key: str, names: Sequence[str]) -> Iterator[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        yield f"{key} has {twice!r} more than once. Name it once."


def _files(config: Config) -> Iterator[str]:
    """Functions of the user's own: their files are imported, so that a fault of one comes first."""
    given = {
        "algorithm.advantage": config.algorithm.advantage,
        "algorithm.policy_loss": config.algorithm.policy_loss,
        "reward.function": config.reward.function,
        **{f"environments.{name}.use": each.use for name, each in config.environments.items()},
    }
    for key, name in given.items():
        if name is not None and (is_reference(name) or key == "reward.function"):
            try:
                load_plugin(name, key)
            except UsageError as error:
                yield str(error)


def _shards(config: Config) -> Iterator[str]:
    for role in ("actor", "critic"):
        section = getattr(config, role)
        if section.param_dtype == "bfloat16" and section.dtype != "bfloat16":
            yield (
                f"{role}.param_dtype is bfloat16, but {role}.dtype is {section.dtype}: weights "
                f"would be widened again at each pass. Set {role}.dtype=bfloat16."
            )


def _betas(config: Config) -> Iterator[str]:
    for role in ("actor", "critic"):
        betas = getattr(config, role).optimizer.betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            yield (
                f"{role}.optimizer.betas is {betas}, not two numbers from 0 to below 1. Use e.g. "
                "[0.9, 0.999]."
            )


def _tensor_parallel(config: Config) -> Iterator[str]:
    for name, pool in pools_of(config, config.trainer.placement).items():
        key = key_of_ranks(config, name)
        for role in pool.roles:
            tp_size = getattr(getattr(config, role), "tp_size", 1)
            if pool.ranks % tp_size:
                yield (
                    f"{role}.tp_size {tp_size} does not divide {key} {pool.ranks}. Use a divisor "
                    f"of {pool.ranks}, or another {key}."
                )


def _device(config: Config) -> Iterator[str]:
    if config.data.mode == "offline":
        return
    why = "but weights go to the engine in host memory only"
    if config.trainer.device == "cuda":
        yield (
            f"trainer.device is cuda, {why}. Use trainer.device=cpu (or auto), or "
            "data.mode=offline."
        )
    for name, pool in config.pools.items():
        if pool.gpus_per_rank and {"actor", "rollout"} & set(pool.roles):
            yield f"pools.{name}.gpus_per_rank is {pool.gpus_per_rank:g}, {why}. Leave it out."


def _pools(config: Config) -> Iterator[str]:
    """That every role has a place, and one only."""
    if not config.pools:
        return
    for key in ("placement", "ranks", "rollout_ranks", "aux_ranks"):
        if getattr(config.trainer, key) != entries()[f"trainer.{key}"].default:
            yield (
                f"trainer.{key} is {getattr(config.trainer, key)}, but pools says which pools "
                "there are. Leave one of them out."
            )
    homes = {
        role: [name for name, pool in config.pools.items() if role in pool.roles]
        for role in roles_of(config)
    }
    for role, names in homes.items():
        if not names:
            yield f"no pool has the role {role}, which the run needs. Add it to pools.NAME.roles."
        elif len(names) > 1:
            both = " and ".join(f"pools.{name}.roles" for name in names)
            yield f"{both} have the role {role}. Leave it in one of them."
    if "reference" in homes and homes["reference"] != homes["actor"]:
        yield (
            "the role reference is a copy of the actor's shards, but lives in another pool. Add "
            "it to the pools.NAME.roles that has the actor."
        )


def _staleness(config: Config) -> Iterator[str]:
    """Whoever generates while others train has ranks of its own."""
    if not config.trainer.staleness:
        return
    if config.data.mode == "offline":
        yield (
            "trainer.staleness is 1, but data.mode is offline, where nothing is generated. Set "
            "trainer.staleness=0."
        )
        return
    for name, pool in pools_of(config, config.trainer.placement).items():
        trained = [role for role in pool.roles if role in ("actor", "critic", "reference")]
        if trained and {"rollout", "reward"} & set(pool.roles):
            how = f"pools.{name}" if config.pools else "trainer.placement"
            mend = "Give them pools of their own" if config.pools else f"Set {how}=standalone"
            yield (
                "trainer.staleness is 1, so that rollout and reward work while the others train, "
                f"but {how} puts them on the ranks of {' and '.join(trained)}. {mend}."
            )


def _environments(config: Config) -> Iterator[str]:
    if config.environments and config.data.mode == "offline":
        yield (
            "environments is set, but data.mode is offline, where responses come from files. Set "
            "environments={} or data.mode=online."
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


_RULES = (
    *(_run, _model, _data, _offline, _lengths, _batches, _strategies, _rewards, _loggers, _files),
    *(_betas, _shards, _pools, _tensor_parallel, _device, _lora, _environments, _evaluations),
    _staleness,
    *ALGORITHM_RULES,
)
_PAIR_RULES = (_run, _pair_model, _pairs, _pair_records, _strategies, _loggers, _betas, _shards)
