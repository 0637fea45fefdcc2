"""Parts that several methods share.

mean_pooling: mean tokens, their mean, covariance and standardization
log_distances: log distances, and how they fall with the length of a sequence
side_channel: the base of the methods on channels beside the tokens
sinks: first or last tokens that are nearly the same in all sequences
token_lengths: whether the lengths of tokens outweigh their directions
explanation: what tokens, heads and members contribute to a score
"""
