"""Rewards: functions that score responses, by name or from a file, in processes of their own.

    check(config.reward)  # before anything starts
    with RewardProcesses(config.reward) as rewards:
        scores = rewards.score([Item("gsm8k", "#### 4", "4", None, sample=0)])

A registered function has its own file here and one import below. Importing this package imports no
torch and none of the libraries that score. Models that score are roles, not rewards of this kind.
"""

from hybridengine.rlhf.rewards.binding import check, comparing_rewards
from hybridengine.rlhf.rewards.exact_match import exact_match
from hybridengine.rlhf.rewards.format_match import format_match
from hybridengine.rlhf.rewards.gym_score import gym_score
from hybridengine.rlhf.rewards.length import length
from hybridengine.rlhf.rewards.loading import load_function
from hybridengine.rlhf.rewards.math_answer import math_answer
from hybridengine.rlhf.rewards.processes import RewardProcesses
from hybridengine.rlhf.rewards.registry import reward
from hybridengine.rlhf.rewards.scoring import Item, Score, Scorer

__all__ = [
    "Item",
    "RewardProcesses",
    "Score",
    "Scorer",
    "check",
    "comparing_rewards",
    "exact_match",
    "format_match",
    "gym_score",
    "length",
    "load_function",
    "math_answer",
    "reward",
]
