"""The roles of a run, as they live in the processes of a pool.

actor (the policy that trains), rollout (the policy that generates), critic, reference, reward
(functions) and reward_model. A role computes on the rows that it is handed and keeps its model;
what happens when is the trainer's. To add one, derive from `workers.Role` and start it in
trainer/placement.py.
"""
