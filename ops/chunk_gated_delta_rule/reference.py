"""The gated delta rule, token by token. Source: Yang et al. 2024, Gated Delta Networks, equation 10."""

import torch


def gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [T, H, K] raw; v [T, HV, V]; g (log decay), beta [T, HV]; state [HV, K, V]; returns o [T, HV, V], state.

    q and k are L2-normalised (1e-6 under the root) and q scaled by K^-0.5; each of them serves HV / H value heads.
    """
    group = v.shape[1] // q.shape[1]
    q, k = (t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(group, dim=1) for t in (q * q.shape[-1] ** -0.5, k))
    out = []
    for t in range(q.shape[0]):
        state = state * g[t].exp()[:, None, None]
        error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], error * beta[t][:, None])
        out.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(out), state


def chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    **_: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat inputs [1, T, heads * width], state [1, HV, K, V]; returns o [HV, T, V] and the state."""
    width = state.shape[-1]
    q, k, v = (t[0].reshape(t.shape[1], -1, width) for t in (q, k, v))
    out, last = gated_delta_rule(q, k, v, g[0], beta[0], state[0])
    return out.transpose(0, 1), last.unsqueeze(0)


def recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    inverse_root: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each sequence: q, k [B, 1, H, K], v [B, 1, HV, V], g, beta [B, 1, HV], state [B, HV, K, V]."""
    rows = [gated_delta_rule(*(t[b] for t in (q, k, v, g, beta, state))) for b in range(q.shape[0])]
    return torch.stack([out for out, _ in rows]), torch.stack([last for _, last in rows])
