"""AP-OOD: attention pooling for out-of-distribution detection.

detector: the class `APOOD`: fit, score and token contributions
recipe: the settings of the recipes, and the start of a training
training: the losses, the objective of each step, and the pass over the corpus that follows
health: warnings about a training that failed
"""
