"""Weights from one layout to another, on real ranks."""
