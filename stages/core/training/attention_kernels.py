"""Which of torch's attention kernels a model may use on a GPU."""

import torch


def avoid_cudnn() -> None:
    """Keep torch from choosing cuDNN's attention in this process.

    It is torch's first choice on Hopper and Blackwell. Its backward pass gives NaN for some lengths under a mask such as that of
    packed rows (pytorch issue 196678), and it prepares a plan for each new shape. Flash attention and the memory-efficient kernel
    take its place.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
