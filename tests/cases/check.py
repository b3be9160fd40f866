# SPDX-License-Identifier: Apache-2.0
"""Memory that watches itself: every word of Watched(mib)'s tensors has a known value.

step() rewrites a part and runs an optimizer step, so that moves meet writes; wrong() counts wrong
words.
"""

import torch


class Watched:
    def __init__(self, mib=256, piece_mib=8):
        words = piece_mib * (1 << 20) // 8
        self.t = [torch.full((words,), i, dtype=torch.int64) for i in range(mib // piece_mib)]
        self.v = list(range(len(self.t)))
        self.k = 0
        self.p = torch.zeros(1, requires_grad=True)
        self.opt = torch.optim.SGD([self.p], lr=0.0)

    def step(self, n=4):
        for _ in range(n):
            i = self.k % len(self.t)
            self.k += 1
            self.t[i].add_(1)
            self.v[i] += 1
        self.p.grad = torch.ones(1)
        self.opt.step()

    def wrong(self):
        return sum(int((t != v).sum()) for t, v in zip(self.t, self.v))
