"""AP-OOD: attention pooling for out-of-distribution detection.

detector: the class `APOOD`: fit, score and token contributions
recipe: the settings of the recipes, and the start of a training
shortfall: the distance behind a score
training: the losses, the objective of each step, the pass over the corpus that follows, and warnings of failure
"""
