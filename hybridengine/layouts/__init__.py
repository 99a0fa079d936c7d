"""What a model's tensors are, and who holds which part of them."""
