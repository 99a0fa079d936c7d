"""Training of the trainer's models: sharded forward passes, updates of weights, and their state.

Every function runs on all ranks of one torch.distributed group; there is no Ray here. Modules are
imported one by one where they are used, since most of them need transformers.
"""
