"""preflight: what only files and libraries can tell, before any process starts.

What the config itself can tell was checked when it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config, Reward
from hybridengine.rlhf.data import Encoded, EncodedResponse
from hybridengine.rlhf.generation.tensor_parallel import check_cut
from hybridengine.rlhf.model_files import model_directory
from hybridengine.rlhf.rewards import comparing_rewards


def check_attention(config: Config) -> None:
    """Throws UsageError where a model that the run has a use for is none that transformers knows,
    or needs an attention that rows without padding do not have."""
    wanted = roles_of(config)
    for role in ("actor", "critic", "reference", "reward_model"):
        if role not in wanted:
            continue
        own = None if role == "actor" else getattr(config, role).path
        path, section = (own, role) if own is not None else (config.model.path, "model")
        model = hf_config(path, config.model.config if path is None else {}, section)
        packs = config.critic if role == "critic" else config.actor
        cap = getattr(model, "attn_logit_softcapping", None)
        if packs.sequence_packing and cap is not None:
            key = "critic" if role == "critic" else "actor"
            raise UsageError(
                f"{role}: models of type {model.model_type!r} cap the logits of their attention "
                f"(at {cap:g}), which rows without padding do not compute. Set "
                f"{key}.sequence_packing=false."
            )


def check_ground_truth(reward: Reward, encoded: Sequence[Encoded | EncodedResponse]) -> None:
    """Throws UsageError for the first sample without a ground truth that a reward compares with."""
    names = comparing_rewards(reward)
    for each in encoded if names else ():
        if each.sample.ground_truth is None:
            raise UsageError(
                f"{each.sample.name()}: there is no ground truth, which reward {names[0]!r} "
                "compares with. Set data.ground_truth_key to the column that has it, or "
                "reward.functions to others."
            )


def hf_config(path: str | None, facts: dict[str, Any], section: str) -> Any:
    """What transformers makes of a model's config. Throws UsageError, with the `section` that names
    the model, where it makes nothing."""
    from transformers import AutoConfig

    where = f"{section}.path={path}" if path is not None else f"{section}.config"
    try:
        if path is not None:
            return AutoConfig.from_pretrained(model_directory(path), local_files_only=True)
        rest = {name: value for name, value in facts.items() if name != "model_type"}
        return AutoConfig.for_model(str(facts.get("model_type")), **rest)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise UsageError(
            f"{where} is no model that transformers knows: {reason}. Give a directory with "
            "config.json and weights, or a model_type and its keys."
        ) from None


def check_cuts(config: Config) -> None:
    """Throws UsageError where ranks are to share the layers of a model that cannot be cut so."""
    models: dict[str, tuple[str | None, dict[str, Any]]] = {
        "reward_model": (config.reward_model.path, {}),
        "rollout": (config.model.path, config.model.config),
    }
    wanted = roles_of(config)
    for name, (path, facts) in models.items():
        tp_size = getattr(config, name).tp_size
        if name in wanted and tp_size > 1:
            model = hf_config(path, facts, "model" if name == "rollout" else name)
            model.architectures = None  # a classifier's layers are those of its type
            try:
                check_cut(model, tp_size)
            except UsageError as error:
                raise UsageError(f"{name}.tp_size={tp_size}: {error}") from None
