"""Many LoRA adapters over one frozen model, in one forward and backward pass.

y_TO = W_OI x_TI + (alpha / R) * B_OR[n] A_RI[n] x_TI, with n the adapter of each token (LoRA, Hu et al. 2021, eq. 3).

Tokens are routed by contiguous segments in the order of the stack: `counts` states how many rows of the batch belong to each
adapter. All factors of one adapter form one row of a flat fp32 matrix, so that the optimizer, the gradient norm and copying an
adapter are operations on rows. Deviations from PEFT: no dropout, no bias, no rsLoRA or DoRA, nn.Linear only.

Axes: N adapters · T tokens (flattened rows) · R rank · I inputs · O outputs · P all LoRA parameters of one adapter.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import parameter_shapes
from stages.core.training.attention import group_queries
from stages.core.training.lora_backends import (
    Backend,
    EqualGroups,
    Segments,
    add_equal_groups,
    add_segments,
    choose_backend,
    lora_bmm,
    lora_loop,
)
from stages.core.training.packed_weights import PackedHead, PackedWeight, can_pack


class Router:
    """Which rows of the current batch belong to which adapter; shared by all layers of one model.

    `counts_N` is None while nothing is routed (an error), and empty while the base model runs alone.
    """

    def __init__(self) -> None:
        self.counts_N: tuple[int, ...] | None = None

    @contextmanager
    def routed(self, counts_N: Sequence[int] | None) -> Iterator[None]:
        """Route by `counts_N` inside the block and restore the previous routing afterwards."""
        before, self.counts_N = self.counts_N, None if counts_N is None else tuple(counts_N)
        try:
            yield
        finally:
            self.counts_N = before

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return `context_fn` for torch's checkpoint: the recomputation during backward uses the routing of its forward pass."""
        counts_N = self.counts_N
        return self.routed(counts_N), self.routed(counts_N)


class GroupedLoRALinear(nn.Module):
    """A frozen linear layer plus one low-rank correction per adapter.

    `A_NRI` and `B_NOR` are parameters in fp32 (fp64 over an fp64 base), cast to the activations' type when used, or once for
    all passes inside `GroupedLoRA.rounded`.
    """

    A_NRI: nn.Parameter
    B_NOR: nn.Parameter

    def __init__(self, base: nn.Linear, router: Router, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(base.weight.detach(), requires_grad=False)
        self.bias = None if base.bias is None else nn.Parameter(base.bias.detach(), requires_grad=False)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.router, self.scale = router, scale
        self.backend: Backend | None = None
        self.packed: PackedWeight | None = None
        self.rounded: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., I] -> [..., O]. Raise RuntimeError outside `routed`, or if the routing does not fit the batch."""
        counts_N = self.router.counts_N
        if counts_N is None:
            raise RuntimeError("the rows of this batch were not routed to adapters")
        if not counts_N:
            return self._base(x)
        x_TI, rows = x.reshape(-1, self.in_features), sum(counts_N)
        if len(counts_N) != self.A_NRI.shape[0] or rows == 0 or x_TI.shape[0] % rows:
            raise RuntimeError(f"routing {counts_N} does not fit {self.A_NRI.shape[0]} adapters, {x_TI.shape[0]} tokens")
        out = self._routed(x_TI, [count * (x_TI.shape[0] // rows) for count in counts_N])
        return out.view(*x.shape[:-1], self.out_features)

    def _routed(self, x_TI: torch.Tensor, tokens_N: list[int]) -> torch.Tensor:
        rounded = None if torch.is_grad_enabled() else self.rounded
        A_NRI, B_NOR = rounded or (self.A_NRI, self.B_NOR)
        if not (tokens_N[0] and tokens_N[-1]):  # adapters outside the range cost nothing; their gradient is exactly zero
            active = [n for n, count in enumerate(tokens_N) if count]
            span = slice(active[0], active[-1] + 1)
            A_NRI, B_NOR, tokens_N = A_NRI[span], B_NOR[span], tokens_N[span]
        # fp32 masters are rounded to the activations' type here, as PEFT does on load
        A_NRI, B_NOR = A_NRI.to(x_TI.dtype), B_NOR.to(x_TI.dtype)
        backend = self.backend or choose_backend(x_TI, A_NRI, B_NOR, tokens_N)
        factors = (A_NRI, B_NOR)
        if backend is lora_bmm and min(tokens_N) == max(tokens_N):
            return self._equal_groups(x_TI, *factors)
        if backend is lora_loop:
            return self._segments(x_TI, *factors, tokens_N)
        add = torch.add if torch.is_grad_enabled() else torch.Tensor.add_
        return add(self._base(x_TI), backend(x_TI, *factors, tokens_N), alpha=self.scale)

    def _equal_groups(self, x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            fused: torch.Tensor = EqualGroups.apply(x_TI, self.weight, self.bias, A_NRI, B_NOR, self.scale)  # type: ignore[no-untyped-call]
            return fused
        out_TO = self._base(x_TI)
        add_equal_groups(out_TO, x_TI, A_NRI, B_NOR, self.scale)
        return out_TO

    def _segments(self, x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: list[int]) -> torch.Tensor:
        if torch.is_grad_enabled():
            fused: torch.Tensor = Segments.apply(x_TI, self.weight, self.bias, A_NRI, B_NOR, tokens_N, self.scale)  # type: ignore[no-untyped-call]
            return fused
        out_TO = self._base(x_TI)
        add_segments(out_TO, x_TI, A_NRI, B_NOR, tokens_N, self.scale)
        return out_TO

    def _base(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is None or not torch.is_inference_mode_enabled():  # a trainer may measure before or after an engine packs
            return F.linear(x, self.weight, self.bias)
        return self.packed.linear(x, self.bias)


class GroupedLoRA:
    """The stack of adapters over one model: load and read rows, route batches, access parameters and gradients as [N, P]."""

    def __init__(
        self, model: nn.Module, layers: Mapping[str, GroupedLoRALinear], router: Router, rank: int, alpha: float
    ) -> None:
        self.model, self.layers, self.rank, self.alpha = model, dict(layers), rank, alpha
        self._router = router
        self._loaded: tuple[Weights, ...] | None = None
        self.parameters_NP = torch.empty(0)

    @property
    def num_adapters(self) -> int:
        """Number of rows in the stack."""
        return self.parameters_NP.shape[0]

    @property
    def gradients_NP(self) -> torch.Tensor:
        """Return a copy of the accumulated gradients in the layout of `parameters_NP`; zeros where there was no backward pass."""
        factors = [factor for layer in self.layers.values() for factor in (layer.A_NRI, layer.B_NOR)]
        grads = [torch.zeros_like(factor) if factor.grad is None else factor.grad for factor in factors]
        return torch.cat([grad.reshape(self.num_adapters, -1) for grad in grads], dim=1)

    def clear_gradients(self) -> None:
        """Discard the accumulated gradients."""
        for layer in self.layers.values():
            layer.A_NRI.grad = layer.B_NOR.grad = None

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Module path -> (O, I) of every layer that carries adapters."""
        return {path: (layer.out_features, layer.in_features) for path, layer in self.layers.items()}

    def names(self) -> list[str]:
        """PEFT parameter names in the order of a row."""
        return list(parameter_shapes(self.shapes(), self.rank))

    def resize(self, num_adapters: int) -> None:
        """Reset the stack to `num_adapters` rows of zeros, without gradients."""
        weight = next(iter(self.layers.values())).weight
        dtype = torch.promote_types(torch.float32, weight.dtype)
        width = sum(int(np.prod(shape)) for shape in parameter_shapes(self.shapes(), self.rank).values())
        self.parameters_NP = torch.zeros(num_adapters, width, dtype=dtype, device=weight.device)
        self._loaded = None
        start = 0
        for name, shape in parameter_shapes(self.shapes(), self.rank).items():
            layer, factor = self._place(name)
            stop = start + int(np.prod(shape))
            # a view of the flat matrix: a step on the matrix is a step on every factor
            setattr(layer, factor, nn.Parameter(self.parameters_NP[:, start:stop].view(num_adapters, *shape)))
            start = stop

    def _place(self, name: str) -> tuple[GroupedLoRALinear, str]:
        path, factor = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
        return self.layers[path], {"lora_A": "A_NRI", "lora_B": "B_NOR"}[factor]

    def load(self, stack: Sequence[Weights]) -> None:
        """Load these adapters into the stack in this order; copy nothing if they are already loaded. Raise ValueError."""
        if self._loaded is not None and [id(weights) for weights in self._loaded] == [id(weights) for weights in stack]:
            return
        if len(stack) != self.num_adapters:
            self.resize(len(stack))
        for row, weights in enumerate(stack):
            load_row(self, row, weights)
        self._loaded = tuple(stack)

    def routed(self, counts_N: Sequence[int]) -> AbstractContextManager[None]:
        """Route the batch's rows: the first `counts_N[0]` to adapter 0, and so on."""
        return self._router.routed(counts_N)

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Round the loaded adapters to the model's type once, for passes inside the block that need no gradient.

        Decoding would otherwise read all factors in fp32 for every token. They must not change inside the block.
        """
        dtype = next(self.model.parameters()).dtype
        try:
            for layer in self.layers.values():
                layer.rounded = (layer.A_NRI.detach().to(dtype), layer.B_NOR.detach().to(dtype))
            yield
        finally:
            for layer in self.layers.values():
                layer.rounded = None

    def alone(self) -> AbstractContextManager[None]:
        """Run the base model without any adapter inside the block."""
        return self._router.routed(())

    def set_backend(self, backend: Backend | None) -> None:
        """Use one backend everywhere, or (None) the backend that `choose_backend` picks for each batch."""
        for layer in self.layers.values():
            layer.backend = backend

    def pack(self) -> None:
        """Pack the frozen weights for decoding, once, where the CPU has a layout for them; the same bits in less time."""
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        for layer in self.layers.values():
            if layer.packed is None and can_pack(layer.weight):
                layer.packed = PackedWeight(layer.weight)
        if type(head) is nn.Linear and can_pack(head.weight):
            self.model.set_output_embeddings(PackedHead(head))  # type: ignore[operator]

    def checkpoint(self, on: bool) -> None:
        """Recompute activations in the backward pass (needs train mode, hence a model without dropout) or keep them."""
        model: Any = self.model
        if on:
            kwargs = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": self._router.contexts}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
        else:
            model.gradient_checkpointing_disable()
        model.train(on)


def attach(
    model: nn.Module, targets: Sequence[str], rank: int, alpha: float, num_adapters: int, window: int | None = None
) -> GroupedLoRA:
    """Replace the linear layers that `targets` name (as PEFT matches them: whole name or dotted suffix), in place.

    The base is frozen and put into eval mode. Raise ValueError if a target names nothing, something that is not an nn.Linear,
    or the output head (the chunked loss bypasses it, and it may be tied to the embeddings), and for models whose attention
    is not full attention. Sliding attention is full attention within its window: `window` is what texts are limited to.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    within = window is not None and window <= (getattr(model.config, "sliding_window", None) or 0)
    if kinds - ({"full_attention", "sliding_attention"} if within else {"full_attention"}):
        raise ValueError(f"layers of type {sorted(kinds)}: only full attention can be packed and cached by rows")
    model.requires_grad_(False).eval()
    group_queries(model)
    router, layers = Router(), {}
    for path, shape in target_shapes(model, targets).items():
        parent_path, _, child = path.rpartition(".")
        layer = GroupedLoRALinear(model.get_submodule(path), router, alpha / rank)  # type: ignore[arg-type]
        assert (layer.out_features, layer.in_features) == shape, (path, shape)
        setattr(model.get_submodule(parent_path), child, layer)
        layers[path] = layer
    lora = GroupedLoRA(model, layers, router, rank, alpha)
    lora.resize(num_adapters)
    return lora


def target_shapes(model: nn.Module, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return module path -> (O, I) of the linear layers that `targets` name, in the model's order. Raise ValueError."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    shapes: dict[str, tuple[int, int]] = {}
    unused = set(targets)
    for path, module in model.named_modules():
        hits = {target for target in targets if path == target or path.endswith("." + target)}
        if not hits:
            continue
        if not isinstance(module, nn.Linear) or module is head:
            raise ValueError(f"target {path} is {'the output head' if module is head else type(module).__name__}, not nn.Linear")
        shapes[path] = (module.out_features, module.in_features)
        unused -= hits
    if unused:
        linear = {
            path.rpartition(".")[2]
            for path, module in model.named_modules()
            if isinstance(module, nn.Linear) and module is not head
        }
        raise ValueError(f"targets {sorted(unused)} name no module; its linear layers are {', '.join(sorted(linear)) or 'none'}")
    return shapes


def load_row(lora: GroupedLoRA, row: int, weights: Weights) -> None:
    """Copy one adapter into a row of the stack. Raise ValueError for wrong names or shapes, or for non-finite values."""
    expected = parameter_shapes(lora.shapes(), lora.rank)
    if set(weights) != set(expected):
        raise ValueError(f"adapter has other targets: missing or unknown {sorted(set(weights) ^ set(expected))[:4]}")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise ValueError(f"adapter tensor {name} is {weights[name].shape}, the run's is {shape}")
    flat_P = np.concatenate([weights[name].reshape(-1) for name in expected])
    if not np.isfinite(flat_P).all():
        raise ValueError("adapter contains non-finite values")
    lora._loaded = None
    with torch.no_grad():
        lora.parameters_NP[row].copy_(torch.from_numpy(flat_P))


def unflatten(lora: GroupedLoRA, flat_P: np.ndarray) -> Weights:
    """Return one row of an [N, P] matrix as named arrays."""
    weights, start = {}, 0
    for name, shape in parameter_shapes(lora.shapes(), lora.rank).items():
        size = int(np.prod(shape))
        weights[name] = flat_P[start : start + size].reshape(shape).copy()
        start += size
    return weights
