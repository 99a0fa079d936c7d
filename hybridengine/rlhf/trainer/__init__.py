"""The controller of a run: what happens in a step, and everything around it.

It reads prompts, holds references to what the roles compute, and never a tensor of the model.
"""
