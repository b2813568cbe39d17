"""The generative reward model's public names: the judging prompt, the verdict and its reward.

parse_verdict('Both add up. {"score_1": 4, "score_2": 2.5, "ranking": 2}') → Verdict(4, 2.5, 2)
training_reward(Verdict(4, 2, 2), Gold(5, 2, 1)) == -2.0
"""

from reward.judge.prompt import judging_messages
from reward.judge.verdict import Gold, Verdict, parse_verdict, training_reward

__all__ = ["Gold", "Verdict", "judging_messages", "parse_verdict", "training_reward"]
