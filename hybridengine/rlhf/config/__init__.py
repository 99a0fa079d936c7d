"""The config of a training run: its keys (schema.py), how it is read (loading.py) and checked.

Importing this package imports nothing; `loading` and `describe` need OmegaConf.
"""
