"""Four training ranks hand a model to two vLLM replicas of tp 2.

torchrun --nproc-per-node 4 examples/torchrun_reshard.py
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import hybridengine

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}

# The weights of a model under FSDP2 are such sharded tensors; here they are random.
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (4,))
spec = hybridengine.Spec.from_config(CONFIG)
state = {
    name: distribute_tensor(torch.randn(shape), mesh, [Shard(0)]) for name, shape, _ in spec.tensors
}

# The source is bound to the spec because a plain dict has no config to tell heads from rows.
src = hybridengine.Layout.fsdp2(4).bind(spec)
resharder = hybridengine.Resharder(state, src, "vllm(tp=2,dp=2)")
weights = resharder.run()  # again after each training step: the plan is kept

report = resharder.report
shape = tuple(weights["model.layers.0.self_attn.qkv_proj.weight"].shape)
print(
    f"rank {dist.get_rank()}: received {report.received_bytes} of {report.bound_bytes} bytes bound, "
    f"qkv_proj {shape}"
)
dist.destroy_process_group()
