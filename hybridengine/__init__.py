"""Moves exactly the weight bytes that each rank lacks."""
