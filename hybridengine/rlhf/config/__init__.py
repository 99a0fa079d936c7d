"""The config of a training run: its keys (schema.py), how it is read (loading.py) and checked.

Importing this package imports nothing; the models need pydantic, `loading` OmegaConf too.
"""
