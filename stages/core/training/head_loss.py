"""The output head and the loss behind it in one pass, without full logits: log-probabilities, entropies, losses, gradient.

A token's loss is a function of its log-probability l and its entropy H. With z the logits over the temperature, p = softmax(z):

    dL/dz = sum over the tokens t that z predicts of [dL/dl_t (onehot_t - p) - dL/dH_t p (log p + H)]

so the gradient of the logits is known as soon as the logits are, and the forward pass multiplies it by the head's weights while a
chunk of logits exists (as Liger-Kernel's fused linear cross entropy does, Hsu et al. 2024). Two products with the head per hidden
state in place of the three of a backward pass that computes the logits again. The head's own weights get no gradient.

Axes: U hidden states · T response tokens · R hidden states of a block · K tokens of a block · H width · V vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

Head = Callable[[torch.Tensor], torch.Tensor]
TokenLoss = Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]
"""(log-probabilities, entropies, which of the T tokens they are) -> losses, all of the slice's length."""

CHUNK_ELEMENTS = 2**26  # elements of a [states, V] block; in fp32 256 MiB
EVEN_STATES = 64  # a chunk has a multiple of them: with 441 states one took a twelfth longer than with 448 on two CPU cores
BLOCK_ELEMENTS = 2**18  # of a chunk and a thread, in fp32 at once on a CPU: 1 MiB, which a core keeps in its cache


class HeadLoss(NamedTuple):
    """The sum of the losses, which has a gradient, and the values of every token, which have none."""

    total: torch.Tensor
    losses_T: torch.Tensor
    logprobs_T: torch.Tensor
    entropy_T: torch.Tensor


def head_loss(
    hidden_UH: torch.Tensor,
    head: Head,
    targets_T: torch.Tensor,
    temperature: float,
    token_loss: TokenLoss,
    chunk_elements: int = CHUNK_ELEMENTS,
    states_T: np.ndarray | None = None,
) -> HeadLoss:
    """Return the loss of all tokens, with each target's log-probability and each distribution's entropy (nats), at least fp32.

    `states_T` is the hidden state that predicts each token, in ascending order; each predicts one or more. Without it, state t
    predicts token t. At most `chunk_elements` logits exist at once. `token_loss` is called for parts of the tokens, and must be
    differentiable.
    """
    repeated = None if states_T is None or len(states_T) == len(hidden_UH) else states_T
    found = _HeadLoss.apply(hidden_UH, head, targets_T, temperature, token_loss, chunk_elements, repeated)  # type: ignore[no-untyped-call]
    return HeadLoss(*found)


@torch.no_grad()
def token_logprobs(
    hidden_UH: torch.Tensor,
    head: Head,
    targets_T: torch.Tensor,
    temperature: float,
    chunk_elements: int = CHUNK_ELEMENTS,
    states_T: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each target and the entropy (nats) of each distribution, both [T], at least fp32."""
    found = head_loss(hidden_UH, head, targets_T, temperature, lambda logprobs_K, *_: logprobs_K, chunk_elements, states_T)
    return found.logprobs_T, found.entropy_T


class _HeadLoss(torch.autograd.Function):
    """`head_loss` chunk by chunk; saves the gradient of the hidden states, not the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_UH: torch.Tensor,
        head: Head,
        targets_T: torch.Tensor,
        temperature: float,
        token_loss: TokenLoss,
        chunk_elements: int,
        states_T: np.ndarray | None,
    ) -> tuple[torch.Tensor, ...]:
        num_states, learns = len(hidden_UH), ctx.needs_input_grad[0]
        exact = torch.promote_types(torch.float32, hidden_UH.dtype)
        values_3T = hidden_UH.new_empty(3, len(targets_T), dtype=exact)
        grads_UH = torch.empty_like(hidden_UH) if learns else None
        first_U = np.arange(num_states + 1) if states_T is None else np.searchsorted(states_T, np.arange(num_states + 1))
        states = None if states_T is None else torch.from_numpy(states_T).to(targets_T.device)
        size = max(1, chunk_elements // _vocabulary(head, hidden_UH)) if num_states else 1
        size -= size % EVEN_STATES if size > EVEN_STATES else 0
        for start in range(0, num_states, size):
            own_UH = hidden_UH[start : start + size].detach().requires_grad_(learns)
            with torch.set_grad_enabled(learns):
                logits_UV = head(own_UH)
            reused_UV = logits_UV.detach()  # the gradient takes the place of the logits, which nothing else needs
            for block in _blocks(reused_UV):
                tokens = slice(int(first_U[start + block.start]), int(first_U[start + block.stop]))
                one_each = tokens.stop - tokens.start == block.stop - block.start
                rows_K = None if states is None or one_each else states[tokens] - (start + block.start)
                predicted = _Predicted(targets_T[tokens], rows_K)
                gradient_RV = _block(reused_UV[block], predicted, temperature, token_loss, tokens, values_3T, learns)
                if gradient_RV is not None:
                    reused_UV[block] = gradient_RV
            if grads_UH is not None:
                grads_UH[start : start + size] = torch.autograd.grad(logits_UV, own_UH, reused_UV)[0]
        ctx.grads_UH = grads_UH
        losses_T, logprobs_T, entropy_T = values_3T.unbind(0)
        ctx.mark_non_differentiable(losses_T, logprobs_T, entropy_T)
        return losses_T.sum(), losses_T, logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return ctx.grads_UH * grads[0].to(ctx.grads_UH.dtype), None, None, None, None, None, None


class _Predicted(NamedTuple):
    """The tokens that R rows predict. `rows_K` is None where each row predicts one."""

    targets_K: torch.Tensor
    rows_K: torch.Tensor | None

    def of_tokens(self, values_R: torch.Tensor) -> torch.Tensor:
        """[R] -> [K]."""
        return values_R if self.rows_K is None else values_R.index_select(0, self.rows_K)

    def chosen(self, values_RV: torch.Tensor) -> torch.Tensor:
        """Return each token's own entry, [K]."""
        if self.rows_K is None:
            return values_RV.gather(1, self.targets_K[:, None])[:, 0]
        return values_RV.view(-1).index_select(0, self._entries(values_RV))

    def summed(self, values_K: torch.Tensor, values_R: torch.Tensor) -> torch.Tensor:
        """[K] -> [R], shaped like `values_R`."""
        return values_K if self.rows_K is None else _add(torch.zeros_like(values_R), self.rows_K, values_K)

    def add(self, values_RV: torch.Tensor, values_K: torch.Tensor) -> None:
        """Add to each token's own entry, in place."""
        if self.rows_K is None:
            values_RV.scatter_add_(1, self.targets_K[:, None], values_K[:, None])
        else:
            _add(values_RV.view(-1), self._entries(values_RV), values_K)

    def _entries(self, values_RV: torch.Tensor) -> torch.Tensor:
        assert self.rows_K is not None
        return self.rows_K * values_RV.shape[1] + self.targets_K


def _add(sums: torch.Tensor, places_K: torch.Tensor, values_K: torch.Tensor) -> torch.Tensor:
    """Add in place at places that may repeat, always in the same order: one by one on a CPU, sorted on a GPU."""
    if sums.device.type == "cpu":
        return sums.index_add_(0, places_K, values_K)
    return sums.index_put_((places_K,), values_K, accumulate=True)


def _block(
    logits_RV: torch.Tensor,
    predicted: _Predicted,
    temperature: float,
    token_loss: TokenLoss,
    tokens: slice,
    values_3T: torch.Tensor,
    learns: bool,
) -> torch.Tensor | None:
    """Write losses, log-probabilities and entropies of some tokens; return the gradient of their logits if one is wanted."""
    logprobs_RV = _scaled(logits_RV, temperature, values_3T.dtype).log_softmax(-1)
    probabilities_RV = logprobs_RV.exp()
    chosen_K = predicted.chosen(logprobs_RV)
    products_RV = logprobs_RV.mul_(probabilities_RV)
    entropy_R = -products_RV.sum(-1)
    entropy_K = predicted.of_tokens(entropy_R)
    with torch.set_grad_enabled(learns):
        leaves = (chosen_K.requires_grad_(learns), entropy_K.requires_grad_(learns))
        losses_K = token_loss(*leaves, tokens)
    values_3T[0, tokens], values_3T[1, tokens], values_3T[2, tokens] = losses_K.detach(), chosen_K.detach(), entropy_K.detach()
    if not losses_K.requires_grad:
        return torch.zeros_like(logits_RV) if learns else None
    ones_K = torch.ones_like(losses_K)
    found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(losses_K, leaves, ones_K, allow_unused=True)
    logprob_grads_K = torch.zeros_like(chosen_K) if found[0] is None else found[0]
    logprob_grads_R = predicted.summed(logprob_grads_K, entropy_R)
    if found[1] is None:
        grads_RV = probabilities_RV.mul_(-logprob_grads_R[:, None])
    else:
        entropy_grads_R = predicted.summed(found[1], entropy_R)
        shares_R = logprob_grads_R + entropy_grads_R * entropy_R.detach()
        grads_RV = products_RV.mul_(-entropy_grads_R[:, None]).sub_(probabilities_RV.mul_(shares_R[:, None]))
    predicted.add(grads_RV, logprob_grads_K)
    return grads_RV if temperature == 1 else grads_RV.div_(temperature)


def _vocabulary(head: Head, hidden_UH: torch.Tensor) -> int:
    """Return the number of logits of a state, if possible without a product: reading the whole head takes a CPU 50 ms."""
    weight = getattr(head, "weight", None)
    return int((head(hidden_UH[:1].detach()).shape[-1]) if weight is None else weight.shape[0])


def _scaled(logits_RV: torch.Tensor, temperature: float, dtype: torch.dtype) -> torch.Tensor:
    exact_RV = logits_RV.to(dtype)
    return exact_RV if temperature == 1 else exact_RV / temperature


def _blocks(logits_UV: torch.Tensor) -> Iterator[slice]:
    """Yield slices of rows: on a CPU so few that the passes over a block stay in its caches, a row a thread; on a GPU all."""
    count, width = logits_UV.shape
    size = max(1, BLOCK_ELEMENTS // width) * torch.get_num_threads() if logits_UV.device.type == "cpu" else count
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))
