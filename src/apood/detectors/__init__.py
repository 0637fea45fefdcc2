"""Detectors: each learns from ID sequences, or from ID and AUX sequences, and gives every sequence a score.

Contract, in `contract`:
    base: the base class `Detector`, and the checks of the data
    registry: the methods by name, and those of other distributions
    artefact: detectors on disk

Methods on tokens:
    ap_ood: AP-OOD, attention pooling
    mahalanobis: Mahalanobis distance of the mean token
    relative_mahalanobis: the same relative to AUX sequences
    knn: k-nearest neighbours, in the Euclidean and in the Mahalanobis metric
    deep_svdd: Deep SVDD, and Deep SAD with AUX sequences
    binary_logits: logistic regression between ID and AUX sequences
    length: the number of tokens, as a control
    fusion: several detectors as one, and the recommended detector

Methods on channels beside the tokens:
    perplexity: perplexity of an output or an input
    entropy: entropy of sampled outputs
    logits: maximum softmax probability and energy of a classifier

Shared by several methods, in `shared`:
    mean_pooling: mean tokens, their mean, covariance and standardization
    log_distances: log distances, and how they fall with the length of a sequence
    side_channel: the base of the methods on channels
"""
