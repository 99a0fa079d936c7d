"""The trainer: PPO and its family over sharded models, with weights moved by the engine.

`hybridengine.rlhf.algorithms` has the formulas, `hybridengine.rlhf.balance` cuts a batch into parts
of equal work. Importing this package starts nothing and imports nothing but itself.
"""
