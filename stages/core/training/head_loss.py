"""The output head and the loss behind it in one pass, without full logits: log-probabilities, entropies, losses, gradient.

A token's loss is a function of its log-probability l and its entropy H. With z the logits over the temperature, p = softmax(z):

    dL/dz = dL/dl (onehot - p) - dL/dH p (log p + H)

so the gradient of the logits is known as soon as the logits are, and the forward pass multiplies it by the head's weights while a
chunk of logits exists (as Liger-Kernel's fused linear cross entropy does, Hsu et al. 2024). Two products with the head per token
in place of the three of a backward pass that computes the logits again. The head's own weights get no gradient.

Axes: T response tokens · R rows of a block · H width · V vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

Head = Callable[[torch.Tensor], torch.Tensor]
TokenLoss = Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]
"""(log-probabilities, entropies, which of the T tokens they are) -> losses, all of the slice's length."""

CHUNK_ELEMENTS = 2**26  # elements of a [tokens, V] block; in fp32 256 MiB
EVEN_TOKENS = 64  # a chunk has a multiple of them: with 441 tokens a token took a twelfth longer than with 448 on two CPU cores
BLOCK_ELEMENTS = 2**18  # of a chunk and a thread, in fp32 at once on a CPU: 1 MiB, which a core keeps in its cache


class HeadLoss(NamedTuple):
    """The sum of the losses, which has a gradient, and the values of every token, which have none."""

    total: torch.Tensor
    losses_T: torch.Tensor
    logprobs_T: torch.Tensor
    entropy_T: torch.Tensor


def head_loss(
    hidden_TH: torch.Tensor,
    head: Head,
    targets_T: torch.Tensor,
    temperature: float,
    token_loss: TokenLoss,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> HeadLoss:
    """Return the loss of all tokens, with each target's log-probability and each distribution's entropy (nats), at least fp32.

    At most `chunk_elements` logits exist at once. `token_loss` is called for parts of the tokens, and must be differentiable.
    """
    return HeadLoss(*_HeadLoss.apply(hidden_TH, head, targets_T, temperature, token_loss, chunk_elements))  # type: ignore[no-untyped-call]


@torch.no_grad()
def token_logprobs(
    hidden_TH: torch.Tensor, head: Head, targets_T: torch.Tensor, temperature: float, chunk_elements: int = CHUNK_ELEMENTS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each target and the entropy (nats) of each distribution, both [T], at least fp32."""
    found = head_loss(hidden_TH, head, targets_T, temperature, lambda logprobs_R, *_: logprobs_R, chunk_elements)
    return found.logprobs_T, found.entropy_T


class _HeadLoss(torch.autograd.Function):
    """`head_loss` chunk by chunk; saves the gradient of the hidden states, not the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: torch.Tensor,
        head: Head,
        targets_T: torch.Tensor,
        temperature: float,
        token_loss: TokenLoss,
        chunk_elements: int,
    ) -> tuple[torch.Tensor, ...]:
        num_tokens, learns = len(hidden_TH), ctx.needs_input_grad[0]
        exact = torch.promote_types(torch.float32, hidden_TH.dtype)
        values_3T = hidden_TH.new_empty(3, num_tokens, dtype=exact)
        grads_TH = torch.empty_like(hidden_TH) if learns else None
        size = max(1, chunk_elements // _vocabulary(head, hidden_TH)) if num_tokens else 1
        size -= size % EVEN_TOKENS if size > EVEN_TOKENS else 0
        for start in range(0, num_tokens, size):
            own_TH = hidden_TH[start : start + size].detach().requires_grad_(learns)
            with torch.set_grad_enabled(learns):
                logits_TV = head(own_TH)
            reused_TV = logits_TV.detach()  # the gradient takes the place of the logits, which nothing else needs
            for rows in _blocks(reused_TV):
                tokens = slice(start + rows.start, start + rows.stop)
                gradient_RV = _block(reused_TV[rows], targets_T[tokens], temperature, token_loss, tokens, values_3T, learns)
                if gradient_RV is not None:
                    reused_TV[rows] = gradient_RV
            if grads_TH is not None:
                grads_TH[start : start + size] = torch.autograd.grad(logits_TV, own_TH, reused_TV)[0]
        ctx.grads_TH = grads_TH
        losses_T, logprobs_T, entropy_T = values_3T.unbind(0)
        ctx.mark_non_differentiable(losses_T, logprobs_T, entropy_T)
        return losses_T.sum(), losses_T, logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return ctx.grads_TH * grads[0].to(ctx.grads_TH.dtype), None, None, None, None, None


def _block(
    logits_RV: torch.Tensor,
    targets_R: torch.Tensor,
    temperature: float,
    token_loss: TokenLoss,
    tokens: slice,
    values_3T: torch.Tensor,
    learns: bool,
) -> torch.Tensor | None:
    """Write losses, log-probabilities and entropies of some tokens; return the gradient of their logits if one is wanted."""
    logprobs_RV = _scaled(logits_RV, temperature, values_3T.dtype).log_softmax(-1)
    probabilities_RV = logprobs_RV.exp()
    chosen_R = logprobs_RV.gather(1, targets_R[:, None])[:, 0]
    products_RV = logprobs_RV.mul_(probabilities_RV)
    entropy_R = -products_RV.sum(-1)
    with torch.set_grad_enabled(learns):
        leaves = (chosen_R.requires_grad_(learns), entropy_R.requires_grad_(learns))
        losses_R = token_loss(*leaves, tokens)
    values_3T[0, tokens], values_3T[1, tokens], values_3T[2, tokens] = losses_R.detach(), chosen_R.detach(), entropy_R.detach()
    if not losses_R.requires_grad:
        return torch.zeros_like(logits_RV) if learns else None
    ones_R = torch.ones_like(losses_R)
    found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(losses_R, leaves, ones_R, allow_unused=True)
    logprob_grads_R = torch.zeros_like(chosen_R) if found[0] is None else found[0]
    entropy_grads_R = found[1]
    if entropy_grads_R is None:
        grads_RV = probabilities_RV.mul_(-logprob_grads_R[:, None])
    else:
        shares_R = logprob_grads_R + entropy_grads_R * entropy_R.detach()
        grads_RV = products_RV.mul_(-entropy_grads_R[:, None]).sub_(probabilities_RV.mul_(shares_R[:, None]))
    grads_RV.scatter_add_(1, targets_R[:, None], logprob_grads_R[:, None])
    return grads_RV if temperature == 1 else grads_RV.div_(temperature)


def _vocabulary(head: Head, hidden_TH: torch.Tensor) -> int:
    """Return the number of logits of a token, if possible without a product: reading the whole head takes a CPU 50 ms."""
    weight = getattr(head, "weight", None)
    return int((head(hidden_TH[:1].detach()).shape[-1]) if weight is None else weight.shape[0])


def _scaled(logits_RV: torch.Tensor, temperature: float, dtype: torch.dtype) -> torch.Tensor:
    exact_RV = logits_RV.to(dtype)
    return exact_RV if temperature == 1 else exact_RV / temperature


def _blocks(logits_TV: torch.Tensor) -> Iterator[slice]:
    """Yield slices of rows: on a CPU so few that the passes over a block stay in its caches, a row a thread; on a GPU all."""
    count, width = logits_TV.shape
    size = max(1, BLOCK_ELEMENTS // width) * torch.get_num_threads() if logits_TV.device.type == "cpu" else count
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))
