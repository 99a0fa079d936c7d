"""records: the sections of which a config has several, each under a name of the user's own, and
those that are like them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hybridengine.rlhf.config.fields import Named, Section

# The built-in ones, in the order of hybridengine.rlhf.environments.
ENVIRONMENTS = ("calculator", "tower_of_hanoi")

Role = Literal["actor", "rollout", "reference", "reward", "critic", "reward_model"]


class Pool(Section):
    """A record of `pools`: ranks that form one world, and the roles that live there."""

    ranks: int = Field(ge=1, description="processes, one a rank")
    roles: list[Role] = Field(description="what lives there; a role lives in one pool")
    cpus_per_rank: float | None = Field(
        None, ge=0, description="CPUs that Ray reserves for a rank; null: cluster.cpus_per_rank"
    )
    gpus_per_rank: float | None = Field(
        None, ge=0, description="GPUs of a rank; null: as trainer.device says"
    )
    one_host: bool = Field(False, description="all its ranks on one host; else on as few as can be")


class EnvironmentRecord(Section):
    """A record of `environments`."""

    use: Annotated[str, Named(ENVIRONMENTS)] = Field(
        description="name of an environment, or path.py:name of one of your own"
    )
    options: dict[str, Any] = Field({}, description="options of the environment")
    max_turns: int = Field(8, ge=1, description="responses of an episode at most")
    data_sources: list[str] = Field(
        [], description="the data_source of samples that it is for; empty: all"
    )


class EvalSampling(Section):
    n: int = Field(1, ge=1, description="responses a prompt; pass@k is measured for k up to it")
    temperature: float = Field(
        0.0, ge=0, description="of them; 0: the likeliest response, of which there is one"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="sample among the likeliest tokens that add up to it"
    )


class Evaluation(EvalSampling):
    """How the held-out prompts of data are answered."""

    pass_score: float = Field(1.0, description="score from which on a response passes (pass@k)")


class EvalSet(EvalSampling):
    """A set besides that one, with a name."""

    files: list[str] = Field(description="as data.eval_files")
