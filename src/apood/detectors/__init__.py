"""Detectors: each learns from ID sequences, or from ID and AUX sequences, and gives every sequence a score.

What all detectors share is in `contract` (base class, registry, files), what several methods share in `shared`.

Methods on tokens:
    ap_ood: AP-OOD, attention pooling
    mahalanobis: Mahalanobis distance of the mean token
    relative_mahalanobis: the same relative to AUX sequences
    knn: k-nearest neighbours, in the Euclidean and in the Mahalanobis metric
    deep_svdd: Deep SVDD, and Deep SAD with AUX sequences
    binary_logits: logistic regression between ID and AUX sequences
    trusted: TRUSTED, the statistical depth of the mean token
    length: the number of tokens, as a control
    fusion: several detectors as one, and the recommended detector
    recommended: the members of the recommended detector

Methods on channels beside the tokens:
    coherence: whether every sentence of a text fits the rest of it
    perplexity: perplexity of an output or an input
    entropy: entropy of sampled outputs
    logits: maximum softmax probability and energy of a classifier
"""
