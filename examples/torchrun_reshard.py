"""Four training ranks hand their weights to two vLLM replicas of tp 2.

torchrun --nproc-per-node 4 examples/torchrun_reshard.py
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import hybridengine

CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 1000}
CONFIG |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}

dist.init_process_group("gloo")
spec = hybridengine.Spec.from_config(CONFIG)
mesh = init_device_mesh("cpu", (4,))
model = {  # what FSDP2 keeps of a model, here with random weights
    name: distribute_tensor(torch.randn(shape), mesh, [Shard(0)]) for name, shape, _ in spec.tensors
}

src = hybridengine.LayoutRule.parse("fsdp2(4)").bind(spec)
resharder = hybridengine.Resharder(model, src, "vllm(tp=2,dp=2)")
weights = resharder.run()  # again after every training step: the plan is kept

report = resharder.report
shape = tuple(weights["model.layers.0.self_attn.qkv_proj.weight"].shape)
print(f"rank {dist.get_rank()}: received {report.received_bytes} bytes of {report.bound_bytes}")
print(f"rank {dist.get_rank()}: qkv_proj is {shape}")
dist.destroy_process_group()
