"""Trains a cart to balance a pole by REINFORCE (Williams 1992), as in PyTorch's example.
The physics of the cart (Barto, Sutton, Anderson 1983) are implemented here in a few lines.

    python clients/python/examples/reinforce.py [--address HOST:PORT]
"""

import argparse
import math
from collections import deque

import numpy as np
import teletensor as torch
import teletensor.nn as nn
import teletensor.nn.functional as F
import teletensor.optim as optim
from teletensor.distributions import Categorical


class CartPole:
    """A cart that is pushed to the left (0) or to the right (1) to keep a pole upright: 1 point for each
    step."""

    def __init__(self, seed, limit=200):
        self.rng = np.random.default_rng(seed)
        self.limit = limit

    def reset(self):
        self.steps = 0
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        return self.state.astype(np.float32)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        speed = push - 0.05 * turn * cos / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * spin, spin + 0.02 * turn])
        self.steps += 1
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180
        return self.state.astype(np.float32), 1.0, done or self.steps >= self.limit


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 64)
        self.affine2 = nn.Linear(64, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=1)


def select_action(policy, state):
    state = torch.from_numpy(state).float().unsqueeze(0)
    probs = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode(policy, optimizer, gamma=0.99):
    R = 0
    policy_loss = []
    returns = deque()
    for r in policy.rewards[::-1]:
        R = r + gamma * R
        returns.appendleft(R)
    returns = torch.tensor(list(returns))
    returns = (returns - returns.mean()) / (returns.std() + np.finfo(np.float32).eps.item())
    for log_prob, R in zip(policy.saved_log_probs, returns, strict=True):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


def train(episodes, seed=543):
    """Trains the policy; returns the length of each episode."""
    env = CartPole(seed)
    policy = Policy()
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)
    lengths = []
    for i_episode in range(1, episodes + 1):
        state, done = env.reset(), False
        while not done:
            action = select_action(policy, state)
            state, reward, done = env.step(action)
            policy.rewards.append(reward)
        lengths.append(len(policy.rewards))
        finish_episode(policy, optimizer)
        if i_episode % 20 == 0:
            mean = sum(lengths[-20:]) / 20
            print(f"Episode {i_episode}\tLast length: {lengths[-1]}\tAverage length: {mean:.1f}")
    return lengths


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="daemon to use: HOST:PORT or unix:PATH")
    parser.add_argument("--episodes", type=int, default=120)
    args = parser.parse_args()
    with torch.connect(args.address):
        torch.manual_seed(543)
        lengths = train(args.episodes)
    first, last = sum(lengths[:20]) / 20, sum(lengths[-20:]) / 20
    print(f"average length {first:.1f} -> {last:.1f}")


if __name__ == "__main__":
    main()
